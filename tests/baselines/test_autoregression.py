# SPDX-License-Identifier: Apache-2.0
"""The pooled autoregression beside a slow twin, and what it does with gaps, months and short sequences."""

import itertools
import math

import numpy as np
import pytest
import torch

from pyro_vgpds import Sequences, baselines
from pyro_vgpds.baselines.autoregression import is_even


def make_series(lengths=(40, 33), outputs=2, seed=0) -> list[np.ndarray]:
    """Noisy cycles of ten frames on random walks."""
    rng = np.random.default_rng(seed)
    found = []
    for n in lengths:
        walk = 0.3 * np.cumsum(rng.standard_normal((n, outputs)), 0)
        found.append(walk + np.sin(0.2 * np.pi * np.arange(n))[:, None] * [1.0, 3.0, -2.0][:outputs])
    return found


def hide_ends(y: list[np.ndarray], frames: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Times and outputs, with further frames that are not known."""
    longer = [np.concatenate([part, np.full((frames, part.shape[1]), np.nan)]) for part in y]
    return [np.arange(float(len(part))) for part in longer], longer


def terms(y, n, h, period, cycles, columns):
    """The regressors of one output (n,) at frame n."""
    found = [y[max(n - k, 0)] - y[n] for k in range(1, 7)]
    found += [y[: n + 1].mean() - y[n], h * (y[n] - y[0]) / max(n, 1)]
    found += [y[max(n + h - (math.ceil(h / period) + j) * period, 0)] - y[n] for j in range(cycles)]
    return np.array(found)[columns]


def ridge(x, target, penalty):
    gram = x.T @ x
    return np.linalg.solve(gram + (penalty * np.trace(gram) / len(gram) + 1e-12) * np.eye(len(gram)), x.T @ target)


def twin(series, horizon, period, cycles):
    """Forecasts (H, D) of each sequence and variances (H, D), one regression at a time."""
    scale = np.sqrt(((np.concatenate(series) - np.concatenate(series).mean(0)) ** 2).mean(0))
    series = [part / scale for part in series]
    rows = {}  # by h: sequence, output, frame, part of the time
    for h in range(1, horizon + 1):
        rows[h] = []
        for s, part in enumerate(series):
            first = max(6, (math.ceil(h / period) + cycles - 1) * period - h if cycles else 0)
            for n in range(first, len(part) - h):
                quarter = min((n + h - first) * 4 // (len(part) - first), 3)
                rows[h] += [(s, d, n, quarter) for d in range(part.shape[1])]
    target = {h: np.array([series[s][n + h, d] - series[s][n, d] for s, d, n, _ in own]) for h, own in rows.items()}
    quarter = {h: np.array([row[3] for row in own]) for h, own in rows.items()}
    least = 0.01 * sum((v**2).sum() for v in target.values()) / sum(map(len, target.values()))
    options = itertools.product((0, 1, 3, 6), (0, 1), (0, 1), range(cycles + 1))
    found = []
    for lags, level, drift, back in options:
        columns = [*range(lags), *[6] * level, *[7] * drift, *range(8, 8 + back)]
        if not columns:
            continue
        x = {
            h: np.array([terms(series[s][:, d], n, h, period, cycles, columns) for s, d, n, _ in rows[h]]) for h in rows
        }
        for penalty in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0):
            errors = {h: np.empty(len(rows[h])) for h in rows}
            for h, k in itertools.product(rows, range(4)):
                out = quarter[h] == k
                a = ridge(x[h][~out], target[h][~out], penalty)
                errors[h][out] = (target[h][out] - x[h][out] @ a) ** 2
            mean = [np.concatenate([errors[h][quarter[h] == k] for h in rows]).mean() for k in range(4)]
            whole = np.zeros((horizon, 10))
            for h in rows:
                whole[h - 1, columns] = ridge(x[h], target[h], penalty)
            found.append((np.log(np.array(mean) + least).mean(), whole, [errors[h].mean() for h in rows]))
    found.sort(key=lambda each: each[0])
    mean, errors = np.mean([each[1] for each in found[:5]], 0), np.array(found[0][2])
    all_columns = list(range(8 + cycles))
    means, residual = [], np.zeros(series[0].shape[1])
    for part in series:
        means.append(
            [
                [
                    y[-1] + terms(y, len(y) - 1, h, period, cycles, all_columns) @ mean[h - 1, all_columns]
                    for y in part.T
                ]
                for h in rows
            ]
        )
    for h in rows:
        own = [
            target[h][i] - terms(series[s][:, d], n, h, period, cycles, all_columns) @ mean[h - 1, all_columns]
            for i, (s, d, n, _) in enumerate(rows[h])
        ]
        residual += [np.mean([e**2 for e, row in zip(own, rows[h], strict=True) if row[1] == d]) for d in range(2)]
    variance = errors[:, None] * residual / residual.mean() * scale**2
    return [np.array(each) * scale for each in means], variance


@pytest.mark.parametrize(("period", "cycles"), [(0, 0), (5, 2), (15, 1), (20, 0)])
def test_twin(period, cycles):
    series = make_series()
    found, spread = baselines.autoregression(*hide_ends(series, 4), period=float(period), return_variance=True)
    means, variance = twin(series, 4, period, cycles)
    for part, sizes, own, mean in zip(found, spread, series, means, strict=True):
        np.testing.assert_allclose(part[-4:], mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(sizes[-4:], variance, rtol=1e-6)
        np.testing.assert_array_equal(part[:-4], own)
        assert bool((sizes[:-4] == 0.0).all())


def test_period_is_found():
    y = make_series((80,))
    t, longer = hide_ends(y, 5)
    period = baselines.estimate_period(t[0], longer[0])
    assert period == pytest.approx(10.0, abs=0.2)
    found = baselines.autoregression(t[0], longer[0])
    assert torch.equal(found, baselines.autoregression(t[0], longer[0], period=period))
    assert not torch.equal(found, baselines.autoregression(t[0], longer[0], period=0.0))


def test_units_of_outputs_and_times_do_not_matter():
    t, y = hide_ends(make_series(), 4)
    found, spread = baselines.autoregression(t, y, period=10.0, return_variance=True)
    units, offset = np.array([1000.0, 0.01]), np.array([-5.0, 7.0])
    others, scaled = baselines.autoregression(
        [60.0 * part + 3.0 for part in t], [part * units + offset for part in y], period=600.0, return_variance=True
    )
    for part, sizes, other, large in zip(found, spread, others, scaled, strict=True):
        torch.testing.assert_close(other, part * torch.as_tensor(units) + torch.as_tensor(offset))
        torch.testing.assert_close(large, sizes * torch.as_tensor(units) ** 2)


def test_variances_hold():
    """Random walks and noise: 80 % of the errors are within the intervals, and only those of walks grow."""
    inside, spread = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        y = np.concatenate([rng.standard_normal((110, 3)).cumsum(0), rng.standard_normal((110, 3))], 1)
        seen = y.copy()
        seen[100:] = np.nan
        mean, variance = baselines.autoregression(np.arange(110.0), seen, period=0.0, return_variance=True)
        error = (mean[100:] - torch.as_tensor(y[100:])).abs()
        inside.append(float((error < 1.2816 * variance[100:].sqrt()).double().mean()))
        spread.append(variance[-1] / variance[100])
    assert 0.7 < np.mean(inside) < 0.9
    assert bool((torch.stack(spread).mean(0) > 1.0).all())


def test_missing_frames_are_interpolated():
    t, y = hide_ends(make_series((60,)), 4)
    hidden = y[0].copy()
    hidden[[20, 21, 40]] = np.nan
    filled = baselines.linear_interpolation(t[0][:-4], hidden[:-4])
    expected = baselines.autoregression(t[0], np.concatenate([filled, hidden[-4:]]), period=10.0)
    found, spread = baselines.autoregression(t[0], hidden, period=10.0, return_variance=True)
    torch.testing.assert_close(found[:-4], filled)
    np.testing.assert_allclose(found[-4:], expected[-4:], rtol=0.05, atol=0.05)  # the scale has fewer frames
    assert bool((spread[20] > 0).all())
    assert bool((spread[19] == 0).all())
    gone = np.delete(np.arange(64), [20, 21, 40])  # the same if the rows are not there
    torch.testing.assert_close(baselines.autoregression(t[0][gone], hidden[gone], period=10.0), found[gone])


def test_between_frames():
    t, y = hide_ends(make_series((60,)), 4)
    whole = baselines.autoregression(t[0], y[0], period=10.0)[-4:]
    at = np.concatenate([t[0][:60], [60.5, 61.25, 63.0]])
    found = baselines.autoregression(at, np.concatenate([y[0][:60], np.full((3, 2), np.nan)]), period=10.0)[-3:]
    torch.testing.assert_close(
        found, torch.stack([(whole[0] + whole[1]) / 2, 0.75 * whole[1] + 0.25 * whole[2], whole[3]])
    )


def test_months_are_even():
    months = np.arange("2001-01", "2007-01", dtype="datetime64[M]").astype("datetime64[D]").astype(float)
    y = np.sin(np.arange(72) * np.pi / 6)[:, None].repeat(2, 1)
    hidden = y.copy()
    hidden[66:] = np.nan
    found = baselines.autoregression(months, hidden)
    assert float((found - torch.as_tensor(y)).abs().max()) < 0.1
    assert is_even(Sequences(months, hidden))


def test_uneven_times_are_interpolated_on_a_grid_that_ends_at_the_last_frame():
    t = np.cumsum(np.random.default_rng(0).uniform(0.5, 1.5, 60))
    y = np.sin(0.4 * t)[:, None] + np.arange(2)
    assert not is_even(Sequences(t, y))
    step = float(torch.as_tensor(t).diff().median())
    grid = t[-1] - step * np.arange(int((t[-1] - t[0]) / step), -1, -1)
    ahead, nothing = t[-1] + step * np.arange(1, 6), np.full((5, 2), np.nan)
    found = baselines.autoregression(np.concatenate([t, ahead]), np.concatenate([y, nothing]), period=0.0)
    lines = np.stack([np.interp(grid, t, column) for column in y.T], 1)
    twin = baselines.autoregression(np.concatenate([grid, ahead]), np.concatenate([lines, nothing]), period=0.0)
    # the two differ by the outputs' standard deviations, in units of which the penalty counts
    torch.testing.assert_close(found[-5:], twin[-5:], atol=1e-2, rtol=0.0)
    assert float((found[-5:, 0] - torch.as_tensor(np.sin(0.4 * ahead))).abs().max()) < 0.1
    assert np.array_equal(found[:60], y)


def test_few_frames_far_apart_have_a_coarse_grid():
    t = np.array([0.0, 1.0, 2.0, 1e6, 1e6 + 1.0, 2e6])
    found, variance = baselines.autoregression(
        t, np.append(make_series((5,))[0], [[np.nan] * 2], 0), return_variance=True
    )
    assert bool(found.isfinite().all() and (variance[-1] > 0.0).all())


@pytest.mark.parametrize("period", [-1.0, math.inf, math.nan])
def test_bad_period(period):
    with pytest.raises(ValueError, match="period must be 0, or positive and finite, but got"):
        baselines.autoregression(range(20), make_series((20,))[0], period=period)


def test_short_sequences():
    """One frame stays as it is; a sequence that was never observed has the means."""
    t, y = hide_ends([*make_series((30,)), np.array([[4.0, 5.0]]), np.full((3, 2), np.nan)], 2)
    found, spread = baselines.autoregression(t, y, return_variance=True)
    assert all(bool(part.isfinite().all()) for part in (*found, *spread))
    torch.testing.assert_close(found[1][0], torch.tensor([4.0, 5.0], dtype=torch.float64))
    means = np.nanmean(np.concatenate(y), 0)
    torch.testing.assert_close(found[2], torch.as_tensor(means).expand(5, 2))
    alone = baselines.autoregression(range(3), [[2.0], [np.nan], [np.nan]])
    assert alone.flatten().tolist() == [2.0, 2.0, 2.0]


def test_constant_columns_stay():
    t, y = hide_ends(make_series((30,)), 3)
    y[0][:-3, 1] = 7.0
    found, spread = baselines.autoregression(t, y, return_variance=True)
    np.testing.assert_allclose(found[0][-3:, 1], 7.0)
    assert bool(spread[0].isfinite().all())


def test_far_ahead_and_many_outputs():
    """Only some of the frames are learned from."""
    n, ahead = 700, 90
    angle, phases = 2.0 * np.pi * np.arange(n) / 25.0, np.linspace(0.0, 6.0, 80)
    y = np.sin(angle[:, None] + phases)
    hidden = y.copy()
    hidden[-ahead:] = np.nan
    found = baselines.autoregression(np.arange(float(n)), hidden)
    assert float((found - torch.as_tensor(y)).abs().max()) < 0.05
