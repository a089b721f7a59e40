# SPDX-License-Identifier: Apache-2.0
"""The number of independent outputs that tell as much as those of data."""

import numpy as np
import pytest

from pyro_vgpds import Sequences
from pyro_vgpds.evaluation.entries import independent_outputs


def walks(copies, noise=0.0, frames=300, sequences=1, seed=0):
    """Random walks, each of them several times, with noise in the steps of each copy."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(sequences):
        steps = np.repeat(rng.normal(size=(frames, len(copies))), copies, axis=1)
        parts.append((steps + noise * rng.normal(size=steps.shape)).cumsum(0))
    return parts


def count(parts):
    return independent_outputs(Sequences([np.arange(float(len(part))) for part in parts], parts))


@pytest.mark.parametrize(
    ("copies", "expected"), [([1], 1.0), ([4], 1.0), ([1] * 10, 10.0), ([2] * 5, 5.0), ([8, 1], 1.25)]
)
def test_copies_count_once(copies, expected):
    """Shares of 8 / 9 and 1 / 9 have the effective number 81 / 65."""
    assert count(walks(copies)) == pytest.approx(expected, rel=0.05)
    assert count(walks(copies, frames=100, sequences=3)) == pytest.approx(expected, rel=0.05)


def test_it_is_the_slow_formula():
    parts = walks([3, 2, 1], noise=0.7)
    data = Sequences([np.arange(300.0)], parts)
    steps = np.diff(parts[0], axis=0)
    steps /= np.sqrt((steps**2).mean(0))
    n, d = steps.shape
    total = sum(((steps[:, i] @ steps[:, j]) / n) ** 2 for i in range(d) for j in range(d) if i != j)
    assert independent_outputs(data) == pytest.approx(d**2 / (d + total - d * (d - 1) / n))
    few = [part[:5] for part in parts]  # fewer changes than outputs
    assert count(few) == pytest.approx(
        independent_outputs(Sequences([np.arange(5.0)] * 2, [few[0], np.full_like(few[0], 1.0)])), rel=0.5
    )


def test_units_levels_and_constant_outputs_do_not_matter():
    (y,) = walks([2, 1], noise=0.5)
    plain = count([y])
    assert count([1e3 + y * [1e-6, 1.0, 1e6]]) == pytest.approx(plain, rel=1e-6)
    assert count([np.concatenate([y, np.ones((len(y), 2))], 1)]) == pytest.approx(plain)
    assert count([np.ones((5, 2))]) == 1.0


def test_missing_entries_are_interpolated():
    (y,) = walks([1, 1, 1], frames=600)
    sparse = y.copy()
    sparse[np.arange(600) % 3 != 0, 1] = np.nan  # quarterly beside monthly numbers
    assert 1.0 <= count([sparse]) <= 3.1
    assert count([sparse]) == pytest.approx(count([y]), rel=0.1)
    assert np.isfinite(count([y[:40], np.full((4, 3), np.nan)]))


def test_many_frames_and_outputs_are_thinned():
    (y,) = walks([3], frames=5000)
    assert count([y]) == pytest.approx(1.0, rel=1e-3)
    assert count(walks([1] * 4, frames=5000)) == pytest.approx(4.0, rel=0.05)
    assert count(walks([1500], noise=0.5, frames=50)) == pytest.approx(
        count(walks([750], noise=0.5, frames=50)), rel=0.2
    )
