# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from problems import expect, make_data, make_model, make_problem, naive_bound
from torch.distributions import MultivariateNormal

from pyro_vgpds import OpperArchambeau, Sequences, SparseGP, TemporalGP
from pyro_vgpds.kernels import ARDRBF, Bias

KERNEL = {"variance": 1.2, "weight": torch.tensor([0.8, 1.3])}


def collapsed(data, jitter=1e-8, noise=0.07, num_inducing=6, **options):
    """The integrated distribution of y at random parameters, and q(X)."""
    model, guide = make_model(data, noise=noise, jitter=jitter, num_inducing=num_inducing, **options)
    prior = TemporalGP(model.temporal(), data.times, model.latent_dim)
    q = OpperArchambeau(prior, guide.mean_bar, guide.lam)
    return model.likelihood(q.mean, data).integrate(q), q, model


def sparse(x, kernel, inducing, noise, mean, data=None, jitter=None):
    return SparseGP(x, kernel, inducing=inducing, noise=noise, mean=mean, data=data, jitter=jitter)


def given(fhat, x, data):
    """p(y given x) with the mapping of an integrated distribution of y."""
    gp = fhat.likelihood
    return sparse(x, gp.kernel, gp.inducing, gp.noise, gp.output_mean, data, gp.jitter)


def test_is_the_papers_formula():
    data = make_data()
    fhat, q, model = collapsed(data)
    psi = expect(fhat.likelihood.kernel, q.mean, q.variance, model.inducing, None)
    k_mm = fhat.likelihood.kernel.inducing_cov(model.inducing) + 1e-8 * torch.eye(6)
    expected = naive_bound(psi.psi0[0], psi.psi1, psi.psi2[0], k_mm, 0.07, data.y - model.output_mean)
    torch.testing.assert_close(fhat.log_prob(data.y), expected, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("noise", [0.07, torch.tensor([0.01, 0.05, 0.1, 0.5, 2.0])])
def test_bound_of_d_outputs_is_the_sum_of_d_bounds(noise):
    data = make_data(missing=0.3)
    fhat, q, model = collapsed(data, noise=noise)
    total = 0.0
    for d, own in enumerate(model.noise.expand(5)):
        single = Sequences(torch.arange(data.num_frames), data.y[:, d : d + 1])
        mean = model.output_mean[d : d + 1]
        likelihood = sparse(q.mean, fhat.likelihood.kernel, model.inducing, own, mean, single, 1e-8)
        total = total + likelihood.integrate(q).log_prob(single.y)
    torch.testing.assert_close(fhat.log_prob(data.y), total, rtol=1e-11, atol=1e-9)


def test_masked_is_deleted_rows():
    data = make_data()
    hidden = torch.zeros(data.num_frames, dtype=torch.bool)
    hidden[[2, 5, 11, 20]] = True
    y = data.y.clone()
    y[hidden] = float("nan")
    fhat, q, model = collapsed(data)
    masked = fhat.log_prob(y)
    parts = (q.mean[~hidden], q.variance[~hidden])
    psi = expect(fhat.likelihood.kernel, *parts, model.inducing, None)
    k_mm = fhat.likelihood.kernel.inducing_cov(model.inducing) + 1e-8 * torch.eye(6)
    expected = naive_bound(psi.psi0[0], psi.psi1, psi.psi2[0], k_mm, 0.07, data.y[~hidden] - model.output_mean)
    torch.testing.assert_close(masked, expected, rtol=1e-7, atol=1e-6)


def test_gram_form_is_direct_form():
    # 40 outputs of 21 frames are kept as a 21-column factor; with `columns=True` as themselves
    data = make_data(outputs=40)
    fhat, _, model = collapsed(data)
    assert data.groups(model.output_mean).factor.shape == (21, 21)
    direct = data.groups(model.output_mean, columns=True)
    assert direct.factor.shape == (21, 40)
    short = fhat.log_prob(data.y)
    fhat.likelihood.groups = lambda value: direct
    torch.testing.assert_close(fhat.log_prob(data.y), short, rtol=1e-11, atol=1e-9)


def test_values_that_are_not_the_datas_own_are_read():
    data = make_data(missing=0.1)
    fhat, _, _ = collapsed(data)
    torch.testing.assert_close(fhat.log_prob(data.y.clone()), fhat.log_prob(data.y), rtol=1e-11, atol=1e-9)
    assert fhat.log_prob(data.y + 1.0) < fhat.log_prob(data.y)
    both = fhat.log_prob(torch.stack([data.y, data.y + 1.0]))
    torch.testing.assert_close(both[1], fhat.log_prob(data.y + 1.0))


def test_nothing_observed_adds_nothing():
    data = make_data()
    fhat, *_ = collapsed(data)
    assert fhat.log_prob(torch.full_like(data.y, float("nan"))) == 0.0
    each, *_ = collapsed(data, noise=torch.full((5,), 0.07))
    assert each.log_prob(torch.full_like(data.y, float("nan"))) == 0.0


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_point_q_is_the_sparse_gp(missing):
    data = make_data(missing=missing)
    fhat, q, _model = collapsed(data)

    class Point:
        mean, variance, batch_shape = q.mean, torch.zeros_like(q.mean), torch.Size()

    known = given(fhat, q.mean, data)
    torch.testing.assert_close(known.integrate(Point).log_prob(data.y), known.log_prob(data.y), rtol=1e-10, atol=1e-8)


def test_is_the_exact_gp_where_the_inducing_inputs_are_the_points():
    data = make_data((8,))
    x = torch.randn(8, 2)
    kernel = ARDRBF(**KERNEL)()
    gp = sparse(x, kernel, x, torch.tensor(0.3), torch.zeros(5), data, jitter=1e-10)
    exact = MultivariateNormal(torch.zeros(8), kernel.cov(x, x) + 0.3 * torch.eye(8)).log_prob(data.y.mT).sum()
    torch.testing.assert_close(gp.log_prob(data.y), exact, rtol=1e-7, atol=1e-6)
    fewer = sparse(x, kernel, x[:4], torch.tensor(0.3), torch.zeros(5), data, jitter=1e-10)
    assert fewer.log_prob(data.y) < exact  # and a lower bound otherwise


def test_is_below_the_expected_sparse_bound():
    # q(U) is optimised after x is integrated out, so Monte Carlo over x is tighter: order and gap
    data = make_data()
    fhat, q, _model = collapsed(data)
    x = q.rsample((4000,))
    known = given(fhat, x, data)
    values = known.log_prob(data.y)
    error = values.std() / math.sqrt(len(values))
    assert fhat.log_prob(data.y) < values.mean() - 5 * error


def test_depends_on_marginals_only():
    data = make_data()
    fhat, q, _ = collapsed(data)

    class Factorised:
        mean, variance, batch_shape = q.mean.detach(), q.variance.detach(), torch.Size()

    torch.testing.assert_close(fhat.log_prob(data.y), fhat.likelihood.integrate(Factorised).log_prob(data.y))


def test_is_the_uncollapsed_bound_at_its_optimum_and_so_are_the_gradients():
    data = make_data()
    fhat, q, model = collapsed(data)
    y = data.y - model.output_mean
    n, d = y.shape
    parameters = [model.inducing_unconstrained, *model.mapping.parameters(), model.noise_unconstrained]
    psi = expect(fhat.likelihood.kernel, q.mean, q.variance, model.inducing, None)
    psi0, psi1, psi2 = psi.psi0[0], psi.psi1, psi.psi2[0]
    k = fhat.likelihood.kernel.inducing_cov(model.inducing) + 1e-8 * torch.eye(6)
    beta = 1 / model.noise
    with torch.no_grad():  # the optimal q(U), held
        inside = torch.linalg.inv(k + beta * psi2)
        mean, covariance = beta * k @ inside @ psi1.mT @ y, k @ inside @ k
    projected = torch.linalg.solve(k, psi1.mT)
    second = torch.linalg.solve(k, torch.linalg.solve(k, psi2).mT)
    fit = -0.5 * n * d * (2 * math.pi / beta).log() - 0.5 * beta * (
        y.square().sum()
        - 2 * (y * (projected.mT @ mean)).sum()
        + (second * (mean @ mean.mT)).sum()
        + d * (second * covariance).sum()
        + d * (psi0 - torch.trace(torch.linalg.solve(k, psi2)))
    )
    prior = MultivariateNormal(torch.zeros(6), k)
    kl = torch.distributions.kl_divergence(MultivariateNormal(mean.mT, 0.5 * (covariance + covariance.mT)), prior).sum()
    uncollapsed, value = fit - kl, fhat.log_prob(data.y)
    torch.testing.assert_close(value, uncollapsed, rtol=1e-6, atol=1e-5)
    for a, b in zip(
        torch.autograd.grad(value, parameters, retain_graph=True),
        torch.autograd.grad(uncollapsed, parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(a.abs().max()))


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_one_noise_each_is_the_shared_noise_where_they_are_equal(missing):
    data = make_data(missing=missing)
    shared, *_ = collapsed(data)
    each, *_ = collapsed(data, noise=torch.full((5,), 0.07))
    torch.testing.assert_close(each.log_prob(data.y), shared.log_prob(data.y), rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("noise", [0.07, torch.tensor([0.05, 0.1, 0.2, 0.3, 0.4])])
def test_gradients(missing, noise):
    data = make_data((5, 3), missing=missing)
    # Z spread so that K_MM is well conditioned: finite differences then have digits to compare
    model, guide = make_model(data, noise=noise, jitter=1e-6, num_inducing=4, mapping=ARDRBF(**KERNEL) + Bias(0.2))
    parameters = [*model.parameters(), *guide.parameters()]

    def bound(*_):
        prior = TemporalGP(model.temporal(), data.times, 2)
        q = OpperArchambeau(prior, guide.mean_bar, guide.lam)
        return model.likelihood(q.mean, data).integrate(q).log_prob(data.y)

    assert torch.autograd.gradcheck(bound, parameters, eps=1e-6, atol=1e-5, rtol=1e-5)


def test_equal_eigenvalues_do_no_harm():
    # more inducing inputs than frames: L⁻¹ Ψ2 L⁻ᵀ has many zero eigenvalues, on which eigenvector gradients blow up
    model, _, data = make_problem((3,), noise=torch.linspace(0.1, 0.5, 5), jitter=1e-6, num_inducing=9)
    x = torch.randn(3, 2)
    parameters = [model.noise_unconstrained, model.inducing_unconstrained, *model.mapping.parameters()]

    def value_and_gradients(value):
        return value.detach(), *torch.autograd.grad(value, parameters)

    together = model.likelihood(x, data)
    alone = 0.0  # each output with one noise, which needs no eigenvectors
    for d in range(5):
        part = Sequences(data.times.t, data.y[:, [d]])
        own = SparseGP(
            x, model.mapping(), inducing=model.inducing, noise=model.noise[[d]], mean=model.output_mean[[d]],
            data=part, jitter=model.jitter,
        )  # fmt: skip
        alone = alone + own.log_prob(part.y)
    for ours, exact in zip(value_and_gradients(together.log_prob(data.y)), value_and_gradients(alone), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-6)


def test_batches():
    data = make_data(missing=0.2)
    fhat, q, _model = collapsed(data)
    x = q.rsample((3,))
    together = given(fhat, x, data)
    assert together.batch_shape == (3,)
    alone = [given(fhat, v, data) for v in x]
    torch.testing.assert_close(together.log_prob(data.y), torch.stack([a.log_prob(data.y) for a in alone]))
    assert together.rsample((2,)).shape == (2, 3, data.num_frames, 5)
    assert together.expand((4, 3)).batch_shape == (4, 3)


def test_batches_of_outputs():
    x, kernel = torch.randn(3, 4, 2), ARDRBF(**KERNEL)()
    gp = sparse(x, kernel, torch.randn(3, 2), torch.tensor(0.3), torch.zeros(2))
    y = gp.sample()
    assert gp.log_prob(y).shape == (3,)
    alone = sparse(x[1], kernel, gp.inducing, torch.tensor(0.3), torch.zeros(2))
    torch.testing.assert_close(gp.log_prob(y)[1], alone.log_prob(y[1]))
    with pytest.raises(NotImplementedError, match="no gradient in y"):
        alone.log_prob(y[1].clone().requires_grad_())


def test_samples_are_draws_of_the_gp():
    x, kernel = torch.randn(4, 2), ARDRBF(**KERNEL)()
    gp = sparse(x, kernel, x[:2], torch.tensor(0.3), torch.tensor([1.0, -2.0]))
    y = gp.rsample((40_000,))
    torch.testing.assert_close(y.mean((0, 1)), torch.tensor([1.0, -2.0]), rtol=0, atol=0.03)
    centred = (y - y.mean(0))[..., 0]
    covariance = centred.mT @ centred / len(y)
    torch.testing.assert_close(covariance, kernel.cov(x, x) + 0.3 * torch.eye(4), rtol=0, atol=0.05)


def test_errors():
    x, kernel = torch.randn(4, 2), ARDRBF(**KERNEL)()
    with pytest.raises(ValueError, match=r"noise must be one number, .* or \(\.\.\., 3\), but its shape is \(2,\)"):
        sparse(x, kernel, x, torch.ones(2), torch.zeros(3))
    with pytest.raises(ValueError, match=r"scale must be \(3,\) as mean, one for each output, but got \(2,\)"):
        SparseGP(x, kernel, inducing=x, noise=torch.tensor(0.1), mean=torch.zeros(3), scale=torch.ones(2))
    fhat, *_ = collapsed(make_data())
    with pytest.raises(NotImplementedError, match="sample the model itself"):
        fhat.rsample()


def test_cost_of_the_bound_does_not_grow_with_the_outputs():
    y = np.random.default_rng(0).standard_normal((20, 5000))
    few, many = Sequences(np.arange(20), y[:, :100]), Sequences(np.arange(20), y)
    sizes = [data.groups(data.output_means).factor.shape for data in (few, many)]
    assert sizes == [(20, 20), (20, 20)]


@pytest.mark.parametrize("noise", [1e-4, 3e-4, 1e-3])
@pytest.mark.parametrize("missing", [False, True])
def test_keeps_its_digits_under_an_almost_linear_mapping_with_many_inducing_points(noise, missing):
    # K_MM is then almost singular: rounding in L⁻¹ Ψ2 L⁻ᵀ is as large as I / β, and must not pass for a better bound
    t = torch.linspace(0.0, 8.0, 80)
    x = torch.stack([torch.sin(1.5 * t), torch.cos(1.5 * t)], -1)
    y = x @ torch.randn(2, 6) + math.sqrt(noise) * torch.randn(80, 6)
    if missing:
        y[20:40, :3] = float("nan")
    kernel = ARDRBF(60.0, torch.tensor([0.003, 0.003]))()
    gp = sparse(x, kernel, x, torch.tensor(noise), torch.zeros(6), Sequences(t, y))
    exact = 0.0
    for column in y.mT:
        seen = ~column.isnan()
        k = kernel.cov(x[seen], x[seen]) + noise * torch.eye(int(seen.sum()))
        exact = exact + MultivariateNormal(torch.zeros(len(k)), k).log_prob(column[seen])
    torch.testing.assert_close(gp.log_prob(gp.data.y), exact, rtol=0.0, atol=1.0)
