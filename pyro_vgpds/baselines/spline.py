# SPDX-License-Identifier: Apache-2.0
"""Natural cubic splines in time."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Filled, Gaps
from pyro_vgpds.baselines.simple import by_sequence
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["cubic_spline"]


def cubic_spline(t: DataLike | Sequences, y: DataLike | None = None) -> Filled:
    """Fill by natural cubic splines in time through observed values, constant beyond the first and the last.

    A column without observations in a sequence gets its mean over all sequences. Arguments, result and errors as in
    :func:`~pyro_vgpds.baselines.column_mean`.

    >>> from pyro_vgpds.baselines import cubic_spline
    >>> y = [[0.0], [1.0], [float("nan")], [1.0], [0.0]]
    >>> cubic_spline(range(5), y).flatten().tolist()
    [0.0, 1.0, 1.375, 1.0, 0.0]
    """
    return by_sequence(Gaps(t, y), _spline)


def _spline(t: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """The natural splines (n, D) through the observed entries of y (n, D) at times t (n,); NaN in columns without any.

    The knots of each column come first. Behind them its last value is repeated, with second derivatives of zero.
    """
    n, count = len(t), seen.sum(0)
    if n == 1:
        return y
    row = torch.arange(n).unsqueeze(-1)
    order = seen.int().argsort(dim=0, descending=True, stable=True).gather(0, row.minimum(count - 1).clamp_min(0))
    knots, values = t[order], y.gather(0, order)
    width = torch.where(row[1:] < count, knots.diff(dim=0), 1.0)
    slope = values.diff(dim=0) / width
    # natural splines: the second derivatives are zero at both ends, and inside solve a tridiagonal system
    inside = row[1:-1] < count - 1
    diagonal = torch.where(inside, 2.0 * (width[1:] + width[:-1]), 1.0)
    right = torch.where(inside, 6.0 * slope.diff(dim=0), 0.0)
    curve = torch.nn.functional.pad(_tridiagonal(width[1:-1] * inside[1:], diagonal, right), (0, 0, 1, 1))
    left = (seen.cumsum(0) - 1).minimum(count - 2).clamp_min(0)
    x = t.unsqueeze(-1).clamp(knots[:1], knots[-1:]) - knots.gather(0, left)
    first = slope - width * (2.0 * curve[:-1] + curve[1:]) / 6.0
    third = curve.diff(dim=0) / width
    first, second, third = (part.gather(0, left) for part in (first, curve, third))
    return values.gather(0, left) + x * (first + x * (second / 2.0 + x * third / 6.0))


def _tridiagonal(off: Tensor, diagonal: Tensor, right: Tensor) -> Tensor:
    """Solve symmetric, diagonally dominant systems, one for each column, with diagonals (n - 1, D) and (n, D)."""
    pivots, solution = list(diagonal), list(right)
    for i, beside in enumerate(off):
        factor = beside / pivots[i]
        pivots[i + 1] = pivots[i + 1] - factor * beside
        solution[i + 1] = solution[i + 1] - factor * solution[i]
    for i in reversed(range(len(solution))):
        later = off[i] * solution[i + 1] if i < len(off) else 0.0
        solution[i] = (solution[i] - later) / pivots[i]
    return torch.stack(solution) if solution else right
