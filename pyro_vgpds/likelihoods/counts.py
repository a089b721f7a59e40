# SPDX-License-Identifier: Apache-2.0
"""The Gaussian factors of a negative binomial likelihood with their gradients, as one operation.

It computes what the tangents of :class:`~pyro_vgpds.likelihoods.NegativeBinomial` and autograd do, in one pass over the
entries each way.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.likelihoods.native_tangents import dispersion_gradients, negative_binomial
from pyro_vgpds.types import Context

__all__ = ["different_counts", "negative_binomial_sites"]

_MANY = 4  # frames for each count from which on a table of log-gamma functions takes less time


def different_counts(y: Tensor) -> Tensor:
    """The counts 0 to the largest one, (K, 1), if they are few compared with the frames; otherwise the outputs.

    :param y: counts (N, D), NaN if they were not observed.
    """
    most = int(y.nan_to_num(nan=0.0).max()) if y.numel() else 0
    if y.dim() != 2 or _MANY * most >= y.shape[0]:
        return y
    return torch.arange(most + 1, dtype=y.dtype, device=y.device).unsqueeze(-1)


def negative_binomial_sites(y: Tensor, tangents: Tensor, dispersion: Tensor) -> Sites:
    """The factors, for outputs and tangents that the compiled functions take.

    :param y: counts (N, D), NaN if they were not observed.
    :param tangents: weight and constant for b = 1, without κ, (2, N, D).
    :param dispersion: r, one number or (D,).
    """
    return Sites(*_NegativeBinomialSites.apply(y, tangents, dispersion))


class _NegativeBinomialSites(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, y: Tensor, tangents: Tensor, dispersion: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r, k = dispersion.to(y).expand(y.shape[1]).contiguous(), different_counts(y)
        ctx.save_for_backward(y, tangents, dispersion, r, k)
        ways = torch.lgamma(k + r) - torch.lgamma(r) - torch.lgamma(k + 1.0)
        return negative_binomial(y, r, ways, tangents)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *gradients: Tensor) -> tuple[None, None, Tensor]:
        y, tangents, dispersion, r, k = ctx.saved_tensors
        ways = torch.digamma(k + r) - torch.digamma(r)
        found = dispersion_gradients(y, ways, tangents, gradients)  # type: ignore[arg-type]
        return None, None, found.to(dispersion).sum_to_size(dispersion.shape)
