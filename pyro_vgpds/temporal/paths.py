# SPDX-License-Identifier: Apache-2.0
"""Gaussian paths at some frames: the latent path of forecasts and reconstructions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pyro.distributions import MultivariateNormal
from torch import Tensor

from pyro_vgpds.linalg import broadcast_shapes, cholesky, matvec, positive_part
from pyro_vgpds.matrix_distribution import MatrixDistribution
from pyro_vgpds.types import Shape

__all__ = ["GaussianPath"]


class GaussianPath(MatrixDistribution):
    """Gaussian paths, independent over the latent dimensions: event shape (T, Q).

    :param mean: (..., T, Q).
    :param variance: (..., T, Q).
    :param covariance: computes the covariances (..., Q, T, T), which are large, when they are needed.
    :param draw: draws minus the mean, ``shape`` + (T, Q), for a shape. Default: by a Cholesky factor of the covariance.
    """

    has_rsample = True

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        covariance: Callable[[], Tensor],
        draw: Callable[[torch.Size], Tensor] | None = None,
    ) -> None:
        self._mean, self._variance, self._covariance = mean, variance, covariance
        self._draw = self._correlate if draw is None else draw
        shape = broadcast_shapes(mean.shape, variance.shape)
        super().__init__(shape[:-2], shape[-2:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self._mean.expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        return self._variance.expand(self._extended_shape())

    @property
    def covariance_matrix(self) -> Tensor:
        """(..., Q, T, T). Large: computed on each access."""
        t, q = self.event_shape
        return positive_part(self._covariance()).expand(self.batch_shape + (q, t, t))

    def _factor(self) -> Tensor:
        return cholesky(positive_part(self._covariance()), "the covariance of the latent path", None)

    def _correlate(self, shape: torch.Size) -> Tensor:
        noise = torch.randn(shape + self.event_shape, dtype=self._mean.dtype, device=self._mean.device)
        return matvec(self._factor(), noise.mT).mT

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.mean + self._draw(torch.Size(sample_shape) + self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        normal = MultivariateNormal(self.mean.mT, scale_tril=self._factor(), validate_args=False)
        return normal.log_prob(value.mT).sum(-1)
