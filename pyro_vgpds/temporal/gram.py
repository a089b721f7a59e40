# SPDX-License-Identifier: Apache-2.0
"""The dense blocks of K_t of a kernel that compiled code knows, from the different distances between its frames.

Frames at regular times have as many different distances as a sequence has frames, and every kernel here depends on
distances alone.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels.programs import (
    Program,
    ProgramOf,
    gathered,
    scattered,
    split_gradient,
    stacked,
    white_of,
    with_white,
)
from pyro_vgpds.types import Context

__all__ = ["fast_blocks"]

_LARGEST = 1 << 20  # entries of all blocks: the indices of more would need much memory


class _Distances(NamedTuple):
    """The different distances (U,) between frames of a batch, and which of them each entry of its blocks has."""

    d: Tensor
    which: Tensor  # (B n n,)
    shape: torch.Size  # (B, n, n)


def _distances(times: Times) -> list[_Distances]:
    """Of each batch, made once for its times."""
    found = times.made.get(_Distances)
    if not isinstance(found, list):
        found = list[_Distances]()
        for batch in times.batches:
            d = (batch.t.unsqueeze(-1) - batch.t.unsqueeze(-2)).abs()
            levels, which = torch.round(d / times.resolution).unique(return_inverse=True)
            few = d.new_zeros(len(levels)).index_copy_(0, which.flatten(), d.flatten())  # one of those that are equal
            found.append(_Distances(few, which.flatten(), d.shape))
        times.made[_Distances] = found
    return found


def fast_blocks(program: ProgramOf | None, times: Times) -> list[Tensor] | None:
    """The blocks (K, B, n, n) of each batch; None if there is no program for them."""
    t = times.t
    if program is None or t.dtype != torch.float64 or not t.is_cpu or t.requires_grad:
        return None
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # public, but not in __all__
        return None
    if sum(batch.rows.shape[0] * batch.rows.shape[1] ** 2 for batch in times.batches) > _LARGEST:
        return None
    return list(_Blocks.apply(program[0], _distances(times), *program[1]))


class _Pass(Context, Protocol):
    """The context of functions here."""

    program: Program
    distances: list[_Distances]


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Pass, program: Program, distances: list[_Distances], *tensors: Tensor) -> tuple[Tensor, ...]:
        values = stacked(tensors)
        white = white_of(program, values).unsqueeze(-1)  # (K, 1, 1)
        ctx.program, ctx.distances = program, distances
        ctx.save_for_backward(values, *tensors)
        blocks = []
        for own in distances:
            block = gathered(program.covariances(values, own.d), own.which).view(-1, *own.shape)
            if program.white:
                block.diagonal(dim1=-2, dim2=-1).add_(white)
            blocks.append(block)
        return tuple(blocks)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Pass, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, *tensors = ctx.saved_tensors
        program, total, white = ctx.program, torch.zeros_like(values), values.new_zeros(values.shape[1])
        for own, gradient in zip(ctx.distances, gradients, strict=True):
            few = values.new_zeros(values.shape[1], own.d.shape[0])
            scattered(gradient, own.which, few)
            total += program.covariances_grad(values, own.d, few)
            if program.white:
                white += gradient.diagonal(dim1=-2, dim2=-1).sum((-2, -1))
        return None, None, *split_gradient(with_white(program, total, white), tuple(tensors))
