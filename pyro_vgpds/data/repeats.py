# SPDX-License-Identifier: Apache-2.0
"""The shift in time at which points repeat, and that of a longer cycle, such as a week of days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Repeat", "find_longer_repeat", "find_repeat", "read_at"]

_SHIFTS = 10  # number of shifts for each frame, at most: with huge gaps, a sequence is much longer than its frames
_MONTHS = 0.1  # part of a step by which steps differ that are taken for equal
_WHOLE = 0.05  # frames: a period that close to a whole number of frames is that number, since trends move minima
_LONGEST = 0.6  # of the longest sequence: the largest shift
_LONG_MISMATCH = 0.6  # for shifts beyond half of it, where few frames are compared: the largest mismatch
# Mismatch after a longer cycle, relative to that after other multiples of the shorter, at most. A smaller difference is
# enough if there are frames two of the longer cycles apart, and if it is there, too.
_CLEAREST, _CLEARER, _AGAIN = 0.7, 0.85, 0.9
_NEAR = 0.25  # a minimum counts if its excess over the deepest is below this fraction of the median's excess


class Repeat(NamedTuple):
    """A shift in time at which points resemble those before."""

    period: float
    mismatch: float  #: mean squared difference at this shift, relative to that of all pairs of points


def find_repeat(parts: Sequence[tuple[Tensor, Tensor]]) -> Repeat | None:
    """The shortest shift at which points repeat about as well as at any other; None if the mismatch has no minimum.

    The mean squared difference between the points and their shifted copy is computed for shifts up to 60 % of the
    longest sequence, but at most for ten shifts a frame and a thousand more, and refined by a parabola unless the shift
    is nearly a whole number of frames.

    :param parts: times (n,) and points (n, Q) of each sequence.
    """
    step, span = _typical(torch.cat([t.diff() for t, _ in parts])), _span(parts)
    most = min(_LONGEST * span / step, 1000.0 + _SHIFTS * max(len(t) for t, _ in parts))
    shifts = torch.arange(1.0, max(1.0, most) + 1.0, dtype=torch.float64) * step
    mismatch = _even_mismatches(parts, len(shifts)) if _are_even(parts, step) else _mismatches(parts, shifts.tolist())
    inner = mismatch[1:-1]
    clear = (shifts[1:-1] <= 0.5 * span) | (inner <= _LONG_MISMATCH)
    dips = ((inner < mismatch[:-2]) & (inner <= mismatch[2:]) & clear).nonzero().squeeze(-1) + 1
    if len(dips) == 0:
        return None
    deepest = mismatch[dips].min()
    limit = deepest + _NEAR * (mismatch.median() - deepest).clamp_min(0.0)
    best = int(dips[mismatch[dips] <= limit][0])
    low, mid, high = (float(v) for v in mismatch[best - 1 : best + 2])
    curve = low - 2 * mid + high
    beside = 0.5 * (low - high) / curve if curve > 0 else 0.0
    return Repeat(float(shifts[best]) + step * (beside if abs(beside) > _WHOLE else 0.0), mid)


def find_longer_repeat(parts: Sequence[tuple[Tensor, Tensor]], period: float) -> Repeat | None:
    """A cycle of three or more shorter ones after which points are more alike than after other numbers of these, such
    as a week of days; None if no cycle is like that.

    :param parts: as for :func:`find_repeat`.
    :param period: of the shorter cycle.
    """
    count = min(int(_LONGEST * _span(parts) / period), 10 * _SHIFTS)
    if count < 4:
        return None
    mismatch = [math.nan, *_mismatches(parts, [k * period for k in range(1, count + 1)]).tolist()]
    for k in range(3, count):
        others = [mismatch[j] for j in range(2, min(2 * k - 2, count) + 1) if j != k]
        seen_twice = 2 * k < count
        if mismatch[k] > (_CLEARER if seen_twice else _CLEAREST) * sum(others) / len(others):
            continue
        beside = [mismatch[j] for j in (k - 1, k + 1, 2 * k - 1, 2 * k + 1) if j <= count]
        again = not seen_twice or 2.0 * mismatch[2 * k] <= _AGAIN * sum(beside[2:])
        if again and mismatch[k] <= min(beside[:2]):
            step = _typical(torch.cat([t.diff() for t, _ in parts]))
            shifts = [step * (round(k * period / step) + frames) for frames in (-2, -1, 0, 1, 2)]
            value, index = _mismatches(parts, shifts).min(0)
            return Repeat(shifts[int(index)], float(value))
    return None


def _span(parts: Sequence[tuple[Tensor, Tensor]]) -> float:
    return max(float(t[-1] - t[0]) for t, _ in parts)


def _mismatches(parts: Sequence[tuple[Tensor, Tensor]], shifts: Sequence[float]) -> Tensor:
    """The mean squared difference at each shift, relative to that of all pairs of points."""
    unrelated = 2.0 * torch.cat([x for _, x in parts]).var(0, correction=0).sum()
    return torch.stack([_difference(parts, shift) for shift in shifts]) / unrelated.cpu()


def _are_even(parts: Sequence[tuple[Tensor, Tensor]], step: float) -> bool:
    return all(bool(((t.diff() - step).abs() <= 1e-9 * step).all()) for t, _ in parts)


def _even_mismatches(parts: Sequence[tuple[Tensor, Tensor]], count: int) -> Tensor:
    """:func:`_mismatches` at 1 to ``count`` frames if frames are one step apart: sums of products by one FFT."""
    every = torch.cat([x for _, x in parts]).to("cpu", torch.float64)
    unrelated, center = 2.0 * every.var(0, correction=0).sum(), every.mean(0)
    total, pairs = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    for _, x in parts:
        n, centred = len(x), x.to(center) - center
        products = torch.fft.irfft(torch.fft.rfft(centred, 2 * n, 0).abs().square().sum(-1), 2 * n)
        squares = torch.cat([centred.new_zeros(1), centred.square().sum(1).cumsum(0)])
        k = torch.arange(1, min(count, n - 1) + 1)
        total[: len(k)] += squares[n] - squares[k] + squares[n - k] - 2.0 * products[k]
        pairs[: len(k)] += n - k
    return torch.where(pairs > 0, total / pairs.clamp_min(1.0), torch.inf) / unrelated


def _typical(steps: Tensor) -> float:
    """The step between frames without gaps: the mean of those near the median, because months differ in length."""
    middle = steps.median()
    return float(steps[(steps - middle).abs() <= _MONTHS * middle].mean())


def _difference(parts: Sequence[tuple[Tensor, Tensor]], shift: float) -> Tensor:
    """Mean squared difference between points and those ``shift`` earlier, over all sequences."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for times, x in parts:
        late = times - shift >= times[0] - 1e-9 * shift
        if bool(late.any()):
            at = times[late] - shift
            right = torch.searchsorted(times, at).clamp(1, len(times) - 1)
            share = ((at - times[right - 1]) / (times[right] - times[right - 1])).unsqueeze(-1)
            earlier = x[right - 1].lerp(x[right], share.clamp(0.0, 1.0))
            total = total + (x[late] - earlier).square().sum().to(total)
            count += int(late.sum())
    return total / count if count else total + math.inf


def read_at(t: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """The columns of y (n, D) at times ``at`` (m, D), interpolated linearly; constant beyond the ends."""
    if len(t) == 1:
        return y.expand(len(at), -1)
    right = torch.searchsorted(t, at.contiguous()).clamp(1, len(t) - 1)
    share = ((at - t[right - 1]) / (t[right] - t[right - 1])).clamp(0.0, 1.0)
    return (1.0 - share) * y.gather(0, right - 1) + share * y.gather(0, right)
