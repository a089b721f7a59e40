# SPDX-License-Identifier: Apache-2.0
r"""The statistics of the squared exponential kernel, with or without a constant, for outputs with a weight for each
entry, as one operation whose gradients include those in the weights.

Outputs that are not Gaussian have these weights, and the gradients in them are the moments of the functions. With the
constant b in the kernel, and :math:`s_c = \sum_n w_{cn} \Psi_{1n}`:

.. math::
    \Psi_2 = \Psi_2^{\mathrm{rbf}} + b\,(s_c 1^\top + 1 s_c^\top) + b^2 \sum_n w_{cn}, \qquad
    \Psi_0 = (\sigma^2 + b) \sum_n w_{cn}, \qquad \Psi_1^\top y = \Psi_1^{\mathrm{rbf}\top} y + b \sum_n y_n.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.mapping import native_psi1, native_weighted
from pyro_vgpds.mapping.native_inducing import decay, decay_gradients
from pyro_vgpds.mapping.native_weighted import Rows, add_product, pack, unpack, weighted_gradients, weighted_sums
from pyro_vgpds.mapping.panels import matrices_of, panels_of
from pyro_vgpds.types import Context, DetachedContext

__all__ = ["has_loops", "rbf_weighted", "rbf_weighted_vjp"]

_MOST = 256  # inducing inputs up to which the pairs of them fit the cache


def rbf_weighted(
    mean: Tensor, variance: Tensor, z: Tensor, parameters: tuple[Tensor, Tensor, Tensor], weight: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Ψ0 (C,), Ψ1ᵀY (M, R) and Ψ2 (C, M, M); None if they cannot be computed in this way.

    :param mean: (N, Q).
    :param variance: (N, Q).
    :param z: (M, Q).
    :param parameters: the weights w of the dimensions, (Q,) or (1,), σ², and the constant b, one number each.
    :param weight: of the entries, (C, N).
    :param y: (N, R).
    """
    tensors = (mean, variance, z, *parameters, weight, y)
    return _Weighted.apply(*tensors) if has_loops(*tensors) else None


def has_loops(
    mean: Tensor, variance: Tensor, z: Tensor, w: Tensor, scale: Tensor, constant: Tensor, weight: Tensor, y: Tensor
) -> bool:
    """Whether the statistics can be computed in this way: no batch, float64 on a CPU, compiled loops."""
    parameters = (w, scale, constant)
    return (
        mean.dim() == variance.dim() == z.dim() == weight.dim() == y.dim() == 2
        and all(x.dim() <= 1 for x in parameters)
        and all(x.dtype is torch.float64 and x.is_cpu for x in (mean, variance, z, *parameters, weight, y))
        and weight.numel() > 0
        and len(z) <= _MOST
        and native_weighted.available()
        and native_psi1.available()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
    )


def rbf_weighted_vjp(
    *arguments: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]]:
    """The same without a graph, with Ψ2 as panels (C, S) (:mod:`~pyro_vgpds.mapping.panels`), and a function from the
    gradients in the three to those in the arguments.

    :param arguments: those of :func:`has_loops`.
    """
    kept = _DetachedContext()
    kept.needs_input_grad = (True,) * len(arguments)
    found = _forward(kept, *arguments)
    return *found, functools.partial(_gradients, kept)  # type: ignore[return-value]


@functools.lru_cache(maxsize=4)
def _upper(points: int) -> Tensor:
    """Places of the pairs m <= m', in the order of rows, among all pairs."""
    first, second = torch.triu_indices(points, points)
    return first * points + second


class _Context(Context, Protocol):
    kept: Tensor | None  #: the exponentials of Ψ2, if they were kept


class _DetachedContext(DetachedContext):
    kept: Tensor | None


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, *arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, first, panels = _forward(ctx, *arguments)
        return total, first, matrices_of(panels, len(first))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, g0: Tensor, g1: Tensor, g2: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, g0, g1, panels_of(g2))


def _forward(
    ctx: _Context,
    mean: Tensor,
    variance: Tensor,
    z: Tensor,
    w: Tensor,
    scale: Tensor,
    constant: Tensor,
    weight: Tensor,
    y: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    points, b, centre = len(z), float(constant), z.sum(0).div_(len(z))
    mu, z, own = (mean - centre).contiguous(), (z - centre).contiguous(), w.expand(z.shape[1]).contiguous()
    variance, weight = variance.contiguous(), weight.contiguous()
    a, rho, psi1 = native_psi1.forward(mu, variance, z, own, float(scale))
    factor = decay(z, own, float(scale)).view(-1)[_upper(points)]
    sums, ctx.kept = weighted_sums(Rows(a, rho, mu, z), weight)
    total, of_y, across = weight.sum(1), y.sum(0), psi1.mT.contiguous()
    first = add_product((b * of_y).unsqueeze(1).repeat(1, points), y.mT, across).mT
    row = weight.new_zeros(len(weight), points)
    if b:
        add_product(row, weight, across)
    psi2 = unpack(sums, factor, (b * row).add_((0.5 * b * b * total).unsqueeze(1)))
    ctx.save_for_backward(
        mu, variance, z, own, w, scale, constant, weight, y, a, rho, psi1, factor, sums, row, total, of_y
    )
    return (scale + constant.reshape(scale.shape)) * total, first, psi2


def _gradients(ctx: _Context, g0: Tensor, g1: Tensor, g2: Tensor) -> tuple[Tensor | None, ...]:
    mu, s, z, own, w, scale, constant, weight, y, a, rho, psi1, factor, sums, row, total, of_y = ctx.saved_tensors
    b, points, wanted = float(constant), len(z), ctx.needs_input_grad
    packed = pack(g2, factor, sums, points)
    g_a, g_rho, g_mu, g_mid, g_weight = weighted_gradients(
        Rows(a, rho, mu, z), weight, packed.sums, wanted[6], ctx.kept
    )
    g_psi1, g_y, g_constant = add_product(torch.zeros_like(psi1), g1, y.mT), None, None
    if wanted[7]:
        g_y = add_product((b * g1.sum(0)).unsqueeze(1).repeat(1, len(y)), g1.mT, psi1).mT
    g_total = (scale + b) * g0
    if b:
        sides = packed.sides
        every = 0.5 * sides.sum(1)
        add_product(g_psi1, sides.mT, weight, b)
        g_total = g_total + b * b * every
        if g_weight is not None:
            add_product(g_weight, sides, psi1, b)
        g_constant = (sides * row).sum() + 2.0 * b * (every @ total)
    if g_weight is not None:
        g_weight += g_total.unsqueeze(1)
    if wanted[5]:
        more = g0 @ total + g1.sum(0) @ of_y
        g_constant = (more if g_constant is None else g_constant + more).reshape(constant.shape)
    found = native_psi1.backward(mu, s, z, own, psi1, g_psi1, (g_a, g_rho, g_mu))
    g_log = mu.new_zeros(points * points).index_copy_(0, _upper(points), packed.log_factor)
    more_z, more_w, more_log = decay_gradients(z, own, g_log.view(points, points))
    g_scale = ((found.log_scale + more_log) / scale).reshape(scale.shape) + (g0 @ total).reshape(scale.shape)
    g_w = (found.weight + more_w).sum_to_size(w.shape)
    return found.mean, found.variance, found.z + g_mid + more_z, g_w, g_scale, g_constant, g_weight, g_y
