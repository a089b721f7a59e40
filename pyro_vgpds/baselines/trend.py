# SPDX-License-Identifier: Apache-2.0
"""Baselines for data with a trend: a random walk with drift, and exponential smoothing with a damped trend."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Filled, FilledPair, Gaps
from pyro_vgpds.baselines.simple import by_sequence
from pyro_vgpds.checks import check_flags
from pyro_vgpds.data.filling import around
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["damped_trend", "last_value_with_drift"]

_GRID = tuple(itertools.product((0.1, 0.3, 0.5, 0.8, 1.0), (0.0, 0.05, 0.2, 0.5), (0.8, 0.9, 0.98)))  # α, β, φ
_FIRST = 5  # steps whose slope is the initial one


def last_value_with_drift(t: DataLike | Sequences, y: DataLike | None = None) -> Filled:
    """Fill with the last observed value plus the mean slope of the column times the time since then.

    The mean slope is that of the line through the first and the last observed value of the sequence. Entries before the
    first observed value are on the same line. A column without observations in a sequence gets its mean over all
    sequences. It is the forecast of a random walk with drift. Arguments, result and errors as in
    :func:`~pyro_vgpds.baselines.column_mean`.

    >>> from pyro_vgpds.baselines import last_value_with_drift
    >>> last_value_with_drift(range(5), [[1.0], [4.0], [5.0], [float("nan")], [float("nan")]]).flatten().tolist()
    [1.0, 4.0, 5.0, 7.0, 9.0]
    """
    return by_sequence(Gaps(t, y), _line)


def _line(t: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    before, after, _ = around(seen)
    first, last = after[:1], before[-1:]
    return y.gather(0, before) + _slope(t, y, first, last) * (t.unsqueeze(-1) - t[before])


def _slope(t: Tensor, y: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The slopes (1, D) between two rows of each column, (1, D) each; 0 if they are the same."""
    width = t[last] - t[first]
    return (y.gather(0, last) - y.gather(0, first)) / torch.where(width > 0, width, 1.0)


def damped_trend(t: DataLike | Sequences, y: DataLike | None = None, return_variance: bool = False) -> FilledPair:
    r"""Fill by exponential smoothing with a damped trend (Gardner and McKenzie 1985), for each output separately.

    A level :math:`\ell` and a slope b are carried from frame to frame. With the error r of the prediction
    :math:`\ell + \varphi b` of the next frame,

    .. math:: \ell \leftarrow \ell + \varphi b + \alpha r, \qquad b \leftarrow \varphi b + \alpha\beta r.

    Missing values have no error, so that a gap or a forecast of h frames is
    :math:`\ell + (\varphi + \dots + \varphi^h)\, b`: a trend that fades. Its variance is
    :math:`\sigma^2 (1 + \sum_{j<h} c_j^2)` with :math:`c_j = \alpha (1 + \beta (\varphi + \dots + \varphi^j))` and the
    mean square :math:`\sigma^2` of r. Times need not be regular: h is the time in units of the median step. The
    parameters :math:`\alpha, \beta, \varphi` of an output are those of a grid with the smallest squared errors r in all
    sequences. Entries before the first observed value get that value; a column without observations in a sequence gets
    its mean over all sequences.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param return_variance: also return the predictive variances, zero for observed entries.
    :returns: float64 (N, D) without NaN, or a list of them; with ``return_variance`` a pair of those.
    :raises ValueError: as ``Sequences``, and if a column was never observed.

    >>> from pyro_vgpds.baselines import damped_trend
    >>> nan = float("nan")
    >>> rising = damped_trend(range(9), [[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [nan], [nan]]).flatten()
    >>> bool(7.5 < rising[7] < 8.0 and rising[7] < rising[8])
    True
    """
    check_flags(return_variance=return_variance)
    gaps = Gaps(t, y)
    parts = [(times / gaps.step, part, seen) for _, times, part, seen in gaps.sequences()]
    grid = torch.tensor(_GRID, dtype=torch.float64).mT.unsqueeze(-1)  # (3, G, 1)
    total = torch.zeros(len(_GRID), gaps.y.shape[1], dtype=torch.float64)
    for times, part, seen in parts:
        error = torch.where(seen.unsqueeze(1), part.unsqueeze(1) - _smooth(times, part, seen, grid), 0.0)
        total += error.square().sum(0)
    square, best = total.min(0)
    square = square / gaps.seen.sum(0)
    own = grid.squeeze(-1)[:, best]  # (3, D)
    means, variances = [], []
    for times, part, seen in parts:
        means.append(torch.where(seen.any(0), _smooth(times, part, seen, own.unsqueeze(1))[:, 0], gaps.means))
        since = (times.unsqueeze(-1) - times[around(seen)[0]]).abs()
        variances.append(square * _growth(own, since))
    return gaps.fill_pair(torch.cat(means), torch.cat(variances), return_variance)


def _smooth(t: Tensor, y: Tensor, seen: Tensor, parameters: Tensor) -> Tensor:
    """Predictions (n, G, D) of each frame from those before it, by G sets of parameters (3, G, 1 or D).

    Frames up to the first observed one have its value.
    """
    alpha, beta, phi = parameters
    before, after, _ = around(seen)
    started = before <= torch.arange(len(t)).unsqueeze(-1)  # from the first observed frame
    level = y.gather(0, after[:1]).expand(len(phi), -1)
    slope = _slope(t, y, after[:1], before[min(_FIRST, len(t) - 1)].unsqueeze(0)).expand_as(level)
    found = []
    for i in range(len(t)):
        if i > 0:
            decay = phi ** torch.where(started[i - 1], t[i] - t[i - 1], 0.0)
            level = level + phi * (1.0 - decay) / (1.0 - phi) * slope
            slope = decay * slope
        found.append(level)
        error = torch.where(seen[i], y[i] - level, 0.0)
        level, slope = level + alpha * error, slope + alpha * beta * error
    return torch.stack(found)


def _growth(parameters: Tensor, since: Tensor) -> Tensor:
    """The variances of predictions after ``since`` steps (n, D) without an observation, in units of that after one."""
    alpha, beta, phi = parameters
    j = torch.arange(1.0, max(2.0, float(since.max().ceil())), dtype=torch.float64).unsqueeze(-1)
    c = alpha * (1.0 + beta * phi * (1.0 - phi**j) / (1.0 - phi))
    growth = torch.cat([torch.zeros_like(c[:1]), c.square().cumsum(0)])
    return 1.0 + growth.gather(0, (since.ceil().long() - 1).clamp(0, len(growth) - 1))
