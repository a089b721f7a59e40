# SPDX-License-Identifier: Apache-2.0
"""KL divergences from the temporal prior, of the paper's q(X) and of mean-field Normals."""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Independent, Normal, register_kl

from pyro_vgpds.linalg import broadcast_shapes
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.divergence import divergence
from pyro_vgpds.temporal.rounding import check_divergence

__all__ = ["kl_of_mean_field", "kl_of_posterior"]


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
