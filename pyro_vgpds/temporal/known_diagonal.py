# SPDX-License-Identifier: Apache-2.0
r"""q(X) under white noise from mean_bar and λ with its gradients, without autograd.

With k the diagonal of K_t and b = 1 + kλ:

.. math:: \mu = k \bar\mu, \qquad s = k / b, \qquad KL(q, p) = \tfrac12 \sum (\log b + \bar\mu \mu - \lambda s)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_vgpds.exponents import is_watched
from pyro_vgpds.temporal.rounding import lost_digits

__all__ = ["KnownDiagonal", "known_diagonal"]


def known_diagonal(k: Tensor, mean_bar: Tensor, log_lam: Tensor) -> KnownDiagonal | None:
    """q(X) from the diagonal k of K_t, (N, 1) or (N, Q), mean_bar and log λ (N, Q); None if it needs autograd."""
    leaves = mean_bar, log_lam
    if k.requires_grad or k.dim() != 2 or any(x.dtype != torch.float64 for x in (k, *leaves)):
        return None
    if not all(x.is_leaf and x.requires_grad and x.shape == log_lam.shape for x in leaves) or any(
        map(is_watched, leaves)
    ):
        return None
    with torch.no_grad():
        return KnownDiagonal(k, mean_bar, log_lam)


class KnownDiagonal:
    """The moments of q(X) and KL(q, p), and the gradients of KL(q, p) minus a function of the moments.

    Parameters are those of :func:`known_diagonal`.

    :raises NumericalError: if the divergence is not finite.
    """

    batch_shape = torch.Size()

    def __init__(self, k: Tensor, mean_bar: Tensor, log_lam: Tensor) -> None:
        self._k, self._mean_bar, self._log_lam = k, mean_bar, log_lam
        lam = self._lam = log_lam.exp()
        b = (k * lam).add_(1.0)
        #: μ and diag S, (N, Q)
        self.mean, self.variance = k * mean_bar, k / b
        terms = b.log_().addcmul_(mean_bar, self.mean).addcmul_(lam, self.variance, value=-1.0)
        #: KL(q, p)
        self.divergence = 0.5 * float(terms.sum())
        if not math.isfinite(self.divergence):
            raise lost_digits(terms)

    @torch.no_grad()
    def add_gradients(self, d_mean: Tensor, d_variance: Tensor) -> None:
        """Add the gradients of KL(q, p) minus a function with these derivatives (N, Q) to those of the parameters."""
        g_mean_bar = (self._mean_bar - d_mean).mul_(self._k)
        # ds/dλ = −s², and what is left of the divergence is ½ λ s²
        g_log_lam = torch.add(d_variance, self._lam, alpha=0.5).mul_(self.variance.square()).mul_(self._lam)
        for parameter, own in ((self._mean_bar, g_mean_bar), (self._log_lam, g_log_lam)):
            parameter.grad = own if parameter.grad is None else parameter.grad + own
