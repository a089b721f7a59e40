# SPDX-License-Identifier: Apache-2.0
"""The baseline for periodic data: what happened one period ago happens again."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Gaps, around
from pyro_vgpds.baselines.simple import line_between

__all__ = ["estimate_period", "repeat_cycle"]

_COMPONENTS = 20  # that the search for a period looks at
_NEAR = 0.25  # a dip this near to the deepest, of the typical height above it, may be the period


def repeat_cycle(t: Any, y: Any = None, period: float | None = None) -> Tensor | list[Tensor]:
    """Fill with the value one period before, or as many periods as it takes to come to what was observed.

    Within a gap the last cycle before it is repeated; what comes before the first value repeats the first cycle. The
    value at a time between two frames is on the straight line between them.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param period: in the units of ``t``; left out, :func:`estimate_period` of the data.
    :returns: float64 (N, D) without NaN, or a list of them.
    :raises ValueError: as ``Sequences`` does, where a column was never observed, the period is not positive, or the
        data show none.

    >>> from pyro_vgpds.baselines import repeat_cycle
    >>> nan = float("nan")
    >>> y = [[1.0], [2.0], [3.0], [1.0], [nan], [nan]]
    >>> repeat_cycle(range(6), y, period=3.0).flatten().tolist()
    [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
    """
    gaps = Gaps(t, y)
    if period is None:
        period = _estimate(gaps)
    if not (math.isfinite(period) and period > 0):
        raise ValueError(f"period must be positive and finite, but got {period}.")
    values = gaps.means.expand_as(gaps.y).clone()
    for rows, times, part, seen in gaps.sequences():
        before, after, known = around(seen)
        at = times.unsqueeze(-1)
        # whole periods back to the last value seen; forward where there is none before (then t[before] > t)
        back = torch.ceil((at - times[before]).clamp_min(0.0) / period - 1e-9)
        forth = torch.ceil((times[after] - at).clamp_min(0.0) / period - 1e-9)
        source = torch.where(times[before] > at, at + forth * period, at - back * period)
        filled = torch.where(known, line_between(times, part, seen), gaps.means)
        values[rows] = torch.where(known, _read(times, filled, source), values[rows])
    return gaps.fill(values)


def estimate_period(t: Any, y: Any = None) -> float:
    """The period of the data: the shortest shift in time at which they look much like themselves again.

    Frames of which less than half was observed are left out. The mean squared difference between the leading principal
    components and themselves a shift earlier is taken for shifts up to half the longest sequence, and the first dip
    that is about as deep as the deepest is refined by a parabola.

    Arguments as in :func:`repeat_cycle`.

    :raises ValueError: as ``Sequences`` does, and where there is no such dip.

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
        raise ValueError("no sequence has four frames that are half observed: give the period.")
    step = float(torch.cat([times.diff() for times, _ in parts]).median())
    span = max(float(times[-1] - times[0]) for times, _ in parts)
    points = _components(torch.cat([lines for _, lines in parts])).split([len(times) for times, _ in parts])
    shifts = torch.arange(1.0, max(1.0, span / (2 * step)) + 1.0, dtype=torch.float64) * step
    mismatch = torch.stack(
        [_mismatch([(times, x) for (times, _), x in zip(parts, points, strict=True)], float(s)) for s in shifts]
    )
    inner = mismatch[1:-1]
    dips = ((inner < mismatch[:-2]) & (inner <= mismatch[2:])).nonzero().squeeze(-1) + 1
    if len(dips) == 0:
        raise ValueError("the data do not repeat within half of the longest sequence: give the period.")
    deepest = mismatch[dips].min()
    limit = deepest + _NEAR * (mismatch.median() - deepest).clamp_min(0.0)
    best = int(dips[mismatch[dips] <= limit][0])
    low, mid, high = (float(v) for v in mismatch[best - 1 : best + 2])
    curve = low - 2 * mid + high
    return float(shifts[best]) + step * (0.5 * (low - high) / curve if curve > 0 else 0.0)


def _components(y: Tensor) -> Tensor:
    """The leading principal components (N, Q): distances between frames are nearly kept, and D is gone."""
    u, s, _ = torch.linalg.svd(y - y.mean(0), full_matrices=False)
    return u[:, :_COMPONENTS] * s[:_COMPONENTS]


def _mismatch(parts: list[tuple[Tensor, Tensor]], shift: float) -> Tensor:
    """Mean squared difference of points to those at times earlier by ``shift``, over all sequences."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for times, x in parts:
        late = times - shift >= times[0] - 1e-9 * shift
        if bool(late.any()):
            earlier = _read(times, x, (times[late] - shift).unsqueeze(-1).expand(-1, x.shape[1]))
            total = total + (x[late] - earlier).square().sum()
            count += int(late.sum())
    return total / count if count else total + math.inf


def _read(t: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """The columns of y (n, D) at times ``at`` (m, D), on the lines between frames; the end values beyond them."""
    if len(t) == 1:
        return y.expand(len(at), -1)
    right = torch.searchsorted(t, at.contiguous()).clamp(1, len(t) - 1)
    share = ((at - t[right - 1]) / (t[right] - t[right - 1])).clamp(0.0, 1.0)
    return (1.0 - share) * y.gather(0, right - 1) + share * y.gather(0, right)
