# SPDX-License-Identifier: Apache-2.0
"""The baseline for periodic data: repeat the value of one period before."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Filled, Gaps
from pyro_vgpds.checks import check_flags, check_number
from pyro_vgpds.data.filling import around
from pyro_vgpds.data.repeats import find_longer_repeat, find_repeat, read_at
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["estimate_period", "find_period", "repeat_cycle"]

_COMPONENTS = 20  # number of principal components in the search for a period


def repeat_cycle(
    t: DataLike | Sequences, y: DataLike | None = None, period: float | None = None, *, drift: bool = False
) -> Filled:
    """Fill with the value one period before, or the smallest number of periods before that reaches observed values.

    Within a gap the last cycle before it is repeated; before the first observed value the first cycle is repeated.
    Values between two frames are interpolated linearly.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param period: in the units of ``t``. Default: :func:`estimate_period` of the data.
    :param drift: add the mean difference of observed values one period apart, of the same sequence and column, for each
        period.
    :returns: float64 (N, D) without NaN, or a list of them.
    :raises ValueError: as ``Sequences``; if a column was never observed, if the period is not positive, or if it cannot
        be estimated.

    >>> from pyro_vgpds.baselines import repeat_cycle
    >>> nan = float("nan")
    >>> y = [[1.0], [2.0], [3.0], [1.0], [nan], [nan]]
    >>> repeat_cycle(range(6), y, period=3.0).flatten().tolist()
    [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
    """
    gaps = Gaps(t, y)
    if period is None:
        period = _estimate(gaps)
    check_number("period", period, "positive and finite", lambda value: value > 0.0)
    check_flags(drift=drift)
    period = float(period)
    values = gaps.means.expand_as(gaps.y).clone()
    for rows, times, part, seen in gaps.sequences():
        before, after, known = around(seen)
        at = times.unsqueeze(-1)
        # periods back to the last observed value; forward if there is no earlier one (then t[before] > t)
        back = torch.ceil((at - times[before]).clamp_min(0.0) / period - 1e-9)
        forth = torch.ceil((times[after] - at).clamp_min(0.0) / period - 1e-9)
        source = torch.where(times[before] > at, at + forth * period, at - back * period)
        filled = gaps.lines(times, part, seen)
        repeated = read_at(times, filled, source)
        if drift:
            repeated = repeated + _change(times, filled, seen, period) * (at - source) / period
        values[rows] = torch.where(known, repeated, values[rows])
    return gaps.fill(values)


def _change(t: Tensor, y: Tensor, seen: Tensor, period: float) -> Tensor:
    """The mean difference (D,) between observed values and those one period earlier; 0 without such pairs."""
    back = (t - period).unsqueeze(-1).expand_as(y)
    pairs = (seen & (back >= t[0] - 1e-9 * period)).to(y)
    return (pairs * (y - read_at(t, y, back))).sum(0) / pairs.sum(0).clamp_min(1.0)


def estimate_period(t: DataLike | Sequences, y: DataLike | None = None, *, longer: bool = False) -> float:
    """Estimate the period of the data: the shortest shift in time at which they repeat.

    The mean squared difference between the leading principal components and their shifted copy is computed for shifts
    up to 60 % of the longest sequence, but at most for ten shifts a frame and a thousand more. The result is the first
    local minimum that is about as low as the lowest, refined by a parabola unless it is nearly a whole number of
    frames. Few frames are compared for shifts beyond half of the sequence, so there the difference must be below 60 %
    of the mean one of all pairs of frames. Months of different length count as equal steps. Frames with less than half
    of the outputs observed are ignored.

    Arguments as in :func:`repeat_cycle`.

    :param longer: the period of a longer cycle instead, of three or more periods, such as the week of data that have
        days and weeks: after it the data are more alike than after other numbers of periods.
    :raises ValueError: as ``Sequences``, and if there is no such minimum.

    >>> import numpy as np
    >>> from pyro_vgpds.baselines import estimate_period
    >>> t = np.arange(100.0)
    >>> round(estimate_period(t, np.sin(2 * np.pi * t / 12)[:, None]), 2)
    12.0
    """
    check_flags(longer=longer)
    return _estimate(Gaps(t, y), longer)


def find_period(t: DataLike | Sequences, y: DataLike | None = None, *, longer: bool = False) -> float | None:
    """The same, or None if the data do not repeat."""
    try:
        return estimate_period(t, y, longer=longer)
    except ValueError:
        return None


def _estimate(gaps: Gaps, longer: bool = False) -> float:
    parts = []
    for _, times, part, seen in gaps.sequences():
        whole = seen.to(torch.float64).mean(1) >= 0.5
        if int(whole.sum()) >= 4:
            parts.append((times[whole], gaps.lines(times[whole], part[whole], seen[whole])))
    if not parts:
        raise ValueError("no sequence has four frames with half of the outputs observed: pass period=.")
    every = _components(torch.cat([lines for _, lines in parts]))
    points = [(times, x) for (times, _), x in zip(parts, every.split([len(t) for t, _ in parts]), strict=True)]
    found = find_repeat(points)
    if found is None:
        raise ValueError("the data do not repeat within 60 % of the longest sequence: pass period=.")
    if not longer:
        return found.period
    second = find_longer_repeat(points, found.period)
    if second is None:
        raise ValueError(f"longer: the data have no cycle of several periods of {found.period:.6g}. Pass period=.")
    return second.period


def _components(y: Tensor) -> Tensor:
    """The leading principal components (N, Q): almost the same distances between frames, independent of D."""
    u, s, _ = torch.linalg.svd(y - y.mean(0), full_matrices=False)
    return u[:, :_COMPONENTS] * s[:_COMPONENTS]
