# SPDX-License-Identifier: Apache-2.0
r"""The terms of groups of outputs in the collapsed bound and their gradients, by an optional compiled function.

Everything here is also computed by :func:`~pyro_vgpds.mapping.group_terms.cholesky_terms` with the operations of torch.
For the matrices of each group, B = K_MM + βΨ2, its inverse and products with it, LAPACK is several times as slow at
the usual sizes, because it is made for large matrices.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, chunks, run
from pyro_vgpds.mapping import panels
from pyro_vgpds.mapping.native_inducing import Covariance, GroupStatistics

__all__ = ["GroupGradients", "GroupParts", "entries", "group_parts", "is_compiled"]

_MOST = 256  # inducing variables up to which the matrices of a group fit the cache


class GroupGradients(NamedTuple):
    """What the gradients of the terms of C groups are made of."""

    psi0: Tensor  #: gradients in ψ0, (C,)
    beta: Tensor  #: gradients in β, (C, 1)
    v: Tensor  #: gradients in v, β² b with b = B⁻¹v, (C, M, W)
    psi2: Tensor  #: gradients in Ψ2, as Ψ2
    direct: Tensor  #: Σ_c (count (K_MM⁻¹ − B⁻¹) − β² b bᵀ), (M, M)
    through: Tensor  #: Σ_c β count Ψ2 of groups whose slack is positive, (M, M)


class GroupParts(NamedTuple):
    """Terms of C groups."""

    value: Tensor  #: (C,)
    least: Tensor  #: the least pivot of B relative to that of K_MM, (C,)
    slack: Tensor  #: ψ0 − tr K_MM⁻¹Ψ2, (C,)
    gradients: GroupGradients | None  #: None if they were not wanted


_library = Library(
    f"{__package__}._terms",
    terms_groups="nnn pppppp nn ppppp",
    terms_in_place="nnn pppppp n pp n pppppp",
)


def entries() -> tuple[int, int]:
    """The addresses of the functions that ``_bound.c`` calls, 0 if they were not built."""
    return _library.address("terms_groups"), _library.address("terms_in_place")


def is_compiled(v: Tensor, psi2: Tensor) -> bool:
    """Whether :func:`group_parts` can be used for v (C, M, W) and Ψ2 (C, M, M) or (C, S): compiled, float64 on a CPU,
    of a size for which it is faster, and not traced by ``torch.jit``, which would not see it.
    """
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined]
    fits = 0 < v.shape[1] <= _MOST and v.numel() > 0 and not traced
    built = _library() is not None and panels.available()
    return fits and psi2.dtype == torch.float64 and psi2.device.type == "cpu" and built


def group_parts(groups: GroupStatistics, covariance: Covariance, gradients: bool) -> GroupParts | None:
    """The terms of groups whose outputs share one β; None if a B is not positive definite.

    :param groups: with Ψ2 as panels (C, S) (:mod:`~pyro_vgpds.mapping.panels`).
    :raises MemoryError: if there is not enough memory.
    """
    psi0, v, psi2, beta, count = groups
    size, points, width = v.shape
    numbers = torch.cat((psi0.unsqueeze(1), beta, count), 1)
    K, inverse, factor = covariance
    inputs = [x.contiguous() for x in (K, inverse, factor.diagonal(), numbers, psi2, v)]
    if any(x.dtype != torch.float64 or x.device.type != "cpu" for x in inputs):
        raise ValueError("the compiled terms of groups take float64 CPU tensors")
    if psi2.shape != (size, panels.panels_size(points)):
        raise ValueError("psi2 must be panels (C, S)")
    work = size * points * points * (points / 2 + (1.5 if gradients else 0.5) * width)
    ranges = chunks(size, 1, work)
    results = psi2.new_empty(size, 6)
    g_v, g_psi2 = (psi2.new_empty(shape) if gradients else None for shape in (v.shape, psi2.shape))
    sums = [psi2.new_empty(2, points, points) if gradients else None for _ in ranges]
    function = _library.function("terms_groups")

    def call(range_: tuple[int, int], own: Tensor | None) -> int:
        pointers = [x.data_ptr() for x in inputs]
        last = [0] * 4 if own is None else [x.data_ptr() for x in (g_v, g_psi2, own[0], own[1]) if x is not None]
        return function(size, points, width, *pointers, *range_, results.data_ptr(), *last)

    status = run(call, ranges, sums, work)
    if 1 in status:
        raise MemoryError("the compiled terms of groups ran out of memory")
    if any(status):
        return None
    value, least, slack, _, g_psi0, g_beta = results.unbind(1)
    found = None
    if g_v is not None and g_psi2 is not None:
        direct, through = functools.reduce(torch.Tensor.add_, [x for x in sums if x is not None])  # in their order
        found = GroupGradients(g_psi0, g_beta.unsqueeze(1), g_v, g_psi2, direct, through)
    return GroupParts(value, least, slack, found)
