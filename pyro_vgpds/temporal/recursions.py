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

Shapes: ``a`` and ``q`` (K, N, d, d), ``h`` (N, d), ``index`` (C,) with the kernel of each of C chains, and (C, N) for
one number per frame. Everything is float64, also for a model in float32: a filter in float32 loses all digits if
λ K = 1e8.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.temporal import chains, scan

__all__ = ["draw", "is_compiled", "matmul", "solve", "undraw", "variance"]


def is_compiled(x: Tensor) -> bool:
    """Whether compiled loops are available for tensors on the device of ``x``."""
    return x.device.type == "cpu" and chains.available()


def _route(a: Tensor) -> ModuleType:
    """The module that runs the recursions: compiled loops over the frames if possible, else scans."""
    return chains if is_compiled(a) else scan


def variance(a: Tensor, q: Tensor, h: Tensor, index: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The diagonal of S and that of (K_f + Λ⁻¹)⁻¹, each (C, N), and log|I + Λ K_f|, (C,)."""
    return _Variance.apply(a, q, h, index, lam)


def solve(a: Tensor, q: Tensor, h: Tensor, index: Tensor, eta: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """S η, and (I + Λ K_f)⁻¹ η = η − λ S η, each (C, N)."""
    return _Solve.apply(a, q, h, index, eta, lam)


def matmul(a: Tensor, q: Tensor, h: Tensor, index: Tensor, b: Tensor) -> Tensor:
    """K_f b, (C, N)."""
    return _MatMul.apply(a, q, h, index, b)


def draw(a: Tensor, q: Tensor, h: Tensor, index: Tensor, white: Tensor, noise: Tensor) -> Tensor:
    """L ε, (C, N), for standard normal ``noise`` ε and the Cholesky factor L of K_f + diag(white), white > 0."""
    return _Draw.apply(a, q, h, index, white, noise)


def undraw(a: Tensor, q: Tensor, h: Tensor, index: Tensor, white: Tensor, x: Tensor) -> Tensor:
    """L⁻¹ x, (C, N): the inverse of :func:`draw`, without a gradient."""
    return _route(a).undraw(a, q, h, index, white, x)


class _Variance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, q: Tensor, h: Tensor, index: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s, precision, logdet = _route(a).variance(a, q, h, index, lam)
        ctx.save_for_backward(a, q, h, index, lam, s)
        return s, precision, logdet

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_s: Tensor, g_precision: Tensor, g_logdet: Tensor) -> tuple[Tensor | None, ...]:
        a, q, h, index, lam, s = ctx.saved_tensors
        direction = g_s - lam.square() * g_precision  # the diagonal of (K_f + Λ⁻¹)⁻¹ is λ − λ² s
        g_a, g_q, g_lam = _route(a).variance_grad(a, q, h, index, lam, direction, g_logdet)
        return g_a, g_q, None, None, g_lam + g_logdet.unsqueeze(-1) * s + g_precision * (1.0 - 2.0 * lam * s)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: Tensor, q: Tensor, h: Tensor, index: Tensor, eta: Tensor, lam: Tensor
    ) -> tuple[Tensor, Tensor]:
        mean, b = _route(a).solve(a, q, h, index, eta, lam)
        ctx.save_for_backward(a, q, h, index, lam, mean, b)
        return mean, b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_mean: Tensor, g_b: Tensor) -> tuple[Tensor | None, ...]:
        # b = η − λ mean, and d mean = W dK_f b − S dΛ mean + S dη with W = I − S Λ
        a, q, h, index, lam, mean, b = ctx.saved_tensors
        through, left = _route(a).solve(a, q, h, index, g_mean - lam * g_b, lam)
        g_a = g_q = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            g_a, g_q = _route(a).quadratic(a, q, h, index, left, b)
        return g_a, g_q, None, None, through + g_b, -mean * (through + g_b)


class _MatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, q: Tensor, h: Tensor, index: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, q, h, index, b)
        return _route(a).matmul(a, q, h, index, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, q, h, index, b = ctx.saved_tensors
        g_a = g_q = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            g_a, g_q = _route(a).quadratic(a, q, h, index, grad, b)
        return g_a, g_q, None, None, _route(a).matmul(a, q, h, index, grad)


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, q: Tensor, h: Tensor, index: Tensor, white: Tensor, noise: Tensor) -> Tensor:
        ctx.save_for_backward(a, q, h, index, white, noise)
        return _route(a).draw(a, q, h, index, white, noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, q, h, index, white, noise = ctx.saved_tensors
        g_a, g_q, g_white, g_noise = _route(a).draw_grad(a, q, h, index, white, noise, grad)
        return g_a, g_q, None, None, g_white, g_noise
