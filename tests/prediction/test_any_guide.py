# SPDX-License-Identifier: Apache-2.0
"""Predictions with every guide whose site x has a mean and a variance, against explicit inverses."""

import copy
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import make_data, make_model, make_problem
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer import autoguide as guides
from pyro.infer.autoguide.effect import AutoNormalMessenger
from pyro.optim import Adam
from torch.distributions import kl_divergence

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    OpperArchambeau,
    Posterior,
    Sequences,
    Solver,
    fit,
    save,
    save_posterior,
)
from pyro_vgpds.kernels import ARDRBF, RBF, Matern32, White
from pyro_vgpds.temporal import GaussianPosterior
from pyro_vgpds.temporal.paths import GaussianPath

T_NEW = torch.tensor([1.3, -0.4, 0.2, 5.0])


def dense_forecast(model, data, mean, covariance, t, sequence):
    """Mean (T, Q) and covariance (Q, T, T) of p(x* | x) integrated over N(mean, covariance), with inverses."""
    kernel, rows = model.temporal(), data.times.slices()[sequence]
    old, means, covariances = data.times.t[rows], [], []
    for q in range(mean.shape[1]):
        k, cross, new = (g[min(q, len(g) - 1)] for g in (kernel.gram(old), kernel.gram(t, old), kernel.gram(t)))
        inverse = torch.linalg.inv(k)
        s = covariance[q][rows, rows]
        means.append(cross @ inverse @ mean[rows, q])
        covariances.append(new - cross @ (inverse - inverse @ s @ inverse) @ cross.mT)
    return torch.stack(means, -1).detach(), torch.stack(covariances).detach()


def dense_kl(model, data, mean, covariance):
    """KL to the prior of each latent dimension and sequence, by torch's own formula."""
    kernel, total = model.temporal(), torch.zeros(())
    for rows in data.times.slices():
        k = kernel.gram(data.times.t[rows])
        for q in range(mean.shape[1]):
            own = torch.distributions.MultivariateNormal(mean[rows, q], covariance[q][rows, rows])
            prior = torch.distributions.MultivariateNormal(torch.zeros_like(own.mean), k[min(q, len(k) - 1)])
            total = total + kl_divergence(own, prior)
    return float(total.detach())


def mean_field(loc, scale):
    def guide(data):
        pyro.sample("x", dist.Normal(loc, scale).to_event(2))

    return guide


@pytest.fixture
def problem():
    data = make_data(missing=0.1)
    return (*make_model(data), data)


@pytest.mark.parametrize("temporal", [None, Matern32([0.5, 1.2], [0.4, 0.9]) + White(0.05)])
def test_a_guide_with_the_same_q_predicts_the_same(temporal):
    model, guide, data = make_problem(missing=0.1, temporal=temporal)
    own = Posterior(model, guide, data, residual=None)
    q = own.q
    other = Posterior(
        model,
        lambda data: pyro.sample("x", GaussianPath(q.mean, q.variance, lambda: q.covariance_matrix)),
        data,
        residual=None,
    )
    assert isinstance(other.q, GaussianPosterior)
    assert repr(other.q) == "GaussianPosterior(frames=21, latent_dim=2, structure='dense')"
    assert other.bound == pytest.approx(own.bound, abs=1e-8)
    for sequence in (0, 1, 2, 3, None):
        a, b = own.forecast(T_NEW, sequence), other.forecast(T_NEW, sequence)
        for name in ("mean", "variance"):
            torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(a.latent.covariance, b.latent.covariance, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(own.impute().mean, other.impute().mean)
    torch.testing.assert_close(own.impute().variance, other.impute().variance)
    y = data.read()[:7].clone()
    y[:, 3:] = float("nan")
    a, b = (post.reconstruct(data.times.t[:7], y) for post in (own, other))
    assert a.bound == pytest.approx(b.bound, abs=1e-6)
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(own.log_density(data.times.t[:7], y), other.log_density(data.times.t[:7], y))
    # the form that natural steps need is found again
    mean_bar, lam = other.q.sites()
    torch.testing.assert_close(mean_bar, q.mean_bar, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(lam, q.lam, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(other.condition(data).bound, own.condition(data).bound, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("width", [0.0, 0.3, 1.0])
def test_natural_steps_from_independent_frames_find_the_best_q(width):
    """Also if the prior is smooth: the inverse of its K_t is then far larger than the precision of a frame."""
    data = make_data(lengths=(24,))
    model = VGPDS.from_data(data, 2, 8, RBF() + White(1e-2))
    fit(model, guide := AutoOpperArchambeau(model), data, num_steps=40, progress=False)
    best = Posterior(model, guide, data).condition(data)
    mean, scale = best.q.mean, width * best.q.variance.sqrt()
    q = dist.Normal(mean, scale) if width else dist.Delta(mean)
    post = Posterior(model, lambda data: pyro.sample("x", q.to_event(2)), data)
    assert post.condition(data).bound == pytest.approx(best.bound, abs=0.1)


def test_an_opper_archambeau_of_a_function_is_used_as_it_is(problem):
    model, guide, data = problem
    own = Posterior(model, guide, data, residual=None)
    q = guide.posterior(data)
    other = Posterior(model, lambda data: pyro.sample("x", q), data)
    assert isinstance(other.q, OpperArchambeau)
    assert other.forecast(T_NEW, 0).mean.equal(own.forecast(T_NEW, 0).mean)
    narrow = OpperArchambeau(q.prior, guide.mean_bar, 100.0 * guide.lam)
    moved, _ = make_model(data, temporal=RBF(1.0, 0.5) + White(0.1))  # the prior of this q is another one
    assert isinstance(Posterior(moved, lambda data: pyro.sample("x", narrow), data).q, GaussianPosterior)


def test_mean_field_against_inverses(problem):
    model, _, data = problem
    loc, scale = torch.randn(21, 2), 0.1 + torch.rand(21, 2)
    post = Posterior(model, mean_field(loc, scale), data)
    covariance = torch.diag_embed(scale.square().mT)
    for sequence in range(4):
        mean, full = dense_forecast(model, data, loc, covariance, T_NEW, sequence)
        latent = post.forecast(T_NEW, sequence).latent
        torch.testing.assert_close(latent.mean, mean)
        torch.testing.assert_close(latent.covariance, full)
        torch.testing.assert_close(latent.variance, full.diagonal(dim1=-2, dim2=-1).mT)
    assert float(post.q.kl()) == pytest.approx(dense_kl(model, data, loc, covariance), abs=1e-8)
    assert post.bound == pytest.approx(-Collapsed_ELBO().loss(model, mean_field(loc, scale), data), abs=1e-3)  # jitter
    torch.testing.assert_close(post.q.covariance_matrix, covariance)
    draws = post.q.sample((20_000,))
    assert ((draws.mean(0) - loc).abs() < 6 * scale / 20_000**0.5).all()
    assert post.generate(T_NEW, num_samples=3, sequence=1).shape == (3, 4, 5)
    assert post.as_model(1)(T_NEW).shape == (4, 5)
    # frames of a training sequence: only with a fixed q(X)
    y = torch.full((4, 5), 0.5)
    t = torch.tensor([0.1, 0.2, 2.9, 3.5])
    new = post.reconstruct(t, y, 0, factorised=True, solver=Solver(num_starts=1))
    assert new.mean.shape == (4, 5)
    assert math.isfinite(new.bound)
    with pytest.raises(ValueError, match=r"guide has an OpperArchambeau\. Use post\.condition"):
        post.reconstruct(t, y, 0)
    with pytest.raises(ValueError, match="or reconstruct with factorised=True"):  # which forecast does not have
        post.forecast([3.5], 0, given=data.read()[:1])
    with pytest.raises(ValueError, match="reconstruct with factorised=True without free"):
        post.reconstruct(t, y, free=True)
    assert model.relevance(mean_field(loc, scale), data).value.shape == (2,)


def test_reconstruction_bound_with_a_fixed_q(problem):
    """Nothing observed of the new frames: the bound is that of training, and q(X*) is the prior."""
    model, _, data = problem
    post = Posterior(model, mean_field(torch.randn(21, 2), 0.2 + torch.rand(21, 2)), data)
    hidden = torch.full((3, 5), float("nan"))
    empty = post.reconstruct([0.4, 1.1, 3.3], hidden)
    assert empty.bound == pytest.approx(post.bound, abs=1e-4)
    torch.testing.assert_close(empty.latent.mean, torch.zeros(3, 2))
    # q(X*) of a training sequence pays for its independence of X: with no site it is p(X* given E X)
    given = post.reconstruct([0.4, 1.1, 3.3], hidden, 1, factorised=True)
    assert given.bound < post.bound
    torch.testing.assert_close(given.latent.mean, post.forecast([0.4, 1.1, 3.3], 1).latent.mean, rtol=1e-5, atol=1e-5)


AUTOGUIDES = {
    "AutoNormal": (guides.AutoNormal, {}),
    "AutoDiagonalNormal": (guides.AutoDiagonalNormal, {}),
    "AutoMultivariateNormal": (guides.AutoMultivariateNormal, {}),
    "AutoLowRankMultivariateNormal": (guides.AutoLowRankMultivariateNormal, {"rank": 3}),
    "AutoStructured": (guides.AutoStructured, {"conditionals": {"x": "normal"}, "dependencies": {}}),
    "AutoGaussian": (guides.AutoGaussian, {}),
    "AutoNormalMessenger": (AutoNormalMessenger, {}),
}


@pytest.mark.parametrize("name", AUTOGUIDES)
def test_autoguides(problem, name):
    """The moments are those of draws of the guide, and forecasts follow from them."""
    model, _, data = problem
    kind, options = AUTOGUIDES[name]
    guide = kind(model, **options)
    svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO())
    for _ in range(3):
        svi.step(data)
    before = dict(pyro.get_param_store().named_parameters())
    state = torch.get_rng_state()
    post = Posterior(model, guide, data)
    assert torch.get_rng_state().equal(state)
    assert dict(pyro.get_param_store().named_parameters()).keys() == before.keys()
    with torch.no_grad():
        draws = torch.stack([poutine.trace(guide).get_trace(data).nodes["x"]["value"] for _ in range(1000)])
    assert ((draws.mean(0) - post.q.mean).abs() < 6 * (post.q.variance / 1000).sqrt()).all()
    centred = (draws - post.q.mean).permute(2, 1, 0)  # (Q, N, draws)
    empirical = centred @ centred.mT / 1000
    for rows in data.times.slices():
        s, deviation = post.q.covariance_matrix[:, rows, rows], post.q.variance[rows].sqrt().mT
        error = (empirical[:, rows, rows] - s) / (deviation.unsqueeze(-1) * deviation.unsqueeze(-2))
        assert (error.abs() < 6 * (2 / 1000) ** 0.5).all()
    mean, covariance = dense_forecast(model, data, post.q.mean, post.q.covariance_matrix, T_NEW, 0)
    torch.testing.assert_close(post.forecast(T_NEW, 0).latent.mean, mean)
    torch.testing.assert_close(post.forecast(T_NEW, 0).latent.covariance, covariance)
    assert float(post.q.kl()) == pytest.approx(dense_kl(model, data, post.q.mean, post.q.covariance_matrix), abs=1e-7)


def test_a_point_has_variance_zero(problem):
    model, _, data = problem
    guide = guides.AutoDelta(model)
    guide(data)
    post = Posterior(model, guide, data)
    assert bool((post.q.variance == 0).all())
    mean, covariance = dense_forecast(model, data, post.q.mean, torch.zeros(2, 21, 21), T_NEW, 0)
    torch.testing.assert_close(post.forecast(T_NEW, 0).latent.mean, mean)
    torch.testing.assert_close(post.forecast(T_NEW, 0).latent.covariance, covariance)
    x, kernel = post.q.mean, model.temporal()
    log_prior = sum(
        float(
            torch.distributions.MultivariateNormal(torch.zeros(len(x[rows])), k[0]).log_prob(x[rows].mT).sum().detach()
        )
        for rows in data.times.slices()
        for k in [kernel.gram(data.times.t[rows])]
    )
    likelihood = float(model.likelihood(x, data).log_prob(data.y).detach())  # a bound of the mapping, exact for a point
    assert post.bound == pytest.approx(likelihood + log_prior, abs=1e-6)
    assert post.condition(data).bound > -math.inf


def test_hyperpriors_are_fixed_at_medians():
    model, _, data = make_problem(temporal=Matern32(0.9, dist.LogNormal(-0.5, 0.3)) + White(0.02))
    guide = guides.AutoMultivariateNormal(model)
    svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO())
    for _ in range(3):
        svi.step(data)
    post = Posterior(model, guide, data)
    median = guide.median(data)["temporal.parts.0.lengthscale"]
    assert post.origin.values.keys() == {"temporal.parts.0.lengthscale"}
    torch.testing.assert_close(post.origin.values["temporal.parts.0.lengthscale"], median)
    smooth, white = (float(part.variance.detach()) for part in model.temporal)
    fixed = (Matern32(smooth, float(median)) + White(white))().gram(data.times.t[:7])
    torch.testing.assert_close(post.q.prior.covariance_matrix[0, :7, :7], fixed[0].detach())
    again = post.condition(data)  # an AutoOpperArchambeau at the same hyperparameters
    torch.testing.assert_close(again.origin.values["temporal.parts.0.lengthscale"], median)
    assert again.bound > post.bound

    def by_hand(data):
        pyro.sample("temporal.parts.0.lengthscale", dist.Gamma(3.0, 4.0))  # no median: the mean
        pyro.sample("x", dist.Normal(torch.zeros(21, 2), 1.0).to_event(2))

    value = Posterior(model, by_hand, data).origin.values["temporal.parts.0.lengthscale"]
    assert float(value) == pytest.approx(0.75)


def test_training_later_does_not_change_it(problem):
    model, _, data = problem

    def guide(data):
        loc = pyro.param("loc", torch.zeros(21, 2))
        pyro.sample("x", dist.Normal(loc, 0.3).to_event(2))

    svi = SVI(model, guide, Adam({"lr": 0.1}), Collapsed_ELBO())
    svi.step(data)
    post = Posterior(model, guide, data)
    mean = post.forecast(T_NEW, 0).mean
    assert post.q.mean.abs().max() > 0  # the parameters of the store, not new ones
    svi.step(data)
    assert post.forecast(T_NEW, 0).mean.equal(mean)
    pyro.clear_param_store()
    Posterior(model, guide, data)
    assert "loc" not in pyro.get_param_store()


def test_a_network_as_a_guide(problem):
    model, _, data = problem
    network = torch.nn.Linear(5, 4)

    def guide(data):
        pyro.module("network", network)
        loc, raw = network(data.y.nan_to_num(0.0)).split(2, -1)
        pyro.sample("x", dist.Normal(loc, raw.exp()).to_event(2))

    svi = SVI(model, guide, Adam({"lr": 0.01}), Collapsed_ELBO())
    svi.step(data)
    post = Posterior(model, guide, data)
    torch.testing.assert_close(post.q.mean, network(data.y.nan_to_num(0.0)).split(2, -1)[0].detach())
    assert post.forecast(T_NEW, 0).mean.shape == (4, 5)


def test_new_frames_of_another_guide(problem):
    model, _, data = problem
    post = Posterior(
        model, mean_field(0.1 * torch.randn(data.num_frames, 2), torch.full((data.num_frames, 2), 0.3)), data
    )
    end = float(data.times.t[data.times.slices()[0]][-1])
    new = torch.linspace(end + 0.1, end + 0.3, 3)
    more, known = (p.extended(new, data.read()[:3], sequence=0) for p in (post, post.condition(data)))
    assert more.bound == pytest.approx(known.bound, rel=1e-9)
    torch.testing.assert_close(more.forecast(new + 0.3, 0).mean, known.forecast(new + 0.3, 0).mean)


def test_guides_that_cannot_predict(problem, tmp_path):
    model, _, data = problem

    def without(data):
        pyro.sample("z", dist.Normal(0.0, 1.0))

    def other_shape(data):
        pyro.sample("x", dist.Normal(torch.zeros(20, 2), 1.0).to_event(2))

    def no_moments(data):
        base = dist.Normal(torch.zeros(21, 2), 1.0).to_event(2)
        pyro.sample("x", dist.TransformedDistribution(base, [dist.transforms.TanhTransform()]))

    def infinite(data):
        pyro.sample("x", dist.Cauchy(torch.zeros(21, 2), 1.0).to_event(2))

    def curved(data):
        z = pyro.sample("z", dist.Normal(torch.zeros(21, 2), 1.0).to_event(2), infer={"is_auxiliary": True})
        pyro.sample("x", dist.Delta(z**3, event_dim=2))

    for guide, error, match in (
        (without, ValueError, "no latent site 'x', the latent path; its latent sites are z"),
        (other_shape, ValueError, r"must have the shape \(21, 2\) = \(frames, latent dimensions\), but its mean has"),
        (no_moments, TypeError, "must have a mean and a variance, but function has a TransformedDistribution"),
        (infinite, ValueError, "the mean of q.X. must be finite, and its variance finite"),
        (curved, TypeError, "has a Delta of auxiliary sites that are transformed"),
        (guides.AutoIAFNormal(model), TypeError, "AutoIAFNormal has a Delta of auxiliary sites"),
        (7, TypeError, "guide must be a guide of the model, such as an AutoOpperArchambeau, but got int"),
    ):
        with pytest.raises(error, match=match):
            Posterior(model, guide, data)
    prior, _ = make_model(data, temporal=Matern32(0.9, dist.LogNormal(-0.5, 0.3)) + White(0.02))
    with pytest.raises(ValueError, match=r"latent site 'temporal.parts.0.lengthscale' is not in the guide"):
        Posterior(prior, mean_field(torch.zeros(21, 2), 1.0), data)

    def no_median(data):
        mixture = dist.MixtureOfDiagNormals(torch.zeros(2, 1), torch.ones(2, 1), torch.zeros(2))
        pyro.sample("temporal.parts.0.lengthscale", mixture)
        pyro.sample("x", dist.Normal(torch.zeros(21, 2), 1.0).to_event(2))

    with pytest.raises(TypeError, match="is a MixtureOfDiagNormals with neither a median nor a mean"):
        Posterior(prior, no_median, data)
    post = Posterior(model, mean_field(torch.zeros(21, 2), 1.0), data)
    for saved in (lambda path: save_posterior(path, post), lambda path: save(path, model, post.origin.guide, data)):
        with pytest.raises(TypeError, match=r"but got function. Save guide.state_dict\(\), or the posterior post.cond"):
            saved(tmp_path / "model.safetensors")
    save_posterior(tmp_path / "model.safetensors", post.condition(data))
    with pytest.raises(TypeError, match="Train other guides with Pyro's SVI"):
        fit(model, mean_field(torch.zeros(21, 2), 1.0), data)


def test_smooth_priors_get_jitter():
    """K_t of an RBF without white noise is singular to rounding: the rule's jitter, and no warning."""
    t = torch.linspace(0, 1, 40)
    data = Sequences(t, torch.sin(3 * t)[:, None].repeat(1, 3) + torch.arange(3.0))
    model = VGPDS(RBF(1.0, 1.0), ARDRBF(), inducing=torch.randn(4, 1), noise=0.1, output_mean=data.output_means)
    post = Posterior(model, mean_field(torch.sin(3 * t)[:, None], 0.1), data)
    ahead = post.forecast([0.505], 0).latent
    assert float(ahead.mean) == pytest.approx(math.sin(1.515), abs=1e-3)
    assert math.isfinite(float(ahead.variance))


@pytest.mark.parametrize("make", [guides.AutoNormal, guides.AutoDelta, guides.AutoMultivariateNormal])
def test_a_copy_predicts_the_same_and_is_independent(make):
    """The trace that an autoguide keeps has tensors with a history, which torch does not copy."""
    data = make_data((7, 5), outputs=3)
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=4)
    guide = make(model)
    guide(data)
    own, post = guide.model, Posterior(model, guide, data)
    new = copy.deepcopy(post)
    assert new.bound == post.bound
    assert torch.equal(new.forecast(T_NEW, 0).mean, post.forecast(T_NEW, 0).mean)
    assert new.origin.model is not model
    assert guide.model is own
    assert new.origin.guide.model is not own
    pyro.clear_param_store()  # in which both models have the same names
    assert poutine.trace(new.origin.guide.model).get_trace(data).nodes["x"]["value"].shape == (12, 2)
    before = [value.clone() for value in guide.parameters()]
    with torch.no_grad():
        for value in new.origin.guide.parameters():
            value.add_(1.0)
    assert all(torch.equal(one, other) for one, other in zip(before, guide.parameters(), strict=True))
    assert Posterior(new.origin.model, new.origin.guide, data).bound != post.bound
    pyro.clear_param_store()
    assert Posterior(model, guide, data).bound == post.bound
