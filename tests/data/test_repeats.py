# SPDX-License-Identifier: Apache-2.0
"""The shift at which points repeat, against the definition and on points of which it is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pyro_vgpds.data import repeats
from pyro_vgpds.data.repeats import find_longer_repeat, find_repeat, read_at


def slow_mismatch(parts, shift):
    """Mean squared difference between points and those ``shift`` earlier, relative to that of all pairs of points."""
    total, count = 0.0, 0
    for t, x in parts:
        for i, now in enumerate(t):
            if now - shift >= t[0]:
                earlier = [np.interp(float(now - shift), t.numpy(), x[:, q].numpy()) for q in range(x.shape[1])]
                total += sum((float(x[i, q]) - earlier[q]) ** 2 for q in range(x.shape[1]))
                count += 1
    every = torch.cat([x for _, x in parts])
    pairs = (every.unsqueeze(0) - every.unsqueeze(1)).square().sum(-1).mean()
    return total / count / float(pairs)


def make_points(length, period, num=6, noise=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    phase = 6.0 * torch.rand(num, generator=generator, dtype=torch.float64)
    t = torch.arange(float(length), dtype=torch.float64)
    wave = (2.0 * math.pi * t.unsqueeze(-1) / period + phase).sin()
    return t, wave**3 + wave + noise * torch.randn(length, num, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("length", "cycles"), [(100, 8.0), (100, 2.6), (100, 2.0), (130, 1.8)])
def test_the_period_of_noisy_cycles(length, cycles):
    found = find_repeat([make_points(length, length / cycles, noise=0.1)])
    assert found is not None
    assert found.period == pytest.approx(length / cycles, rel=0.02)
    assert found.mismatch < 0.1


def test_the_mismatch_by_its_definition():
    parts = [make_points(40, 12.0, noise=0.5, seed=1), make_points(25, 12.0, noise=0.5, seed=1)]
    found = find_repeat(parts)
    assert found is not None
    assert round(found.period) == 12
    assert found.mismatch == pytest.approx(slow_mismatch(parts, 12.0), rel=1e-10)


def test_a_cycle_that_is_hardly_seen_is_not_found():
    assert find_repeat([make_points(100, 70.0)]) is None
    t = torch.arange(50.0, dtype=torch.float64)
    assert find_repeat([(t, t.unsqueeze(-1))]) is None  # a trend


def test_beyond_half_of_the_sequence_points_must_be_alike():
    t, clean = make_points(100, 55.0)
    assert find_repeat([(t, clean)]).period == pytest.approx(55.0, abs=0.5)
    generator = torch.Generator().manual_seed(0)
    noisy = clean + 2.5 * torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    found = find_repeat([(t, noisy)])
    assert found is None or found.period <= 50.0


def test_even_steps_by_one_fourier_transform():
    parts = [make_points(40, 12.0, noise=0.5, seed=1), make_points(25, 12.0, noise=0.5, seed=2), make_points(3, 12.0)]
    fast = repeats._even_mismatches(parts, 30)
    slow = repeats._mismatches(parts, list(range(1, 31)))
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    assert repeats._even_mismatches(parts, 45)[40:].isinf().all()
    uneven = [(t + 1e-6 * t.square(), x) for t, x in parts]  # the general way
    assert find_repeat(uneven).period == pytest.approx(find_repeat(parts).period, abs=0.1)


def test_reading_between_frames():
    t, y = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 5.0]])
    at = torch.tensor([[-1.0, 0.5], [2.0, 2.0], [9.0, 3.0]])
    assert read_at(t, y, at).tolist() == [[0.0, 1.0], [3.0, 3.0], [4.0, 5.0]]
    assert read_at(t[:1], y[:1], at).tolist() == [[0.0, 1.0]] * 3


def make_weeks(days, frames=12, seed=0, weekend=0.5):
    """Days, of which each sixth and seventh is lower."""
    t, x = make_points(days * frames, float(frames), noise=0.2, seed=seed)
    low = (t // frames % 7 >= 5).unsqueeze(-1)
    return t, torch.where(low, weekend * x, x)


@pytest.mark.parametrize("days", [15, 21, 40])
def test_a_week_of_days(days):
    parts = [make_weeks(days)]
    found = find_repeat(parts)
    assert found.period == 12.0
    longer = find_longer_repeat(parts, found.period)
    assert longer.period == 84.0
    assert longer.mismatch == pytest.approx(slow_mismatch(parts, 84.0), rel=1e-10)
    assert longer.mismatch < found.mismatch


@pytest.mark.parametrize("seed", range(5))
def test_days_alone_have_no_week(seed):
    assert find_longer_repeat([make_weeks(40, seed=seed, weekend=1.0)], 12.0) is None
    t, x = make_weeks(40, seed=seed, weekend=1.0)
    walk = torch.randn(len(x), x.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert find_longer_repeat([(t, x + 0.1 * walk.cumsum(0))], 12.0) is None


def test_a_week_needs_more_than_a_week():
    assert find_longer_repeat([make_weeks(10)], 12.0) is None
    assert find_longer_repeat([make_weeks(1)], 12.0) is None


def test_one_day_that_differs_is_no_week():
    """Frames after seven days are more alike, but not those after fourteen."""
    t, x = make_weeks(30, weekend=1.0)
    x[36:48] = 3.0 + x[36:48]
    x[120:132] = 3.0 + x[120:132]
    assert find_longer_repeat([(t, x)], 12.0) is None
