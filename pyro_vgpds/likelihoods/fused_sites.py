# SPDX-License-Identifier: Apache-2.0
r"""The Gaussian factors of Student-t and negative binomial likelihoods with their gradients, each as one operation.

They compute what the tangents (:meth:`TangentLikelihood.sites <pyro_vgpds.likelihoods.TangentLikelihood.sites>`) and
autograd do, in one pass over the entries each way. Of a Student-t likelihood, with the width w = νσ², the power
k = −(ν + 1)/2 and r = E(f − y)²:

.. math:: \omega = \frac{-2k}{w + r}, \qquad \text{linear} = \omega y, \qquad
          \text{constant} = c + k \log(1 + r/w) + \tfrac{\omega}{2} (r - y^2)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.likelihoods.factors import Sites, observed
from pyro_vgpds.likelihoods.native_tangents import (
    dispersion_gradients,
    is_compiled,
    negative_binomial,
    student,
    student_gradients,
)
from pyro_vgpds.likelihoods.tangent import LEAST
from pyro_vgpds.types import Context

__all__ = ["different_counts", "negative_binomial_sites", "student_sites"]

_MANY = 4  # frames for each count from which on a table of log-gamma functions takes less time


def student_sites(y: Tensor, state: Tensor, width: Tensor, power: Tensor, constant: Tensor) -> Sites:
    """The factors.

    :param y: outputs (N, D), NaN if they were not observed.
    :param state: E f and E f² where the tangents touch, (2, N, D).
    :param width: w, one number or (D,).
    :param power: k, one number or (D,).
    :param constant: c, one number or (D,).
    """
    kind = _CompiledSites if is_compiled(y, state) else _StudentSites
    return Sites(*kind.apply(y, state, width, power, constant))


class _StudentSites(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, y: Tensor, state: Tensor, width: Tensor, power: Tensor, constant: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        seen, y = observed(y)
        r = torch.sub(y, state[0], alpha=2.0).mul_(y).add_(state[1]).clamp_min_(LEAST)
        weight = torch.div(-2.0 * power, r + width).mul_(seen)
        log = (r / width).log1p_().mul_(seen)
        excess = r.addcmul_(y, y, value=-1.0)  # r − y²
        value = (log * power).addcmul_(weight, excess, value=0.5).addcmul_(constant, seen)
        ctx.save_for_backward(seen, y, weight, log, excess, width, power, constant)
        return weight, weight * y, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, g_weight: Tensor, g_linear: Tensor, g_value: Tensor) -> tuple[Tensor | None, ...]:
        seen, y, weight, log, excess, width, power, constant = ctx.saved_tensors
        total = torch.addcmul(g_weight, g_linear, y).addcmul_(g_value, excess, value=0.5).mul_(weight)
        sums = total.sum(0), total.mul_(weight).sum(0), *((g_value * x).sum(0) for x in (log, weight, seen))
        return None, None, *_in_parameters(sums, width, power, constant)


class _CompiledSites(torch.autograd.Function):
    """The same in one pass each way."""

    @staticmethod
    def forward(
        ctx: Context, y: Tensor, state: Tensor, width: Tensor, power: Tensor, constant: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight, linear, value, log = student(y, state, (width, power, constant), LEAST)
        ctx.save_for_backward(y, state, weight, log, width, power, constant)
        return weight, linear, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y, state, weight, log, *parameters = ctx.saved_tensors
        sums = student_gradients(y, state, LEAST, weight, log, gradients)  # type: ignore[arg-type]
        return None, None, *_in_parameters(sums.unbind(), *parameters)


def _in_parameters(sums: Sequence[Tensor], width: Tensor, power: Tensor, constant: Tensor) -> list[Tensor]:
    """The gradients in w, k and c from sums over the rows, with dω/dk = ω/k and dω/dw = ω²/2k."""
    first, second, logs, weights, count = sums
    g_power = first / power + logs
    g_width = second / (2.0 * power) - 0.5 * weights - count * power / width
    found = (g_width, width), (g_power, power), (count, constant)
    return [g.sum_to_size(x.shape) for g, x in found]


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
