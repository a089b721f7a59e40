# SPDX-License-Identifier: Apache-2.0
"""Reconstruction: the joint bound against the collapsed ELBO of all frames, its limits, and its scores."""

import math

import numpy as np
import pytest
import torch
from problems import fit_posterior, make_data, make_model, make_problem
from torch.distributions import kl_divergence

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    BayesClassifier,
    Collapsed_ELBO,
    OpperArchambeau,
    Posterior,
    Sequences,
    Solver,
    fit,
)
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import ARDRBF, RBF, Bias, Matern32, White
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.posterior_gp import PosteriorGP
from pyro_vgpds.prediction.reconstruction import Joint, NewFrames, Solution

T_NEW = torch.tensor([0.31, 0.52, 0.9, 1.4, 3.3])


def make_new(seed=3, hidden=0.4, frames=5, outputs=5):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(frames, outputs, generator=generator) + torch.linspace(0.0, 3.0, outputs)
    return torch.where(torch.rand(y.shape, generator=generator) < hidden, torch.nan, y)


@pytest.fixture(scope="module")
def trained():
    """A small model, trained until little changes, with its sequences; the last one was not seen."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = make_sequences(num_sequences=4, num_outputs=12, length=(25, 35), seed=1).sequences()
    t, y = ([v[s] for s in data.times.slices()] for v in (data.times.t, data.y))
    train = Sequences(t[:-1], y[:-1])
    model = VGPDS.from_data(train, 3, 30, temporal=Matern32().fix("variance") + White(1e-2) + Bias(0.1))
    return fit_posterior(model, train, 300), t, y


@pytest.mark.parametrize("belongs", [[None], [0], [2], [None, 3], [0, 0]])
@pytest.mark.parametrize("noise", [0.07, [0.05, 0.2, 0.1, 0.02, 0.4]])
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_bound_is_that_of_all_frames_together(belongs, noise, free, missing, monkeypatch):
    """The slow twin: one data set with the new frames sorted into their sequences, under Collapsed_ELBO."""
    model, guide, data = make_problem(missing=missing, noise=noise)
    posterior = Posterior(model, guide, data, residual=None)
    parts = [T_NEW[:2], T_NEW[2:]] if len(belongs) == 2 else [T_NEW]
    y_parts = list(make_new().split([len(p) for p in parts]))
    frames, joint = OpperArchambeau.frames, {}  # q(X, X*) of the active sequences, by the path of its new frames

    def remember(q, rows):
        path = frames(q, rows)
        joint[path] = q
        return path

    monkeypatch.setattr(OpperArchambeau, "frames", remember)
    result = posterior.reconstruct(parts, y_parts, belongs, free=free, solver=Solver(num_starts=1, num_steps=4))

    t = [data.times.t[s] for s in data.times.slices()]
    y = [data.y[s] for s in data.times.slices()]
    for part, values, sequence in zip(parts, y_parts, belongs, strict=True):
        if sequence is None:
            t.append(part)
            y.append(values)
        else:
            t[sequence], y[sequence] = torch.cat([t[sequence], part]), torch.cat([y[sequence], values])
    order = [part.argsort() for part in t]
    together = Sequences([p[o] for p, o in zip(t, order, strict=True)], [p[o] for p, o in zip(y, order, strict=True)])
    q = joint[result.latent.path]
    by_time = {(round(float(time), 9), sequence): (m, v) for time, sequence, m, v in zip(
        q.prior.times.t, _owners(q.prior.times), q.mean_bar, q.lam, strict=True)}  # fmt: skip
    mean_bar, lam, old = [], [], data.times.slices()
    active = sorted(set(belongs) - {None}) if not free else list(range(4))
    for i, rows in enumerate(together.times.slices()):
        for row in range(rows.start, rows.stop):
            if i < 4 and i not in active:
                k = old[i].start + row - rows.start
                mean_bar.append(posterior.q.mean_bar[k])
                lam.append(posterior.q.lam[k])
            else:
                place = active.index(i) if i < 4 else len(active) + i - 4
                m, v = by_time[round(float(together.times.t[row]), 9), place]
                mean_bar.append(m)
                lam.append(v)
    joint_guide = AutoOpperArchambeau(model, mean_bar=torch.stack(mean_bar), lam=torch.stack(lam))
    wanted = -Collapsed_ELBO().loss(model, joint_guide, together)
    assert result.bound == pytest.approx(wanted, rel=1e-9)
    # and the prediction is that of a posterior of all frames at the new ones
    imputed = Posterior(model, joint_guide, together, residual=None).impute(fill=False)
    rows = torch.tensor([int((together.times.t == time).nonzero()[0]) for time in torch.cat(parts)])
    torch.testing.assert_close(result.mean, imputed.mean[rows], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(result.variance, imputed.variance[rows], rtol=1e-6, atol=1e-7)


def _owners(times):
    return [i for i, n in enumerate(times.lengths) for _ in range(n)]


@pytest.mark.parametrize("noise", [0.07, [0.05, 0.2, 0.1, 0.02, 0.4]])
@pytest.mark.parametrize("hidden", [0.0, 0.4])
def test_trust_is_a_larger_noise_of_the_new_frames(noise, hidden):
    """The slow twin: the bound with a noise of its own for each frame, twice as large for the new ones."""
    model, guide, data = make_problem(noise=noise)
    y = make_new(hidden=hidden)
    new = Sequences(T_NEW, y)
    joint = Joint(Posterior(model, guide, data).training, NewFrames(new, [None], trust=0.5), data.joined(new))
    with torch.no_grad():
        eta, lam = joint.sites(torch.randn(5, 2), torch.rand(5, 2) + 0.5)
        bound = joint.evaluate(eta, lam)[0]
        mean, variance = joint.moments(Solution(eta, lam, bound, 0))
        q = OpperArchambeau.from_natural(joint.prior, eta, lam)
        kl = float(kl_divergence(q, joint.prior)) + joint.kl_rest
        # each output by itself, with a noise of its own for each row, written with explicit inverses
        likelihood, z = joint.training.likelihood, model.inducing
        k_mm = model.mapping().inducing_cov(z) + model.jitter * torch.eye(len(z))
        every = torch.cat([data.y, y])
        rows = torch.cat([torch.ones(21), torch.full((5,), 2.0)])  # noise, relative
        total = 0.0
        for d in range(5):
            seen = torch.isfinite(every[:, d])
            s2 = likelihood.noise.expand(5)[d] * rows[seen]
            w = 1.0 / s2
            v = every[seen, d] - model.output_mean[d]
            psi1 = model.mapping().psi1(mean[seen], variance[seen], z)
            psi2 = sum(
                w[n] * model.mapping().psi2(mean[seen][n : n + 1], variance[seen][n : n + 1], z, None)[0]
                for n in range(int(seen.sum()))
            )
            psi0 = (w * model.mapping().variance).sum()
            a = k_mm + psi2
            b = psi1.mT @ (w * v)
            total += -0.5 * (torch.log(2 * math.pi * s2).sum() + (w * v * v).sum() - b @ torch.linalg.solve(a, b))
            total += -0.5 * (torch.logdet(a) - torch.logdet(k_mm))
            total += -0.5 * (psi0 - torch.linalg.solve(k_mm, psi2).trace())
    assert bound == pytest.approx(float(total) - kl, rel=1e-7)


@pytest.mark.long
def test_trust_leaves_more_to_the_times(trained):
    posterior, t, y = trained
    times = (t[0][3:8] + t[0][4:9]) / 2
    seen = y[0][8:13].clone()  # what comes a little later: it pulls away from the times
    seen[:, 6:] = torch.nan
    forecast = posterior.forecast(times, 0).latent.mean
    pulls = []
    for trust in (1.0, 1e-2, 1e-6):
        result = posterior.reconstruct(times, seen, 0, trust=trust, solver=Solver(num_starts=2))
        pulls.append(float((result.latent.mean - forecast).square().sum()))
    assert pulls[0] > pulls[1] > pulls[2]
    assert pulls[2] < 1e-3
    for bad in (0.0, 1.5, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"trust must be in \(0, 1\]"):
            posterior.reconstruct(times, seen, 0, trust=bad)


def test_derivatives_are_those_of_the_bound():
    model, guide, data = make_problem(missing=0.2)
    posterior = Posterior(model, guide, data, residual=None)
    new = Sequences(T_NEW, make_new())
    with torch.no_grad():
        joint = Joint(posterior.training, NewFrames(new, [0]), data.joined(new))
        eta, lam = joint.sites(torch.randn(5, 2), torch.rand(5, 2) + 0.5)
        _, mean, d_mean, _, _ = joint.evaluate(eta, lam)
        step, row = 1e-5, int(joint.is_new.nonzero()[2])
        ends = []
        for sign in (1.0, -1.0):
            moved = eta.clone()
            moved[row, 1] += sign * step
            ends.append(joint.evaluate(moved, lam)[0])
        covariance = joint.prior.covariance.posterior_matrix(lam)[1]
        # dμ/dη_row = S[:, row]; dKL/dμ = K⁻¹μ = η − λμ
        gradient = float(covariance[:, row] @ (d_mean - (eta - lam * mean))[:, 1])
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(gradient, rel=1e-6)


def test_a_new_sequence_is_reconstructed(trained):
    posterior, t, y = trained
    seen = y[-1].clone()
    hidden = torch.zeros_like(seen, dtype=torch.bool)
    hidden[len(seen) // 2 :, :6] = True
    seen[hidden] = torch.nan
    result = posterior.reconstruct(t[-1], seen)
    error = (result.mean - y[-1])[hidden].square().mean().sqrt()
    assert error < 0.4 * y[-1][hidden].std()
    lower, upper = result.interval(0.95)
    assert ((y[-1] > lower) & (y[-1] < upper))[hidden].double().mean() > 0.8
    assert result.bounds == sorted(result.bounds, reverse=True)
    assert result.bound == result.bounds[0]
    filled = posterior.reconstruct(t[-1], seen, fill=True)
    assert torch.equal(filled.mean[~hidden], y[-1][~hidden])
    assert bool((filled.variance[~hidden] == 0.0).all())
    torch.testing.assert_close(filled.mean[hidden], result.mean[hidden])
    torch.testing.assert_close(filled.log_prob(y[-1]), result.log_prob(torch.where(hidden, y[-1], torch.nan)))


def test_huge_outputs_are_an_error_that_names_them(trained):
    posterior, t, y = trained
    huge = y[-1].clone()
    huge[3, 2] = 1e300
    with pytest.raises(NumericalError, match="outputs of y must be in the units of the training data, without huge"):
        posterior.reconstruct(t[-1], huge)


@pytest.mark.long
def test_more_frees_more_and_bounds_more(trained):
    """Factorised ≤ joint with training sites held ≤ all free, for times inside a training sequence."""
    posterior, t, y = trained
    middle = (t[0][3:8] + t[0][4:9]) / 2
    seen = ((y[0][3:8] + y[0][4:9]) / 2).clone()
    seen[:, ::2] = torch.nan
    options = {"solver": Solver(num_steps=500, tolerance=1e-7)}
    factorised = posterior.reconstruct(middle, seen, 0, factorised=True, **options)
    held = posterior.reconstruct(middle, seen, 0, **options)
    free = posterior.reconstruct(middle, seen, 0, free=True, **options)
    assert factorised.bound <= held.bound <= free.bound
    # though it bounds less, the quick way is as good where the training frames are well known
    assert (factorised.mean - held.mean).abs().mean() < 0.1
    for result in (factorised, held, free):
        draws = result.sample(2000)
        assert ((draws.mean(0) - result.mean).abs() / result.stddev).max() < 0.15
        full = result.latent.covariance
        torch.testing.assert_close(full.diagonal(dim1=-2, dim2=-1).mT, result.path.variance, rtol=1e-6, atol=1e-9)


def test_factorised_and_held_are_one_for_new_sequences(trained):
    posterior, t, y = trained
    seen = y[-1].clone()
    seen[:, 0] = torch.nan
    one, other = (posterior.reconstruct(t[-1], seen, factorised=f, solver=Solver(num_starts=1)) for f in (True, False))
    assert one.bound == pytest.approx(other.bound, rel=1e-12)
    torch.testing.assert_close(one.mean, other.mean)


@pytest.mark.parametrize("sequence", [None, 1])
def test_part_of_the_training_set_gives_the_training_fit(trained, sequence):
    posterior, t, y = trained
    rows = posterior.data.times.slices()[1]
    fitted = posterior.impute(fill=False)
    again = posterior.reconstruct(t[1], y[1], sequence)
    difference = (again.mean - fitted.mean[rows]) / posterior.noise_variance.sqrt()
    assert difference.square().mean().sqrt() < 0.3
    assert difference.abs().max() < 1.5


@pytest.mark.parametrize("sequence", [None, 0])
@pytest.mark.parametrize("factorised", [False, True])
def test_with_everything_hidden_it_is_the_forecast(trained, sequence, factorised):
    posterior, t, y = trained
    times = t[0][-4:] + 0.3
    hidden = torch.full((4, y[0].shape[1]), torch.nan)
    result = posterior.reconstruct(times, hidden, sequence, factorised=factorised)
    forecast = posterior.forecast(times, sequence)
    torch.testing.assert_close(result.latent.mean, forecast.latent.mean, rtol=1e-4, atol=1e-4)
    if sequence is None or not factorised:  # the factorised prior holds the training frames to be certain
        torch.testing.assert_close(result.mean, forecast.mean, rtol=1e-4, atol=1e-4)
        assert result.bound == pytest.approx(posterior.bound, abs=1e-3)
        torch.testing.assert_close(result.variance, forecast.variance, rtol=1e-4, atol=1e-4)


def test_frames_without_data_are_interpolated_by_the_rest(trained):
    """Any pattern: one frame with nothing, one with one output, the rest complete; of a new and of an old sequence."""
    posterior, t, y = trained
    seen = y[-1].clone()
    seen[5] = torch.nan
    seen[9, 1:] = torch.nan
    tail = y[0][-3:].clone()
    tail[:, 4:] = torch.nan
    result = posterior.reconstruct([t[-1], t[0][-3:] + 1e-3], [seen, tail], [None, 0])
    assert result.mean.shape == (len(t[-1]) + 3, 12)
    assert (result.mean[5] - y[-1][5]).square().mean().sqrt() < 0.5
    assert (result.mean[9] - y[-1][9]).square().mean().sqrt() < 0.5
    assert (result.mean[-3:] - y[0][-3:]).square().mean().sqrt() < 0.3


@pytest.mark.long
def test_more_starts_never_bound_less(trained):
    posterior, t, y = trained
    seen = y[-1].clone()
    seen[:, 2:] = torch.nan
    one = posterior.reconstruct(t[-1], seen, solver=Solver(num_starts=1))
    many = posterior.reconstruct(t[-1], seen, solver=Solver(num_starts=6))
    assert len(many.bounds) == 6
    assert many.bound >= one.bound - 1e-6


@pytest.mark.long
def test_one_noise_for_each_output_and_white_dynamics():
    data = make_data(lengths=(15, 10), missing=0.1)
    noise_each = VGPDS.from_data(data, 2, 8, noise_per_output=True)
    static = VGPDS.from_data(data, 2, 8, temporal=White(1.0))
    for model in (noise_each, static):
        guide = AutoOpperArchambeau(model)
        fit(model, guide, data, 60, progress=False)
        posterior = Posterior(model, guide, data, residual=None)
        seen = data.y[:6].clone()
        seen[:, 0] = torch.nan
        for sequence in (None, 0):
            result = posterior.reconstruct(data.times.t[:6] + 1e-3, seen, sequence)
            assert (result.mean - data.y[:6])[:, 0].square().mean().sqrt() < 0.5 * data.output_variances[0].sqrt()
            assert bool((result.variance > posterior.noise_variance).all())
            near = posterior.project(data.times.t[:6] + 1e-3, seen, sequence)
            torch.testing.assert_close(near.mean, result.latent.mean, rtol=1e-6, atol=1e-6)


def test_what_a_step_works_on_does_not_grow_with_the_outputs():
    sizes = []
    for outputs in (50, 5000):
        y = torch.randn(12, outputs, generator=torch.Generator().manual_seed(0))
        data = Sequences(torch.arange(12.0), y)
        model = VGPDS.from_data(data, 2, 6, temporal=RBF(1.0, 2.0), noise_per_output=False)
        posterior = Posterior(model, AutoOpperArchambeau(model), data, residual=None)
        new = y[:4].clone()
        new[2:, : outputs // 2] = torch.nan
        new = Sequences(torch.arange(4.0), new)
        joint = Joint(posterior.training, NewFrames(new, [None]), data.joined(new))
        sizes.append(joint.groups.factor.shape)
    assert sizes[0] == sizes[1] == (16, 14 + 16)


@pytest.mark.long
def test_log_density_is_below_the_density_and_near_it():
    """Against importance sampling: the average of p(y given x) over draws of x from the prior."""
    data = make_data(lengths=(20, 15), outputs=3)
    model = VGPDS.from_data(data, 1, 8, temporal=RBF(1.0, 0.8) + White(1e-2), mapping=ARDRBF(1.0, 0.5))
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, 150, progress=False)
    model.set_noise(0.2)
    posterior = Posterior(model, guide, data, residual=None)
    t, y = data.times.t[3:5], data.y[3:5]
    x = posterior.forecast(t, None).latent.path.sample((20, 2000))
    estimates = PosteriorGP(x, posterior.inducing).log_prob(y).logsumexp(-1) - math.log(2000)
    density, spread = float(estimates.mean()), float(estimates.std()) / math.sqrt(20)
    bound = float(posterior.log_density(t, y, solver=Solver(num_starts=4)))
    assert bound < density + 3 * spread
    assert bound > density - 4.0
    # a part that is not observed is ignored, and no observations have density 1
    hidden = y.clone()
    hidden[1] = torch.nan
    assert float(posterior.log_density(t, torch.full_like(y, torch.nan))) == pytest.approx(0.0, abs=1e-4)
    assert posterior.log_density([t, t], [y, hidden]).shape == (2,)
    assert float(posterior.log_density(t, y + 10.0)) < bound - 50.0


@pytest.mark.long
def test_bayes_classifier():
    sequences, posteriors = {}, {}
    for name, seed in (("walk", 0), ("run", 5)):
        data = make_sequences(num_sequences=3, num_outputs=8, length=(20, 25), seed=seed).sequences()
        t, y = ([v[s] for s in data.times.slices()] for v in (data.times.t, data.y))
        sequences[name] = t[-1], y[-1]
        train = Sequences(t[:-1], y[:-1])
        model = VGPDS.from_data(train, 2, 15)
        guide = AutoOpperArchambeau(model)
        fit(model, guide, train, 80, progress=False)
        posteriors[name] = Posterior(model, guide, train)
    classifier = BayesClassifier(posteriors, prior={"run": 0.25, "walk": 0.75})
    assert classifier.classes == ["walk", "run"]
    quick = Solver(num_starts=2, num_steps=20)
    for name, (t, y) in sequences.items():
        partly = y.clone()
        partly[::3] = torch.nan
        assert classifier.predict(t, partly, solver=quick) == name
    t, y = zip(*sequences.values(), strict=True)
    assert classifier.predict(list(t), list(y), solver=quick) == ["walk", "run"]
    proba = classifier.predict_proba(list(t), list(y), solver=quick)
    assert proba.shape == (2, 2)
    torch.testing.assert_close(proba.sum(-1), torch.ones(2))
    nothing = torch.full_like(y[0], torch.nan)
    torch.testing.assert_close(classifier.predict_proba(t[0], nothing), torch.tensor([0.75, 0.25]), atol=1e-3, rtol=0)
    assert repr(classifier) == "BayesClassifier(walk, run)"
    certain = BayesClassifier(posteriors, prior={"walk": 0.0, "run": 1.0})
    assert certain.predict(*sequences["walk"], solver=quick) == "run"
    with pytest.raises(ValueError, match="prior must name the classes"):
        BayesClassifier(posteriors, prior={"walk": 1.0})
    with pytest.raises(ValueError, match="probabilities with sum 1"):
        BayesClassifier(posteriors, prior={"walk": 0.5, "run": 0.1})
    with pytest.raises(ValueError, match="at least one entry"):
        BayesClassifier({})
    model, guide, data = make_problem(lengths=(8,))
    with pytest.raises(ValueError, match="same outputs, but they have"):
        BayesClassifier({**posteriors, "other": Posterior(model, guide, data)})


def test_bad_input_is_named():
    model, guide, data = make_problem()
    posterior = Posterior(model, guide, data, residual=None)
    y = make_new()
    with pytest.raises(ValueError, match="y has 4 outputs, but the model has 5"):
        posterior.reconstruct(T_NEW, y[:, :4])
    with pytest.raises(ValueError, match="y is required"):
        posterior.reconstruct(T_NEW, None)
    with pytest.raises(ValueError, match="sequence must be 0 to 3"):
        posterior.reconstruct(T_NEW, y, 9)
    with pytest.raises(ValueError, match="sequence has 2 entries, but t has 1 sequence"):
        posterior.reconstruct(T_NEW, y, [0, 1])
    with pytest.raises(ValueError, match="t must be finite"):
        posterior.reconstruct(T_NEW + torch.nan, y)
    with pytest.raises(ValueError, match="t must increase"):
        posterior.reconstruct(T_NEW.flip(0), y)
    with pytest.raises(ValueError, match="but t has 4 times"):
        posterior.reconstruct(T_NEW[:4], y)
    with pytest.raises(ValueError, match="infinite"):
        posterior.reconstruct(T_NEW, y + torch.inf)
    with pytest.raises(ValueError, match="cannot be combined with free=True"):
        posterior.reconstruct(T_NEW, y, factorised=True, free=True)
    for option, value in (("num_starts", 0), ("num_steps", 0), ("natural_rate", 0.0), ("tolerance", -1.0)):
        with pytest.raises(ValueError, match=f"{option} must be"):
            Solver(**{option: value})


def test_columns_must_be_those_of_training():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.random.default_rng(0).standard_normal((8, 3)), columns=["a", "b", "c"])
    data = Sequences(frame.index, frame)
    model, guide = make_model(data)
    posterior = Posterior(model, guide, data, residual=None)
    assert posterior.reconstruct([0.5, 1.5], frame[:2]).columns == ["a", "b", "c"]
    options = {"solver": Solver(num_starts=1, num_steps=5)}
    wanted = posterior.reconstruct([0.5, 1.5], frame[:2], **options).mean
    mixed = posterior.reconstruct([[0.5, 1.5]], [frame[["c", "a", "b"]][:2]], **options)
    assert torch.equal(mixed.mean, wanted)
    hidden = posterior.reconstruct([0.5, 1.5], frame[:2].assign(b=np.nan), **options)
    assert torch.equal(posterior.reconstruct([0.5, 1.5], frame[["c", "a"]][:2], **options).mean, hidden.mean)
    with pytest.raises(ValueError, match="y must have columns of the training data, but it has 'knee'"):
        posterior.reconstruct([0.5, 1.5], frame[:2].rename(columns={"c": "knee"}))
