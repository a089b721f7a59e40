# SPDX-License-Identifier: Apache-2.0
"""Compiled loops for the terms of Ψ2 of the squared exponential kernel, if each row has many weights.

For rows ``a (N,)``, ``r (N, Q)``, ``mu (N, Q)`` and points ``z (M, Q)`` the terms are

    E[n, p] = exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q) / 2)^2),   p = the pair m <= m'

in tiles of rows that stay in cache. Sums over rows with weights (C, N), and their gradients, are products of matrices
with these tiles, which torch does best.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.compiled import open_library

__all__ = ["Packed", "Rows", "Tiles", "available", "pack", "unpack", "weighted_gradients", "weighted_sums"]

_TILE = 1 << 18  # numbers in a tile
_KEPT = 1 << 22  # terms that are kept for the gradients, at most

#: rows, and their terms (n, P)
Tiles: TypeAlias = Iterable[tuple[slice, Tensor]]


class Rows(NamedTuple):
    """What the terms depend on. All tensors are contiguous, float64 and on the CPU."""

    a: Tensor  #: (N,)
    r: Tensor  #: (N, Q)
    mu: Tensor  #: (N, Q)
    z: Tensor  #: (M, Q)

    def tiles(self, are_kept: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their terms, tile by tile.

        :param are_kept: whether each tile is a new array; if not, the next one overwrites it.
        """
        count, points = len(self.a), len(self.z)
        pairs = points * (points + 1) // 2
        step = max(1, _TILE // pairs)
        terms = self.a.new_empty(min(step, count), pairs)
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            terms = self.a.new_empty(rows.stop - start, pairs) if are_kept else terms[: rows.stop - start]
            _call("exponentials", *self.z.shape, *self, rows.start, rows.stop, terms)
            yield rows, terms


@functools.cache
def _library() -> ctypes.CDLL | None:
    number, pointer = ctypes.c_long, ctypes.c_void_p
    given = [number] * 2 + [pointer] * 4 + [number] * 2
    return open_library(
        f"{__package__}._weighted",
        weighted_exponentials=given + [pointer],
        weighted_gradients=given + [pointer] * 6,
        weighted_unpack=[number] * 2 + [pointer] * 4,
        weighted_pack=[number] * 2 + [pointer] * 6,
    )


def available() -> bool:
    """Whether the compiled loops were built and are not disabled."""
    return _library() is not None


def _call(name: str, *arguments: int | Tensor) -> None:
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    if any(x.dtype is not torch.float64 or not x.is_cpu or not x.is_contiguous() for x in tensors):
        raise ValueError("the compiled loops take contiguous float64 CPU tensors")
    function = getattr(_library(), f"weighted_{name}")
    if function(*(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)):
        raise MemoryError("a compiled loop ran out of memory")


class Packed(NamedTuple):
    """Gradients in the upper triangles of symmetric matrices (C, M, M)."""

    sums: Tensor  #: in what :func:`unpack` multiplies by the factor, (C, P)
    log_factor: Tensor  #: in the logarithm of the factor, (P,)
    sides: Tensor  #: in the numbers that are added, (C, M)


def unpack(sums: Tensor, factor: Tensor, half: Tensor) -> Tensor:
    """Symmetric matrices (C, M, M) with the elements factor · sums + half_m + half_m'; multiplies the sums in place.

    :param sums: (C, P), one for each pair m <= m'.
    :param factor: (P,).
    :param half: (C, M).
    """
    count, points = half.shape
    psi2 = sums.new_empty(count, points, points)
    _call("unpack", count, points, factor, half, sums, psi2)
    return psi2


def pack(g: Tensor, factor: Tensor, sums: Tensor) -> Packed:
    """The gradients through :func:`unpack`.

    :param g: (C, M, M), in the matrices.
    :param factor: (P,).
    :param sums: (C, P), multiplied by the factor.
    """
    count, points, _ = g.shape
    found = Packed(torch.empty_like(sums), torch.empty_like(factor), g.new_empty(count, points))
    _call("pack", count, points, factor, g.contiguous(), sums, *found)
    return found


def weighted_sums(given: Rows, weight: Tensor) -> tuple[Tensor, Tiles | None]:
    """Σ_n weight_cn E_np, (C, P), and the tiles with E unless they are too large to keep.

    :param given: the rows and points.
    :param weight: (C, N).
    """
    pairs = len(given.z) * (len(given.z) + 1) // 2
    total, are_kept = weight.new_zeros(len(weight), pairs), len(given.a) * pairs <= _KEPT
    kept = []
    for rows, terms in given.tiles(are_kept):
        total.addmm_(weight[:, rows], terms)
        kept.append((rows, terms))
    return total, kept if are_kept else None


def weighted_gradients(
    given: Rows, weight: Tensor, g: Tensor, of_weight: bool, tiles: Tiles | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of Σ g · :func:`weighted_sums` in a, r, mu, z and, if they are wanted, in the weights.

    :param given: the rows and points.
    :param weight: (C, N).
    :param g: (C, P).
    :param of_weight: whether those in the weights are.
    :param tiles: with E, if they were kept.
    """
    g_a, g_r, g_mu = (torch.empty_like(x) for x in given[:3])
    g_z = torch.zeros_like(given.z)
    g_weight = torch.empty_like(weight) if of_weight else None
    own: Tensor | None = None
    for rows, terms in given.tiles() if tiles is None else tiles:
        if g_weight is not None:
            torch.mm(g, terms.mT, out=g_weight[:, rows])
        own = torch.empty_like(terms) if own is None else own[: len(terms)]
        torch.mm(weight[:, rows].mT, g, out=own)
        _call("gradients", *given.z.shape, *given, rows.start, rows.stop, terms, own, g_a, g_r, g_mu, g_z)
    return g_a, g_r, g_mu, g_z, g_weight
