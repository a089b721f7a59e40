# SPDX-License-Identifier: Apache-2.0
"""Special functions that torch does not have."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

__all__ = ["incomplete_beta", "student_cdf"]

_TERMS = 20_000  # of the continued fraction, at most: it needs about the square root of the larger parameter
_TABLE, _REACH = 1024, 20.0  # points of a table of the Student-t distribution, and its end: z = sinh(20)
_CHECKED, _CONVERGED = 4, 1e-14  # terms after which convergence is tested, and the relative change that is none
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
    """The continued fraction, (...). Places where it has converged are taken out of the arrays."""

    def away(value: Tensor) -> Tensor:
        return torch.where(value.abs() < _TINY, _TINY, value)

    shape, (a, b, x) = x.shape, (part.flatten() for part in (a, b, x))
    result, rest = torch.empty_like(x), torch.arange(len(x), device=x.device)
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
        if m % _CHECKED == 0 or m == _TERMS - 1:
            more = (c * d - 1.0).abs() > _CONVERGED
            if m == _TERMS - 1 or not bool(more.any()):
                break
            if int(more.sum()) < 0.8 * len(rest):
                done = ~more
                result[rest[done]] = h[done]
                rest, a, b, x, c, d, h = (part[more] for part in (rest, a, b, x, c, d, h))
    result[rest] = h
    return result.reshape(shape)


def student_cdf(z: Tensor, df: Tensor) -> Tensor:
    """The distribution function of the standard Student-t distribution. Many places with few ``df`` use a table.

    :param z: where, (...) or (..., D).
    :param df: degrees of freedom, () or (D,).
    """
    if df.dim() <= 1 and not z.requires_grad and not df.requires_grad and z.numel() > 4 * _TABLE * df.numel():
        return _interpolated(z.double(), df.double()).to(z)
    z, df = torch.broadcast_tensors(z, df)
    return _student(z, df)


def _student(z: Tensor, df: Tensor) -> Tensor:
    tail = 0.5 * incomplete_beta(0.5 * df, torch.full_like(df, 0.5), df / (df + z.square()))
    return torch.where(z > 0.0, 1.0 - tail, tail)


@functools.lru_cache(maxsize=8)
def _student_table(df: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """P(ε > sinh s) on a grid of s, and its derivatives times the grid's step, (D, points) each."""
    nu = torch.tensor(df, dtype=torch.float64).unsqueeze(-1)
    step = _REACH / (_TABLE - 1)
    s = torch.linspace(0.0, _REACH, _TABLE, dtype=torch.float64)
    z = torch.sinh(s)
    tail = _student(-z.expand(len(nu), -1), nu.expand(-1, _TABLE))
    log_density = (
        torch.lgamma(0.5 * (nu + 1.0)) - torch.lgamma(0.5 * nu) - 0.5 * (math.pi * nu).log()
        - 0.5 * (nu + 1.0) * torch.log1p(z.square() / nu)
    )  # fmt: skip
    return tail, -step * log_density.exp() * torch.cosh(s)


def _interpolated(z: Tensor, df: Tensor) -> Tensor:
    tail, slope = (part.to(z.device).flatten() for part in _student_table(tuple(df.reshape(-1).tolist())))
    place = torch.asinh(z.abs()) * ((_TABLE - 1) / _REACH)
    index = place.clamp_max(_TABLE - 2).floor()
    u = (place - index).clamp_max(1.0)
    at = index.long() + _TABLE * torch.arange(df.numel(), device=z.device).reshape(df.shape)
    p, q, dp, dq = tail[at], tail[at + 1], slope[at], slope[at + 1]
    v = 1.0 - u  # cubic Hermite interpolation
    found = v * v * ((1.0 + 2.0 * u) * p + u * dp) + u * u * ((3.0 - 2.0 * u) * q - v * dq)
    # beyond the table the tail is a power of z
    found = found * (z.abs() / math.sinh(_REACH)).clamp_min(1.0).pow(-df)
    return torch.where(z > 0.0, 1.0 - found, found)
