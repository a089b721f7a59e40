# SPDX-License-Identifier: Apache-2.0
r"""The part of the bound that Ψ statistics cannot give: E log p(y given f) minus E log of its Gaussian factor.

f given x is Gaussian under q(U), with

.. math:: E[f_d \mid x] = m_d + s_d\, a(x)^\top c_d, \qquad
          V[f_d \mid x] = s_d^2 \big(k(x, x) - |a|^2 + a^\top B_d^{-1} a\big), \qquad a(x) = L^{-1} k(Z, x).

x is drawn from q(X): antithetic pairs of Sobol points, with a random shift of its own for each frame. The draws are
fixed, so the average over them is a smooth function of all parameters. Both expectations use the same draws, so that
the error is that of the difference, which is small: the factor is an approximation of p(y given f).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular

from pyro_vgpds.likelihoods.factors import Moments, Sites, filled
from pyro_vgpds.likelihoods.site import SiteLikelihood, expected
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.linalg import add_diagonal, cholesky
from pyro_vgpds.mapping.basis import Basis
from pyro_vgpds.mapping.quadratic_forms import quadratic_forms
from pyro_vgpds.types import Context

__all__ = ["Given", "GivenOptimum", "correction", "path_draws", "randomised"]

_SEED = 20110
_draws: ContextVar[tuple[int, int | None]] = ContextVar("_draws", default=(_SEED, None))  # their seed and number
_BLOCK = 1 << 20  # numbers in a block of function values
_LEAST = 1e-12  # of the prior variance, for the variance given x: rounding may leave less


@contextmanager
def randomised(seed: int, num_draws: int | None = None) -> Iterator[None]:
    """A context with draws of another seed. Default: as many for each latent point as each likelihood has."""
    token = _draws.set((seed, num_draws))
    try:
        yield
    finally:
        _draws.reset(token)


def path_draws(num_draws: int, num_frames: int, dim: int, first: int = 0) -> Tensor:
    """Standard normal draws (num_draws, num_frames, dim) in antithetic pairs, independent between frames.

    Frames, of which ``first`` come before these, have the same draws whatever frames follow. :func:`randomised` may
    change their number, which is even.
    """
    seed, other = _draws.get()
    return _path_draws(num_draws if other is None else other, num_frames, dim, seed, first)


@functools.lru_cache(maxsize=8)
def _path_draws(num_draws: int, num_frames: int, dim: int, seed: int, first: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shift = torch.rand(first + num_frames, 1, dim, dtype=torch.float64, generator=generator)[first:]
    points = torch.quasirandom.SobolEngine(dim).draw(num_draws // 2, dtype=torch.float64)
    u = (points + shift).remainder(1.0).clamp(1e-9, 1.0 - 1e-9)  # the shifted points are uniform
    z = torch.special.ndtri(u).movedim(0, 1)
    return torch.cat([z, -z])


class Given(NamedTuple):
    """The distribution of f given x under a Gaussian q(U) of the whitened inducing variables."""

    basis: Basis
    factor: Tensor  #: L
    weights: Tensor  #: c, the means of u, (F, M)
    covariance: Tensor  #: B⁻¹, the covariances of u, (F, M, M)
    mean: Tensor  #: m, (F,)
    scale: Tensor  #: s, (F,)

    def of(self, functions: Tensor) -> Given:
        """The same for some functions."""
        q = self.weights[functions], self.covariance[functions]
        return Given(self.basis, self.factor, *q, self.mean[functions], self.scale[functions])

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at points x (..., N, Q), (..., N, F) each."""
        k = self.basis.cov(x)
        a = solve_triangular(self.factor, k.flatten(0, -2).mT, upper=False)  # (M, R)
        prior = self.basis.kernel.cov_diag(x).reshape(-1)
        rest = (prior - a.square().sum(0)).clamp_min(0.0)
        variance = torch.maximum(quadratic_forms(a, self.covariance) + rest, _LEAST * prior)  # (F, R)
        mean = torch.addcmul(self.mean, self.scale, (self.weights @ a).mT.contiguous())
        shape = x.shape[:-1] + self.mean.shape
        return mean.reshape(shape), (self.scale.square() * variance.mT.contiguous()).reshape(shape)


class GivenOptimum(NamedTuple):
    """The same under the optimal q(U), from the statistics, of which only the matrices that are needed are inverted."""

    basis: Basis
    factor: Tensor  #: L
    A: Tensor  #: L⁻¹ Ψ2 L⁻ᵀ of each function, (F, M, M)
    v: Tensor  #: L⁻¹ Ψ1ᵀ linear, (M, F)
    mean: Tensor  #: m, (F,)
    scale: Tensor  #: s, (F,)

    def of(self, functions: Tensor) -> Given:
        """The distribution of some functions."""
        inverse = _Inverse.apply(add_diagonal(self.A[functions], 1.0))
        weights = (inverse @ self.v[:, functions].mT.unsqueeze(-1)).squeeze(-1)
        return Given(self.basis, self.factor, weights, inverse, self.mean[functions], self.scale[functions])


def correction(
    given: Given | GivenOptimum, x: Tensor, variance: Tensor | None, y: Tensor, sites: Sites,
    likelihood: LikelihoodValue, first: int = 0,
) -> tuple[Tensor, Moments | None]:  # fmt: skip
    """Σ E[log p(y given f) − log factor] of the outputs whose likelihoods need draws, and the moments of f.

    The moments (N, F) are None without gradients, and 0 for functions of other outputs.

    :param given: the distribution of f given x.
    :param x: latent points (N, Q), or the means of their posterior.
    :param variance: of the latent points; None if they are known.
    :param y: outputs (N, D), NaN if they were not observed.
    :param sites: their Gaussian factors, without gradients.
    :param first: number of frames before these, which have other draws.
    """
    total, moments = x.new_zeros(()), None
    for part in likelihood.drawn(y.shape[-1]):
        outputs = part.columns(y.shape[-1])
        functions = part.functions(y.shape[-1], likelihood.likelihood.num_functions)
        points = x.unsqueeze(0)
        if variance is not None:
            z = path_draws(part.likelihood.draws_for(y.shape[-1]), x.shape[-2], x.shape[-1], first).to(x)
            points = torch.addcmul(x, variance.sqrt(), z)
        mean, spread = given.of(functions).moments(points)
        weight, linear, constant = (each[:, functions].detach() for each in sites)
        value, *found = _expected(likelihood.of(part), y[:, outputs], mean, spread, linear, weight)
        total = total + value - constant.sum()
        if found:
            if moments is None:
                moments = torch.zeros(4, *sites.linear.shape, dtype=x.dtype, device=x.device)
            moments[:, :, functions] = torch.stack(found)
    return total, None if moments is None else Moments(*moments)


def _expected(
    value: LikelihoodValue, y: Tensor, mean: Tensor, variance: Tensor, linear: Tensor, weight: Tensor
) -> tuple[Tensor, ...]:
    """The sum over all entries, averaged over the draws; with gradients, then also the moments, four of (N, F)."""
    likelihood, seen, y = value.likelihood, torch.isfinite(y), filled(y)
    assert isinstance(likelihood, SiteLikelihood)
    names = list(vars(value.parameters))
    leaves = [getattr(value.parameters, name) for name in names]
    own = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]

    def log_prob(rows: slice, mean: Tensor, variance: Tensor, values: Sequence[Tensor]) -> Tensor:
        p = SimpleNamespace(**dict(zip(names, values, strict=True)))
        return torch.where(seen[rows], expected(likelihood, y[rows], value.shifted(mean, rows), variance, p), 0.0)

    step = max(1, _BLOCK // (likelihood.num_evaluations * len(mean) * mean.shape[-1]))
    return _Expected.apply(log_prob, step, len(leaves), linear, weight, mean, variance, *leaves, *own)


class _Pass(Context, Protocol):
    """The context of ``_Expected``."""

    wanted: list[int]  #: which of the other arguments need gradients
    num_others: int  #: number of other arguments


class _Expected(torch.autograd.Function):
    """Σ log p − log factor, averaged over draws, in blocks of frames, with gradients that the same pass computes.

    The first inputs have no gradients: log p as a function of some frames, their mean and variance, and the values of
    the parameters; the number of frames in a block; the number of parameters; and the factors.
    """

    @staticmethod
    def forward(
        ctx: _Pass, log_prob: Callable[..., Tensor], step: int, count: int, linear: Tensor, weight: Tensor,
        mean: Tensor, variance: Tensor, *others: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        share, second = 1.0 / len(mean), mean.square() + variance
        factors = share * (linear * mean - 0.5 * weight * second).sum()
        blocks = [slice(start, start + step) for start in range(0, mean.shape[1], step)]
        if not any(ctx.needs_input_grad):
            sums = [log_prob(rows, mean[:, rows], variance[:, rows], others[:count]).sum() for rows in blocks]
            return (share * torch.stack(sums).sum() - factors,)
        wanted = [i for i, needs in enumerate(ctx.needs_input_grad[7:]) if needs]
        total, g_mean, g_variance = mean.new_zeros(()), torch.empty_like(mean), torch.empty_like(mean)
        g_others = [torch.zeros_like(others[i]) for i in wanted]
        for rows in blocks:
            with torch.enable_grad():
                m, v = (part[:, rows].detach().requires_grad_() for part in (mean, variance))
                values = [each.detach().requires_grad_(i in wanted) for i, each in enumerate(others[:count])]
                value = log_prob(rows, m, v, values).sum()
                into = [m, v, *(values[i] if i < count else others[i] for i in wanted)]
                found = torch.autograd.grad(value, into, allow_unused=True, materialize_grads=True)
            total += value.detach()
            g_mean[:, rows], g_variance[:, rows] = found[:2]
            for sum_, g in zip(g_others, found[2:], strict=True):
                sum_ += g
        by_the_way = mean.mean(0), second.mean(0), g_mean.mean(0), 2.0 * g_variance.mean(0)
        g_mean -= linear - weight * mean
        g_variance += 0.5 * weight
        ctx.save_for_backward(*(g.mul_(share) for g in (g_mean, g_variance, *g_others)))
        ctx.wanted, ctx.num_others = wanted, len(others)
        ctx.mark_non_differentiable(*by_the_way)
        return (share * total - factors, *by_the_way)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Pass, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        g_mean, g_variance, *found = ctx.saved_tensors
        others: list[Tensor | None] = [None] * ctx.num_others
        for i, g in zip(ctx.wanted, found, strict=True):
            others[i] = grad * g
        return None, None, None, None, None, grad * g_mean, grad * g_variance, *others


class _Inverse(torch.autograd.Function):
    """The inverse of symmetric matrices that are positive definite."""

    @staticmethod
    def forward(ctx: Context, matrix: Tensor) -> Tensor:
        inverse = torch.cholesky_inverse(cholesky(matrix, "B = I + L⁻¹ Ψ2 L⁻ᵀ"))
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -inverse @ (0.5 * (grad + grad.mT)) @ inverse
