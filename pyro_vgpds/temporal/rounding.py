# SPDX-License-Identifier: Apache-2.0
"""When rounding errors are all that is left of q(X)."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.linalg import NumericalError, default_jitter

__all__ = ["are_digits", "check_digits", "check_divergence", "lost_digits"]

_SHARE_ERROR = 1e-2  # rounding error of λ diag S, which is in [0, 1], that makes it useless


def lost_digits(matrix: Tensor) -> NumericalError:
    """The error for a B = I + √λ K_t √λ, or numbers computed with it, that cannot be factorised or used: its
    eigenvalues are at least 1.
    """
    if not bool(torch.isfinite(matrix).all()):
        return NumericalError(
            "K_t or λ of q(X) has values that are not finite. A parameter has diverged: lower the learning rate, or "
            "check the scale of the data and of the times."
        )
    return NumericalError(
        "q(X) is dominated by rounding error: the covariance K_t of the latent path is too large compared with the "
        "posterior variances. A kernel that grows with time, such as Linear, needs times that begin near 0 (subtract "
        "an origin from them) or a smaller variance. Otherwise try a smaller learning rate or, for float32, float64."
    )


def check_digits(terms: Tensor, shares: Tensor, square: Tensor, logdet: Tensor) -> None:
    """Check the terms of the KL divergence of q(X).

    S is at most Λ⁻¹, so the shares are in [0, 1], and no KL divergence is negative.

    :param terms: twice the KL divergence of each latent dimension, (..., Q).
    :param shares: λ diag S, (..., N, Q).
    :param square: mean_bar ∘ μ, (..., N, Q).
    :param logdet: log|B|, (..., Q).
    :raises NumericalError: if one of them is clearly out of its range, or not finite.
    """
    with torch.no_grad():
        size = logdet.abs() + torch.linalg.vector_norm(square, 1, -2) + shares.shape[-2]
        above = torch.add(terms, size, alpha=default_jitter(shares.dtype))  # not negative
        low, high = torch.aminmax(shares)
        if not are_digits(float(low), float(high), float(above.amin())):
            raise lost_digits(torch.stack([low, high, terms.sum()]))


def are_digits(low: float, high: float, above: float) -> bool:
    """Whether the terms of :func:`check_digits` are in their ranges, from the least and the largest share; False for
    NaN.

    :param above: the least of the divergences of the latent dimensions plus what rounding may have taken from them.
    """
    return low >= -_SHARE_ERROR and high <= 1.0 + _SHARE_ERROR and above >= 0.0


def check_divergence(kl: Tensor, *terms: Tensor) -> None:
    """Check the KL divergence of any q(X): none is negative, so no bound exceeds the ceiling of the outputs' density.

    :param terms: the terms that it is a sum of, (...), whose sizes determine the size of its rounding error.
    :raises NumericalError: if it is clearly negative, or not finite.
    """
    with torch.no_grad():
        error = default_jitter(kl.dtype) * sum((term.abs() for term in terms), torch.ones_like(kl))
        if not bool((kl >= -error).all() and torch.isfinite(kl).all()):
            raise lost_digits(kl.detach())
