# SPDX-License-Identifier: Apache-2.0
r"""Ψ1ᵀY and Ψ2 of the squared exponential kernel and their gradients, as one operation for float64 on a CPU.

Everything here is also computed by :class:`~pyro_vgpds.kernels.ard.ARDRBFValue` with the operations of torch. In small
problems their number takes most of the time.

With s the variances of the latent points, r = w / (1 + ws) and ρ = w / (1 + 2ws):

.. math::
    \Psi_1 = \sigma^2 \prod_q (1 + w s)^{-1/2} \exp(-\tfrac12 r (\mu - z)^2), \qquad
    \Psi_2 = \sigma^4 e^{-\frac14 \sum_q w (z - z')^2} \sum_n \prod_q (1 + 2 w s)^{-1/2} e^{-\rho (\mu - \bar z)^2}
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.mapping import native_psi1, native_psi2
from pyro_vgpds.mapping.native_inducing import decay, decay_gradients
from pyro_vgpds.mapping.panels import matrices_of, panels_of
from pyro_vgpds.types import DetachedContext

__all__ = ["has_loops", "rbf_statistics", "rbf_statistics_vjp"]

_MASK = 6  # its place among the saved tensors


def has_loops(mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None, parameters: tuple[Tensor, ...]) -> bool:
    """Whether :func:`rbf_statistics` can be used: no batch, float64 on a CPU, known masks, compiled loops."""
    tensors = (mean, variance, z, *parameters)
    return (
        mean.dim() == variance.dim() == z.dim() == 2
        and all(x.dim() < 2 for x in parameters)
        and all(x.dtype == torch.float64 and x.is_cpu for x in tensors)
        and (mask is None or (len(mask) > 0 and not mask.requires_grad))
        and native_psi2.available()
        and native_psi1.available()
    )


def rbf_statistics(
    mean: Tensor,
    variance: Tensor,
    z: Tensor,
    weight: Tensor,
    scale: Tensor,
    mask: Tensor | None,
    y: Tensor,
) -> tuple[Tensor, Tensor]:
    """Ψ1ᵀY (M, R) and Ψ2 (C, M, M), for z (M, Q), weights w (Q,) or (1,), the scale σ², y (N, R) and groups as in
    :mod:`~pyro_vgpds.mapping.psi`.
    """
    return _Statistics.apply(mean, variance, z, weight, scale, mask, y, None)


def rbf_statistics_vjp(
    *arguments: Tensor | None, decay: Tensor
) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor, bool], tuple[Tensor, ...]]]:
    """The same without a graph: Ψ1ᵀY, Ψ2, and a function from the gradients in them to those in the latent points, the
    inducing inputs, the weights and log σ². Its last argument tells whether the second one is the gradient in the sums
    of Ψ2, without the factor ``decay``, whose own gradients are then not computed. With a mask, Ψ2 and the gradients in
    it are panels (C, S) (:mod:`~pyro_vgpds.mapping.panels`).

    :param arguments: those of :func:`rbf_statistics`, and the number of columns of ``y`` in each row after which all
        are zero, (N,), or None.
    :param decay: what multiplies the sums of Ψ2, (M, M).
    """
    kept = _DetachedContext()
    first, second = _forward(kept, decay, *arguments)  # type: ignore[arg-type]
    return first, second, functools.partial(_gradients, kept)


class _DetachedContext(DetachedContext):
    single: bool


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx: native_psi2.SumContext, *arguments: Tensor | None) -> tuple[Tensor, Tensor]:
        first, psi2 = _forward(ctx, None, *arguments)  # type: ignore[arg-type]
        return first, psi2 if psi2.dim() > 2 else matrices_of(psi2, len(first))

    @staticmethod
    @once_differentiable
    def backward(ctx: native_psi2.SumContext, g_first: Tensor, g_second: Tensor) -> tuple[Tensor | None, ...]:
        has_groups = ctx.saved_tensors[_MASK] is not None
        g_second = panels_of(g_second) if has_groups else g_second
        g_mean, g_s, g_z, g_w, g_log = _gradients(ctx, g_first, g_second, False)
        weight, scale = ctx.saved_tensors[4:6]
        g_scale = (g_log / scale).reshape(scale.shape)
        return g_mean, g_s, g_z, g_w.sum_to_size(weight.shape), g_scale, None, None, None


def _forward(
    ctx: native_psi2.SumContext,
    factor: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    z: Tensor,
    weight: Tensor,
    scale: Tensor,
    mask: Tensor | None,
    y: Tensor,
    used: Tensor | None,
) -> tuple[Tensor, Tensor]:
    centre = z.sum(0).div_(z.shape[0])
    mu, z, w = (mean - centre).contiguous(), (z - centre).contiguous(), weight.expand(z.shape[1]).contiguous()
    variance, mask = variance.contiguous(), None if mask is None else mask.contiguous()
    factor = decay(z, w, float(scale)) if factor is None else factor
    y = y.contiguous()
    loop, a, rho = native_psi1.forward_loop(mu, variance, z, w, y, float(scale), used)
    first, psi2 = native_psi2.run_with([loop, native_psi2.forward_loop(a, rho, mu, z, mask, factor)], len(mu), mask)
    ctx.single = native_psi2.is_single()
    ctx.save_for_backward(mu, variance, z, w, weight, scale, mask, y, used, a, rho, factor, psi2)
    return first, psi2


def _gradients(ctx: native_psi2.SumContext, g_first: Tensor, g_second: Tensor, of_sums: bool) -> tuple[Tensor, ...]:
    mu, s, z, w, _, scale, mask, y, used, a, rho, factor, psi2 = ctx.saved_tensors
    with native_psi2.single_sums(ctx.single):
        matrices = (None, None) if of_sums else (factor, psi2)
        loop, own, W = native_psi2.backward_loop(g_second, a, rho, mu, z, mask, *matrices)
    second = native_psi1.backward_loop(mu, s, z, w, y, float(scale), (None, g_first.contiguous(), *own), used)
    g_mid, (g_mean, g_s, g_z, g_w, g_log) = native_psi2.run_with([loop, second], len(mu), mask)
    g_z += g_mid
    if W is not None:  # of what multiplies the sums of Ψ2
        more_z, more_w, more_log = decay_gradients(z, w, W.contiguous())
        g_z += more_z
        g_w += more_w
        g_log += more_log
    return g_mean, g_s, g_z, g_w, g_log
