# SPDX-License-Identifier: Apache-2.0
"""KL divergences from the temporal prior, of the paper's q(X) and of mean-field Normals.

That of q(X) follows from its moments: ½ (log|B| + mean_bar·μ − λ·diag S).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Independent, Normal, register_kl

from pyro_vgpds.linalg import broadcast_shapes
from pyro_vgpds.mapping.group_terms import ValueAndGrads
from pyro_vgpds.temporal.covariance import PathMoments
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.rounding import check_digits, check_divergence
from pyro_vgpds.types import Context

__all__ = ["divergence", "divergence_and_grads", "kl_of_mean_field", "kl_of_posterior"]


@register_kl(OpperArchambeau, TemporalGP)  # type: ignore[untyped-decorator]
def kl_of_posterior(q: OpperArchambeau, p: TemporalGP) -> Tensor:
    """KL(q, p) of a q on the same prior."""
    if not q.prior.covariance.equals(p.covariance):
        raise ValueError(
            "KL(OpperArchambeau, TemporalGP) needs a q with the same prior. Make the OpperArchambeau of the guide from "
            "a TemporalGP with the kernel, times and structure of the model."
        )
    return divergence(q.moments, q.lam).expand(q.batch_shape)


@register_kl(Independent, TemporalGP)  # type: ignore[untyped-decorator]
def kl_of_mean_field(q: Independent, p: TemporalGP) -> Tensor:
    """KL(q, p) of a q of independent Normals."""
    if not isinstance(q.base_dist, Normal) or q.event_shape != p.event_shape:
        raise NotImplementedError(
            f"KL(q, TemporalGP) is analytic only for a q of independent Normals of event shape {tuple(p.event_shape)}, "
            f"but got {type(q.base_dist).__name__} of {tuple(q.event_shape)}. Use a Monte Carlo ELBO instead."
        )
    n, latent = p.event_shape
    square, logdet = p.covariance.whiten(q.mean)
    trace = (p.covariance.inverse_diag() * q.variance).sum((-2, -1))
    logdet = logdet.expand(logdet.shape[:-1] + (latent,)).sum(-1)
    square, spread = square.sum(-1), n * latent + q.variance.log().sum((-2, -1))
    kl = 0.5 * (square + trace + logdet - spread)
    check_divergence(kl, square, trace, logdet, spread)
    return kl.expand(broadcast_shapes(q.batch_shape, p.batch_shape))


def divergence(moments: PathMoments, lam: Tensor) -> Tensor:
    """KL(q, p), (...), from the moments of q and λ (..., N, Q)."""
    return (_Divergence.apply if _is_one(moments, lam) else _divergence)(*moments, lam)


def divergence_and_grads(moments: PathMoments, lam: Tensor, share: float) -> ValueAndGrads | None:
    """A share of KL(q, p) with its gradients in the moments and in λ; None if they have batches.

    :param share: a factor. Others, which have no graph, as in :func:`divergence`.
    :raises NumericalError: as :func:`divergence` does.
    """
    if not _is_one(moments, lam):
        return None
    with torch.no_grad():
        value = _divergence(*moments, lam) * share
        return ValueAndGrads(value, (*moments, lam), _gradients(*moments, lam, 0.5 * share))


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
