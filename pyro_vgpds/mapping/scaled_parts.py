# SPDX-License-Identifier: Apache-2.0
"""Gaussian factors of f as factors of g in f = mean + scale g, with their gradients, as one operation.

It computes what :func:`~pyro_vgpds.mapping.latent_gp.scaled_sites` and :func:`~pyro_vgpds.mapping.latent_gp.mean_terms`
do, with half of the operations on all entries.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.types import Context

__all__ = ["scaled_parts"]


def scaled_parts(weight: Tensor, linear: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """scale² weight (F, N), scale (linear − weight mean) (N, F), and Σ mean (linear − ½ weight mean), one number.

    :param weight: of the factors exp(linear f − ½ weight f²), (N, F).
    :param linear: (N, F).
    :param mean: (F,).
    :param scale: (F,).
    """
    return _ScaledParts.apply(weight, linear, mean, scale)


class _ScaledParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, weight: Tensor, linear: Tensor, mean: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        turned = torch.mul(weight.mT, scale.square().unsqueeze(-1), out=weight.new_empty(weight.shape[::-1]))
        centred = torch.addcmul(linear, weight, mean, value=-1.0)
        weights, linears = weight.sum(0), linear.sum(0)
        ctx.save_for_backward(weight, centred, mean, scale, linears - mean * weights)
        return turned, centred * scale, mean @ (linears - 0.5 * mean * weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, g_turned: Tensor, g_linear: Tensor, g_terms: Tensor) -> tuple[Tensor, ...]:
        weight, centred, mean, scale, rest = ctx.saved_tensors
        g_weight, g_centred = g_turned.mT.clone(memory_format=torch.contiguous_format), g_linear * scale
        g_scale = 2.0 * scale * (g_weight * weight).sum(0) + (g_linear * centred).sum(0)
        g_mean = g_terms * rest - (g_centred * weight).sum(0)
        g_weight.mul_(scale.square()).addcmul_(g_centred, mean, value=-1.0).sub_(0.5 * g_terms * mean.square())
        return g_weight, g_centred.add_(g_terms * mean), g_mean, g_scale
