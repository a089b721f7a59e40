# SPDX-License-Identifier: Apache-2.0
r"""Ψ statistics of frames that several processes have.

Ψ0, Ψ1ᵀY and Ψ2 are sums over frames, and the bound depends on the frames through them only. So their sums over the
processes are all that must be exchanged: C (1 + M (M + 1) / 2) + M R numbers, for any number of frames. Every process
then computes the same :math:`\hat F`, and takes 1/K of it as its part of the loss. The gradient of that part in the
sums, times K, is the gradient of :math:`\hat F` in the statistics of its own frames: nothing has to be exchanged in the
backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.team import Team
from pyro_vgpds.types import Context

__all__ = ["sum_psi"]


def sum_psi(psi: Psi, team: Team) -> Psi:
    """The statistics of the frames of all processes. Gradients are right for a loss that is 1/K of a function of them.

    :param psi: the statistics of the frames of this process.
    :param team: the processes.
    """
    return psi if team.size == 1 else Psi(*_Sum.apply(psi.psi0, psi.psi1_y, psi.psi2, team))


class _SumContext(Context):
    size: int


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _SumContext, psi0: Tensor, psi1_y: Tensor, psi2: Tensor, team: Team
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.size = team.size
        m = psi2.shape[-1]
        rows, columns = torch.triu_indices(m, m, device=psi2.device)
        half = psi2[..., rows, columns]  # it is symmetric
        flat = team.total(torch.cat([psi0.flatten(), psi1_y.flatten(), half.flatten()]))
        sums = flat.split([psi0.numel(), psi1_y.numel(), half.numel()])
        full = torch.empty_like(psi2)
        full[..., rows, columns] = full[..., columns, rows] = sums[2].view_as(half)
        return sums[0].view_as(psi0).clone(), sums[1].view_as(psi1_y).clone(), full

    @staticmethod
    @once_differentiable
    def backward(ctx: _SumContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (*(ctx.size * grad for grad in grads), None)
