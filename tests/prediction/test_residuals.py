# SPDX-License-Identifier: Apache-2.0
"""What is carried of residuals over a sequence, against one output and one explicit Gaussian at a time."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from problems import make_problem

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, PosteriorMixture, Sequences, Solver, fit, lagged
from pyro_vgpds.kernels import ARDRBF, RBF, Bias, Matern12, Matern32, White
from pyro_vgpds.mapping import inducing as predictive
from pyro_vgpds.prediction.residuals import Correlation

KERNELS = [lambda: Bias(0.7) + White(0.3), lambda: Matern32(2.0, 0.5) + White(0.4), lambda: RBF(1.3, 0.8)]
T_NEW = torch.tensor([1.3, -0.4, 0.2, 5.0])


def make_posteriors(kernel, noise=None, missing=0.25):
    """With the kernel for residuals, and with white ones."""
    model, guide, data = make_problem(missing=missing)
    return tuple(Posterior(model, guide, data, noise_variance=noise, residual=r) for r in (kernel, None))


def naive_noise(kernel, t_old, residual, t_new, noise):
    """Mean (T,) and covariance (T, T) of the noise at new frames given residuals (n,) of one output, NaN unseen."""
    seen = torch.isfinite(residual)
    times = torch.cat([t_old[seen], t_new])
    with torch.no_grad():
        full = kernel().gram(times)[0]  # every frame has white noise of its own
        old, n = full[: seen.sum(), : seen.sum()], int(seen.sum())
        scale = kernel().diag(times)[0].sqrt()
    full = noise * full / scale / scale[:, None]
    old, cross = full[:n, :n], full[n:, :n]
    gain = cross @ torch.linalg.inv(old) if n else cross
    return gain @ residual[seen], full[n:, n:] - gain @ cross.mT


def check(prediction, white, expected):
    """:param expected: mean and covariance of the noise for each output and set of frames."""
    f = white.with_noise(False)
    mean, variance = f.mean.clone(), f.variance.clone()
    for d, frames, (shift, covariance) in expected:
        mean[frames, d] += shift
        variance[frames, d] += covariance.diagonal()
    torch.testing.assert_close(prediction.mean, mean)
    torch.testing.assert_close(prediction.variance, variance)
    torch.testing.assert_close(prediction.with_noise(False).mean, f.mean)
    torch.testing.assert_close(prediction.covariance.diagonal(dim1=1, dim2=2), variance)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("noise", [0.3, [0.05, 0.2, 0.1, 0.02, 0.4]])
@pytest.mark.parametrize("sequence", [0, 2, None])
def test_forecast(kernel, noise, sequence):
    posterior, white = make_posteriors(kernel(), noise)
    data = posterior.data
    left = data.y - white.impute(fill=False, include_noise=False).mean
    rows = slice(0, 0) if sequence is None else data.times.slices()[sequence]
    variances = posterior.noise_variance.expand(5)
    expected = [
        (d, slice(None), naive_noise(kernel(), data.times.t[rows], left[rows, d], T_NEW, variances[d]))
        for d in range(5)
    ]
    check(posterior.forecast(T_NEW, sequence), white.forecast(T_NEW, sequence), expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_training_frames(kernel):
    posterior, white = make_posteriors(kernel())
    data = posterior.data
    left = data.y - white.impute(fill=False, include_noise=False).mean
    t, noise = data.times.t, posterior.noise_variance[0]
    expected = [
        (d, rows, naive_noise(kernel(), t[rows], left[rows, d], t[rows], noise))
        for rows in data.times.slices()
        for d in range(5)
    ]
    if kernel is not KERNELS[2]:  # without white noise nothing is left to predict at a frame that was seen
        check(posterior.impute(fill=False), white.impute(fill=False), expected)
    filled, missing = posterior.impute(), torch.isnan(data.y)
    shift = torch.zeros_like(data.y)
    for d, rows, (mean, _) in expected:
        shift[rows, d] = mean
    wanted = white.impute().with_noise(False).mean + shift
    torch.testing.assert_close(filled.mean[missing], wanted[missing])
    assert torch.equal(filled.mean[~missing], data.y[~missing])
    torch.testing.assert_close(posterior.residual_variance(), white.residual_variance())


@pytest.mark.parametrize("belongs", [[None, None], [1, None], [2, 2]])
def test_reconstruction(belongs):
    kernel = Matern32(2.0, 0.5) + White(0.4)
    posterior, white = make_posteriors(kernel)
    t = [torch.linspace(4.1, 5.0, 6), torch.linspace(5.2, 6.5, 5)]
    y = [torch.randn(6, 5), torch.randn(5, 5)]
    y[0][3:, 2:], y[1][1:4, 0] = torch.nan, torch.nan
    options = {"solver": Solver(num_starts=1, num_steps=5)}
    found, plain = posterior.reconstruct(t, y, belongs, **options), white.reconstruct(t, y, belongs, **options)
    new, data = torch.cat(y), posterior.data
    f = plain.with_noise(False).mean
    trained = white.reconstruct(t, y, belongs, **options).inducing  # E f at the training frames, q(U) having seen both
    v = torch.empty(trained.basis.size, 5)
    for part in trained.columns():
        v[:, part.outputs] = part.mean
    fitted = trained.at_data(torch.arange(data.num_frames)) @ v + trained.output_mean
    expected, ends = [], [slice(0, 6), slice(6, 11)]
    groups = {2: [[0, 1]], 1: [[0], [1]], None: [[0], [1]]}[belongs[0]]
    for members in groups:
        old = data.times.slices()[belongs[members[0]]] if belongs[members[0]] is not None else slice(0, 0)
        frames = torch.cat([torch.arange(ends[i].start, ends[i].stop) for i in members])
        t_new = torch.cat(t)[frames]
        times = torch.cat([data.times.t[old], t_new])
        for d in range(5):
            left = torch.cat([(data.y - fitted)[old, d], (new - f)[frames, d]])
            expected.append((d, frames, naive_noise(kernel, times, left, t_new, posterior.noise_variance[0])))
    check(found, plain, expected)
    filled = posterior.reconstruct(t, y, belongs, fill=True, **options)
    assert torch.equal(filled.mean[torch.isfinite(new)], new[torch.isfinite(new)])


def test_draws_have_the_moments_and_stay_off_together():
    posterior, _ = make_posteriors(Bias(0.9) + White(0.1), noise=2.0)
    for sequence in (0, None):
        ahead = posterior.forecast(T_NEW, sequence)
        draws = ahead.sample(20_000)
        sd = ahead.stddev
        torch.testing.assert_close(draws.mean(0) / sd, ahead.mean / sd, atol=0.05, rtol=0.0)
        torch.testing.assert_close(draws.var(0) / ahead.variance, torch.ones_like(sd), atol=0.06, rtol=0.0)
    noise = draws - posterior.forecast(T_NEW, None, include_noise=False).mean
    together = torch.corrcoef(noise[:, :2, 0].mT)[0, 1]
    assert together > 0.5  # white noise of this size would hide the path: the offset is shared
    assert posterior.generate(T_NEW, 3, 0).shape == (3, 4, 5)
    bare = posterior.forecast(T_NEW, 0, include_noise=False)
    torch.testing.assert_close(bare.sample(20_000).var(0), bare.variance, atol=1e-4, rtol=0.06)


def test_blocks_of_any_size_and_mixtures(monkeypatch):
    posterior, _ = make_posteriors(Bias() + White(), [0.05, 0.2, 0.1, 0.02, 0.4])
    wanted = posterior.forecast(T_NEW, 0)
    wanted = wanted.mean, wanted.variance
    both = PosteriorMixture([posterior, posterior]).forecast(T_NEW, 0)
    torch.testing.assert_close(both.mean, wanted[0])
    for name in ("_BLOCK", "_FRAMES", "_CACHED"):
        monkeypatch.setattr(predictive, name, 30)
    small, _ = make_posteriors(Bias() + White(), [0.05, 0.2, 0.1, 0.02, 0.4])
    got = small.forecast(T_NEW, 0)
    torch.testing.assert_close((got.mean, got.variance), wanted)


def test_an_offset_is_found_again():
    """Sequences that are off by a number each, which the mapping does not know."""
    rng = np.random.default_rng(0)
    t = np.arange(40) / 10
    clean = np.sin(2 * t[:, None] + np.arange(8))
    offsets = 0.5 * rng.standard_normal((6, 8))
    y = [clean + offset + 0.05 * rng.standard_normal((40, 8)) for offset in offsets]
    data = Sequences([t] * 5, y[:5])
    model = VGPDS.from_data(data, 2, 15, mapping=ARDRBF())
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, 30)
    seen = y[5].copy()
    seen[20:, :3] = np.nan
    errors = []
    for residual in (None, Bias() + White()):
        found = Posterior(model, guide, data, noise_variance=0.3, residual=residual).reconstruct(t, seen)
        errors.append(float((found.mean.numpy() - y[5])[20:, :3].std()))
    assert errors[1] < 0.5 * errors[0]


def test_bad_input_is_named():
    model, guide, data = make_problem()
    for bad in (3.0, Bias, ARDRBF(1.0, [1.0, 2.0])):
        with pytest.raises(TypeError, match=r"residual must be a kernel of time such as Bias\(\) \+ White\(\)"):
            Posterior(model, guide, data, residual=bad)
    with pytest.raises(ValueError, match="residual must have numbers as parameters, not priors"):
        Posterior(model, guide, data, residual=Bias(dist.LogNormal(0.0, 1.0)) + White())
    with pytest.raises(ValueError, match="residual must have one number for each parameter"):
        Posterior(model, guide, data, residual=Bias([1.0, 2.0]))
    posterior = Posterior(model, guide, data, residual=Bias())
    with pytest.raises(ValueError, match="as_model draws white noise"):
        posterior.as_model()
    assert posterior.as_model(include_noise=False)([0.1, 0.2]).shape == (2, posterior.num_outputs)
    for share in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="share must be between 0 and 1"):
            posterior.hidden_variance(share)
    with pytest.raises(ValueError, match="num_sequences must be a whole number"):
        posterior.hidden_variance(num_sequences=0)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_hidden_variance(missing, monkeypatch):
    model, guide, data = make_problem(missing=missing)
    posterior = Posterior(model, guide, data)
    tried = []

    def keep(self, t, y, **options):
        tried.append((t, y))
        return original(self, t, y, **options)

    original = Posterior.reconstruct
    monkeypatch.setattr(Posterior, "reconstruct", keep)
    got = posterior.hidden_variance(num_sequences=3, solver=Solver(num_starts=1, num_steps=4))
    assert len(tried) == 6  # two halves of each
    total, count = torch.zeros(5), torch.zeros(5)
    for t, y in tried:
        (start,) = (s.start for s in data.times.slices() if torch.equal(data.times.t[s], t))
        truth = data.y[start : start + len(t)]
        hidden = torch.isnan(y).all(0) & ~torch.isnan(truth).all(0)
        wrong = (original(posterior, t, y, solver=Solver(num_starts=1, num_steps=4)).mean - truth)[:, hidden].square()
        total[hidden] += wrong.nansum(0)
        count[hidden] += torch.isfinite(wrong).sum(0)
    torch.testing.assert_close(got, total / count.clamp_min(1))


def test_lags():
    y = np.arange(12.0).reshape(6, 2)
    y[2, 1] = np.nan
    lags = [-2, 1, 9, -6]
    got = lagged(y, lags)
    assert got.shape == (6, 10)
    for n in range(6):
        for i, lag in enumerate([0, *lags]):
            wanted = y[n + lag] if 0 <= n + lag < 6 else [np.nan, np.nan]
            np.testing.assert_array_equal(got[n, 2 * i : 2 * i + 2], wanted)
    np.testing.assert_array_equal(lagged(y, []), y)
    with pytest.raises(ValueError, match=r"y must be one sequence \(T, D\), but its shape is \(3,\)"):
        lagged([1.0, 2.0, 3.0], [1])
    for bad in ([0], [1.5], [True]):
        with pytest.raises(ValueError, match="lags must be a list of different whole numbers of frames other than 0"):
            lagged(y, bad)


@pytest.mark.parametrize("kernel", [*KERNELS[:2], lambda: Matern12(1.0, 0.3) + White(0.01)])
def test_state_space_form_against_matrices(kernel, monkeypatch):
    posterior, _ = make_posteriors(kernel())
    later = torch.linspace(-0.4, 3.0, 6)

    def predictions():
        t, seen = posterior.data.times.t[:4], posterior.data.y[:4].clone()
        seen[1:3, 1:4] = torch.nan
        again = posterior.reconstruct(t, seen, 0, solver=Solver(num_starts=1, num_steps=3))
        every = [posterior.impute(fill=False), posterior.forecast(T_NEW, 0), posterior.forecast(later, 1), again]
        return [(found.mean, found.variance) for found in every]

    fast = predictions()
    monkeypatch.setattr(Correlation, "chain", lambda *_: None)
    for found, wanted in zip(fast, predictions(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-7)
