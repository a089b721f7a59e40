# SPDX-License-Identifier: Apache-2.0
"""The linear dynamical system against the joint Gaussian of all states and outputs, built explicitly."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from pyro_vgpds import Sequences
from pyro_vgpds.baselines import LinearDynamicalSystem, linear_dynamical_system
from pyro_vgpds.baselines.gaps import Gaps
from pyro_vgpds.baselines.kalman import Grid
from pyro_vgpds.baselines.lds import _bounded, _Problem


def make_system(seed=0, states=3, outputs=4):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def covariance():
        root = draw(states, states)
        return root @ root.mT + 0.1 * torch.eye(states)

    a = draw(states, states)
    return LinearDynamicalSystem(
        transition=0.9 * a / torch.linalg.eigvals(a).abs().max(),
        transition_noise=covariance(),
        loadings=draw(outputs, states),
        offset=draw(outputs),
        noise=0.1 + draw(outputs).square(),
        initial_mean=draw(states),
        initial_covariance=covariance(),
        step=torch.tensor(1.0),
        objective=torch.zeros(0),
    )


def dense(system, places, y):
    """Predictive means and variances of y (n, D) at integer times, and the log-likelihood, from the joint Gaussian."""
    a, c = system.transition, system.loadings
    n, k = int(places[-1]) + 1, len(a)
    # z = solve(lower, noises): z_1 = m0 + e_1, z_{n+1} - A z_n = e_{n+1}
    lower = torch.eye(n * k)
    for i in range(1, n):
        lower[i * k : (i + 1) * k, (i - 1) * k : i * k] = -a
    noise = torch.block_diag(system.initial_covariance, *[system.transition_noise] * (n - 1))
    inverse = torch.linalg.inv(lower)
    mean_z = inverse @ torch.cat([system.initial_mean, torch.zeros((n - 1) * k)])
    cov_z = inverse @ noise @ inverse.mT
    look = torch.zeros(len(places) * len(c), n * k)
    for i, place in enumerate(places):
        look[i * len(c) : (i + 1) * len(c), place * k : (place + 1) * k] = c
    mean = look @ mean_z + system.offset.repeat(len(places))
    cov = look @ cov_z @ look.mT + torch.diag(system.noise.repeat(len(places)))
    seen = ~torch.isnan(y).flatten()
    block, cross = cov[seen][:, seen], cov[:, seen]
    rest = (y.flatten() - mean)[seen]
    filled = mean + cross @ torch.linalg.solve(block, rest)
    variance = cov.diagonal() - (cross * torch.linalg.solve(block, cross.mT).mT).sum(1)
    log_likelihood = torch.distributions.MultivariateNormal(mean[seen], block).log_prob(y.flatten()[seen])
    return filled.reshape(y.shape), variance.reshape(y.shape), float(log_likelihood)


def make_gaps(system, seed=0, lengths=(8, 5)):
    rng = np.random.default_rng(seed)
    times, parts = [], []
    for n in lengths:
        times.append(np.cumsum(rng.choice([1, 1, 1, 3], n)).astype(float))
        part = rng.standard_normal((n, len(system.offset))) * 2
        part[rng.random(part.shape) < 0.3] = np.nan
        part[2] = np.nan
        parts.append(torch.tensor(part))
    parts[1][:, 1] = np.nan
    return times, parts


def test_smoother_is_the_joint_gaussian():
    system = make_system()
    times, parts = make_gaps(system)
    means, variances = system.fill(times, parts, return_variance=True)
    for t, y, mean, variance in zip(times, parts, means, variances, strict=True):
        expected, spread, _ = dense(system, (t - t[0]).astype(int), y)
        seen = ~torch.isnan(y)
        torch.testing.assert_close(mean, torch.where(seen, y, expected), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(variance, torch.where(seen, 0.0, spread), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lengths", [(150,), (100, 90)])
def test_settled_covariances_are_not_computed_again(lengths, monkeypatch):
    system, rng = make_system(1), np.random.default_rng(5)
    times = [np.arange(float(n)) for n in lengths]
    parts = [torch.tensor(rng.standard_normal((n, 4))) for n in lengths]
    for part in parts:
        part[40:60, :2] = np.nan  # lost columns, then a single entry and lost frames
        part[62, 3] = np.nan
        part[75:80] = np.nan
    factorise, calls = torch.linalg.cholesky_ex, []
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda x: calls.append(x) or factorise(x))
    filled = system.fill(times, parts, return_variance=True)
    assert len(calls) < 2 * 110
    calls.clear()
    monkeypatch.setattr("pyro_vgpds.baselines.kalman._SETTLED", -1.0)
    every = system.fill(times, parts, return_variance=True)
    assert len(calls) == 2 * lengths[0]  # two in each step
    expected = [dense(system, t.astype(int), y)[:2] for t, y in zip(times, parts, strict=True)]
    for means, variances in (filled, every):
        for mean, variance, part, (dense_mean, spread) in zip(means, variances, parts, expected, strict=True):
            seen = ~part.isnan()
            torch.testing.assert_close(mean, torch.where(seen, part, dense_mean), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(variance, torch.where(seen, 0.0, spread), rtol=1e-9, atol=1e-9)


def test_fit_ascends_the_likelihood_of_the_joint_gaussian():
    rng = np.random.default_rng(3)
    times, parts = [], []
    for n in (30, 18):
        t = np.cumsum(rng.choice([1, 1, 1, 2], n)).astype(float)
        y = np.stack([np.sin(0.4 * t), np.cos(0.4 * t), np.sin(0.4 * t + 1)], 1) + 0.1 * rng.standard_normal((n, 3))
        y[rng.random(y.shape) < 0.2] = np.nan
        times.append(t)
        parts.append(torch.tensor(y))
    fits = [LinearDynamicalSystem.fit(times, parts, 2, num_steps=s, tolerance=0.0) for s in (1, 3, 40)]
    gains = fits[-1].objective.diff()
    assert len(gains) == 40
    assert float(gains.min()) > -1e-7
    torch.testing.assert_close(fits[1].objective, fits[2].objective[:4])  # the same steps
    places = [(t - t[0]).astype(int) for t in times]
    likelihoods = [sum(dense(fit, p, y)[2] for p, y in zip(places, parts, strict=True)) for fit in fits]
    assert likelihoods[0] < likelihoods[1] < likelihoods[2]
    # the objective is the likelihood of scaled data plus the logarithm of the prior, which is O(1)
    scale = torch.cat(parts).sub(torch.cat(parts).nanmean(0)).square().nanmean(0).sqrt()
    shift = float((~torch.cat(parts).isnan()).to(scale).sum(0) @ scale.log())
    assert abs(likelihoods[2] + shift - float(fits[2].objective[-1])) < 30


def log_prior(a, q, c, r, m, v):
    eye = torch.eye(len(a))
    prior = q.logdet() + torch.trace(torch.linalg.inv(q) @ (1e-4 * eye + 1e-2 * a @ a.mT))
    prior = prior + v.logdet() + torch.trace(torch.linalg.inv(v) @ (eye + m[:, None] * m))
    return -0.5 * (prior + (r.log() + (1e-2 + 1e-2 * c.square().sum(1)) / r).sum())


def test_the_objective_is_the_penalised_likelihood():
    y = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y[4, 1] = y[9, 0] = torch.nan
    y = (y - y.nanmean(0)) / (y - y.nanmean(0)).square().nanmean(0).sqrt()  # in the units of the priors
    s = LinearDynamicalSystem.fit(range(20), y, 2, num_steps=4)
    prior = log_prior(s.transition, s.transition_noise, s.loadings, s.noise, s.initial_mean, s.initial_covariance)
    assert float(s.objective[-1]) == pytest.approx(dense(s, range(20), y)[2] + float(prior), abs=1e-8)


def test_the_m_step_is_a_maximum():
    """The expected log-joint density of states and outputs, under their dense posterior, has no gradient there."""
    system = make_system(states=2, outputs=3)
    y = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y[2], y[4, 0], y[5, 1] = torch.nan, torch.nan, torch.nan
    gaps = Gaps(range(7), y)
    problem = _Problem(gaps, Grid(gaps.t, gaps.rows, 1.0), torch.zeros(3), torch.ones(3))
    states, _ = problem.states(system)
    new = problem.maximise(states, system.step, problem.grid.within)
    # the states z (14,) have the prior L z = e, and outputs the design B z
    seen, rest = ~torch.isnan(y).flatten(), torch.zeros(12)

    def parts(a, q, c, v):
        lower = torch.eye(14) - torch.block_diag(*[a] * 7).roll(2, 0) * (torch.arange(14) >= 2)[:, None]
        return lower, torch.block_diag(v, *[q] * 6), torch.block_diag(*[c] * 7)[seen]

    lower, noise, look = parts(system.transition, system.transition_noise, system.loadings, system.initial_covariance)
    precision = lower.mT @ torch.linalg.solve(noise, lower)
    weighted = look.mT / system.noise.repeat(7)[seen]
    cov = torch.linalg.inv(precision + weighted @ look)
    start = lower.mT @ torch.linalg.solve(noise, torch.cat([system.initial_mean, rest]))
    mean = cov @ (start + weighted @ (y.flatten() - system.offset.repeat(7))[seen])
    torch.testing.assert_close(states.mean.flatten(), mean)
    leaves = [
        x.clone().requires_grad_()
        for x in (new.transition, new.transition_noise, new.loadings, new.noise, new.initial_mean)
    ] + [new.initial_covariance.clone().requires_grad_(), new.offset.clone().requires_grad_()]
    a, q, c, r, m, v, d = leaves
    lower, noise, look = parts(a, q, c, v)
    error = lower @ mean - torch.cat([m, rest])
    moment = error[:, None] * error + lower @ cov @ lower.mT
    expected = -0.5 * (noise.logdet() + torch.trace(torch.linalg.inv(noise) @ moment))
    error = (y.flatten() - d.repeat(7))[seen] - look @ mean
    square = error.square() + (look @ cov * look).sum(1)
    expected = expected - 0.5 * (r.repeat(7)[seen].log() + square / r.repeat(7)[seen]).sum()
    for gradient in torch.autograd.grad(expected + log_prior(a, q, c, r, m, v), leaves):
        assert float(gradient.abs().max()) < 1e-8


def test_forecasts_a_rotation_and_bridges_lost_frames():
    t = np.arange(120.0)
    clean = np.stack([np.sin(t / 4), np.cos(t / 4), 3 + np.sin(t / 4 + 1)], 1)
    y = clean + 0.01 * np.random.default_rng(0).standard_normal(clean.shape)
    y[100:] = np.nan
    kept = np.r_[0:40, 52:120]  # a gap in time, without frames
    filled, variance = linear_dynamical_system(t[kept], y[kept], num_states=2, return_variance=True)
    np.testing.assert_allclose(filled.numpy()[-20:], clean[-20:], atol=0.1)
    assert bool((variance[-1] > variance[-19]).all())
    assert bool((variance[:40] == 0).all())
    one = linear_dynamical_system(
        t, np.where(t < 100, y[:, 0], np.nan)[:, None], num_states=2
    )  # more states than outputs
    np.testing.assert_allclose(one.numpy()[100:110, 0], clean[100:110, 0], atol=0.3)


def test_trained_parameters_fill_other_sequences_and_survive_saving(tmp_path):
    t = np.arange(80.0)
    y = np.stack([np.sin(t / 4), np.cos(t / 4), np.sin(t / 4 + 1)], 1)
    system = LinearDynamicalSystem.fit([t, t + 5], [y, -y], num_states=2)
    new = y[10:40].copy()
    new[:, 2] = np.nan  # hidden in all frames
    filled = system.fill(t[:30], new)
    np.testing.assert_allclose(filled.numpy(), y[10:40], atol=0.05)
    torch.save(asdict(system), tmp_path / "system.pt")
    same = LinearDynamicalSystem(**torch.load(tmp_path / "system.pt"))
    torch.testing.assert_close(same.fill(Sequences(t[:30], new)), filled, rtol=0, atol=0)


def test_long_forecasts_stay_bounded():
    t = np.arange(300.0)
    y = np.stack([1.02**t, 1.01**t], 1)[:60]
    filled = linear_dynamical_system(t, np.concatenate([y, np.full((240, 2), np.nan)]), num_states=2)
    assert bool((filled.abs() < 100).all())
    for a in (torch.tensor([[1.1, 1.0], [0.0, 1.1]]), torch.tensor([[1.2, 0.3], [0.0, 0.5]])):
        values = torch.linalg.eigvals(_bounded(a)).abs()
        assert float(values.max()) == pytest.approx(0.9999, abs=1e-6)
    torch.testing.assert_close(values.min(), torch.tensor(0.5))  # only eigenvalues above one change


@pytest.mark.parametrize("frames", [1, 12])
def test_nothing_varies(frames):
    y = np.full((frames, 3), 2.0)
    y[0, 1] = np.nan if frames > 1 else 2.0
    filled, variance = LinearDynamicalSystem.fit(np.arange(frames), y).fill(np.arange(frames), y, return_variance=True)
    np.testing.assert_allclose(filled, 2.0)
    assert bool(torch.isfinite(variance).all())


def test_refuses():
    t, y = np.arange(6.0), np.random.default_rng(0).standard_normal((6, 2))
    with pytest.raises(
        ValueError, match="6, the number of observed frames, and 4, twice the number of outputs, but got 5"
    ):
        linear_dynamical_system(t, y, num_states=5)
    with pytest.raises(ValueError, match="num_states must be at most 3, the number of observed frames"):
        linear_dynamical_system(t, np.where(t[:, None] < 3, y, np.nan), num_states=4)
    with pytest.raises(ValueError, match="num_states"):
        linear_dynamical_system(t, y, num_states=0)
    with pytest.raises(ValueError, match="num_steps"):
        linear_dynamical_system(t, y, num_steps=0)
    with pytest.raises(ValueError, match="split the sequences at their longest gaps"):
        linear_dynamical_system(np.r_[t, 1e6], np.r_[y, y[:1]])
    with pytest.raises(ValueError, match="y has values so large that their variance is not a finite number"):
        linear_dynamical_system(t, 1e160 * y)
    with pytest.raises(ValueError, match="y has 3 columns, but the system was trained on 2"):
        LinearDynamicalSystem.fit(t, y).fill(t, np.zeros((6, 3)))
