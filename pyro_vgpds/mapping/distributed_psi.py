# SPDX-License-Identifier: Apache-2.0
r"""Ψ statistics of frames that several processes have.

Ψ0, Ψ1ᵀY and Ψ2 are sums over frames, and the bound depends on the frames through them only. So their sums over the
processes are all that must be exchanged: C (1 + M (M + 1) / 2) + M R numbers, for any number of frames. Every process
then computes the same :math:`\hat F`, and takes 1/K of it as its part of the loss. The gradient of that part in the
sums, times K, is the gradient of :math:`\hat F` in the statistics of its own frames: nothing has to be exchanged in the
backward pass. If the processes have different functions of the sums, as outputs whose expectations are drawn do, the
gradients are summed there.

The sums of a batch (:mod:`~pyro_vgpds.mapping.frame_sums`) are summed in the same way, G (1 + M (M + 1) / 2) + M D
numbers and a few, for G groups of outputs that were observed together in the batches of all processes.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.communication import Communicator
from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.types import Context

__all__ = ["sum_parts", "sum_psi", "total_parts"]


def sum_psi(psi: Psi, communicator: Communicator, different: bool = False) -> Psi:
    """The statistics of the frames of all processes. Gradients are right for a loss that is 1/K of a function of them;
    if the functions are ``different``, the gradients of the processes are summed.
    """
    return psi if communicator.size == 1 else Psi(*sum_parts(psi.psi0, psi.psi1_y, psi.psi2, communicator, different))


def sum_parts(
    values: Tensor, columns: Tensor, matrices: Tensor, communicator: Communicator, different: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`sum_psi`, of three tensors in one operation; of symmetric matrices (..., M, M), half is sent."""
    return _Sum.apply(values, columns, matrices, communicator, different)


class _SumContext(Context):
    communicator: Communicator
    different: bool


def total_parts(
    values: Tensor, columns: Tensor, matrices: Tensor, communicator: Communicator
) -> tuple[Tensor, Tensor, Tensor]:
    """The same without gradients. Parameters as in :func:`sum_parts`; matrices may also be panels (C, S)."""
    if matrices.dim() == 2:
        first, second, panels = _total(values, columns, matrices, communicator)
        return first, second, panels.clone()
    half_of, whole_of = _triangle(matrices.shape[-1], matrices.device)
    half = matrices.flatten(-2).gather(-1, half_of.expand(*matrices.shape[:-2], -1))
    first, second, half = _total(values, columns, half, communicator)
    return first, second, half.gather(-1, whole_of.expand(*matrices.shape[:-2], -1)).view_as(matrices)


def _total(
    values: Tensor, columns: Tensor, packed: Tensor, communicator: Communicator
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over the processes of three tensors, the last one a view of what was received."""
    flat = communicator.all_reduce(torch.cat([values.flatten(), columns.flatten(), packed.flatten()]))
    sums = flat.split([values.numel(), columns.numel(), packed.numel()])
    return sums[0].view_as(values).clone(), sums[1].view_as(columns).clone(), sums[2].view_as(packed)


@functools.lru_cache(maxsize=4)
def _triangle(m: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The places of the upper triangle in a matrix, (m (m + 1) / 2,), and of the matrix in that triangle, (m²,)."""
    row, column = torch.triu_indices(m, m, device=device)
    whole = torch.empty(m, m, dtype=torch.long, device=device)
    whole[row, column] = whole[column, row] = torch.arange(len(row), device=device)
    return row * m + column, whole.flatten()


class _Sum(torch.autograd.Function):
    """Sums over the processes of values of groups, columns, and symmetric matrices."""

    @staticmethod
    def forward(
        ctx: _SumContext, values: Tensor, columns: Tensor, matrices: Tensor, communicator: Communicator, different: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.communicator, ctx.different = communicator, different
        return total_parts(values, columns, matrices, communicator)

    @staticmethod
    @once_differentiable
    def backward(ctx: _SumContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.different:
            values, columns, matrices = grads
            return (*total_parts(values, columns, 0.5 * (matrices + matrices.mT), ctx.communicator), None, None)
        return (*(ctx.communicator.size * grad for grad in grads), None, None)
