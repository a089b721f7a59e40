# SPDX-License-Identifier: Apache-2.0
"""K_t as dense blocks, one for each sequence."""

from __future__ import annotations

import functools
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.kernels.programs import ProgramOf
from pyro_vgpds.linalg import broadcast_shapes, cholesky, matvec
from pyro_vgpds.temporal.covariance import PathMoments, Predictor, TemporalCovariance
from pyro_vgpds.temporal.gram import fast_blocks
from pyro_vgpds.temporal.paths import GaussianPath
from pyro_vgpds.temporal.rounding import lost_digits
from pyro_vgpds.types import Context

__all__ = ["DenseCovariance"]


class _Pass(Context, Protocol):
    """The context of functions here."""

    shape: torch.Size


class DenseCovariance(TemporalCovariance):
    """K_t as one dense block a sequence, (..., K, B, n, n) for each batch of B sequences of similar length: O(n³)."""

    name = "dense"

    def __init__(
        self, kernel: KernelValue, times: Times, jitter: float | None, program: ProgramOf | None = None
    ) -> None:
        super().__init__(kernel, times, jitter, program)
        fast = fast_blocks(self.program, times)
        self.blocks = [kernel.gram(batch.t) for batch in times.batches] if fast is None else fast

    @property
    def batch_shape(self) -> torch.Size:
        return self.blocks[0].shape[:-4]

    @property
    def num_kernels(self) -> int:
        return self.blocks[0].shape[-4]

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.blocks)

    def diag(self) -> Tensor:
        return self.times.join([block.diagonal(dim1=-2, dim2=-1) for block in self.blocks])

    def matrix(self) -> Tensor:
        return self.times.block_diagonal(self.blocks)

    def matmul(self, v: Tensor) -> Tensor:
        parts = zip(self.blocks, self.times.split(v), strict=True)
        return self.times.join([matvec(block, part) for block, part in parts])

    @functools.cached_property
    def factors(self) -> list[Tensor]:
        """Cholesky factors of the blocks with jitter; padding is the identity."""
        blocks = [batch.mask_block(block) for batch, block in zip(self.times.batches, self.blocks, strict=True)]
        return [cholesky(block, "the temporal covariance K_t", self.jitter) for block in blocks]

    def correlate(self, noise: Tensor) -> Tensor:
        parts = zip(self.factors, self.times.split(noise), strict=True)
        return self.times.join([matvec(factor, part) for factor, part in parts])

    def uncorrelate(self, x: Tensor) -> Tensor:
        parts = []
        for factor, part in zip(self.factors, self.times.split(x), strict=True):
            factor = factor.expand(broadcast_shapes(factor.shape[:-2], part.shape[:-1]) + factor.shape[-2:])
            part = part.unsqueeze(-1).expand(factor.shape[:-1] + (1,))
            parts.append(torch.linalg.solve_triangular(factor, part, upper=False).squeeze(-1))
        return self.times.join(parts)

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        square = self.uncorrelate(x).square().sum(-2)
        return square, torch.stack([_logdet(factor).sum(-1) for factor in self.factors]).sum(0)

    def inverse_diag(self) -> Tensor:
        return self.times.join([torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1) for factor in self.factors])

    def posterior(self, mean_bar: Tensor, lam: Tensor) -> PathMoments:
        parts = zip(self.blocks, self.times.split(mean_bar), self.times.split(lam), strict=True)
        mu, s, logdet = map(list, zip(*[_Posterior.apply(*part) for part in parts], strict=True))
        return PathMoments(self.times.join(mu), self.times.join(s), mean_bar, _total(logdet))

    def posterior_from_natural(self, eta: Tensor, lam: Tensor) -> PathMoments:
        parts = zip(self.blocks, self.times.split(eta), self.times.split(lam), strict=True)
        mu, s, mean_bar, logdet = map(list, zip(*[_NaturalPosterior.apply(*part) for part in parts], strict=True))
        join = self.times.join
        return PathMoments(join(mu), join(s), join(mean_bar), _total(logdet))

    def posterior_matrix(self, lam: Tensor) -> Tensor:
        blocks = []
        for block, part in zip(self.blocks, self.times.split(lam), strict=True):
            v = torch.linalg.solve_triangular(_factor_b(block, part), _root(part).unsqueeze(-1) * block, upper=False)
            blocks.append(block - v.mT @ v)
        return self.times.block_diagonal(blocks)

    def gain(self, lam: Tensor, v: Tensor) -> Tensor:
        parts = []
        for block, rate, part in zip(self.blocks, self.times.split(lam), self.times.split(v), strict=True):
            solved = torch.cholesky_solve(part.unsqueeze(-1), _factor_b(block, rate)).squeeze(-1)
            parts.append(matvec(block, _root(rate) * solved))
        return self.times.join(parts)

    def predictor(self, sequence: int, mean_bar: Tensor, lam: Tensor) -> Predictor:
        rows = self.times.slices()[sequence]
        old, mean_bar, lam = self.times.t[rows], mean_bar[..., rows, :].mT, lam[..., rows, :].mT  # (..., Q, n)
        return functools.partial(self._predict, old, mean_bar, _root(lam), _factor_b(self.kernel.gram(old), lam))

    def _predict(self, old: Tensor, mean_bar: Tensor, r: Tensor, factor: Tensor, t: Tensor) -> GaussianPath:
        cross = self.kernel.gram(old, t)  # (..., K, n, T): without white noise, even if a time is the same
        mean = matvec(cross.mT, mean_bar)
        v = torch.linalg.solve_triangular(factor, r.unsqueeze(-1) * cross, upper=False)  # Σ* = K** − VᵀV
        variance = (self.kernel.diag(t) - v.square().sum(-2)).clamp_min(0.0)
        return GaussianPath(mean.mT, variance.mT, lambda: self.kernel.gram(t) - v.mT @ v)


def _root(lam: Tensor) -> Tensor:
    """√λ, with a gradient of zero at λ = 0, which is the value of padding."""
    padded = lam == 0.0
    return torch.where(padded, 0.0, torch.where(padded, 1.0, lam).sqrt())


def _factor_b(block: Tensor, lam: Tensor) -> Tensor:
    """L, with L Lᵀ = B = I + r K r."""
    r = _root(lam)
    b = r.unsqueeze(-1) * block * r.unsqueeze(-2)
    b.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor, failed = torch.linalg.cholesky_ex(b)
    if bool(failed.any()):  # jitter would make it the B of another K_t than the one that S = K − K r B⁻¹ r K takes
        raise lost_digits(b)
    return factor


def _logdet(factor: Tensor) -> Tensor:
    """log|L Lᵀ|, of the shape of the batch."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _total(logdets: list[Tensor]) -> Tensor:
    """The sum (..., Q) over all sequences, from (..., Q, B) of each batch."""
    return torch.stack([logdet.sum(-1) for logdet in logdets]).sum(0)


class _Posterior(torch.autograd.Function):
    """(K, mean_bar, λ) → (μ, diag S, log|B|) with μ = K mean_bar: the gradients of the paper's appendix B.

    dS = W dK Wᵀ − S dΛ S and d log|B| = tr(P dK) + tr(S dΛ), with W = I − S Λ and P = (K + Λ⁻¹)⁻¹ = Λ W.
    """

    @staticmethod
    def forward(ctx: _Pass, block: Tensor, mean_bar: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        factor = _factor_b(block, lam)
        s, v = _variance(block, lam, factor)
        ctx.save_for_backward(block, mean_bar, lam, s, v)
        return matvec(block, mean_bar), s, _logdet(factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Pass, g_mu: Tensor, g_s: Tensor, g_logdet: Tensor) -> tuple[Tensor | None, ...]:
        block, mean_bar, lam, s, v = ctx.saved_tensors
        full = block - v.mT @ v
        g_block = g_lam = None
        if ctx.needs_input_grad[2]:
            g_lam = _lam_gradient(full, s, g_s, g_logdet).sum_to_size(lam.shape)
        if ctx.needs_input_grad[0]:
            g_block = _block_gradient(block, full, lam, g_s, g_logdet, g_mu, mean_bar)
        return g_block, matvec(block, g_mu).sum_to_size(mean_bar.shape), g_lam


class _NaturalPosterior(torch.autograd.Function):
    """(K, η, λ) → (μ, diag S, mean_bar, log|B|) with μ = S η: those of :class:`_Posterior` with η fixed.

    dμ = W dK mean_bar − S dΛ μ + S dη. And mean_bar = η − λμ, computed as r B⁻¹ r⁻¹ η: accurate also if λ is large.
    """

    @staticmethod
    def forward(ctx: _Pass, block: Tensor, eta: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        factor, r = _factor_b(block, lam), lam.sqrt()
        s, v = _variance(block, lam, factor)
        scaled = (eta / r.clamp_min(torch.finfo(r.dtype).tiny)).unsqueeze(-1)
        mean_bar = r * torch.cholesky_solve(scaled, factor).squeeze(-1)
        mu = matvec(block, mean_bar)
        ctx.shape = eta.shape
        ctx.save_for_backward(block, mean_bar, lam, mu, s, v)
        return mu, s, mean_bar, _logdet(factor)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: _Pass, g_mu: Tensor, g_s: Tensor, g_mean_bar: Tensor, g_logdet: Tensor
    ) -> tuple[Tensor | None, ...]:
        block, mean_bar, lam, mu, s, v = ctx.saved_tensors
        full = block - v.mT @ v
        g_mu = g_mu - lam * g_mean_bar  # dη enters mean_bar directly and through −λ dμ
        g_through = matvec(full, g_mu)
        g_eta = g_through + g_mean_bar
        g_block = g_lam = None
        if ctx.needs_input_grad[2]:
            g_lam = _lam_gradient(full, s, g_s, g_logdet).sum_to_size(lam.shape) - (g_eta * mu).sum_to_size(lam.shape)
        if ctx.needs_input_grad[0]:
            g_block = _block_gradient(block, full, lam, g_s, g_logdet, g_mu - lam * g_through, mean_bar)  # Wᵀ g_mu
        return g_block, g_eta.sum_to_size(ctx.shape), g_lam


def _variance(block: Tensor, lam: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal of S = K − VᵀV, and V."""
    v = torch.linalg.solve_triangular(factor, lam.sqrt().unsqueeze(-1) * block, upper=False)
    return block.diagonal(dim1=-2, dim2=-1) - v.square().sum(-2), v


def _lam_gradient(full: Tensor, s: Tensor, g_s: Tensor, g_logdet: Tensor) -> Tensor:
    """The gradient in λ through diag S and log|B|, from S = ``full``."""
    return g_logdet.unsqueeze(-1) * s - matvec(full.square(), g_s)


def _block_gradient(
    block: Tensor, full: Tensor, lam: Tensor, g_s: Tensor, g_logdet: Tensor, g_mu: Tensor, mean_bar: Tensor
) -> Tensor:
    """Wᵀ diag(g_s) W + g_logdet Λ W + g_mu mean_barᵀ, summed to the shape of ``block``; overwrites ``full``, S."""
    w = full.mul_(-lam.unsqueeze(-2))
    w.diagonal(dim1=-2, dim2=-1).add_(1.0)
    left, right = g_s.unsqueeze(-2) * w.mT, w
    left.diagonal(dim1=-2, dim2=-1).add_(g_logdet.unsqueeze(-1) * lam)
    shape, more = w.shape[:-1], None
    if broadcast_shapes(shape, g_mu.shape) == shape:  # one product: [Wᵀ diag(g_s) + g_logdet Λ, g_mu] [W; mean_barᵀ]
        left = torch.cat([left, g_mu.expand(shape).unsqueeze(-1)], -1)
        right = torch.cat([right, mean_bar.expand(shape).unsqueeze(-2)], -2)
    else:  # many means have the same S
        more = (g_mu.unsqueeze(-1) * mean_bar.unsqueeze(-2)).sum_to_size(block.shape)
    if block.dim() == 4 and block.shape[0] == 1:  # all paths share K: their sum is part of the product
        left, right = left.flatten(0, -4), right.flatten(0, -4)
        left, right = left.permute(1, 2, 0, 3).flatten(-2), right.transpose(0, 1).flatten(1, 2)
        found = (left @ right).unsqueeze(0)
    else:
        found = (left @ right).sum_to_size(block.shape)
    return found if more is None else found + more
