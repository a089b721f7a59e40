# SPDX-License-Identifier: Apache-2.0
"""The baseline for periodic data: repeat the value of one period before."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Gaps
from pyro_vgpds.checks import check_flags, check_number
from pyro_vgpds.data.filling import around, line_between
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["estimate_period", "repeat_cycle"]

_COMPONENTS = 20  # number of principal components in the search for a period
_SHIFTS = 10  # number of shifts for each frame, at most: with huge gaps, a sequence is much longer than its frames
_MONTHS = 0.1  # part of a step by which steps differ that are taken for equal
_WHOLE = (
    0.05  # a period that is a whole number of frames up to this is that number: a trend shifts the parabola as much
)
_NEAR = 0.25  # a minimum counts if its excess over the deepest is below this fraction of the median's excess


def repeat_cycle(
    t: DataLike | Sequences, y: DataLike | None = None, period: float | None = None, *, drift: bool = False
) -> Tensor | list[Tensor]:
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
        filled = torch.where(known, line_between(times, part, seen), gaps.means)
        repeated = _read(times, filled, source)
        if drift:
            repeated = repeated + _change(times, filled, seen, period) * (at - source) / period
        values[rows] = torch.where(known, repeated, values[rows])
    return gaps.fill(values)


def _change(t: Tensor, y: Tensor, seen: Tensor, period: float) -> Tensor:
    """The mean difference (D,) between observed values and those one period earlier; 0 without such pairs."""
    back = (t - period).unsqueeze(-1).expand_as(y)
    pairs = (seen & (back >= t[0] - 1e-9 * period)).to(y)
    return (pairs * (y - _read(t, y, back))).sum(0) / pairs.sum(0).clamp_min(1.0)


def estimate_period(t: DataLike | Sequences, y: DataLike | None = None) -> float:
    """Estimate the period of the data: the shortest shift in time at which they repeat.

    The mean squared difference between the leading principal components and their shifted copy is computed for shifts
    up to half the longest sequence, but at most for ten shifts a frame and a thousand more. The result is the first
    local minimum that is about as low as the lowest, refined by a parabola unless it is nearly a whole number of
    frames. Months of different length count as equal steps. Frames with less than half of the outputs observed are
    ignored.

    Arguments as in :func:`repeat_cycle`.

    :raises ValueError: as ``Sequences``, and if there is no such minimum.

    >>> import numpy as np
    >>> from pyro_vgpds.baselines import estimate_period
    >>> t = np.arange(100.0)
    >>> round(estimate_period(t, np.sin(2 * np.pi * t / 12)[:, None]), 2)
    12.0
    """
    return _estimate(Gaps(t, y))


def _estimate(gaps: Gaps) -> float:
    parts = []
    for _, times, part, seen in gaps.sequences():
        whole = seen.to(torch.float64).mean(1) >= 0.5
        if int(whole.sum()) >= 4:
            lines = torch.where(seen[whole].any(0), line_between(times[whole], part[whole], seen[whole]), gaps.means)
            parts.append((times[whole], lines))
    if not parts:
        raise ValueError("no sequence has four frames with half of the outputs observed: pass period=.")
    step = _typical(torch.cat([times.diff() for times, _ in parts]))
    span = max(float(times[-1] - times[0]) for times, _ in parts)
    points = _components(torch.cat([lines for _, lines in parts])).split([len(times) for times, _ in parts])
    most = min(span / (2 * step), 1000.0 + _SHIFTS * max(len(times) for times, _ in parts))
    shifts = torch.arange(1.0, max(1.0, most) + 1.0, dtype=torch.float64) * step
    mismatch = torch.stack(
        [_mismatch([(times, x) for (times, _), x in zip(parts, points, strict=True)], float(s)) for s in shifts]
    )
    inner = mismatch[1:-1]
    dips = ((inner < mismatch[:-2]) & (inner <= mismatch[2:])).nonzero().squeeze(-1) + 1
    if len(dips) == 0:
        raise ValueError("the data do not repeat within half of the longest sequence: pass period=.")
    deepest = mismatch[dips].min()
    limit = deepest + _NEAR * (mismatch.median() - deepest).clamp_min(0.0)
    best = int(dips[mismatch[dips] <= limit][0])
    low, mid, high = (float(v) for v in mismatch[best - 1 : best + 2])
    curve = low - 2 * mid + high
    beside = 0.5 * (low - high) / curve if curve > 0 else 0.0
    return float(shifts[best]) + step * (beside if abs(beside) > _WHOLE else 0.0)


def _typical(steps: Tensor) -> float:
    """The step between frames without gaps: the mean of those near the median, because months differ in length."""
    middle = steps.median()
    return float(steps[(steps - middle).abs() <= _MONTHS * middle].mean())


def _components(y: Tensor) -> Tensor:
    """The leading principal components (N, Q): almost the same distances between frames, independent of D."""
    u, s, _ = torch.linalg.svd(y - y.mean(0), full_matrices=False)
    return u[:, :_COMPONENTS] * s[:_COMPONENTS]


def _mismatch(parts: list[tuple[Tensor, Tensor]], shift: float) -> Tensor:
    """Mean squared difference between points and those ``shift`` earlier, over all sequences."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for times, x in parts:
        late = times - shift >= times[0] - 1e-9 * shift
        if bool(late.any()):
            earlier = _read(times, x, (times[late] - shift).unsqueeze(-1).expand(-1, x.shape[1]))
            total = total + (x[late] - earlier).square().sum()
            count += int(late.sum())
    return total / count if count else total + math.inf


def _read(t: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """The columns of y (n, D) at times ``at`` (m, D), interpolated linearly; constant beyond the ends."""
    if len(t) == 1:
        return y.expand(len(at), -1)
    right = torch.searchsorted(t, at.contiguous()).clamp(1, len(t) - 1)
    share = ((at - t[right - 1]) / (t[right] - t[right - 1])).clamp(0.0, 1.0)
    return (1.0 - share) * y.gather(0, right - 1) + share * y.gather(0, right)
