# SPDX-License-Identifier: Apache-2.0
r"""Recursions over the frames of linear state-space models, with their gradients, in O(N).

A chain is one latent dimension: z_k = A_k z_{k−1} + N(0, Q_k) and f_k = h_k·z_k, so that K_f = Cov(f). At the first
frame of a sequence A_k = 0. Sites of precision λ_k and natural mean η_k observe f_k. The filter's step is

.. math::
    P^-_k = A_k P_{k-1} A_k^\top + Q_k, \quad w = P^- h, \quad v = h \cdot w, \quad u = 1/(1 + \lambda v),
    \quad c = \lambda u, \quad P_k = P^-_k - c\, w w^\top

and that of the smoother (Bryson and Frazier's form, which divides only by 1 + λv, so that states without noise and
equal times are safe), with G = I − c w h, N = 0 and r = 0 after the last frame,

.. math::
    N^-_k = G^\top N_k G + c\, h h^\top, \quad N_{k-1} = A_k^\top N^-_k A_k, \qquad
    r^-_k = G^\top r_k + h\, u\, (\eta - \lambda\, h \cdot A_k m_{k-1}), \quad r_{k-1} = A_k^\top r^-_k.

Then with n = w·N_k w the marginal variance is s = u v − u² n, that of S = (K_f⁻¹ + Λ)⁻¹; c + c² n is the diagonal of
(K_f + Λ⁻¹)⁻¹; and N⁻ is the gradient of log|I + Λ K_f| = Σ log(1 + λv) in Q_k.

*Gradients.* s = ∂/∂λ of that log-determinant, so a gradient in s is the derivative, in that direction of λ, of the
gradient of the log-determinant: one forward and one backward recursion of tangents. A gradient in the mean is that of a
bilinear form a·K_f b, which is r(a)_k r(b)_kᵀ in Q_k, and r(a)_k z(b)_{k−1}ᵀ + r(b)_k z(a)_{k−1}ᵀ in A_k, where
r(b)_k = h b_k + A_{k+1}ᵀ r(b)_{k+1} and z(b)_k = A_k z(b)_{k−1} + Q_k r(b)_k = Cov(z_k, b·f).

*Draws.* With white noise ω = 1/λ and τ² = v + ω, the filter is the Cholesky factor of K_f + ω row by row:
x_k = h·A_k m_{k−1} + τ ε_k and m_k = A_k m_{k−1} + w ε_k/τ. Its gradient runs the same steps backwards.

Shapes: ``a`` and ``q`` (K, U, d, d) for K kernels and U different time steps, a :class:`Layout` with the step of each
of N frames and the kernel of each of C chains, and (C, N) for one number per frame. Everything is float64, also for a
model in float32: a filter in float32 loses all digits if λ K = 1e8.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.temporal import chains
from pyro_vgpds.temporal.chains import Chains, Kept, Layout, check_inputs
from pyro_vgpds.temporal.scan import Scans
from pyro_vgpds.temporal.tiles import PackedChains, fits
from pyro_vgpds.types import Context

__all__ = ["draw", "is_compiled", "matmul", "posterior", "solve", "undraw", "variance"]


class _Pass(Context, Protocol):
    """The context of functions here."""

    layout: Layout
    rows: int


def is_compiled(x: Tensor) -> bool:
    """Whether compiled loops are available for tensors on the device of ``x``."""
    return x.device.type == "cpu" and chains.available()


def _loops(a: Tensor, q: Tensor, layout: Layout, *inputs: Tensor) -> Chains | Scans:
    """Compiled loops over the frames if possible, else scans, for these inputs (C, N)."""
    if not is_compiled(a):
        return Scans(a, q, layout)
    check_inputs(a, q, layout, inputs)
    return Chains.of(a, q, layout)


def _tiled(a: Tensor, q: Tensor, layout: Layout, *inputs: Tensor) -> Chains | Scans | PackedChains:
    """The same, in tiles for states to which they suit, which have no draws and no products with K_f."""
    if not is_compiled(a) or not fits(layout.blocks):
        return _loops(a, q, layout, *inputs)
    check_inputs(a, q, layout, inputs)
    return PackedChains.of(a, q, layout)


def variance(a: Tensor, q: Tensor, layout: Layout, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The diagonal of S and that of (K_f + Λ⁻¹)⁻¹, each (C, N), and log|I + Λ K_f|, (C,)."""
    return _Posterior.apply(a, q, layout, None, lam)[:3]


def solve(a: Tensor, q: Tensor, layout: Layout, eta: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """S η, and (I + Λ K_f)⁻¹ η = η − λ S η, each (C, N).

    :param lam: (C, N), or the precisions of the first of them, (C / R, N), which the others repeat R − 1 times.
    """
    return _Solve.apply(a, q, layout, eta, lam)


def posterior(a: Tensor, q: Tensor, layout: Layout, eta: Tensor, lam: Tensor) -> tuple[Tensor, ...]:
    """The results of :func:`variance`, then those of :func:`solve`, which may share a filter."""
    return _Posterior.apply(a, q, layout, eta, lam)


def matmul(a: Tensor, q: Tensor, layout: Layout, b: Tensor) -> Tensor:
    """K_f b, (C, N)."""
    return _MatMul.apply(a, q, layout, b)


def draw(a: Tensor, q: Tensor, layout: Layout, white: Tensor, noise: Tensor) -> Tensor:
    """L ε, (C, N), for standard normal ``noise`` ε and the Cholesky factor L of K_f + diag(white), white > 0."""
    return _Draw.apply(a, q, layout, white, noise)


def undraw(a: Tensor, q: Tensor, layout: Layout, white: Tensor, x: Tensor) -> Tensor:
    """L⁻¹ x, (C, N): the inverse of :func:`draw`, without a gradient."""
    return _loops(a, q, layout, white, x).undraw(white, x)


def _solve_grad(
    ctx: _Pass, g_mean: Tensor, g_b: Tensor, kept: tuple[Tensor, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """The gradients in a, q, η and λ of the mean and b."""
    # b = η − λ mean, and d mean = W dK_f b − S dΛ mean + S dη with W = I − S Λ
    a, q, lam, mean, b = ctx.saved_tensors[:5]
    g_eta = g_mean - lam * g_b
    loops = _tiled(a, q, ctx.layout, g_eta, lam)
    through, left = loops.solve(g_eta, lam, kept)
    g_a = g_q = None
    if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
        g_a, g_q = loops.quadratic(left, b)
    return g_a, g_q, through + g_b, -mean * (through + g_b)


class _Posterior(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Pass, a: Tensor, q: Tensor, layout: Layout, eta: Tensor | None, lam: Tensor
    ) -> tuple[Tensor | None, ...]:
        loops = _tiled(a, q, layout, lam, *(() if eta is None else (eta,)))
        s, precision, logdet, kept = loops.variance(lam)
        mean, b = (None, None) if eta is None else loops.solve(eta, lam, kept)
        ctx.layout = layout
        ctx.save_for_backward(a, q, lam, mean, b, s, *kept)
        return s, precision, logdet, mean, b

    @staticmethod
    @once_differentiable
    def backward(
        ctx: _Pass, g_s: Tensor, g_precision: Tensor, g_logdet: Tensor, g_mean: Tensor | None, g_b: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        a, q, lam, mean, _, s, *kept = ctx.saved_tensors
        direction = g_s - lam.square() * g_precision  # the diagonal of (K_f + Λ⁻¹)⁻¹ is λ − λ² s
        g_a, g_q, g_lam = _tiled(a, q, ctx.layout, lam, direction).variance_grad(lam, direction, g_logdet)
        g_lam = g_lam + g_logdet.unsqueeze(-1) * s + g_precision * (1.0 - 2.0 * lam * s)
        if mean is None:
            return g_a, g_q, None, None, g_lam
        assert g_mean is not None
        assert g_b is not None
        more_a, more_q, g_eta, more_lam = _solve_grad(ctx, g_mean, g_b, tuple(kept))
        if more_a is not None and more_q is not None:
            g_a, g_q = g_a + more_a, g_q + more_q
        return g_a, g_q, None, g_eta, g_lam + more_lam


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Pass, a: Tensor, q: Tensor, layout: Layout, eta: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        full = _repeated(lam, len(eta))
        loops = _tiled(a, q, layout, eta, full)
        kept: Kept = ()
        if isinstance(loops, PackedChains) and len(lam) < len(eta):  # one filter for all means of the same precisions
            first = _tiled(a, q, layout._replace(kernel=layout.kernel[: len(lam)]), lam)
            kept = tuple(_repeated(x, len(eta)) for x in first.variance(lam)[-1])
        mean, b = loops.solve(eta, full, kept)
        ctx.layout, ctx.rows = layout, len(lam)
        ctx.save_for_backward(a, q, full, mean, b)
        return mean, b

    @staticmethod
    @once_differentiable
    def backward(ctx: _Pass, g_mean: Tensor, g_b: Tensor) -> tuple[Tensor | None, ...]:
        g_a, g_q, g_eta, g_lam = _solve_grad(ctx, g_mean, g_b, ())
        return g_a, g_q, None, g_eta, g_lam.unflatten(0, (-1, ctx.rows)).sum(0)


def _repeated(x: Tensor, rows: int) -> Tensor:
    """The rows of x, repeated up to this number."""
    return x if len(x) == rows else x.repeat(rows // len(x), *(1,) * (x.dim() - 1))


class _MatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Pass, a: Tensor, q: Tensor, layout: Layout, b: Tensor) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(a, q, b)
        return _loops(a, q, layout, b).matmul(b)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Pass, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, q, b = ctx.saved_tensors
        g_a = g_q = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            g_a, g_q = _tiled(a, q, ctx.layout, grad).quadratic(grad, b)
        return g_a, g_q, None, _loops(a, q, ctx.layout, grad).matmul(grad)


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Pass, a: Tensor, q: Tensor, layout: Layout, white: Tensor, noise: Tensor) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(a, q, white, noise)
        return _loops(a, q, layout, white, noise).draw(white, noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Pass, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, q, white, noise = ctx.saved_tensors
        g_a, g_q, g_white, g_noise = _loops(a, q, ctx.layout, white, grad).draw_grad(white, noise, grad)
        return g_a, g_q, None, g_white, g_noise
