# SPDX-License-Identifier: Apache-2.0
"""A linear kernel's own weights as inducing variables, against inducing inputs and against the exact GP."""

import pytest
import torch
from problems import make_data, make_model, make_problem

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, Sequences, SparseGP, fit, load, save
from pyro_vgpds.kernels import ARDRBF, ARDLinear, ARDLinearValue, Bias, White
from pyro_vgpds.likelihoods import Poisson
from pyro_vgpds.mapping import latent_gp, sparse_gp
from pyro_vgpds.mapping.basis import InducingInputs, LinearWeights, basis_of, linear_form
from pyro_vgpds.mapping.quadratic_forms import outer_sums, quadratic_forms
from pyro_vgpds.prediction import Solver

KERNELS = {
    "linear": lambda: ARDLinear([0.5, 1.1, 0.2]),
    "one weight": lambda: ARDLinear(0.7),
    "bias": lambda: ARDLinear([0.5, 1.1, 0.2]) + Bias(0.3),
    "sum": lambda: Bias(0.2) + ARDLinear([0.5, 1.1, 0.2]) + ARDLinear(0.4) + Bias(0.1),
}


SIZES = {"linear": 3, "one weight": 3, "bias": 4, "sum": 4}  # inducing inputs that are enough


@pytest.fixture
def with_inputs(monkeypatch):
    """Turns on inducing inputs for linear kernels, with the model's jitter."""

    def use():
        for module in (sparse_gp, latent_gp):
            monkeypatch.setattr(module, "basis_of", InducingInputs)

    return use


def evaluated(model, guide, data):
    bound = Collapsed_ELBO().differentiable_loss(model, guide, data)
    leaves = {**dict(model.named_parameters()), **dict(guide.named_parameters())}
    leaves = {name: p for name, p in leaves.items() if "inducing" not in name}  # whose gradient is 0
    return bound, dict(zip(leaves, torch.autograd.grad(bound, list(leaves.values())), strict=True))


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_bound_and_gradients_are_those_of_enough_inducing_inputs(kernel, per_output, missing, with_inputs):
    data = make_data(missing=missing)
    noise = torch.linspace(0.05, 0.2, 5) if per_output else 0.07
    model, guide = make_model(data, 3, SIZES[kernel], KERNELS[kernel](), noise=noise, jitter=0.0)
    bound, grads = evaluated(model, guide, data)
    with_inputs()
    expected, expected_grads = evaluated(model, guide, data)
    torch.testing.assert_close(bound, expected, rtol=1e-9, atol=0.0)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, expected_grads[name], rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("kernel", KERNELS)
def test_bound_of_known_points_is_the_exact_gp_whatever_the_inducing_inputs(kernel):
    x, y, value = torch.randn(9, 3), torch.randn(9, 4), KERNELS[kernel]()()
    gp = SparseGP(x, value, inducing=torch.zeros(1, 3), noise=torch.tensor(0.2), mean=torch.zeros(4))
    exact = torch.distributions.MultivariateNormal(torch.zeros(9), value.cov(x, x) + 0.2 * torch.eye(9))
    torch.testing.assert_close(gp.log_prob(y), exact.log_prob(y.mT).sum())


def test_hyperparameters_in_a_batch():
    x, y = torch.randn(9, 3), torch.randn(9, 4)
    y[2:5, 1] = torch.nan
    weight, bias = torch.rand(5, 3), torch.rand(5, 1)

    def bound(weight, bias, x):
        kernel = ARDLinear([0.5, 1.1, 0.2]) + Bias(0.3)
        value = kernel()
        value.parts[0].weight, value.parts[1].variance = weight, bias
        return SparseGP(
            x, value, inducing=torch.zeros(2, 3), noise=torch.full((*weight.shape[:-1], 1), 0.3), mean=torch.zeros(4)
        ).log_prob(y)

    each = torch.stack([bound(w, b, x) for w, b in zip(weight, bias, strict=True)])
    torch.testing.assert_close(bound(weight, bias, x), each)
    several = torch.randn(5, 9, 3)
    each = torch.stack([bound(w, b, p) for w, b, p in zip(weight, bias, several, strict=True)])
    torch.testing.assert_close(bound(weight, bias, several), each)


def test_fewer_inducing_inputs_were_a_lower_bound(with_inputs):
    model, guide, data = make_problem(latent_dim=3, num_inducing=2, mapping=ARDLinear([0.5, 1.1, 0.2]))
    exact = -Collapsed_ELBO().loss(model, guide, data)
    with_inputs()
    assert -Collapsed_ELBO().loss(model, guide, data) < exact


@pytest.mark.parametrize("kernel", ["linear", "sum"])
def test_predictions_are_those_of_enough_inducing_inputs(kernel, with_inputs, tmp_path):
    data = make_data(missing=0.2)
    model, guide = make_model(data, 3, SIZES[kernel], KERNELS[kernel](), jitter=0.0)
    t, seen = torch.linspace(0.1, 2.9, 6), make_data((6,), seed=3).read()
    seen[:, 3:] = torch.nan

    def predicted(posterior):
        told = posterior.forecast(t, sequence=0)
        rest = posterior.reconstruct(t, seen, solver=Solver(num_starts=1, num_steps=3))
        return [
            told.mean, told.variance, told.covariance, rest.mean, rest.variance, posterior.inducing_mean,
            posterior.inducing_covariance(1), torch.tensor(posterior.bound),
        ]  # fmt: skip

    found = predicted(Posterior(model, guide, data))
    save(tmp_path / "linear.safetensors", model, guide, data)
    again = predicted(Posterior(*load(tmp_path / "linear.safetensors")))
    with_inputs()
    for a, b, c in zip(found, again, predicted(Posterior(model, guide, data)), strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-8)


def test_outputs_that_are_not_gaussian(with_inputs):
    torch.manual_seed(0)
    y = torch.poisson(3.0 * torch.ones(24, 4))
    y[3:6, 2] = torch.nan
    data = Sequences(torch.arange(24.0), y)
    model = VGPDS.from_data(data, 2, mapping=ARDLinear(0.5) + Bias(0.2), likelihood=Poisson(), jitter=0.0)
    assert model.num_inducing == 3
    guide = AutoOpperArchambeau(model)
    Collapsed_ELBO().loss_and_grads(model, guide, data)
    bound, grads = evaluated(model, guide, data)
    with_inputs()
    expected, expected_grads = evaluated(model, guide, data)
    torch.testing.assert_close(bound, expected, rtol=1e-9, atol=0.0)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, expected_grads[name], rtol=1e-6, atol=1e-6, msg=name)


def test_draws_have_the_predicted_moments():
    data = make_data()
    model, guide = make_model(data, 3, mapping=ARDLinear([0.5, 1.1, 0.2]) + Bias(0.3))
    torch.manual_seed(0)
    told = Posterior(model, guide, data).forecast(torch.linspace(0.0, 3.0, 5), sequence=0)
    draws = told.sample(20_000)
    torch.testing.assert_close(draws.mean(0), told.mean, rtol=0.0, atol=0.05)
    torch.testing.assert_close(draws.var(0), told.variance, rtol=0.1, atol=0.0)


def test_training_without_gradients_of_the_inducing_inputs():
    data = make_data((30, 20), missing=0.1)
    model = VGPDS.from_data(data, 3, mapping=ARDLinear())
    guide, before = AutoOpperArchambeau(model), model.inducing.detach().clone()
    assert before.shape == (4, 3)
    for method in ("natural", "lbfgs", "adam"):
        result = fit(model, guide, data, num_steps=2, method=method, progress=False)
        assert torch.isfinite(torch.tensor(result.bound))
    assert model.inducing.equal(before)
    assert model.relevance(guide, data).value.shape == model.relevance().value.shape == (3,)


def test_only_linear_kernels_are_linear():
    class Other(ARDLinearValue):
        """May be any other function."""

    linear, z = ARDLinear([0.5, 1.1])(), torch.randn(4, 2)
    assert isinstance(basis_of(linear, z, None), LinearWeights)
    for kernel in (Other(linear.weight), ARDRBF()(), Bias()(), White()(), (ARDLinear() + White())(),
                   (ARDLinear() + ARDRBF())()):  # fmt: skip
        assert isinstance(basis_of(kernel, z, None), InducingInputs)
    assert linear_form(Bias(0.5)()).weight is None


def test_weights_that_vanish_have_finite_gradients():
    value = ARDLinear([0.5, 1.1])()
    value.weight = torch.tensor([0.5, 0.0], requires_grad=True)
    gp = SparseGP(torch.randn(6, 2), value, inducing=torch.zeros(1, 2), noise=torch.tensor(0.2), mean=torch.zeros(3))
    (grad,) = torch.autograd.grad(gp.log_prob(torch.randn(6, 3)), value.weight)
    assert torch.isfinite(grad).all()


def test_quadratic_forms_against_einsum(monkeypatch):
    monkeypatch.setattr("pyro_vgpds.mapping.quadratic_forms._PAIRS", 30)  # several blocks
    a, half = torch.randn(4, 11, requires_grad=True), torch.randn(3, 4, 4)
    matrices = (half + half.mT).requires_grad_()
    torch.testing.assert_close(quadratic_forms(a, matrices), torch.einsum("ir,dij,jr->dr", a, matrices, a))
    assert torch.autograd.gradcheck(lambda a, x: quadratic_forms(a, x + x.mT), (a, matrices))


@pytest.mark.parametrize("few", [0, 1 << 16])
def test_outer_sums_against_einsum(monkeypatch, few):
    monkeypatch.setattr("pyro_vgpds.mapping.quadratic_forms._PAIRS", 30)  # several blocks
    monkeypatch.setattr("pyro_vgpds.mapping.quadratic_forms._FEW", few)
    a, weights = torch.randn(4, 11, requires_grad=True), torch.randn(3, 11, requires_grad=True)
    torch.testing.assert_close(outer_sums(a, weights), torch.einsum("ir,dr,jr->dij", a, weights, a))
    assert torch.autograd.gradcheck(outer_sums, (a, weights))
    assert torch.autograd.gradcheck(lambda a: outer_sums(a, weights.detach()), (a,))
