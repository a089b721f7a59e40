# SPDX-License-Identifier: Apache-2.0
"""A model that scales its outputs is the model of outputs that were divided beforehand, in the data's units."""

import numpy as np
import pyro
import pytest
import torch
from problems import make_data
from pyro.infer import Predictive, Trace_ELBO
from torch.distributions import MultivariateNormal

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, Solver, SparseGP, fit, load, save
from pyro_vgpds.baselines import MapGPLVM
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White
from pyro_vgpds.mapping.posterior_gp import PosteriorGP

UNITS = torch.tensor([1e-3, 0.5, 1.0, 20.0, 3e4])


def uneven(missing=0.0, constant=False) -> Sequences:
    """Outputs of very different units."""
    data = make_data((20, 15), missing=missing)
    y = data.y * UNITS
    if constant:
        y[:, 2] = 7.3
    return Sequences([data.times.t[:20], data.times.t[20:]], list(y.split([20, 15])))


def divided(data: Sequences, scale: torch.Tensor) -> Sequences:
    return Sequences(list(data.times.t.split(data.lengths)), list((data.y / scale).split(data.lengths)))


def trained(data: Sequences, steps: int = 15, **options):
    pyro.clear_param_store()
    pyro.set_rng_seed(3)
    # a mapping that is far from linear: K_MM is well conditioned, so that rounding errors do not grow in training
    model = VGPDS.from_data(data, 2, 8, Matern32() + White(1e-2) + Bias(0.1), ARDRBF(), **options)
    guide = AutoOpperArchambeau(model)
    return model, guide, fit(model, guide, data, steps, progress=False)


def pair(missing=0.0, **options):
    """A model that scales its outputs, and one of divided outputs: posteriors, scale and log Jacobian."""
    data = uneven(missing)
    model, guide, _ = trained(data, scale_outputs=True, **options)
    other_model, other_guide, _ = trained(divided(data, model.output_scale), **options)
    jacobian = float((data.output_counts * model.output_scale.log()).sum())
    posts = Posterior(model, guide, data), Posterior(other_model, other_guide, divided(data, model.output_scale))
    return *posts, model.output_scale, jacobian


@pytest.mark.long
@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize(
    "options", [{}, {"noise_per_output": True}, {"static_dim": 1}, {"constant": True}], ids=lambda o: "".join(o)
)
def test_training_is_that_on_divided_outputs(missing, options):
    options = dict(options)
    data = uneven(missing, options.pop("constant", False))
    model, guide, result = trained(data, scale_outputs=True, **options)
    scale = model.output_scale
    np.testing.assert_allclose(scale[:2], np.nanstd(data.y[:, :2], 0), rtol=1e-12)
    other, other_guide, other_result = trained(divided(data, scale), **options)
    torch.testing.assert_close(other.output_scale, torch.ones(5))
    for own, wanted in ((model, other), (guide, other_guide)):
        for (name, a), b in zip(own.named_parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8, msg=name)
    jacobian = float((data.output_counts * scale.log()).sum())
    assert result.bound == pytest.approx(other_result.bound - jacobian, rel=1e-9)


def test_constant_outputs_have_scale_one():
    data = uneven(constant=True)
    assert data.output_scales[2] == 1.0
    assert VGPDS.from_data(data, 2, 8, scale_outputs=True).output_scale[2] == 1.0


def test_is_a_bound_on_the_density_of_the_data():
    # Z = X: the bound is the exact log-density of y, in the data's units
    x, kernel, scale, mean = torch.randn(8, 2), ARDRBF(1.2, 0.8)(), UNITS, torch.arange(5.0)
    noise = torch.tensor([0.3])
    for each in (noise, noise.expand(5).clone()):
        gp = SparseGP(x, kernel, inducing=x, noise=each, mean=mean, scale=scale, jitter=1e-10)
        y = gp.sample()
        covariance = kernel.cov(x, x) + 0.3 * torch.eye(8)
        exact = sum(
            MultivariateNormal(mean[d].expand(8), scale[d] ** 2 * covariance).log_prob(y[:, d]) for d in range(5)
        )
        torch.testing.assert_close(gp.log_prob(y), exact, rtol=1e-6, atol=1e-6)
        y[3:5, 1] = float("nan")
        seen = torch.tensor([0, 1, 2, 5, 6, 7])
        one = MultivariateNormal(mean[1].expand(6), scale[1] ** 2 * covariance[seen][:, seen]).log_prob(y[seen, 1])
        rest = sum(
            MultivariateNormal(mean[d].expand(8), scale[d] ** 2 * covariance).log_prob(y[:, d]) for d in (0, 2, 3, 4)
        )
        torch.testing.assert_close(gp.log_prob(y), one + rest, rtol=1e-6, atol=1e-6)


def test_samples_are_in_the_units_of_the_data():
    x, kernel = torch.randn(4, 2), ARDRBF(1.2, 0.8)()
    noise, mean, scale = torch.tensor(0.3), torch.tensor([1.0, -2.0]), torch.tensor([10.0, 0.1])
    gp = SparseGP(x, kernel, inducing=x[:2], noise=noise, mean=mean, scale=scale)
    y = gp.rsample((20_000,))
    torch.testing.assert_close((y.mean((0, 1)) - mean) / scale, torch.zeros(2), rtol=0, atol=0.05)
    torch.testing.assert_close(y.var((0, 1)) / scale.square(), torch.full((2,), 1.5), rtol=0.05, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"noise_per_output": True}])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_predictions_are_in_the_units_of_the_data(missing, options):
    own, other, scale, jacobian = pair(missing, **options)
    assert own.bound == pytest.approx(other.bound - jacobian, rel=1e-9)
    torch.testing.assert_close(own.noise_variance, other.noise_variance * scale.square(), rtol=1e-7, atol=0)
    torch.testing.assert_close(own.inducing_mean, other.inducing_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.inducing_covariance(3), other.inducing_covariance(3), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(own.residual_variance() / scale.square(), other.residual_variance(), rtol=1e-6, atol=0)
    t = [3.1, 3.3, 3.9]
    predictions = [post.forecast(t, 0, full_cov=True) for post in (own, other)]
    torch.testing.assert_close(predictions[0].mean / scale, predictions[1].mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(predictions[0].variance / scale.square(), predictions[1].variance, rtol=1e-6, atol=0)
    whole = predictions[0].covariance / (scale.unsqueeze(-1) * scale)
    torch.testing.assert_close(whole, predictions[1].covariance, rtol=1e-5, atol=1e-8)
    draws = []
    for prediction in predictions:
        pyro.set_rng_seed(1)
        draws.append(prediction.sample(3))
    torch.testing.assert_close(draws[0] / scale, draws[1], rtol=1e-4, atol=1e-4)
    x = torch.randn(2, 3, 2)
    given = [PosteriorGP(x, post.inducing) for post in (own, other)]
    torch.testing.assert_close(given[0].mean / scale, given[1].mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(given[0].variance / scale.square(), given[1].variance, rtol=1e-6, atol=0)
    density = given[1].log_prob(draws[1][0]) - 3 * scale.log().sum()
    torch.testing.assert_close(given[0].log_prob(draws[1][0] * scale), density, rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"factorised": True}, {"trust": 0.3}, {"free": True}])
def test_reconstructions_are_in_the_units_of_the_data(options):
    own, other, scale, jacobian = pair()
    seen = own.data.y[:10].clone()
    seen[4:, 3:] = float("nan")
    found = []
    for post, y in ((own, seen), (other, seen / scale)):
        pyro.set_rng_seed(1)
        found.append(post.reconstruct(own.data.times.t[:10], y, solver=Solver(num_steps=20), **options))
    counts = torch.isfinite(seen).sum(0)
    more = float((counts * scale.log()).sum())
    assert found[0].bound == pytest.approx(found[1].bound - jacobian - more, rel=1e-7)
    torch.testing.assert_close(found[0].mean / scale, found[1].mean, rtol=1e-4, atol=1e-4)
    scores = own.log_density(own.data.times.t[:10], seen), other.log_density(own.data.times.t[:10], seen / scale)
    assert scores[0].item() == pytest.approx(scores[1].item() - more, rel=1e-5)


def test_residuals_are_in_the_units_of_the_data():
    data = uneven(0.2)
    model, guide, _ = trained(data, scale_outputs=True)
    scale = model.output_scale
    other, other_guide, _ = trained(divided(data, scale))
    found = []
    for parts in ((model, guide, data), (other, other_guide, divided(data, scale))):
        pyro.set_rng_seed(1)
        ahead = Posterior(*parts, residual=Bias(0.5) + White(0.5)).forecast([1.1, 3.3, 3.9], 0)
        found.append((ahead.mean, ahead.variance, ahead.sample(2)))
    torch.testing.assert_close(found[0][0] / scale, found[1][0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found[0][1] / scale.square(), found[1][1], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[0][2] / scale, found[1][2], rtol=1e-4, atol=1e-4)


def test_another_noise_or_scale():
    x, kernel = torch.randn(6, 2), ARDRBF(1.2, 0.8)()
    y = torch.randn(6, 3)
    noise, mean, scale = torch.tensor(0.3), torch.zeros(3), torch.full((3,), 2.0)
    likelihood = SparseGP(x, kernel, inducing=x, noise=noise, mean=mean, scale=scale)
    assert likelihood.noise_variance.tolist() == pytest.approx([1.2])
    same = likelihood.replaced()
    torch.testing.assert_close(same.log_prob(y), likelihood.log_prob(y))
    scale = torch.tensor([1.0, 2.0, 4.0])
    other = likelihood.replaced(scale=scale)  # the noise of the data stays
    torch.testing.assert_close(other.noise, 1.2 / scale.square())
    torch.testing.assert_close(other.noise_variance, torch.full((3,), 1.2))
    louder = likelihood.replaced(noise_variance=torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(louder.noise, torch.tensor([0.1, 0.2, 0.3]) / 4)


def test_every_algorithm_sees_the_scaled_model():
    data = uneven()
    model, guide, result = trained(data, scale_outputs=True)
    prior = Predictive(model, num_samples=200)(Sequences(data.times.t[:20]))["y"]
    spread = (prior - model.output_mean).square().mean((0, 1)).sqrt() / model.output_scale
    assert (spread > 0.3).all()
    assert (spread < 5.0).all()
    sampled = Trace_ELBO(num_particles=20).loss(model, guide, data)
    assert -sampled > result.bound - 20.0  # tighter, except for the noise of its samples


def test_files_keep_it(tmp_path):
    data, path = uneven(), tmp_path / "model.safetensors"
    model, guide, result = trained(data, scale_outputs=True)
    save(path, model, guide, data)
    again = load(path)
    torch.testing.assert_close(again[0].output_scale, model.output_scale)
    assert Posterior(*again).bound == pytest.approx(result.bound, rel=1e-10)
    header, tensors = read_file(path, "model")
    del tensors["model.output_scale"]  # as in files of earlier versions
    write_file(path, "model", header, tensors)
    assert torch.equal(load(path)[0].output_scale, torch.ones(5))


def test_the_map_estimate_scales_as_well():
    data = uneven()
    scale = data.output_scales
    seen = data.y[:6].clone()
    seen[:, 3:] = float("nan")
    found = []
    for source, y, options in ((data, seen, {"scale_outputs": True}), (divided(data, scale), seen / scale, {})):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        rival = MapGPLVM.fit(VGPDS.from_data(source, 2, 8, **options), source, num_steps=5)
        found.append(rival.reconstruct(data.times.t[:6], y, num_steps=5))
    torch.testing.assert_close(found[0] / scale, found[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.ones(2), r"output_scale must be \(3,\) as output_mean, but its shape is \(2,\)"),
        ([1.0, 0.0, 1.0], "output_scale must be positive and finite"),
        ([1.0, float("nan"), 1.0], "output_scale must be positive and finite"),
    ],
)
def test_bad_scales(scale, message):
    with pytest.raises(ValueError, match=message):
        VGPDS(White(), ARDRBF(), torch.zeros(4, 2), 0.1, torch.zeros(3), output_scale=scale)
