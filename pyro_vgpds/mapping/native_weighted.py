# SPDX-License-Identifier: Apache-2.0
"""Compiled sums over rows that have many weights each, for Ψ2 of the squared exponential kernel, and their gradients.

For rows ``a (N,)``, ``r (N, Q)``, ``mu (N, Q)`` and points ``z (M, Q)`` the sums are

    V[c, p] = sum_n weight[c, n] exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q) / 2)^2),   p = the pair m <= m'

``_weighted.c`` has the products of matrices that they are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, Loop, added, chunks, pointer, run, run_loops
from pyro_vgpds.mapping.panels import panels_size

__all__ = [
    "Rows", "TriangleGradients", "add_product", "available", "pack", "unpack", "weighted_gradients", "weighted_sums",
]  # fmt: skip

_KEPT = 1 << 22  # exponentials that are kept for the gradients, at most
_UNIT = 96  # rows, a multiple of those that are processed at once


class Rows(NamedTuple):
    """What the terms depend on. All tensors are contiguous, float64 and on the CPU."""

    a: Tensor  #: (N,)
    r: Tensor  #: (N, Q)
    mu: Tensor  #: (N, Q)
    z: Tensor  #: (M, Q)

    @property
    def pairs(self) -> int:
        """The number of pairs m <= m'."""
        return len(self.z) * (len(self.z) + 1) // 2

    def kept(self) -> Tensor | None:
        """Memory for the exponentials; None if they are too many to keep. Pairs are padded to units of 24."""
        if len(self.a) * self.pairs > _KEPT:
            return None
        return self.a.new_empty(-(-len(self.a) // 8) * 8, -(-self.pairs // 24) * 24)


_library = Library(
    f"{__package__}._weighted",
    weighted_forward="nnnn ppppp nn pp",
    weighted_backward="nnnn ppppppp nn ppppp",
    weighted_product="nnn r p nn p nn p",
    weighted_unpack="nn pppp",
    weighted_pack="nn pppppp",
)


available = _library.available


def _check(*tensors: Tensor | None) -> None:
    if any(x is not None and (x.dtype is not torch.float64 or not x.is_cpu or not x.is_contiguous()) for x in tensors):
        raise ValueError("the compiled loops take contiguous float64 CPU tensors")


def _call(name: str, *arguments: int | Tensor) -> None:
    _check(*(x for x in arguments if isinstance(x, Tensor)))
    function = _library.function(f"weighted_{name}")
    if function(*(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)):
        raise MemoryError("a compiled loop ran out of memory")


def add_product(target: Tensor, left: Tensor, right: Tensor, factor: float = 1.0) -> Tensor:
    """Add factor · left @ right, (I, K) and (K, J), to the contiguous target (I, J) in place, and return it.

    ``torch.addmm`` does the same. It takes twice the time for the products with Ψ1, which have few rows or columns, on
    processors for which its library does not use their largest vectors.
    """
    (rows, inner), columns, right = left.shape, right.shape[1], right.contiguous()
    if target.shape != (rows, columns) or len(right) != inner:
        raise ValueError("the shapes must be (I, J), (I, K) and (K, J)")
    _check(target, right, left[:0].contiguous())
    function, work = _library.function("weighted_product"), float(rows * inner * columns)

    def call(range_: tuple[int, int], _: None) -> int:
        given = rows, inner, columns, factor, left.data_ptr(), *left.stride(), right.data_ptr()
        return function(*given, *range_, target.data_ptr())

    ranges = chunks(columns, _UNIT, work)
    if any(run(call, ranges, [None] * len(ranges), work)):
        raise MemoryError("a compiled loop ran out of memory")
    return target


class TriangleGradients(NamedTuple):
    """Gradients in the upper triangles of symmetric matrices."""

    sums: Tensor  #: in what :func:`unpack` multiplies by the factor, (C, P)
    log_factor: Tensor  #: in the logarithm of the factor, (P,)
    sides: Tensor  #: in the numbers that are added, (C, M)


def unpack(sums: Tensor, factor: Tensor, half: Tensor) -> Tensor:
    """Symmetric matrices with the elements factor · sums + half_m + half_m', as panels (C, S)
    (:mod:`~pyro_vgpds.mapping.panels`), from sums (C, P), one for each pair m <= m', and half (C, M); multiplies the
    sums in place.
    """
    count, points = half.shape
    panels = sums.new_empty(count, panels_size(points))
    _call("unpack", count, points, factor, half, sums, panels)
    return panels


def pack(g: Tensor, factor: Tensor, sums: Tensor, points: int) -> TriangleGradients:
    """The gradients through :func:`unpack`, from symmetric ones g as panels (C, S) for M points, and from the sums
    multiplied by the factor, (C, P).
    """
    found = TriangleGradients(torch.empty_like(sums), torch.empty_like(factor), g.new_empty(len(g), points))
    _call("pack", len(g), points, factor, g.contiguous(), sums, *found)
    return found


def weighted_sums(given: Rows, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Σ_n weight_cn E_np, (C, P), for weights (C, N), and E for the gradients, unless it is too large to keep."""
    kept = given.kept()
    return _run("forward", given, (weight,), lambda: (kept, weight.new_empty(len(weight), given.pairs))), kept


def weighted_gradients(
    given: Rows, weight: Tensor, g: Tensor, of_weight: bool, kept: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of Σ g · :func:`weighted_sums` in a, r, mu, z and, if ``of_weight``, the weights; E may be kept."""
    g_a, g_r, g_mu = (torch.empty_like(x) for x in given[:3])
    g_weight = torch.empty_like(weight) if of_weight else None
    g_z = _run("backward", given, (weight, g, kept), lambda: (g_weight, g_a, g_r, g_mu, torch.empty_like(given.z)))
    return g_a, g_r, g_mu, g_z, g_weight


def _run(
    direction: str,
    given: Rows,
    more: tuple[Tensor | None, ...],
    make_outputs: Callable[[], tuple[Tensor | None, ...]],
) -> Tensor:
    """The C function for ranges of rows, each with its own last output: the sum of these."""
    inputs = (*given, *more)
    _check(*inputs, *make_outputs())
    weight = more[0]
    assert weight is not None
    (rows, dims), points, count = given.r.shape, len(given.z), len(weight)
    function = _library.function(f"weighted_{direction}")

    def call(range_: tuple[int, int], outputs: tuple[Tensor | None, ...]) -> int:
        return function(rows, points, dims, count, *map(pointer, inputs), *range_, *map(pointer, outputs))

    loop = Loop(call, make_outputs, added, 2.0 * rows * given.pairs * count)
    return run_loops(rows, _UNIT, [loop])[0]
