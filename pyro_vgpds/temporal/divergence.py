# SPDX-License-Identifier: Apache-2.0
"""KL(q, p) of q(X) from its moments: ½ (log|B| + mean_bar·μ − λ·diag S)."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.mapping.group_terms import Known
from pyro_vgpds.temporal.covariance import PathMoments
from pyro_vgpds.temporal.rounding import check_digits
from pyro_vgpds.types import Context

__all__ = ["divergence", "known_divergence"]


def divergence(moments: PathMoments, lam: Tensor) -> Tensor:
    """KL(q, p), (...), from the moments of q and λ (..., N, Q)."""
    return (_Divergence.apply if _is_one(moments, lam) else _divergence)(*moments, lam)


def known_divergence(moments: PathMoments, lam: Tensor, share: float) -> Known | None:
    """A share of KL(q, p) with its gradients in the moments and in λ; None if they have batches.

    :param share: a factor. Others, which have no graph, as in :func:`divergence`.
    :raises NumericalError: as :func:`divergence` does.
    """
    if not _is_one(moments, lam):
        return None
    with torch.no_grad():
        value = _divergence(*moments, lam) * share
        return Known(value, (*moments, lam), _gradients(*moments, lam, 0.5 * share))


def _is_one(moments: PathMoments, lam: Tensor) -> bool:
    """Whether the moments have no batches, and none of them is broadcast."""
    mu, s, mean_bar, logdet = moments
    return mu.shape == s.shape == mean_bar.shape == lam.shape and lam.dim() == 2 and logdet.shape == lam.shape[1:]


def _divergence(mu: Tensor, s: Tensor, mean_bar: Tensor, logdet: Tensor, lam: Tensor) -> Tensor:
    shares, square = lam * s, mean_bar * mu
    terms = logdet + (square - shares).sum(-2)
    check_digits(terms, shares, square, logdet)
    return 0.5 * terms.sum(-1)


def _gradients(
    mu: Tensor, s: Tensor, mean_bar: Tensor, logdet: Tensor, lam: Tensor, half: Tensor | float
) -> tuple[Tensor, ...]:
    """The gradients of ``half`` times the sum of the terms."""
    g_logdet = half.expand(logdet.shape) if isinstance(half, Tensor) else torch.full_like(logdet, half)
    return half * mean_bar, -half * lam, half * mu, g_logdet, -half * s


class _Divergence(torch.autograd.Function):
    """The same for moments without batches, as one step of autograd."""

    @staticmethod
    def forward(ctx: Context, mu: Tensor, s: Tensor, mean_bar: Tensor, logdet: Tensor, lam: Tensor) -> Tensor:
        ctx.save_for_backward(mu, s, mean_bar, lam, logdet)
        return _divergence(mu, s, mean_bar, logdet, lam)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, ...]:
        mu, s, mean_bar, lam, logdet = ctx.saved_tensors
        return _gradients(mu, s, mean_bar, logdet, lam, 0.5 * grad)
