# SPDX-License-Identifier: Apache-2.0
"""The baseline for many related series: one linear autoregression for all outputs, by ridge regression."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_vgpds.baselines.autoregression_fitting import fit_regression
from pyro_vgpds.baselines.cycle import find_period
from pyro_vgpds.baselines.gaps import FilledPair, Gaps
from pyro_vgpds.checks import check_flags, check_number
from pyro_vgpds.data.repeats import read_at
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["autoregression", "is_even"]

_UNEVEN = 0.1  # part of a step by which frames may be early or late, as months are
_SPARSE = 2.0  # frames of the grid for each one that was observed, at most


def autoregression(
    t: DataLike | Sequences, y: DataLike | None = None, period: float | None = None, return_variance: bool = False
) -> FilledPair:
    r"""Forecast by ridge regression on the past, with the same coefficients for all outputs and sequences.

    In units of each output's standard deviation, and with a regression of its own for each number h of frames ahead,

    .. math:: y_{n+h} - y_n = \sum_{k=1}^{p} a_k (y_{n-k} - y_n) + b\, (\bar y_n - y_n) + c\, h\, \frac{y_n - y_0}{n}
              + \sum_{j=0}^{1} d_j (y_{n+h-(m+j)P} - y_n),

    with the mean :math:`\bar y_n` of the frames up to n, and the smallest number mP of periods P that is not less than
    h. With a large penalty it is the last value. Which terms are used, with p of 0, 1, 3 or 6, and the penalty are
    chosen by predictions of each quarter of the time from the others; the coefficients are the mean of those of the
    best five choices. Held-out errors of the best one are the variance of h frames ahead, which is multiplied for each
    output by its mean squared residual relative to that of all outputs.

    Some frames may be missing, and months count as equal steps. If frames are not evenly spaced, they are interpolated
    linearly on a grid with their median step; forecasts between two frames are interpolated, too. Missing values up to
    the last frame that has any are filled by linear interpolation, with the variance of one step. A sequence without
    observations gets the means of the columns.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param period: in the units of ``t``, 0 if the data do not repeat. Default:
        :func:`~pyro_vgpds.baselines.estimate_period` of the data, 0 if it finds none.
    :param return_variance: also return the predictive variances, zero for observed entries.
    :returns: float64 (N, D) without NaN, or a list of them; with ``return_variance`` a pair of those.
    :raises ValueError: as ``Sequences``; if a column was never observed, or if the period is negative or not finite.

    >>> import numpy as np
    >>> from pyro_vgpds.baselines import autoregression
    >>> y = np.sin(np.arange(60.0))[:, None]
    >>> y[56:] = np.nan
    >>> error = autoregression(np.arange(60.0), y)[56:, 0].numpy() - np.sin(np.arange(56.0, 60.0))
    >>> bool(abs(error).max() < 0.01)
    True
    """
    check_flags(return_variance=return_variance)
    gaps = Gaps(t, y)
    if period is None:
        parts = list(gaps.sequences())
        period = find_period([t for _, t, _, _ in parts], [y for _, _, y, _ in parts]) or 0.0
    check_number("period", period, "0, or positive and finite", lambda value: 0.0 <= value < math.inf)
    grids, step = _grids(gaps)
    scale = gaps.spread
    series = [part.y / scale for part in grids]
    ahead = [math.ceil(float((part.t[-1] - part.last) / step) - 1e-6) for part in grids]
    fitted = fit_regression(series, max([1, *ahead]), float(period) / step) if series else None
    means = gaps.means.expand_as(gaps.y).clone()
    variances = scale.square().expand_as(gaps.y).clone()
    for part, own, most in zip(grids, series, ahead, strict=True):
        assert fitted is not None
        spread = fitted.variance * scale.square()
        means[part.rows] = gaps.lines(part.t, gaps.y[part.rows], gaps.seen[part.rows])
        variances[part.rows] = spread[0]
        since = (part.t - part.last) / step
        later = since > 1e-6
        if most > 0 and bool(later.any()):
            path = torch.cat([own[-1:], fitted.forecast(own, most)]) * scale  # from the last frame on
            growth = spread[(torch.arange(most + 1) - 1).clamp(0, len(spread) - 1)]
            at = since[later]
            left = at.floor().long().clamp(max=most - 1)
            share = (at - left).unsqueeze(-1)
            rows = torch.arange(part.rows.start, part.rows.stop)[later]
            means[rows] = torch.lerp(path[left], path[left + 1], share)
            variances[rows] = torch.lerp(growth[left], growth[left + 1], share)
    return gaps.fill_pair(means, variances, return_variance)


def is_even(data: Sequences) -> bool:
    """Whether the observed frames of sequences are evenly spaced, with few gaps."""
    times = [t[seen.any(1)] for _, t, _, seen in Gaps(data).sequences() if bool(seen.any())]
    return _whole_steps(times, _median_step(times)) is not None


@dataclass(frozen=True)
class _Grid:
    """The frames of a sequence up to the last that was observed, without gaps."""

    rows: slice
    t: Tensor  #: of all rows
    y: Tensor  #: (n, D)
    last: Tensor  #: time of the last observed frame


def _grids(gaps: Gaps) -> tuple[list[_Grid], float]:
    """The sequences that have observations, and the mean step in time."""
    observed = [(rows, t, part, seen.any(1)) for rows, t, part, seen in gaps.sequences() if bool(seen.any())]
    times = [t[seen] for _, t, _, seen in observed]
    span, step = sum(float(t[-1] - t[0]) for t in times), _median_step(times)
    places = _whole_steps(times, step)
    if places is None:
        step = max(step, span / (_SPARSE * sum(map(len, times))))
        places = [(t - t[-1]) / step + ((t[-1] - t[0]) / step).floor() for t in times]  # the last one is whole
    elif span > 0.0:
        step = span / sum(float(frames[-1]) for frames in places)
    found = []
    for (rows, t, part, seen), frames in zip(observed, places, strict=True):
        lines = gaps.lines(t, part, part.isfinite())[seen]
        at = torch.arange(int(frames[-1]) + 1, dtype=frames.dtype).unsqueeze(-1).expand(-1, part.shape[1])
        found.append(_Grid(rows, t, read_at(frames, lines, at), t[seen][-1]))
    return found, step


def _median_step(times: list[Tensor]) -> float:
    """Of the times of several sequences; 1 if all of them have a single frame."""
    steps = torch.cat([t.diff() for t in times]) if times else torch.empty(0)
    return float(steps.median()) if len(steps) else 1.0


def _whole_steps(times: list[Tensor], step: float) -> list[Tensor] | None:
    """How many steps each time is after the first one of its sequence; None if these are no whole numbers, or if more
    than half of the steps have no time.
    """
    found = []
    for t in times:
        relative = t.diff() / step
        whole = relative.round()
        frames = torch.cat([whole.new_zeros(1), whole.cumsum(0)])
        if bool(((relative - whole).abs() > _UNEVEN * whole).any()) or int(frames[-1]) + 1 > _SPARSE * len(frames):
            return None
        found.append(frames)
    return found
