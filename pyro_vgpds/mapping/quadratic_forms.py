# SPDX-License-Identifier: Apache-2.0
"""Quadratic forms of many vectors with many matrices, and their adjoint, weighted sums of outer products.

Both are products with the pairs a_i a_j, i ≤ j, of the entries of each vector, computed in blocks of vectors: half the
cost of the full products, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.types import Context

__all__ = ["outer_sums", "quadratic_forms"]

_PAIRS = 1 << 20  # numbers in a block of products of pairs
_FEW = 1 << 16  # entries of w times M up to which plain products are faster


def quadratic_forms(a: Tensor, matrices: Tensor) -> Tensor:
    """aᵣᵀ X_d aᵣ, (F, R), for the columns of a (M, R) and symmetric matrices X (F, M, M)."""
    return _QuadraticForms.apply(a, matrices)


def outer_sums(a: Tensor, weights: Tensor) -> Tensor:
    """Σ_r w_dr aᵣ aᵣᵀ, (F, M, M).

    :param a: (M, R), one vector in each column.
    :param weights: w, (F, R).

    >>> import torch
    >>> from pyro_vgpds.mapping.quadratic_forms import outer_sums
    >>> outer_sums(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [[[1.0, 3.0], [3.0, 9.0]], [[5.0, 11.0], [11.0, 25.0]]]
    """
    if len(weights) == 1 or weights.numel() * len(a) <= _FEW:
        return (weights.unsqueeze(1) * a) @ a.mT
    return _OuterSums.apply(a, weights)


class _QuadraticForms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, a: Tensor, matrices: Tensor) -> Tensor:
        ctx.save_for_backward(a, matrices)
        packed = _doubled(matrices)
        return torch.cat([packed @ pairs for _, pairs in _pairs(a)], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, matrices = ctx.saved_tensors
        g_a = _half_gradient(a, matrices, grad).mul_(2.0) if ctx.needs_input_grad[0] else None
        return g_a, _sums(a, grad) if ctx.needs_input_grad[1] else None


class _OuterSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, a: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(a, weights)
        return _sums(a, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, weights = ctx.saved_tensors
        grad = grad + grad.mT  # twice its symmetric part
        g_a = _half_gradient(a, grad, weights) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return g_a, None
        packed = _doubled(grad).mul_(0.5)
        return g_a, torch.cat([packed @ pairs for _, pairs in _pairs(a)], -1)


def _doubled(matrices: Tensor) -> Tensor:
    """The upper triangles (F, P) of symmetric matrices, entries off the diagonal times 2."""
    size = matrices.shape[-1]
    i, j = torch.triu_indices(size, size, device=matrices.device)
    return matrices[:, i, j] * (1.0 + (i != j).to(matrices))


def _sums(a: Tensor, weights: Tensor) -> Tensor:
    size = len(a)
    i, j = torch.triu_indices(size, size, device=a.device)
    packed = a.new_zeros(len(weights), len(i))
    for columns, pairs in _pairs(a):
        packed.addmm_(weights[:, columns], pairs.mT)
    full = a.new_empty(len(weights), size, size)
    full[:, i, j] = full[:, j, i] = packed
    return full


def _half_gradient(a: Tensor, matrices: Tensor, weights: Tensor) -> Tensor:
    """Σ_d w_dr X_d aᵣ, (M, R), for symmetric matrices: half the gradient of Σ_dr w_dr aᵣᵀ X_d aᵣ."""
    size, found = len(a), torch.zeros_like(a)
    i, j = torch.triu_indices(size, size, device=a.device)
    packed = matrices[:, i, j].mT.contiguous()  # (P, F)
    for columns in _blocks(a):
        part, into = a[:, columns], found[:, columns]
        mixed = packed @ weights[:, columns]  # the upper triangles of Σ_d w_dr X_d, (P, r)
        start = 0
        for row in range(size):
            entries = mixed[start : start + size - row]
            start += size - row
            into[row + 1 :].addcmul_(entries[1:], part[row])
            into[row].add_(entries.mul_(part[row:]).sum(0))
    return found


def _blocks(a: Tensor) -> Iterator[slice]:
    """Blocks of the columns of a (M, R)."""
    size, count = a.shape
    step = max(1, 2 * _PAIRS // (size * (size + 1)))
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def _pairs(a: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Columns of a (M, R) and the products a_i a_j, i ≤ j, of these, (P, r); the next ones overwrite the array."""
    size, buffer = len(a), a.new_empty(0)
    count = size * (size + 1) // 2
    for columns in _blocks(a):
        part = a[:, columns]
        buffer = buffer if len(buffer) else a.new_empty(count * part.shape[1])
        pairs = buffer[: count * part.shape[1]].view(count, part.shape[1])
        start = 0
        for row in range(size):
            torch.mul(part[row:], part[row], out=pairs[start : start + size - row])
            start += size - row
        yield columns, pairs
