# SPDX-License-Identifier: Apache-2.0
"""Sums of exponentials of products, in tiles that stay in cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.types import Context

__all__ = ["exp_sum"]

_TILE = 1 << 17  # numbers in a tile, so that it stays in cache
_LOG2E = math.log2(math.e)


def exp_sum(left: Tensor, right: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_n mask_cn exp(left_n · right_p), (..., C, P), in tiles that stay in cache, also in the backward pass.

    ``left`` is (..., N, K), its last column all ones, ``right`` (..., P, K), and ``mask`` any numbers (C, N).
    """
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    if not batch:
        return _ExpSum.apply(left, right, mask)
    left, right = left.expand(batch + left.shape[-2:]), right.expand(batch + right.shape[-2:])
    parts = [_ExpSum.apply(a, b, mask) for a, b in zip(left.flatten(0, -3), right.flatten(0, -3), strict=True)]
    return torch.stack(parts).unflatten(0, batch)


class _ExpSum(torch.autograd.Function):
    # With E = exp(left rightᵀ) and g the gradient of the result:
    #   one group:   Eᵀ left has the sums themselves in its last column (where left is 1) and, scaled by g, is the
    #                gradient of right; so the forward pass has all of it, and the backward pass only E (g ∘ right);
    #   C groups:    the sums are mask E, and with H = E ∘ (maskᵀ g) the gradients are H right, Hᵀ left and g Eᵀ.

    @staticmethod
    def forward(ctx: Context, left: Tensor, right: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            moments = left.new_zeros(left.shape[-1], len(right))
            for rows, e in _tiles(left, right):
                moments.addmm_(left[rows].mT, e)
            ctx.save_for_backward(left, right, moments, None)
            return moments[-1:].clone()
        total = left.new_zeros(len(mask), len(right))
        for rows, e in _tiles(left, right):
            total.addmm_(mask[:, rows], e)
        ctx.save_for_backward(left, right, None, mask)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        left, right, moments, mask = ctx.saved_tensors
        grad_left = left.new_empty(left.shape[::-1]).mT if ctx.needs_input_grad[0] else None
        grad_right: Tensor | None
        if moments is not None:
            grad_right = (moments * grad).mT if ctx.needs_input_grad[1] else None
            if grad_left is not None:
                weighted = (grad.mT * right).mT.contiguous()
                for rows, e in _tiles(left, right):
                    torch.mm(weighted, e.mT, out=grad_left[rows].mT)
            return grad_left, grad_right, None
        grad_right = torch.zeros_like(right) if ctx.needs_input_grad[1] else None
        grad_mask = torch.empty_like(mask) if ctx.needs_input_grad[2] else None
        for rows, e in _tiles(left, right):
            if grad_mask is not None:
                grad_mask[:, rows] = grad @ e.mT
            if grad_left is None and grad_right is None:
                continue
            e.mul_(mask[:, rows].mT @ grad)
            if grad_left is not None:
                torch.mm(e, right, out=grad_left[rows])
            if grad_right is not None:
                grad_right.addmm_(e.mT, left[rows])
        return grad_left, grad_right, grad_mask


def _tiles(left: Tensor, right: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of left and exp(left rightᵀ) for them, tile by tile; the next tile overwrites the array."""
    left, right = _LOG2E * left, right.mT.contiguous()
    step = max(1, _TILE // right.shape[1])
    buffer = left.new_empty(min(step, len(left)), right.shape[1])
    for start in range(0, len(left), step):
        rows = slice(start, min(start + step, len(left)))
        tile = buffer[: rows.stop - rows.start]
        torch.mm(left[rows], right, out=tile)
        yield rows, tile.exp2_()  # a third faster than exp_
