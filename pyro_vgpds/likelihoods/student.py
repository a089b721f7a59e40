# SPDX-License-Identifier: Apache-2.0
r"""The Gaussian factors of a Student-t likelihood with their gradients, as one operation.

It computes what :meth:`TangentLikelihood.sites <pyro_vgpds.likelihoods.TangentLikelihood.sites>` does, with a third of
the operations on all entries. With the width w = νσ², the power k = −(ν + 1)/2 and r = E(f − y)²:

.. math:: \omega = \frac{-2k}{w + r}, \qquad \text{linear} = \omega y, \qquad
          \text{constant} = c + k \log(1 + r/w) + \tfrac{\omega}{2} (r - y^2)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.likelihoods.factors import Sites, observed
from pyro_vgpds.likelihoods.native_tangents import is_compiled, student, student_gradients
from pyro_vgpds.likelihoods.tangent import LEAST
from pyro_vgpds.types import Context

__all__ = ["student_sites"]


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
