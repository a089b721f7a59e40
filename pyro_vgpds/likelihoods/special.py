# SPDX-License-Identifier: Apache-2.0
"""Special functions that torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["incomplete_beta", "student_cdf"]

_TERMS = 200  # of the continued fraction
_TINY = 1e-300


def incomplete_beta(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Lentz's method).

    :param a: positive.
    :param b: positive.
    :param x: in [0, 1].

    >>> import torch
    >>> from pyro_vgpds.likelihoods.special import incomplete_beta
    >>> half = torch.tensor(0.5).double()
    >>> round(float(incomplete_beta(2.0 * half, 2.0 * half, half)), 12)  # uniform
    0.5
    """
    a, b, x = torch.broadcast_tensors(a, b, x)
    swap = x > (a + 1.0) / (a + b + 2.0)  # the fraction converges fast below this point
    p, q, z = torch.where(swap, b, a), torch.where(swap, a, b), torch.where(swap, 1.0 - x, x)
    inside = (z > 0.0) & (z < 1.0)
    safe = torch.where(inside, z, 0.5)
    front = torch.lgamma(p + q) - torch.lgamma(p) - torch.lgamma(q) + p * safe.log() + q * torch.log1p(-safe)
    value = torch.where(inside, front.exp() / p * _fraction(p, q, safe), (z >= 1.0).to(z))
    return torch.where(swap, 1.0 - value, value)


def _fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    def away(value: Tensor) -> Tensor:
        return torch.where(value.abs() < _TINY, torch.full_like(value, _TINY), value)

    c, d = torch.ones_like(x), 1.0 / away(1.0 - (a + b) * x / (a + 1.0))
    h = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ):
            d = 1.0 / away(1.0 + term * d)
            c = away(1.0 + term / c)
            h = h * c * d
        if bool(((c * d - 1.0).abs() < 1e-14).all()):
            break
    return h


def student_cdf(z: Tensor, df: Tensor) -> Tensor:
    """The distribution function of the standard Student-t distribution.

    :param z: where.
    :param df: degrees of freedom.
    """
    z, df = torch.broadcast_tensors(z, df)
    tail = 0.5 * incomplete_beta(0.5 * df, torch.full_like(df, 0.5), df / (df + z.square()))
    return torch.where(z > 0.0, 1.0 - tail, tail)
