# SPDX-License-Identifier: Apache-2.0
"""Baselines without parameters: the mean, the last value, a straight line in time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Gaps, around

__all__ = ["column_mean", "last_value", "line_between", "linear_interpolation"]


def column_mean(t: Any, y: Any = None) -> Tensor | list[Tensor]:
    """Fill each column with the mean of what was observed of it, over all sequences. For video: the mean frame.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :returns: float64 (N, D) without NaN, or a list of them.
    :raises ValueError: as ``Sequences`` does, and where a column was never observed.

    >>> from pyro_vgpds.baselines import column_mean
    >>> column_mean([0.0, 1.0, 2.0], [[1.0], [float("nan")], [5.0]]).flatten().tolist()
    [1.0, 3.0, 5.0]
    """
    gaps = Gaps(t, y)
    return gaps.fill(gaps.means.expand_as(gaps.y))


def last_value(t: Any, y: Any = None) -> Tensor | list[Tensor]:
    """Fill with the last value observed before in the same sequence and column.

    What comes before the first is filled with the first, and a column that a sequence never shows with its mean over
    all sequences. Arguments, result and errors as in :func:`column_mean`.

    >>> from pyro_vgpds.baselines import last_value
    >>> last_value([0.0, 1.0, 2.0], [[1.0], [float("nan")], [5.0]]).flatten().tolist()
    [1.0, 1.0, 5.0]
    """
    gaps = Gaps(t, y)
    values = gaps.means.expand_as(gaps.y).clone()
    for rows, _, part, seen in gaps.sequences():
        before, _, known = around(seen)
        values[rows] = torch.where(known, part.gather(0, before), values[rows])
    return gaps.fill(values)


def linear_interpolation(t: Any, y: Any = None) -> Tensor | list[Tensor]:
    """Fill with straight lines in time between the values observed on either side, and with the nearest at the edges.

    As ``numpy.interp`` for every column of every sequence. A column that a sequence never shows is filled with its mean
    over all sequences. Arguments, result and errors as in :func:`column_mean`.

    >>> from pyro_vgpds.baselines import linear_interpolation
    >>> linear_interpolation([0.0, 1.0, 4.0], [[1.0], [float("nan")], [5.0]]).flatten().tolist()
    [1.0, 2.0, 5.0]
    """
    gaps = Gaps(t, y)
    values = gaps.means.expand_as(gaps.y).clone()
    for rows, times, part, seen in gaps.sequences():
        values[rows] = torch.where(seen.any(0), line_between(times, part, seen), values[rows])
    return gaps.fill(values)


def line_between(t: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """(n, D) of lines through what was seen of y (n, D) at times t (n,); NaN in columns that were never seen."""
    before, after, _ = around(seen)
    left, right = y.gather(0, before), y.gather(0, after)
    width = t[after] - t[before]
    share = torch.where(width > 0, (t.unsqueeze(-1) - t[before]) / torch.where(width > 0, width, 1.0), 0.0)
    return left + share * (right - left)
