# SPDX-License-Identifier: Apache-2.0
"""KL(q, p) of q(X) from its moments: ½ (log|B| + mean_bar·μ − λ·diag S)."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.temporal.covariance import PathMoments
from pyro_vgpds.temporal.rounding import check_digits
from pyro_vgpds.types import Context

__all__ = ["divergence"]


def divergence(moments: PathMoments, lam: Tensor) -> Tensor:
    """KL(q, p), (...).

    :param moments: those of q.
    :param lam: λ, (..., N, Q).
    :raises NumericalError: if rounding errors are all that is left of it.
    """
    mu, s, mean_bar, logdet = moments
    if mu.shape == s.shape == mean_bar.shape == lam.shape and lam.dim() == 2 and logdet.shape == lam.shape[1:]:
        return _Divergence.apply(mu, s, mean_bar, logdet, lam)
    return _divergence(mu, s, mean_bar, logdet, lam)


def _divergence(mu: Tensor, s: Tensor, mean_bar: Tensor, logdet: Tensor, lam: Tensor) -> Tensor:
    shares, square = lam * s, mean_bar * mu
    terms = logdet + (square - shares).sum(-2)
    check_digits(terms, shares, square, logdet)
    return 0.5 * terms.sum(-1)


class _Divergence(torch.autograd.Function):
    """The same for moments without batches, as one step of autograd."""

    @staticmethod
    def forward(ctx: Context, mu: Tensor, s: Tensor, mean_bar: Tensor, logdet: Tensor, lam: Tensor) -> Tensor:
        ctx.save_for_backward(mu, s, mean_bar, lam, logdet)
        return _divergence(mu, s, mean_bar, logdet, lam)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, ...]:
        mu, s, mean_bar, lam, logdet = ctx.saved_tensors
        half = 0.5 * grad
        return half * mean_bar, -half * lam, half * mu, half.expand(logdet.shape), -half * s
