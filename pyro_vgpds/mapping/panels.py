# SPDX-License-Identifier: Apache-2.0
"""Symmetric matrices as panels, half as many numbers, in which compiled sums and terms of many groups pass them on.

For every four points m, a panel has all points j >= m by these four. M is rounded up to a multiple of four, with zeros
as padding, so that S = M (M + 4) / 2 numbers are a matrix. ``_panels.h`` has the same in C.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library

__all__ = ["available", "matrices_of", "panels_norm", "panels_of", "panels_size"]

_ROWS = 4


_library = Library(f"{__package__}._midpoint", panels_of="nn pp", panels_matrices="nn pp")


available = _library.available


def panels_size(points: int) -> int:
    """S, the numbers of the panels of an M x M matrix."""
    rounded = -(-points // _ROWS) * _ROWS
    return rounded * (rounded + _ROWS) // 2


def panels_of(matrices: Tensor) -> Tensor:
    """The panels (C, S) of the symmetric parts of matrices (C, M, M)."""
    points = matrices.shape[-1]
    return _converted("panels_of", matrices, points, (points, points), (panels_size(points),))


def matrices_of(panels: Tensor, points: int) -> Tensor:
    """The symmetric M x M matrices (C, M, M) of panels (C, S)."""
    return _converted("panels_matrices", panels, points, (panels_size(points),), (points, points))


def _converted(name: str, given: Tensor, points: int, shape: tuple[int, ...], new: tuple[int, ...]) -> Tensor:
    given = given.contiguous()
    if given.dtype is not torch.float64 or not given.is_cpu or given.shape[1:] != shape:
        raise ValueError("panels are made of float64 CPU tensors (C, M, M), or (C, S)")
    found = given.new_empty(len(given), *new)
    _library.function(name)(len(given), points, given.data_ptr(), found.data_ptr())
    return found


def panels_norm(matrix: Tensor, panels: Tensor) -> Tensor:
    """The Frobenius norms (C,) of the elementwise products of a symmetric matrix (M, M) with those of panels (C, S)."""
    squares = panels_of(matrix.unsqueeze(0)).squeeze(0).square_() * _copies(len(matrix))
    return (panels.square() @ squares).sqrt()


@functools.lru_cache(maxsize=4)
def _copies(points: int) -> Tensor:
    """How many elements of a matrix a number of its panels stands for, (S,): elements at the diagonal are all there."""
    columns = [-(-points // _ROWS) * _ROWS - m for m in range(0, points, _ROWS)]
    own = [torch.cat([torch.ones(_ROWS**2), torch.full((_ROWS * (count - _ROWS),), 2.0)]) for count in columns]
    return torch.cat(own).double()
