# SPDX-License-Identifier: Apache-2.0
"""The outputs of given latent points under q(U)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.linalg import add_diagonal, broadcast_shapes, cholesky
from pyro_vgpds.mapping.explicit import conditional_root
from pyro_vgpds.mapping.inducing import InducingPosterior
from pyro_vgpds.matrix_distribution import MatrixDistribution
from pyro_vgpds.types import Shape

__all__ = ["PosteriorGP"]

_BLOCK = 1 << 21  # largest array of frames by outputs


class PosteriorGP(MatrixDistribution):
    """p(y given x, the training data): the outputs of new latent points under q(U), event shape (T, D).

    Frames of one draw are coherent: they come from one draw of the function.

    :param x: latent points (..., T, Q).
    :param inducing: an :class:`~pyro_vgpds.mapping.inducing.InducingPosterior`.
    :param include_noise: add the noise; without it the draws are of the function.
    """

    def __init__(self, x: Tensor, inducing: InducingPosterior, include_noise: bool = True) -> None:
        self.x, self.inducing, self.include_noise = x, inducing, include_noise
        super().__init__(x.shape[:-2], torch.Size((x.shape[-2], inducing.num_outputs)), validate_args=False)

    def _whitened(self, x: Tensor) -> Tensor:
        """L⁻¹K_M* as (..., T, M)."""
        return solve_triangular(self.inducing.factor, self.inducing.basis.cov(x).mT, upper=False).mT

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, (..., T, D) each."""
        u, k = self.inducing, self._whitened(self.x)
        mean, variance = (self.x.new_empty(self._extended_shape()) for _ in range(2))
        rest = (u.basis.kernel.cov_diag(self.x) - k.square().sum(-1)).clamp_min(0.0).unsqueeze(-1)
        for part in u.columns():
            mean[..., part.outputs] = k @ part.mean + u.output_mean[part.outputs]
            own = ((k @ part.basis).square() @ part.shrink + rest) * part.scale.square()
            variance[..., part.outputs] = own + u.noise_of(part.outputs) if self.include_noise else own
        return mean, variance

    @property
    def mean(self) -> Tensor:
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        return self.moments()[1]

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            y = self.x.new_empty(self._extended_shape(sample_shape))
            x = self.x.expand(y.shape[:-2] + self.x.shape[-2:]).reshape((-1, *self.x.shape[-2:]))
            size = x.shape[-2] * max(x.shape[-2], self.inducing.basis.size, min(y.shape[-1], _BLOCK))
            step = max(1, _BLOCK // size)
            for points, out in zip(x.split(step), y.view((-1, *self.event_shape)).split(step), strict=True):
                self._draw(points, out)
        return y

    def _draw(self, x: Tensor, out: Tensor) -> None:
        """Fill ``out`` (B, T, D) with draws at x (B, T, Q)."""
        u, k = self.inducing, self._whitened(x)
        root = None if u.basis.is_exact else conditional_root(u.basis.kernel, x, k)
        for part in u.columns():
            spread = part.scale * part.shrink.sqrt()
            v = part.mean + part.basis @ (spread * x.new_empty(len(x), *spread.shape).normal_())
            f = k @ v
            if root is not None:
                f.addcmul_(root @ x.new_empty(*x.shape[:2], len(part.outputs)).normal_(), part.scale)
            if self.include_noise:
                f += u.noise_of(part.outputs).sqrt() * torch.randn_like(f)
            out[..., part.outputs] = f + u.output_mean[part.outputs]

    def log_prob(self, value: Tensor) -> Tensor:
        """The density of whole sequences given x: a T × T covariance for each output."""
        if not self.include_noise:
            raise NotImplementedError("PosteriorGP has no density without noise. Use include_noise=True.")
        if not bool(torch.isfinite(value).all()):
            raise ValueError("PosteriorGP.log_prob needs finite values; Posterior.log_density takes NaN.")
        u, k = self.inducing, self._whitened(self.x)
        rest = u.basis.kernel.cov(self.x, self.x) - k @ k.mT
        total = value.new_zeros(broadcast_shapes(value.shape[:-2], self.batch_shape))
        for part in u.columns():
            noise, rotated = part.noise, k @ part.basis
            total = total - value.shape[-2] * part.scale.log().sum()
            residual = (value[..., part.outputs] - u.output_mean[part.outputs] - k @ part.mean) / part.scale
            same = 1 if len(u.scaled_noise) > 1 else len(part.outputs)  # outputs that share a covariance
            for start in range(0, len(part.outputs), same):
                covariance = rest + (rotated * part.shrink[:, start]) @ rotated.mT
                factor = cholesky(add_diagonal(covariance, noise[start]), "the covariance of an output at new points")
                white = solve_triangular(factor, residual[..., start : start + same], upper=False)
                logdet = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
                constant = value.shape[-2] * math.log(2.0 * math.pi)
                total = total - 0.5 * (white.square().sum((-2, -1)) + white.shape[-1] * (logdet + constant))
        return total
