# SPDX-License-Identifier: Apache-2.0
"""Baselines without parameters: the mean, the median, the last value, linear interpolation in time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Filled, Gaps
from pyro_vgpds.data.filling import around, line_between
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["by_sequence", "column_mean", "column_median", "last_value", "linear_interpolation"]


def column_mean(t: DataLike | Sequences, y: DataLike | None = None) -> Filled:
    """Fill each column with the mean of its observed values over all sequences. For video: the mean frame.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :returns: float64 (N, D) without NaN, or a list of them.
    :raises ValueError: as ``Sequences``, and if a column was never observed.

    >>> from pyro_vgpds.baselines import column_mean
    >>> column_mean([0.0, 1.0, 2.0], [[1.0], [float("nan")], [5.0]]).flatten().tolist()
    [1.0, 3.0, 5.0]
    """
    gaps = Gaps(t, y)
    return gaps.fill(gaps.means.expand_as(gaps.y))


def column_median(t: DataLike | Sequences, y: DataLike | None = None) -> Filled:
    """Fill each column with the median of its observed values over all sequences.

    It is the usual level of data with a few high peaks, such as counts of cases with outbreaks. Arguments, result and
    errors as in :func:`column_mean`.

    >>> from pyro_vgpds.baselines import column_median
    >>> column_median(range(4), [[1.0], [float("nan")], [2.0], [90.0]]).flatten().tolist()
    [1.0, 2.0, 2.0, 90.0]
    """
    gaps = Gaps(t, y)
    ordered, count = gaps.y.sort(0).values, gaps.seen.sum(0)  # NaN is the largest
    middle = torch.stack([(count - 1) // 2, count // 2])
    return gaps.fill(ordered.gather(0, middle).mean(0).expand_as(gaps.y))


def last_value(t: DataLike | Sequences, y: DataLike | None = None) -> Filled:
    """Fill with the last observed value of the same sequence and column.

    Entries before the first observed value get the first one. A column without observations in a sequence gets its mean
    over all sequences. Arguments, result and errors as in :func:`column_mean`.

    >>> from pyro_vgpds.baselines import last_value
    >>> last_value([0.0, 1.0, 2.0], [[1.0], [float("nan")], [5.0]]).flatten().tolist()
    [1.0, 1.0, 5.0]
    """
    return by_sequence(Gaps(t, y), lambda _, part, seen: part.gather(0, around(seen)[0]))


def linear_interpolation(t: DataLike | Sequences, y: DataLike | None = None) -> Filled:
    """Fill by linear interpolation in time between observed values, constant beyond the first and the last.

    As ``numpy.interp`` for every column of every sequence. A column without observations in a sequence gets its mean
    over all sequences. Arguments, result and errors as in :func:`column_mean`.

    >>> from pyro_vgpds.baselines import linear_interpolation
    >>> linear_interpolation([0.0, 1.0, 4.0], [[1.0], [float("nan")], [5.0]]).flatten().tolist()
    [1.0, 2.0, 5.0]
    """
    return by_sequence(Gaps(t, y), line_between)


def by_sequence(gaps: Gaps, impute: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Filled:
    """Each sequence filled by ``impute(t, y, seen)``; columns without observations in it get their overall mean."""
    parts = [torch.where(seen.any(0), impute(t, y, seen), gaps.means) for _, t, y, seen in gaps.sequences()]
    return gaps.fill(torch.cat(parts))
