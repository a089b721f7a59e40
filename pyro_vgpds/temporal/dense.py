# SPDX-License-Identifier: Apache-2.0
"""K_t as dense blocks, one for each sequence, or as a diagonal; and everything that q(X) needs of it.

Nothing here inverts or factorises S. With r = √λ and B = I + r K r, whose eigenvalues are at least 1,
S = K − K r B⁻¹ r K.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.linalg import cholesky, matvec
from pyro_vgpds.temporal.paths import GaussianPath

__all__ = ["DenseCovariance", "DiagonalCovariance", "Moments"]


class Moments(NamedTuple):
    """What q(X) is asked for: μ, diag S and mean_bar (..., N, Q), and log|B| summed over sequences (..., Q)."""

    mu: Tensor
    s: Tensor
    mean_bar: Tensor
    logdet: Tensor


class DenseCovariance:
    """K_t as one dense block a sequence, (..., K, B, n, n) for each batch of B sequences of similar length."""

    name = "dense"

    def __init__(self, kernel: KernelValue, times: Times, jitter: float | None) -> None:
        self.kernel, self.times, self.jitter = kernel, times, jitter
        self.blocks = [kernel.gram(batch.t) for batch in times.batches]
        self._factors: list[Tensor] | None = None

    @property
    def batch_shape(self) -> torch.Size:
        return self.blocks[0].shape[:-4]

    def equals(self, other: Any) -> bool:
        return self is other or (
            isinstance(other, DenseCovariance)
            and self.times.lengths == other.times.lengths
            and all(torch.equal(a, b) for a, b in zip(self.blocks, other.blocks, strict=True))
        )

    def diag(self) -> Tensor:
        return self.times.join([block.diagonal(dim1=-2, dim2=-1) for block in self.blocks])

    def matrix(self) -> Tensor:
        return self.times.block_diagonal(self.blocks)

    def matmul(self, v: Tensor) -> Tensor:
        parts = zip(self.blocks, self.times.split(v), strict=True)
        return self.times.join([matvec(block, part) for block, part in parts])

    def factors(self) -> list[Tensor]:
        """Cholesky factors of the jittered blocks; padding is the identity."""
        if self._factors is None:
            blocks = [batch.mask_block(block) for batch, block in zip(self.times.batches, self.blocks, strict=True)]
            self._factors = [cholesky(block, "the temporal covariance K_t", self.jitter) for block in blocks]
        return self._factors

    def correlate(self, noise: Tensor) -> Tensor:
        """Standard normal noise (..., N, Q) with this covariance."""
        parts = zip(self.factors(), self.times.split(noise), strict=True)
        return self.times.join([matvec(factor, part) for factor, part in parts])

    def uncorrelate(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`correlate`."""
        parts = []
        for factor, part in zip(self.factors(), self.times.split(x), strict=True):
            factor = factor.expand(torch.broadcast_shapes(factor.shape[:-2], part.shape[:-1]) + factor.shape[-2:])
            part = part.unsqueeze(-1).expand(factor.shape[:-1] + (1,))
            parts.append(torch.linalg.solve_triangular(factor, part, upper=False).squeeze(-1))
        return self.times.join(parts)

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Squared Mahalanobis norm and log-determinant, each (..., Q)."""
        square = self.uncorrelate(x).square().sum(-2)
        logdet = [2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum((-2, -1)) for factor in self.factors()]
        return square, torch.stack(logdet).sum(0)

    def inverse_diag(self) -> Tensor:
        """The diagonal of K_t⁻¹, (..., N, K)."""
        return self.times.join([torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1) for factor in self.factors()])

    def posterior(self, shift: Tensor, lam: Tensor, natural: bool = False) -> Moments:
        """``shift`` is mean_bar, of which μ = K mean_bar, or with ``natural`` η = S⁻¹μ."""
        parts = zip(self.blocks, self.times.split(shift), self.times.split(lam), strict=True)
        results = [_Posterior.apply(*part, natural) for part in parts]
        mu, s, mean_bar, logdet = (list(x) for x in zip(*results, strict=True))
        join = self.times.join
        return Moments(join(mu), join(s), join(mean_bar), torch.stack([d.sum(-1) for d in logdet]).sum(0))

    def posterior_matrix(self, lam: Tensor) -> Tensor:
        """S, (..., Q, N, N), zero between sequences."""
        blocks = []
        for block, part in zip(self.blocks, self.times.split(lam), strict=True):
            v = torch.linalg.solve_triangular(_factor_b(block, part), _root(part).unsqueeze(-1) * block, upper=False)
            blocks.append(block - v.mT @ v)
        return self.times.block_diagonal(blocks)

    def posterior_block(self, lam: Tensor, rows: Tensor) -> Tensor:
        """S of some frames, (..., Q, T, T)."""
        return self.posterior_matrix(lam)[..., rows, :][..., rows]

    def gain(self, lam: Tensor, v: Tensor) -> Tensor:
        """K r B⁻¹ v, (..., N, Q): what Matheron's rule takes off a draw of the prior."""
        parts = []
        for block, rate, part in zip(self.blocks, self.times.split(lam), self.times.split(v), strict=True):
            solved = torch.cholesky_solve(part.unsqueeze(-1), _factor_b(block, rate)).squeeze(-1)
            parts.append(matvec(block, _root(rate) * solved))
        return self.times.join(parts)

    def forecast(self, q: Any, t: Tensor, sequence: int) -> GaussianPath:
        """q(X*) at new times of a sequence; the factor of its B is made once and kept by ``q``."""
        rows = self.times.slices()[sequence]
        old, rate = self.times.t[rows], q.lam[..., rows, :].mT  # (..., Q, n)
        if sequence not in q.kept:
            q.kept[sequence] = _factor_b(self.kernel.gram(old), rate)
        cross = self.kernel.gram(old, t)  # (..., K, n, T): without white noise, also where a time is the same
        mean = cross.mT @ q.mean_bar[..., rows, :].mT.unsqueeze(-1)
        v = torch.linalg.solve_triangular(q.kept[sequence], _root(rate).unsqueeze(-1) * cross, upper=False)
        variance = (self.kernel.diag(t) - v.square().sum(-2)).clamp_min(0.0)
        return GaussianPath(mean.squeeze(-1).mT, variance.mT, lambda: self.kernel.gram(t) - v.mT @ v)


class DiagonalCovariance:
    """K_t of a kernel that is white noise: everything is O(N)."""

    name = "diagonal"

    def __init__(self, kernel: KernelValue, times: Times, jitter: float | None) -> None:
        self.times = times
        self.k = kernel.diag(times.t).mT  # (..., N, K)

    @property
    def batch_shape(self) -> torch.Size:
        return self.k.shape[:-2]

    def equals(self, other: Any) -> bool:
        return self is other or (isinstance(other, DiagonalCovariance) and torch.equal(self.k, other.k))

    def diag(self) -> Tensor:
        return self.k

    def matrix(self) -> Tensor:
        return torch.diag_embed(self.k.mT)

    def matmul(self, v: Tensor) -> Tensor:
        return self.k * v

    def correlate(self, noise: Tensor) -> Tensor:
        return self.k.sqrt() * noise

    def uncorrelate(self, x: Tensor) -> Tensor:
        return x / self.k.sqrt()

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x.square() / self.k).sum(-2), self.k.log().sum(-2)

    def inverse_diag(self) -> Tensor:
        return 1.0 / self.k

    def posterior(self, shift: Tensor, lam: Tensor, natural: bool = False) -> Moments:
        spread = 1.0 + self.k * lam
        mean_bar = shift / spread if natural else shift
        return Moments(self.k * mean_bar, self.k / spread, mean_bar, torch.log1p(self.k * lam).sum(-2))

    def posterior_matrix(self, lam: Tensor) -> Tensor:
        return torch.diag_embed((self.k / (1.0 + self.k * lam)).mT)

    def posterior_block(self, lam: Tensor, rows: Tensor) -> Tensor:
        same = rows.unsqueeze(-1) == rows
        return torch.where(same, (self.k / (1.0 + self.k * lam)).mT[..., rows].unsqueeze(-1), 0.0)

    def gain(self, lam: Tensor, v: Tensor) -> Tensor:
        return self.k * lam.sqrt() / (1.0 + self.k * lam) * v


def _root(lam: Tensor) -> Tensor:
    """√λ, with a gradient of zero where there is padding, and so λ = 0."""
    padded = lam == 0.0
    return torch.where(padded, 0.0, torch.where(padded, 1.0, lam).sqrt())


def _factor_b(block: Tensor, lam: Tensor) -> Tensor:
    """L, with L Lᵀ = B = I + r K r."""
    r = _root(lam)
    b = r.unsqueeze(-1) * block * r.unsqueeze(-2)
    b.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return cholesky(b, "B = I + √λ K_t √λ of q(X)")


class _Posterior(torch.autograd.Function):
    """(K, mean_bar, λ) → (μ, diag S, mean_bar, log|B|), with the gradients of the paper's appendix B; or from η.

    dS = W dK Wᵀ − S dΛ S and d log|B| = tr(P dK) + tr(S dΛ), with W = I − S Λ and P = (K + Λ⁻¹)⁻¹ = Λ W.
    μ = K mean_bar, or with η held μ = S η: dμ = W dK mean_bar − S dΛ μ + S dη. Then mean_bar = η − λμ, whose digits
    are those of r B⁻¹ r⁻¹ η where λ is large.
    """

    @staticmethod
    def forward(
        ctx: Any, block: Tensor, shift: Tensor, lam: Tensor, natural: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        factor, r = _factor_b(block, lam), lam.sqrt()
        v = torch.linalg.solve_triangular(factor, r.unsqueeze(-1) * block, upper=False)  # S = K − VᵀV
        s = block.diagonal(dim1=-2, dim2=-1) - v.square().sum(-2)
        mean_bar = shift
        if natural:
            scaled = (shift / r.clamp_min(torch.finfo(r.dtype).tiny)).unsqueeze(-1)
            mean_bar = r * torch.cholesky_solve(scaled, factor).squeeze(-1)
        mu = matvec(block, mean_bar)
        ctx.natural, ctx.shapes = natural, (shift.shape, lam.shape)
        ctx.save_for_backward(block, mean_bar, lam, mu, s, v)
        return mu, s, mean_bar.clone(), 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g_mu: Tensor, g_s: Tensor, g_mean_bar: Tensor, g_logdet: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        block, mean_bar, lam, mu, s, v = ctx.saved_tensors
        g_logdet = g_logdet.unsqueeze(-1)
        full = block - v.mT @ v
        if ctx.natural:  # dη enters mean_bar by itself and by −λ dμ
            g_mu = g_mu - lam * g_mean_bar
            g_through = matvec(full, g_mu)
            g_mu = g_mu - lam * g_through  # Wᵀ g_mu
            g_shift = g_through + g_mean_bar
        else:
            g_shift = matvec(block, g_mu) + g_mean_bar
        g_lam = None
        if ctx.needs_input_grad[2]:
            g_lam = g_logdet * s - matvec(full.square(), g_s) - (g_shift * mu if ctx.natural else 0.0)
            g_lam = g_lam.sum_to_size(ctx.shapes[1])
        shape = full.shape[:-1]
        mean_bar, g_mu, g_shift = mean_bar.expand(shape), g_mu.expand(shape), g_shift.sum_to_size(ctx.shapes[0])
        if not ctx.needs_input_grad[0]:
            return None, g_shift, g_lam, None
        w = full.mul_(-lam.unsqueeze(-2))
        w.diagonal(dim1=-2, dim2=-1).add_(1.0)
        # Wᵀ diag(g_s) W + g_logdet Λ W + g_mu mean_barᵀ = (Wᵀ diag(g_s) + g_logdet Λ) W + …, as one product
        left = g_s.unsqueeze(-2) * w.mT
        left.diagonal(dim1=-2, dim2=-1).add_(g_logdet * lam)
        left = torch.cat([left, g_mu.unsqueeze(-1)], -1)
        right = torch.cat([w, mean_bar.unsqueeze(-2)], -2)
        if block.dim() == 4 and block.shape[0] == 1:  # all latent dimensions share K: their sum is part of the product
            left, right = left.permute(1, 2, 0, 3).flatten(-2), right.transpose(0, 1).flatten(1, 2)
            return (left @ right).unsqueeze(0), g_shift, g_lam, None
        return (left @ right).sum_to_size(block.shape), g_shift, g_lam, None
