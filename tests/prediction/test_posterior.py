# SPDX-License-Identifier: Apache-2.0
"""Forecasts, generated sequences and q(U), against explicit formulas and Monte Carlo."""

import inspect
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import make_data, make_model, make_problem
from pyro.infer import SVI, Predictive
from pyro.optim import Adam

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, PosteriorMixture, Sequences, load, save
from pyro_vgpds.kernels import ARDRBF, RBF, ARDLinear, Bias, Linear, Matern12, Matern32, Matern52, Periodic, White
from pyro_vgpds.mapping import inducing as predictive
from pyro_vgpds.mapping.inducing import InducingPosterior
from pyro_vgpds.mapping.posterior_gp import PosteriorGP

DRAWS = 200_000
T_NEW = torch.tensor([1.3, -0.4, 0.2, 5.0])


def make_posterior(missing=0.0, **options):
    model, guide, data = make_problem(missing=missing, **options)
    return Posterior(model, guide, data, residual=None), model


def naive_path(posterior, model, t, sequence):
    """Mean (T, Q) and covariance (Q, T, T) of the path, with explicit inverses."""
    kernel, rows = model.temporal(), posterior.data.times.slices()[sequence]
    old = posterior.data.times.t[rows]
    means, covariances = [], []
    for q in range(posterior.q.event_shape[1]):
        mean_bar, lam = posterior.q.mean_bar[rows, q], posterior.q.lam[rows, q]
        own = [g[min(q, len(g) - 1)] for g in (kernel.gram(old), kernel.gram(t, old), kernel.gram(t))]
        k, cross, new = own
        means.append(cross @ mean_bar)
        covariances.append(new - cross @ torch.linalg.inv(k + torch.diag(1.0 / lam)) @ cross.mT)
    return torch.stack(means, -1).detach(), torch.stack(covariances).detach()


def naive_qu(posterior, model):
    """Mean (M,) and covariance (M, M) of q(u_d) for each output, with explicit inverses."""
    q, data, z = posterior.q, posterior.data, model.inducing
    k_mm = model.mapping().inducing_cov(z) + model.jitter * torch.eye(len(z))
    noise = model.noise.expand(data.num_outputs)
    result = []
    for d in range(data.num_outputs):
        seen = torch.isfinite(data.y[:, d])
        psi1 = model.mapping().psi1(q.mean[seen], q.variance[seen], z)
        psi2 = model.mapping().psi2(q.mean[seen], q.variance[seen], z, None)[0]
        y = data.y[seen, d] - model.output_mean[d]
        inner = torch.linalg.inv(k_mm + psi2 / noise[d])
        result.append(((k_mm @ inner @ psi1.mT @ y / noise[d]).detach(), (k_mm @ inner @ k_mm).detach()))
    return k_mm.detach(), result


@pytest.mark.parametrize(
    "temporal",
    [
        lambda: Matern32(0.9, 0.7) + White(0.02) + Bias(0.15),
        lambda: RBF(torch.tensor([0.5, 1.5]), torch.tensor([0.4, 1.1])),
        lambda: Matern12(0.7, 2.0) + Linear(0.1),
        lambda: Matern52(0.7, 2.0) * Periodic(1.0, 0.9, 1.2) + White(0.3),
    ],
)
@pytest.mark.parametrize("sequence", [0, 2, -1])
def test_the_path_at_new_times(temporal, sequence):
    posterior, model = make_posterior(temporal=temporal())
    t = torch.cat([T_NEW, posterior.data.times.t[:1]])  # inside, beyond, and at a training time
    latent = posterior.forecast(t, sequence).latent
    mean, covariance = naive_path(posterior, model, t, sequence % 4)
    torch.testing.assert_close(latent.mean, mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(latent.covariance.expand_as(covariance), covariance, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(latent.variance, covariance.diagonal(dim1=-2, dim2=-1).mT, rtol=1e-8, atol=1e-9)


def test_white_noise_is_part_of_a_new_frame_and_not_of_its_correlations():
    t = torch.tensor([0.5, 0.5])
    without, _ = make_posterior(temporal=Matern32(0.9, 0.7) + White(1e-9))
    with_noise, _ = make_posterior(temporal=Matern32(0.9, 0.7) + White(0.5))
    one, other = (p.forecast(t, None).latent.covariance[0] for p in (without, with_noise))
    torch.testing.assert_close(other - one, 0.5 * torch.eye(2), atol=1e-8, rtol=0.0)


def test_a_new_sequence_has_the_prior_path():
    posterior, model = make_posterior()
    latent = posterior.forecast(T_NEW, None).latent
    torch.testing.assert_close(latent.mean, torch.zeros(4, 2))
    torch.testing.assert_close(latent.covariance[0], model.temporal().gram(T_NEW)[0].detach())


def test_white_dynamics_say_nothing_of_other_times():
    posterior, _ = make_posterior(temporal=White(1.3))
    prediction = posterior.forecast(T_NEW, 1)
    torch.testing.assert_close(prediction.latent.mean, torch.zeros(4, 2))
    torch.testing.assert_close(prediction.latent.variance, torch.full((4, 2), 1.3))
    torch.testing.assert_close(prediction.mean, prediction.mean[:1].expand(4, -1))  # the same at all times
    torch.testing.assert_close(prediction.mean, posterior.forecast(T_NEW, None).mean)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("noise", [0.07, [0.05, 0.2, 0.1, 0.02, 0.4]])
def test_q_of_the_inducing_variables(missing, noise):
    posterior, model = make_posterior(missing, noise=noise)
    _, wanted = naive_qu(posterior, model)
    mean = posterior.inducing_mean
    for d, (m, s) in enumerate(wanted):
        torch.testing.assert_close(mean[:, d], m, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(posterior.inducing_covariance(d), s, rtol=1e-6, atol=1e-7)


MAPPINGS = {
    "rbf": lambda: ARDRBF(1.2, [0.6, 1.4]),
    "sum": lambda: ARDRBF(1.2, [0.6, 1.4]) + ARDLinear([0.3, 0.1]) + Bias(0.2) + White(0.05),
}


@pytest.mark.long
@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize(("missing", "noise"), [(0.0, 0.07), (0.3, 0.07), (0.3, [0.05, 0.2, 0.1, 0.02, 0.4])])
def test_moments_against_monte_carlo(mapping, missing, noise):
    """F* and its D × D covariance against draws of x*, u and f given both, made with explicit inverses."""
    posterior, model = make_posterior(missing, noise=noise, mapping=MAPPINGS[mapping]())
    t = T_NEW[:2]
    prediction = posterior.forecast(t, 0, include_noise=False)
    mean, covariance = naive_path(posterior, model, t, 0)
    k_mm, q_u = naive_qu(posterior, model)
    inverse = torch.linalg.inv(k_mm)
    with torch.no_grad():
        for i in range(len(t)):
            x = mean[i] + covariance[:, i, i].sqrt() * torch.randn(DRAWS, 2)
            k = model.mapping().cov(x, model.inducing)  # (draws, M)
            rest = (model.mapping().cov_diag(x) - ((k @ inverse) * k).sum(-1)).clamp_min(0.0)
            columns = []
            for m, s in q_u:
                u = m + torch.randn(DRAWS, len(m)) @ torch.linalg.cholesky(s + 1e-12 * torch.eye(len(m))).mT
                columns.append(((k @ inverse) * u).sum(-1) + rest.sqrt() * torch.randn(DRAWS))
            f = torch.stack(columns, -1) + model.output_mean
            sd = prediction.stddev[i]
            assert ((f.mean(0) - prediction.mean[i]).abs() / sd).max() < 5.0 / math.sqrt(DRAWS)
            scaled = torch.cov(f.mT) / torch.outer(sd, sd)
            ours = prediction.covariance[i] / torch.outer(sd, sd)
            assert (scaled - ours).abs().max() < 0.02


def test_noise_is_added_once_and_to_the_diagonal_only():
    noise = torch.tensor([0.05, 0.2, 0.1, 0.02, 0.4])
    posterior, _ = make_posterior(noise=noise)
    y, f = posterior.forecast(T_NEW, 0, full_cov=True), posterior.forecast(T_NEW, 0, include_noise=False)
    torch.testing.assert_close(y.mean, f.mean)
    torch.testing.assert_close(y.variance - f.variance, noise.expand(4, 5))
    torch.testing.assert_close(y.covariance - f.covariance, torch.diag(noise).expand(4, 5, 5))
    torch.testing.assert_close(y.covariance.diagonal(dim1=-2, dim2=-1), y.variance)
    torch.testing.assert_close(y.with_noise(False).variance, f.variance)
    torch.testing.assert_close(y.with_noise(False).covariance, f.covariance)
    assert y.with_noise(True) is y


@pytest.mark.parametrize(("missing", "noise"), [(0.0, 0.07), (0.3, [0.05, 0.2, 0.1, 0.02, 0.4])])
def test_draws_have_the_moments(missing, noise):
    posterior, _ = make_posterior(missing, noise=noise)
    prediction = posterior.forecast(T_NEW, 0)
    draws = prediction.sample(20_000)
    error = (draws.mean(0) - prediction.mean).abs() / prediction.stddev
    assert error.max() < 5.0 / math.sqrt(20_000)
    assert (draws.var(0) / prediction.variance - 1.0).abs().max() < 0.08


def test_given_the_path_outputs_are_gaussian_over_time():
    """Draws and log_prob of PosteriorGP against the covariance over times, written with explicit inverses."""
    posterior, model = make_posterior(0.3, noise=[0.05, 0.2, 0.1, 0.02, 0.4])
    x = torch.randn(3, 2)
    k_mm, q_u = naive_qu(posterior, model)
    with torch.no_grad():
        weights = model.mapping().cov(x, model.inducing) @ torch.linalg.inv(k_mm)
        rest = model.mapping().cov(x, x) - weights @ k_mm @ weights.mT
    given = PosteriorGP(x, posterior.inducing)
    y = given.sample((20_000,))
    assert y.shape == (20_000, 3, 5)
    value, total = torch.randn(3, 5), torch.zeros(())
    for d, (m, s) in enumerate(q_u):
        covariance = rest + weights @ s @ weights.mT + model.noise[d].detach() * torch.eye(3)
        mean = weights @ m + model.output_mean[d]
        total = total + dist.MultivariateNormal(mean, covariance).log_prob(value[:, d])
        torch.testing.assert_close(given.mean[:, d], mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(given.variance[:, d], covariance.diagonal(), rtol=1e-6, atol=1e-6)
        scale = covariance.diagonal().sqrt()
        assert ((torch.cov(y[..., d].mT) - covariance) / torch.outer(scale, scale)).abs().max() < 0.06
    torch.testing.assert_close(given.log_prob(value), total, rtol=1e-6, atol=1e-6)
    several = PosteriorGP(torch.stack([x, x + 1.0]), posterior.inducing)
    torch.testing.assert_close(several.log_prob(value)[0], total, rtol=1e-6, atol=1e-6)
    assert several.mean.shape == (2, 3, 5)
    torch.testing.assert_close(several.variance[0], given.variance)
    with pytest.raises(ValueError, match="finite"):
        given.log_prob(torch.full((3, 5), torch.nan))
    with pytest.raises(NotImplementedError, match="noise=True"):
        PosteriorGP(x, posterior.inducing, include_noise=False).log_prob(value)


@pytest.mark.long
@pytest.mark.parametrize("sequence", [None, 1])
@pytest.mark.parametrize("parallel", [False, True])
def test_generated_sequences_and_predictive(sequence, parallel):
    posterior, _ = make_posterior()
    drawn = posterior.generate(T_NEW, 3, sequence)
    assert drawn.shape == (3, 4, 5)
    assert not torch.equal(drawn[0], drawn[1])
    count = 1000 if parallel else 300  # one after the other takes long
    sites = Predictive(posterior.as_model(sequence), num_samples=count, parallel=parallel)(Sequences(T_NEW.sort()[0]))
    assert sites["x"].reshape(-1, 4, 2).shape == (count, 4, 2)
    y = sites["y"].reshape(-1, 4, 5)
    prediction = posterior.forecast(T_NEW.sort()[0], sequence)
    assert ((y.mean(0) - prediction.mean).abs() / prediction.stddev).max() < 5.0 / math.sqrt(count)
    assert (y.var(0) / prediction.variance - 1.0).abs().max() < 0.3
    with pytest.raises(ValueError, match="num_samples must be a whole number"):
        posterior.generate(T_NEW, 0)


def test_draws_of_a_function_that_the_inducing_inputs_determine():
    """The covariance given u is all rounding, of the scale of the prior covariance; draws need no more jitter."""
    x = torch.linspace(-2.0, 2.0, 100)[:, None]
    data = Sequences(x[:, 0], torch.cat([x, -x], -1))
    model = VGPDS.from_data(data, latent_dim=1, num_inducing=30, mapping=ARDRBF(variance=1e4, weight=[1e-3]))
    given = PosteriorGP(x, Posterior(model, AutoOpperArchambeau(model), data).inducing, include_noise=False)
    draws = given.sample((200,))  # warnings are errors
    torch.testing.assert_close(draws.mean(0), given.mean, rtol=0, atol=0.1)
    assert float(draws.var(0).max()) < 1.3 * float(given.variance.max()) + 2e-4


def test_generated_sequences_are_coherent_in_time():
    """Two frames at almost the same time are almost the same frame, though each alone is uncertain."""
    posterior, _ = make_posterior(temporal=RBF(1.0, 0.5), noise=1e-4)
    draws = posterior.generate([2.0, 2.0 + 1e-4], 500, include_noise=False)
    assert (draws[:, 0] - draws[:, 1]).std() < 0.01 * draws[:, 0].std()


def test_the_path_can_be_conditioned_on_outputs_with_pyro():
    """The generating model is an ordinary Pyro model: its density is that of the path and of outputs given the path."""
    posterior, _ = make_posterior()
    for sequence in (None, 0):
        trace = pyro.poutine.trace(posterior.as_model(sequence)).get_trace(T_NEW)
        x, y = trace.nodes["x"]["value"], trace.nodes["y"]["value"]
        latent = posterior.forecast(T_NEW, sequence).latent
        path = torch.distributions.MultivariateNormal(latent.mean.mT, latent.covariance).log_prob(x.mT).sum()
        outputs = PosteriorGP(x, posterior.inducing).log_prob(y)
        torch.testing.assert_close(trace.log_prob_sum(), path + outputs, rtol=1e-6, atol=1e-6)
    x, y = torch.randn(4, 2, requires_grad=True), torch.randn(4, 5)
    assert torch.autograd.gradcheck(lambda x: PosteriorGP(x, posterior.inducing).log_prob(y), x, rtol=1e-4)


def test_it_is_the_model_of_the_moment_it_was_made():
    model, guide, data = make_problem()
    posterior = Posterior(model, guide, data)
    before = posterior.forecast(T_NEW, 0).mean.clone()
    bound = -Collapsed_ELBO().loss(model, guide, data)
    assert posterior.bound == pytest.approx(bound, rel=1e-10)
    svi = SVI(model, guide, Adam({"lr": 0.1}), Collapsed_ELBO())
    for _ in range(3):
        svi.step(data)
    assert torch.equal(posterior.forecast(T_NEW, 0).mean, before)
    assert torch.equal(posterior.forecast(T_NEW, 0).latent.variance, posterior.forecast(T_NEW, 0).latent.variance)
    assert not torch.allclose(Posterior(model, guide, data).forecast(T_NEW, 0).mean, before)


def test_from_a_file(tmp_path):
    model, guide, data = make_problem(missing=0.2)
    save(tmp_path / "model.safetensors", model, guide, data)
    again = Posterior(*load(tmp_path / "model.safetensors"))
    here = Posterior(model, guide, data)
    for sequence in (None, 1):
        a, b = here.forecast(T_NEW, sequence), again.forecast(T_NEW, sequence)
        torch.testing.assert_close(a.mean, b.mean)
        torch.testing.assert_close(a.variance, b.variance)


def test_priors_stand_at_the_medians():
    model, _, data = make_problem(temporal=Matern32(0.9, dist.LogNormal(0.0, 1.0)), mapping=ARDRBF(1.2, [0.6, 1.4]))
    guide = AutoOpperArchambeau(model)
    svi = SVI(model, guide, Adam({"lr": 0.05}), Collapsed_ELBO())
    for _ in range(5):
        svi.step(data)
    first, second = Posterior(model, guide, data), Posterior(model, guide, data)
    assert torch.equal(first.forecast(T_NEW, 0).mean, second.forecast(T_NEW, 0).mean)
    lengthscale = float(guide.locs.temporal.lengthscale.detach().exp())
    assert float(first.q.prior.kernel.lengthscale) == pytest.approx(lengthscale)


def test_float32():
    double = make_data()
    data = Sequences([double.times.t[s] for s in double.times.slices()], [double.y[s] for s in double.times.slices()],
                     dtype=torch.float32)  # fmt: skip
    model = VGPDS.from_data(data, 2, 6, Matern32(0.9, 0.7) + White(0.02))
    guide = AutoOpperArchambeau(model)
    prediction = Posterior(model, guide, data).forecast(T_NEW, 0)
    assert prediction.mean.dtype == torch.float32
    exact = Posterior(model.double(), guide.double(), double).forecast(T_NEW, 0)
    torch.testing.assert_close(prediction.mean.double(), exact.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(prediction.variance.double(), exact.variance, rtol=1e-2, atol=1e-4)


def test_blocks_of_any_size_give_the_same(monkeypatch, tmp_path):
    model, guide, data = make_problem(missing=0.2)
    whole = Posterior(model, guide, data).forecast(T_NEW, 0)
    wanted = whole.mean, whole.variance
    for name, value in (("_CACHED", 0), ("_BLOCK", 40), ("_FRAMES", 40), ("_PSI2_FRAMES", 3)):
        monkeypatch.setattr(predictive, name, value)
    prediction = Posterior(model, guide, data).forecast(T_NEW, 0)
    torch.testing.assert_close(prediction.mean, wanted[0])
    torch.testing.assert_close(prediction.variance, wanted[1])
    mapped = np.memmap(tmp_path / "mean", dtype=np.float32, mode="w+", shape=(4, 5))
    prediction.write(mean=mapped)
    np.testing.assert_allclose(mapped, wanted[0].numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match=r"variance must be an array of shape \(4, 5\)"):
        prediction.write(variance=np.zeros((5, 4)))


def test_outputs_that_were_never_observed_are_predicted_by_the_prior():
    t = torch.arange(6.0)
    y = torch.randn(6, 3)
    y[:, 1] = torch.nan
    data = Sequences(t, y)
    model, guide = make_model(data)
    posterior = Posterior(model, guide, data)
    prediction = posterior.forecast([2.5], include_noise=False)
    assert prediction.mean[0, 1] == model.output_mean[1]
    assert float(prediction.variance[0, 1]) == pytest.approx(model.mapping.variance.item())
    k_mm = posterior.inducing.factor @ posterior.inducing.factor.mT
    torch.testing.assert_close(posterior.inducing_covariance(1), k_mm)


def test_imputation_keeps_what_was_observed():
    model, guide, data = make_problem(missing=0.3)
    posterior = Posterior(model, guide, data, residual=None)
    filled, fitted = posterior.impute(), posterior.impute(fill=False)
    seen = torch.isfinite(data.y)
    assert torch.equal(filled.mean[seen], data.y[seen])
    assert bool((filled.variance[seen] == 0).all())
    assert torch.equal(filled.mean[~seen], fitted.mean[~seen])
    assert torch.equal(filled.variance[~seen], fitted.variance[~seen])
    draws = filled.sample(3)
    assert torch.equal(draws[:, seen], data.y[seen].expand(3, -1))
    # at the training frames q(X) itself counts: the moments are those of frames with its mean and variance
    for rows, frames in InducingPosterior.frames(posterior.inducing, posterior.q.mean, posterior.q.variance):
        for index, _, mean, _ in posterior.inducing.moments(frames):
            torch.testing.assert_close(fitted.mean[rows, index], mean)


def test_bad_input_is_named():
    posterior, model = make_posterior()
    data = posterior.data
    _, guide = make_model(data)
    required = "sequence is required because there are 4 training sequences: 0 to 3, or None for a new sequence"
    with pytest.raises(ValueError, match=required):
        posterior.forecast(T_NEW)
    with pytest.raises(ValueError, match="sequence must be 0 to 3, or None for a new sequence, but got 4"):
        posterior.forecast(T_NEW, 4)
    with pytest.raises(
        ValueError, match=r"must be 0 to 3, or None .* got 'a'. The sequences have no names: Sequences\(t,"
    ):
        posterior.forecast(T_NEW, "a")
    with pytest.raises(ValueError, match=r"t must be finite, but t\[1\] is nan"):
        posterior.forecast([0.0, math.nan], 0)
    with pytest.raises(ValueError, match="t is empty"):
        posterior.forecast([], 0)
    with pytest.raises(ValueError, match="times of one sequence"):
        posterior.forecast([T_NEW, T_NEW], 0)
    with pytest.raises(TypeError, match="the training times are numbers"):
        posterior.forecast(np.array(["2020-01-01"], dtype="datetime64[D]"), 0)
    with pytest.raises(ValueError, match="output must be a whole number from 0 to 4, but got 5"):
        posterior.inducing_covariance(5)
    with pytest.raises(ValueError, match="guide was made for another model"):
        Posterior(model, guide, data)
    with pytest.raises(TypeError, match="guide must be a guide of the model, such as an AutoOpperArchambeau"):
        Posterior(model, model, data)
    with pytest.raises(ValueError, match="with outputs"):
        Posterior(guide.model, guide, Sequences(data.times.t[:7]))
    with pytest.raises(ValueError, match="this guide is for"):
        Posterior(guide.model, guide, make_data(lengths=(5,)))

    def other_model(data):
        x = pyro.sample("x", dist.Normal(0.0, 1.0).expand([data.num_frames, 2]).to_event(2))
        pyro.sample("y", dist.Normal(x.sum(-1, keepdim=True), 1.0).expand([21, 5]).to_event(2), obs=data.y)

    other = AutoOpperArchambeau(other_model)
    with pytest.raises(TypeError, match="TemporalGP at site 'x'"):
        Posterior(other_model, other, data)


def test_repr():
    posterior, _ = make_posterior()
    assert repr(posterior).startswith("Posterior(of Sequences(4 sequences, 21 frames, 5 outputs), bound=")
    assert repr(posterior.forecast(T_NEW, 0).latent) == "Latent(4 times, 2 dimensions)"
    assert "sequence: 'OneSequence | Default' = <the only sequence>" in str(inspect.signature(Posterior.forecast))


@pytest.mark.parametrize("noise", [0.3, [0.3], [0.05, 0.2, 0.1, 0.02, 0.4]])
def test_another_noise_to_predict_with(noise):
    model, guide, data = make_problem(missing=0.2)
    other = Posterior(model, guide, data, noise_variance=noise)
    model.set_noise(noise)
    wanted = Posterior(model, guide, data)
    assert other.bound == pytest.approx(wanted.bound)
    wide = 3 * other.noise_variance
    assert torch.equal(Posterior(model, guide, data, noise_variance=wide).noise_variance, wide)
    torch.testing.assert_close(other.forecast(T_NEW, 0).variance, wanted.forecast(T_NEW, 0).variance)
    for bad in (0.0, -1.0, math.nan, [0.1, 0.2]):
        with pytest.raises(ValueError, match="noise_variance must be"):
            Posterior(model, guide, data, noise_variance=bad)


def test_residual_variance(monkeypatch):
    model, guide, data = make_problem(missing=0.2)
    posterior = Posterior(model, guide, data, residual=None)
    residual = posterior.impute(fill=False).mean - data.y
    torch.testing.assert_close(posterior.residual_variance(), residual.square().nanmean(0))
    monkeypatch.setattr(predictive, "_FRAMES", 200)
    torch.testing.assert_close(posterior.residual_variance(), residual.square().nanmean(0))


@pytest.mark.parametrize("structure", ["dense", "markov"])
def test_new_times_in_any_order(structure):
    data = make_data()
    made, _ = make_model(data)
    model = VGPDS(Matern32(0.9, 0.7) + White(0.02), ARDRBF(1.2, [0.6, 1.4]), made.inducing, 0.07, made.output_mean,
                  jitter=1e-8, structure=structure)  # fmt: skip
    posterior = Posterior(model, AutoOpperArchambeau(model, mean_bar=torch.randn(21, 2)), data)
    t = torch.rand(200) * 4.0
    order = t.argsort()
    for sequence in (None, 0):
        mixed, sorted_ = posterior.forecast(t, sequence), posterior.forecast(t[order], sequence)
        torch.testing.assert_close(mixed.mean[order], sorted_.mean)
        torch.testing.assert_close(mixed.latent.covariance[:, order][..., order], sorted_.latent.covariance)
        assert mixed.sample(2).shape == (2, 200, 5)


def test_sequence_means_the_same_everywhere():
    posterior, _ = make_posterior()
    y = torch.full((4, 5), torch.nan)
    times = T_NEW.sort()[0]
    methods = {
        "forecast": lambda s: posterior.forecast(times, s).latent.mean,
        "reconstruct": lambda s: posterior.reconstruct(times, y, s).latent.mean,
        "project": lambda s: posterior.project(times, y, s).mean,
        "mixture": lambda s: PosteriorMixture([posterior]).forecast(times, s).components[0].latent.mean,
    }
    wanted = {s: posterior.q.forecast(times, s).mean for s in (None, 3)}
    for method in methods.values():
        torch.testing.assert_close(method(-1), wanted[3], atol=1e-5, rtol=0.0)
        torch.testing.assert_close(method(None), wanted[None], atol=1e-5, rtol=0.0)
        for bad, error in ((4, ValueError), (-5, ValueError), (1.0, TypeError), (True, TypeError)):
            with pytest.raises(error, match="sequence must be"):
                method(bad)
    for method in (posterior.generate, posterior.as_model):
        with pytest.raises(ValueError, match="sequence must be 0 to 3, or None for a new sequence, but got 4"):
            method(**({"t": times} if method == posterior.generate else {}), sequence=4)
    alone = make_data(lengths=(6,))
    single = Posterior(*make_model(alone), alone)
    assert torch.equal(single.forecast(times).mean, single.forecast(times, 0).mean)
    assert torch.equal(single.reconstruct(times, y).latent.mean, torch.zeros(4, 2))  # a new sequence by default


def test_another_scale_to_predict_with():
    model, guide, data = make_problem(missing=0.2)
    scale = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.1])
    other = Posterior(model, guide, data, output_scale=scale)
    torch.testing.assert_close(other.noise_variance, torch.full((5,), 0.07))  # in the units of the data
    model.output_scale = scale
    model.set_noise(0.07 / scale.square())
    wanted = Posterior(model, guide, data)
    assert other.bound == pytest.approx(wanted.bound)
    torch.testing.assert_close(other.forecast(T_NEW, 0).variance, wanted.forecast(T_NEW, 0).variance)
    with pytest.raises(ValueError, match="output_scale must be positive and finite"):
        Posterior(model, guide, data, output_scale=-scale)
    with pytest.raises(ValueError, match=r"output_scale must be \(5,\), but its shape is \(2,\)"):
        Posterior(model, guide, data, output_scale=scale[:2])


def test_a_solver_is_a_solver():
    posterior, _ = make_posterior()
    data = posterior.data
    for call in (posterior.reconstruct, posterior.log_density, posterior.project):
        with pytest.raises(TypeError, match=r"solver must be a Solver, such as Solver\(num_starts=1\), but got {'num"):
            call(data.times.t[:3], data.read()[:3], solver={"num_starts": 1})


def test_one_sequence_is_no_list():
    posterior, _ = make_posterior()
    for call in (posterior.forecast, posterior.generate):
        with pytest.raises(TypeError, match=r"sequence must be a whole number, a name or None, but got \[0\]"):
            call([0.1], sequence=[0])
    with pytest.raises(ValueError, match="rows must select at least one of the 2 times"):
        posterior.forecast([0.1, 0.2], 0).select(slice(2, None))
