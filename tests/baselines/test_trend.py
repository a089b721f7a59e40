# SPDX-License-Identifier: Apache-2.0
"""Baselines for data with a trend, beside slow twins."""

import itertools

import numpy as np
import pytest
import torch

from pyro_vgpds import baselines


def make_walks(seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Two sequences of three random walks at irregular times, with gaps and nothing observed at the ends."""
    rng = np.random.default_rng(seed)
    t, y = [], []
    for n in (30, 22):
        t.append(np.cumsum(rng.choice([1.0, 1.0, 1.0, 2.5], n)))
        part = np.cumsum(0.3 + rng.standard_normal((n, 3)), 0)
        part[rng.random(part.shape) < 0.2] = np.nan
        part[-5:] = np.nan
        part[:2, 1] = np.nan
        y.append(part)
    y[1][:, 2] = np.nan
    return t, y


def test_drift_is_the_line_through_the_first_and_the_last_value():
    t, y = make_walks()
    filled, mean = baselines.last_value_with_drift(t, y), np.nanmean(np.concatenate(y), 0)
    for times, part, found in zip(t, y, filled, strict=True):
        for d, column in enumerate(part.T):
            seen = np.flatnonzero(~np.isnan(column))
            for n in np.flatnonzero(np.isnan(column)):
                if len(seen) == 0:
                    assert found[n, d] == pytest.approx(mean[d])
                    continue
                slope = (column[seen[-1]] - column[seen[0]]) / (times[seen[-1]] - times[seen[0]])
                past = max((i for i in seen if i <= n), default=seen[0])
                assert found[n, d] == pytest.approx(column[past] + slope * (times[n] - times[past]))


def smooth(t, column, alpha, beta, phi):
    """Predictions of all frames of a column, one at a time."""
    seen = np.flatnonzero(~np.isnan(column))
    level, slope, found = column[seen[0]], 0.0, np.full(len(t), column[seen[0]])
    early = [i for i in seen if i <= 5]
    if len(early) > 1:
        slope = (column[early[-1]] - column[early[0]]) / (t[early[-1]] - t[early[0]])
    for n in range(seen[0], len(t)):
        if n > seen[0]:
            decay = phi ** (t[n] - t[n - 1])
            level, slope = level + slope * phi * (1.0 - decay) / (1.0 - phi), decay * slope
        found[n] = level
        error = 0.0 if np.isnan(column[n]) else column[n] - level
        level, slope = level + alpha * error, slope + alpha * beta * error
    return found


def test_damped_trend_twin():
    t, y = make_walks()
    means, variances = baselines.damped_trend(t, y, return_variance=True)
    grid = list(itertools.product((0.1, 0.3, 0.5, 0.8, 1.0), (0.0, 0.05, 0.2, 0.5), (0.8, 0.9, 0.98)))
    for d in range(3):
        parts = [(s, t[s], part[:, d]) for s, part in enumerate(y) if not np.isnan(part[:, d]).all()]
        errors = [
            np.nanmean(np.concatenate([(smooth(times, column, *one) - column) ** 2 for _, times, column in parts]))
            for one in grid
        ]
        alpha, beta, phi = grid[int(np.argmin(errors))]
        for s, times, column in parts:
            hidden = np.isnan(column)
            np.testing.assert_allclose(means[s][hidden, d], smooth(times, column, alpha, beta, phi)[hidden], rtol=1e-9)
            last = np.flatnonzero(~hidden)[-1]
            for n in range(last + 1, len(times)):
                steps = int(np.ceil(times[n] - times[last]))
                c = [alpha * (1.0 + beta * sum(phi**i for i in range(1, j + 1))) for j in range(1, steps)]
                assert variances[s][n, d] == pytest.approx(min(errors) * (1.0 + sum(v**2 for v in c)))
            assert not variances[s][~hidden, d].any()
    assert means[1][:, 2].isfinite().all()


def test_forecast_of_a_ramp_fades_and_its_variance_grows():
    nan = torch.full((10, 1), torch.nan)
    rng = np.random.default_rng(0)
    ramp = torch.arange(40.0).unsqueeze(-1) + 0.1 * torch.as_tensor(rng.standard_normal((40, 1)))
    mean, variance = baselines.damped_trend(torch.arange(50.0), torch.cat([ramp, nan]), return_variance=True)
    steps = mean[40:, 0].diff()
    assert bool((steps > 0).all() and (steps.diff() < 0).all() and (variance[40:, 0].diff() > 0).all())


def test_cycle_with_drift_continues_a_rising_cycle():
    t = torch.arange(60.0)
    y = (torch.sin(2 * torch.pi * t / 12) + 0.05 * t).unsqueeze(-1)
    seen = torch.where((t < 40).unsqueeze(-1), y, torch.nan)
    torch.testing.assert_close(baselines.repeat_cycle(t, seen, 12.0, drift=True), y.double(), rtol=0, atol=1e-5)
    assert float((baselines.repeat_cycle(t, seen, 12.0) - y).abs().max()) > 0.5
    with pytest.raises(TypeError, match="drift"):
        baselines.repeat_cycle(t, seen, 12.0, drift=2)
