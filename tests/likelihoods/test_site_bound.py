# SPDX-License-Identifier: Apache-2.0
"""Likelihoods of any form: the estimate against dense quadrature, gradients, and training beside the lower bounds."""

import math
import re
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import functions_by_quadrature

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Sequences, fit
from pyro_vgpds.inference import bound_with_spread
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White
from pyro_vgpds.likelihoods import Bernoulli, ByColumn, NegativeBinomial, Poisson, SiteLikelihood, StudentT
from pyro_vgpds.likelihoods.factors import Moments
from pyro_vgpds.likelihoods.quadrature import hermite_nodes
from pyro_vgpds.mapping.drawn import path_draws, randomised


class AnyBernoulli(SiteLikelihood):
    is_discrete = True

    def distribution(self, f, p):
        return dist.Bernoulli(logits=f)

    def link(self, mean, p):
        return torch.logit(mean)


class AnyNegativeBinomial(SiteLikelihood):
    is_discrete = True

    def __init__(self, dispersion):
        super().__init__()
        self.add_parameter("dispersion", dispersion)

    def distribution(self, f, p):
        return dist.NegativeBinomial(p.dispersion.expand(f.shape), logits=f)

    def link(self, mean, p):
        return mean.log() - p.dispersion.log()


class AnyStudentT(SiteLikelihood):
    """Not log-concave, and so narrow that quadrature needs many nodes."""

    num_nodes = 80

    def distribution(self, f, p):
        return dist.StudentT(3.0, f, 0.3)


class QuadraturePoisson(SiteLikelihood):
    is_discrete = True
    num_nodes = 40

    def distribution(self, f, p):
        return dist.Poisson(f.exp())

    def link(self, mean, p):
        return mean.log()


class Heteroscedastic(SiteLikelihood):
    num_functions = 2

    def distribution(self, f, p):
        return dist.Normal(f[..., 0], (0.5 * f[..., 1]).exp())

    def link(self, mean, p):
        return torch.stack([mean, torch.full_like(mean, -1.0)], -1)


class Mixed(ByColumn):
    def __init__(self):
        super().__init__([(Heteroscedastic(), [1]), (NegativeBinomial([3.0]), [0])])


CASES = {
    "poisson": Poisson,
    "bernoulli": AnyBernoulli,
    "negative-binomial": lambda: AnyNegativeBinomial([3.0, 4.0]),
    "student-t": AnyStudentT,
    "heteroscedastic": Heteroscedastic,
    "mixed": Mixed,
    "tangent": lambda: NegativeBinomial([3.0, 4.0]),
    "tangent student-t": lambda: StudentT([0.3, 0.4], 3.0),
}


def small(name: str, q: int = 2, n: int = 6):
    """A model with every kind of parameter, a guide and data."""
    y = torch.poisson(2.0 * torch.rand(n, 2))
    if "bernoulli" in name:
        y = y.clamp_max(1.0)
    y[1, 0] = math.nan
    data = Sequences(np.arange(float(n)), y.numpy())
    likelihood = CASES[name]()
    count = 2 * likelihood.num_functions
    model = VGPDS(
        Matern32(lengthscale=2.0) + White(0.1), ARDRBF(1.2, 0.3 + torch.rand(q)) + Bias(0.1), torch.randn(3, q), None,
        0.3 * torch.randn(count), likelihood=likelihood, output_scale=0.5 + torch.rand(count),
    )  # fmt: skip
    return model, AutoOpperArchambeau(model, mean_bar=torch.randn(n, q), lam=torch.rand(n, q) + 1.0), data


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_everything(name):
    model, guide, data = small(name)
    elbo = Collapsed_ELBO()
    elbo.loss(model, guide, data)
    model.sites.is_held = True
    parameters = dict([*model.named_parameters(), *guide.named_parameters()])
    for parameter in parameters.values():
        parameter.grad = None
    elbo.loss_and_grads(model, guide, data)
    assert len(parameters) >= 10
    for label, parameter in parameters.items():
        flat, expected = parameter.data.view(-1), torch.zeros(parameter.numel())
        for i in range(len(flat)):
            value, losses = float(flat[i]), []
            for step in (1e-5, -1e-5):
                flat[i] = value + step
                losses.append(elbo.loss(model, guide, data))
            flat[i] = value
            expected[i] = (losses[0] - losses[1]) / 2e-5
        torch.testing.assert_close(parameter.grad.flatten(), expected, rtol=1e-6, atol=1e-6, msg=f"{name}: {label}")


@pytest.mark.parametrize("name", [name for name in CASES if "tangent" not in name])
def test_estimate_against_dense_quadrature(name):
    """At Q = 1, with E over x on a grid of 100 nodes, q(U) in the basis of u, and f by 120 nodes (40² for two)."""
    model, guide, data = small(name, q=1)
    estimate = bound_with_spread(model, guide, data, num_sets=30)
    with torch.no_grad():
        expected = dense_bound(model, guide, data)
    assert 0.0 < estimate.standard_error < 0.05
    assert abs(estimate.value - expected) < 3.0 * estimate.standard_error
    close = bound_with_spread(model, guide, data, num_sets=4, num_draws=512)
    assert abs(close.value - expected) < 3.0 * max(close.standard_error, 1e-5)


def dense_bound(model: VGPDS, guide: AutoOpperArchambeau, data: Sequences) -> float:
    q = guide.posterior(data)
    gp, value, y = model.functions(q.mean), model.output_likelihood(), data.y
    sites = value.sites(y, model.sites.state)
    k_mm = gp.inducing_factor() @ gp.inducing_factor().mT
    weights, found = functions_by_quadrature(gp, q, sites, k_mm, 100)
    means, variances, divergences = zip(*found, strict=True)
    f_mean, f_sd = torch.stack(means, -1).movedim(1, 0), torch.stack(variances, -1).movedim(1, 0).sqrt()  # (G, N, F)
    likelihood, count = model.output_likelihood, model.output_likelihood.num_functions
    z, z_weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(40 if count == 2 else 120))
    z_weights = z_weights / z_weights.sum()
    drawn = torch.tensor([bool(is_drawn(likelihood, d)) for d in range(2)])
    logs = torch.zeros(len(weights), *y.shape)
    for i, first in enumerate(z):
        for j, second in enumerate(z if count == 2 else z[:1]):
            share = z_weights[i] * (z_weights[j] if count == 2 else 1.0)
            point = torch.stack([first, second]).repeat(2) if count == 2 else first
            logs += share * value.log_prob(f_mean + f_sd * point, y)
    expected_log = torch.einsum("g,gnd->nd", weights, logs)
    square = f_mean.square() + f_sd.square()
    factors = torch.einsum("g,gnf->nf", weights, sites.linear * f_mean - 0.5 * sites.weight * square) + sites.constant
    factors = factors.unflatten(-1, (-1, count)).sum(-1)
    total = torch.where(drawn, expected_log, factors).sum() - sum(divergences)
    return float(total - torch.distributions.kl_divergence(q, q.prior).sum())


def is_drawn(likelihood, output: int) -> bool:
    parts = likelihood.parts(likelihood().parameters, 2)
    return next(part.likelihood.is_drawn for part in parts if part.outputs is None or output in part.outputs.tolist())


def test_closed_form_of_poisson_equals_quadrature():
    y, mean, variance = torch.poisson(3.0 * torch.ones(5, 2)), torch.randn(4, 5, 2), torch.rand(4, 5, 2)
    exact = Poisson().expected_log_prob(y, mean, variance, None)
    torch.testing.assert_close(exact, QuadraturePoisson().expected_log_prob(y, mean, variance, None))


def test_blocks_change_nothing(monkeypatch):
    model, guide, data = small("mixed")
    whole = Collapsed_ELBO().loss(model, guide, data)
    monkeypatch.setattr("pyro_vgpds.mapping.drawn._BLOCK", 1)
    assert Collapsed_ELBO().loss(model, guide, data) == pytest.approx(whole, abs=1e-10)


def test_draws_are_antithetic_normal_and_stay_with_their_frames():
    z = path_draws(8, 4000, 3)
    torch.testing.assert_close(z.sum(0), torch.zeros(4000, 3))
    assert float(z.square().mean()) == pytest.approx(1.0, abs=0.02)
    assert path_draws(8, 10, 3).equal(z[:, :10])
    with randomised(5):
        assert not path_draws(8, 10, 3).equal(z[:, :10])
    with randomised(5, num_draws=2):
        assert path_draws(8, 10, 3).shape == (2, 10, 3)


def test_bound_with_spread_of_a_lower_bound_is_exact():
    model, guide, data = small("tangent")
    found = bound_with_spread(model, guide, data, num_sets=3)
    assert found.standard_error == found.spread == 0.0
    assert found.value == pytest.approx(-Collapsed_ELBO().loss(model, guide, data), abs=1e-12)


def test_more_draws_have_a_smaller_spread():
    model, guide, data = small("poisson")
    few, many = (bound_with_spread(model, guide, data, num_sets=10, num_draws=n) for n in (4, 64))
    assert many.spread < 0.5 * few.spread
    assert few.spread == pytest.approx(few.standard_error * math.sqrt(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_sets": 1}, "num_sets must be a whole number of at least 2, but got 1"),
        ({"num_draws": 3}, "num_draws must be an even number, as draws come in pairs, but got 3"),
        ({"num_draws": 0}, "num_draws must be a whole number of at least 2"),
    ],
)
def test_bad_arguments_of_bound_with_spread(options, message):
    with pytest.raises(ValueError, match=message):
        bound_with_spread(*small("poisson"), **options)


def test_updates_stay_in_the_positive_cone():
    """Non-concave log p, moments that overflow, and entries that were not observed."""
    y = torch.tensor([[0.0, math.nan, 40.0]])
    huge = Moments(torch.tensor([[500.0, 0.0, -500.0]]), torch.tensor([[500.0**2 + 900.0, 1.0, 500.0**2 + 1.0]]))
    state = torch.tensor([[[0.1, 0.0, 1.0]], [[0.5, 0.0, 2.0]]])
    for likelihood in (Poisson(), AnyStudentT()):
        new = likelihood.updated(y, state, huge, likelihood().parameters, 1.0)
        assert torch.isfinite(new).all()
        assert (new[1, 0, [0, 2]] > 0.0).all()
        assert (new[:, 0, 1] == 0.0).all()


def counts(kind: str):
    rng = np.random.default_rng(3)
    t = np.linspace(0.0, 8.0, 120)
    x = np.stack([np.sin(1.5 * t), np.cos(t)], 1)
    f = 1.5 * np.tanh(x @ rng.standard_normal((2, 10)))
    y = rng.poisson(np.exp(f)) if kind == "counts" else rng.random(f.shape) < 1.0 / (1.0 + np.exp(-2.0 * f))
    return t, y.astype(float), rng.random(f.shape) < 0.2


def trained(likelihood, t, y, hidden, steps=40):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    data = Sequences(t, np.where(hidden, np.nan, y))
    model = VGPDS.from_data(data, 2, 15, temporal=Matern32() + White(1e-2) + Bias(0.1), likelihood=likelihood)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, num_steps=steps)
    return model, guide, data, [record.bound for record in result.history]


def held_out_score(model, guide, data, y, hidden) -> float:
    """Mean log-probability of hidden entries under the mixture over x (draws) and f given x (quadrature)."""
    with torch.no_grad():
        q, value = guide.posterior(data), model.output_likelihood()
        latent, sites = model.functions(q.mean).integrate(q), value.sites(data.y, model.sites.state)
        given = latent.gp.given(*latent._bound(sites)[1:]).of(slice(None))
        mean, variance = given.moments(q.mean + q.variance.sqrt() * path_draws(64, *q.mean.shape))
        z, weights = hermite_nodes(15, model.output_likelihood.num_functions)
        f = mean + variance.sqrt() * z.repeat(1, model.num_outputs)[:, None, None]
        log = value.log_prob(f, torch.from_numpy(y)) + weights.log()[:, None, None, None]
        mixture = torch.logsumexp(log.flatten(0, 1), 0) - math.log(len(mean[:, 0, 0]))
        return float(mixture[torch.from_numpy(hidden)].mean())


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "tangent", "other"),
    [("yes/no", Bernoulli, AnyBernoulli), ("counts", lambda: NegativeBinomial(5.0), lambda: AnyNegativeBinomial(5.0))],
)
def test_held_out_score_is_that_of_the_lower_bound(kind, tangent, other):
    t, y, hidden = counts(kind)
    scores = []
    for make in (tangent, other):
        model, guide, data, bounds = trained(make(), t, y, hidden)
        assert bounds[-1] > bounds[0]
        scores.append(held_out_score(model, guide, data, y, hidden))
    assert scores[1] == pytest.approx(scores[0], rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("make", [Poisson, AnyStudentT, Heteroscedastic])
def test_training_raises_the_bound(make):
    t, y, hidden = counts("counts")
    *_, bounds = trained(make(), t, y if make is Poisson else np.log(y + 0.5), hidden, steps=15)
    assert bounds[-1] > bounds[0] + 10.0
    assert all(math.isfinite(bound) for bound in bounds)


def documented() -> dict:
    """The likelihoods of docs/extending.md, without the training there."""
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text().split("## A likelihood")[1]
    namespace: dict = {"torch": torch, "dist": dist, "SiteLikelihood": SiteLikelihood}
    for source in re.findall(r"(^class .*?)(?=\n\n\n)", page, re.DOTALL | re.MULTILINE):
        exec(source, namespace)
    return namespace


def constant_score(likelihood, y, hidden) -> float:
    """The best score of hidden entries with constant functions, one or two for each output, fitted to the others."""
    value, seen = likelihood(), torch.from_numpy(np.where(hidden, np.nan, y))
    f = torch.zeros(y.shape[1] * likelihood.num_functions, requires_grad=True)
    optimiser = torch.optim.LBFGS([f, *likelihood.parameters()], max_iter=200, line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        total = -likelihood().log_prob(f.expand(len(y), -1), seen).sum()
        total.backward()
        return total

    optimiser.step(loss)
    with torch.no_grad():
        value = likelihood().log_prob(f.expand(len(y), -1), torch.from_numpy(y))
    return float(value[torch.from_numpy(hidden)].mean())


@pytest.mark.long
@pytest.mark.parametrize("name", ["Ordinal", "Heteroscedastic"])
def test_documented_likelihoods_beat_a_constant(name):
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 6.0, 80)
    wave = np.sin(t[:, None] + np.arange(6))
    if name == "Ordinal":
        y, make = np.digitize(3 * wave + rng.logistic(size=wave.shape), [-1, 1]).astype(float), documented()[name]
        makes = [lambda: make(3)] * 2
    else:
        y = wave + np.exp(np.cos(t[:, None]) - 1.5) * rng.standard_normal(wave.shape)
        makes = [documented()[name]] * 2
    hidden = rng.random(y.shape) < 0.2
    model, guide, data, bounds = trained(makes[0](), t, y, hidden, steps=25)
    assert bounds[-1] > bounds[0] + 5.0
    score = held_out_score(model, guide, data, y, hidden)
    assert score > constant_score(makes[1](), y, hidden) + 0.1
