# SPDX-License-Identifier: Apache-2.0
"""Residuals of Student-t outputs, against one output and one explicit Gaussian at a time."""

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    Posterior,
    PosteriorMixture,
    Sequences,
    Solver,
    fit,
    load_posterior,
    save_posterior,
)
from pyro_vgpds.evaluation import hold_out
from pyro_vgpds.kernels import RBF, Bias, Linear, Matern12, Matern32, White
from pyro_vgpds.likelihoods import StudentT
from pyro_vgpds.metrics import log_score
from pyro_vgpds.prediction.output_residuals import OutputResiduals
from pyro_vgpds.prediction.residual_choice import choose_residual
from pyro_vgpds.prediction.residuals import Correlation, Residuals, every_frame, training_frames

KERNELS = [
    lambda: Matern32(0.8, 0.6) + White(0.7),
    lambda: RBF(1.3, 0.8) + White(0.4),
    lambda: White(0.2) + Bias(0.5) + Matern12(0.7, 0.4) + White(0.1),
]
T_NEW = torch.tensor([1.3, -0.4, 0.2, 5.0])


def own_parts(wild=0.0, length=60):
    """Outputs with a shared path, a smooth part of their own, noise, and runs of outliers."""
    rng, t = np.random.default_rng(1), 0.5 * np.arange(float(length))
    root = np.linalg.cholesky(RBF(1.0, 1.5)().gram(torch.as_tensor(t))[0].detach().numpy() + 1e-6 * np.eye(length))
    y = np.sin(t[:, None] / 3.5 + np.arange(12)) + 0.2 * root @ rng.standard_normal((length, 12))
    y += 0.05 * rng.standard_normal(y.shape)
    for start, column in zip(rng.integers(0, length - 4, 12), range(12), strict=True):
        y[start : start + 4, column] += wild
    return Sequences(t, y)


def train(data, likelihood="student-t", steps=30, **options):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, 3, 12, likelihood=likelihood)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=steps, progress=False)
    return Posterior(model, guide, data, **options)


def with_residual(post, kernel):
    return Posterior(post.origin.model, post.origin.guide, post.data, residual=kernel)


@pytest.fixture(scope="module")
def white():
    """Two sequences with missing entries, and outliers."""
    rng = np.random.default_rng(3)
    t = [0.2 * np.arange(14.0), 0.2 * np.arange(11.0)]
    y = [np.sin(part[:, None] + np.arange(4)) + 0.1 * rng.standard_normal((len(part), 4)) for part in t]
    y[0][3:6, 1] += 2.0
    y[0][5, 0], y[0][8:, 3], y[1][2:4] = np.nan, np.nan, np.nan
    return train(Sequences(t, y), StudentT(df=3.0), 15, residual=None)


def naive(kernel, t_old, left, t_new, scale, df):
    """Mean (T,) and covariance (T, T) of e at new frames, given residuals (n,) of one output, NaN unseen."""
    seen = torch.isfinite(left)
    times, n = torch.cat([t_old[seen], t_new]), int(seen.sum())
    with torch.no_grad():
        full = scale**2 * kernel().gram(times, times)[0]  # without white noise
        share = float(sum(leaf.variance for leaf in kernel.leaves() if isinstance(leaf, White)))
    old, cross, r = full[:n, :n], full[n:, :n], left[seen]
    mean, variance = torch.zeros_like(r), torch.zeros_like(r)
    gain = torch.zeros(len(t_new), 0)
    for _ in range(6):
        square = (r - mean) ** 2 + variance
        noise = torch.diag((df * share * scale**2 + square) / (df + 1.0))
        inverse = torch.linalg.inv(old + noise)
        mean, variance = old @ inverse @ r, (old - old @ inverse @ old).diagonal()
        gain = cross @ inverse
    return gain @ r, full[n:, n:] - gain @ cross.mT


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sequence", [0, None, "training"])
def test_moments(white, kernel, sequence):
    post, data, value = with_residual(white, kernel()), white.data, white.likelihood.parameters
    left = data.y - white.impute(fill=False, include_noise=False).function.mean
    t = data.times.t
    frames = [(training_frames(data, 0), T_NEW, slice(None))] if sequence == 0 else [(slice(0, 0), T_NEW, slice(None))]
    if sequence == "training":
        frames = [(rows, t[rows], rows) for rows in data.times.slices()]
    found = post.impute(fill=False) if sequence == "training" else post.forecast(T_NEW, sequence)
    plain = white.impute(fill=False) if sequence == "training" else white.forecast(T_NEW, sequence)
    mean, variance = torch.zeros(found.shape), torch.zeros(found.shape)
    for rows, t_new, target in frames:
        for d in range(4):
            shift, covariance = naive(kernel(), t[rows], left[rows, d], t_new, value.scale[d], value.df)
            mean[target, d], variance[target, d] = shift, covariance.diagonal()
    moments = found._paths.path_moments()
    torch.testing.assert_close(moments[0], mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(moments[1], variance, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.mean, plain.mean + mean)
    df, scale = value.df, found._paths.outputs.parameters.scale
    expected = plain.function.variance + variance + scale**2 * df / (df - 2.0)
    torch.testing.assert_close(found.variance, expected)
    # the mapping alone
    torch.testing.assert_close(found.rate.mean, plain.rate.mean)
    torch.testing.assert_close(found.rate.variance, plain.rate.variance)
    torch.testing.assert_close(found.function.variance, plain.function.variance)


def test_many_degrees_of_freedom_are_gaussian_outputs(white):
    kernel, scale = Matern32(0.6, 0.5) + White(0.4), white.likelihood.parameters.scale
    correlation, data = Correlation.read(kernel, T_NEW), white.data
    outputs = StudentT(scale=scale.detach(), df=1e10)()
    frames = [(training_frames(data, 0), torch.arange(4))]
    found = OutputResiduals(correlation, white.inducing, T_NEW, frames, outputs).path_moments()
    v = torch.empty(white.inducing.basis.size, 4)
    for part in white.inducing.columns():
        v[:, part.outputs] = part.mean
    mean, share = Residuals(correlation, white.inducing, T_NEW, frames).moments(torch.arange(4), v)
    torch.testing.assert_close(found[0], mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found[1] + 0.4 * scale.square(), share * scale.square(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS[:2])
def test_draws_have_the_distribution(white, kernel):
    pyro.set_rng_seed(0)
    found = with_residual(white, kernel()).impute(fill=False)
    draws = found.sample(4000)
    torch.testing.assert_close(draws.median(0).values, found.interval(1e-9)[0], rtol=0.0, atol=0.05)
    lower, upper = found.interval(0.8)
    inside = ((draws >= lower) & (draws <= upper)).double().mean(0)
    torch.testing.assert_close(inside, torch.full_like(inside, 0.8), rtol=0.0, atol=0.05)
    torch.testing.assert_close(found.cdf(upper), torch.full_like(upper, 0.9), rtol=0.0, atol=1e-3)
    # the density integrates to the probability of the interval
    grid = torch.linspace(0.0, 1.0, 201)
    density = torch.stack([found.log_probs(lower + w * (upper - lower)).exp() for w in grid])
    held = torch.trapezoid(density, grid, dim=0) * (upper - lower)
    torch.testing.assert_close(held, torch.full_like(held, 0.8), rtol=0.0, atol=0.01)
    # smooth in time: draws of e at neighbouring frames are correlated
    carried = found._paths.sample(500)
    shift, variance = found._paths.path_moments()
    torch.testing.assert_close(carried.mean(0), shift, rtol=0.0, atol=0.1)
    torch.testing.assert_close(carried.var(0), variance, rtol=0.3, atol=1e-3)


def test_reconstructions_have_the_residuals_of_new_frames(white):
    kernel = Bias(4.0) + White(0.5)
    y = torch.as_tensor(np.sin(T_NEW.sort().values[:, None].numpy() + np.arange(4)))
    y[1:3, 0] = torch.nan
    y[0, 0], y[3, 0] = y[0, 0] + 0.5, y[3, 0] + 0.5
    t, solver = T_NEW.sort().values, Solver(num_starts=1, num_steps=5)
    found = with_residual(white, kernel).reconstruct(t, y, solver=solver)
    plain = white.reconstruct(t, y, solver=solver)
    f, scale = plain.function.mean, white.likelihood.parameters.scale[0]
    shift, _ = naive(kernel, t, y[:, 0] - f[:, 0], t, scale, white.likelihood.parameters.df)
    torch.testing.assert_close((found.mean - plain.mean)[:, 0], shift)


def test_hidden_entries_choose_the_kernel(tmp_path):
    split = hold_out(own_parts(wild=0.5), "impute", share=0.2)
    post = train(split.train)
    kernel = post.origin.residual
    white = with_residual(post, None)
    assert repr(choose_residual(white)) == repr(kernel) != "None"
    truth = torch.cat(split.truth)
    scores = [log_score(truth, one.impute(fill=False).log_probs(truth)) for one in (post, white)]
    assert scores[0] > scores[1] + 0.05
    errors = [float((one.impute(fill=False).mean - truth).nan_to_num(0.0).square().sum()) for one in (post, white)]
    assert errors[0] < 0.9 * errors[1]
    # files, other data and mixtures have it
    save_posterior(tmp_path / "a", post)
    again = load_posterior(tmp_path / "a")
    assert repr(again.origin.residual) == repr(kernel)
    torch.testing.assert_close(again.impute().mean, post.impute().mean)
    assert repr(post.condition(split.train).origin.residual) == repr(kernel)
    mixture = PosteriorMixture([post, white]).impute(fill=False)
    parts = torch.stack([one.impute(fill=False).log_probs(truth).exp() for one in (post, white)])
    torch.testing.assert_close(mixture.log_probs(truth), parts.mean(0).log(), equal_nan=True)
    with pytest.raises(ValueError, match="as_model draws white noise"):
        post.as_model()


def test_complete_data_and_few_entries_have_white_noise(white):
    assert choose_residual(train(own_parts(length=20), steps=3)) is None
    few = white.data.y.clone()
    few[2:] = torch.nan
    assert choose_residual(white.condition(Sequences(white.data.times.t[:14], few[:14]), [0])) is None


def test_frames_without_variance_of_the_kernel(white):
    kernel, t = Linear(1.0) + White(0.5), torch.zeros(1)  # a new sequence of the frame t = 0
    found = OutputResiduals(
        Correlation.read(kernel, t), white.inducing, t, [(torch.arange(0), torch.arange(1))], white.likelihood
    )
    zeros = torch.zeros(1, 4)
    torch.testing.assert_close(found.path_moments(), (zeros, zeros))
    torch.testing.assert_close(found.sample(2), zeros.expand(2, 1, 4))
    assert bool(with_residual(white, kernel).forecast([0.0], None).sample(2).isfinite().all())


@pytest.mark.parametrize("kernel", [Matern32(1.0, 0.5), White(1.0), Bias(1.0) * White(0.5)])
def test_kernels_need_a_white_and_another_part(white, kernel):
    with pytest.raises(ValueError, match=r"residual of Student-t outputs must be the sum of White\(\) and another ker"):
        with_residual(white, kernel)


def test_every_frame_of_a_long_gap_has_the_variance_of_the_kernel(white):
    kernel = Matern32(0.8, 0.01) + White(0.7)
    found = OutputResiduals(
        Correlation.read(kernel, T_NEW), white.inducing, white.data.times.t, every_frame(white.data), white.likelihood
    )
    _, variance = found.path_moments()
    torch.testing.assert_close(variance[13, 3], 0.8 * white.likelihood.parameters.scale[3].square())
