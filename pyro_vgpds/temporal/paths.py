# SPDX-License-Identifier: Apache-2.0
"""Gaussian paths at new times: what forecasts and reconstructions say of the latent path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions import MultivariateNormal, TorchDistribution, constraints
from torch import Tensor

from pyro_vgpds.expandable import Expandable
from pyro_vgpds.linalg import cholesky, matvec

if TYPE_CHECKING:
    from pyro_vgpds.temporal.distributions import OpperArchambeau

__all__ = ["GaussianPath", "Rows"]


class GaussianPath(Expandable):
    """Gaussian paths, independent over the latent dimensions: event shape (T, Q).

    :param mean: (..., T, Q).
    :param variance: likewise.
    :param covariance: makes the covariances (..., Q, T, T), which are large, when they are asked for.
    """

    arg_constraints: dict[str, Any] = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, mean: Tensor, variance: Tensor, covariance: Callable[[], Tensor]) -> None:
        self._mean, self._variance, self._covariance = mean, variance, covariance
        super().__init__(mean.shape[:-2], mean.shape[-2:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self._mean.expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        return self._variance.expand(self._extended_shape())

    @property
    def covariance_matrix(self) -> Tensor:
        """(..., Q, T, T)."""
        return self._covariance()

    def _factor(self) -> Tensor:
        return cholesky(self._covariance(), "the covariance of the path at new times", None)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self._mean.dtype, device=self._mean.device)
        return self.mean + matvec(self._factor(), noise.mT).mT

    def log_prob(self, value: Tensor) -> Tensor:
        return _log_normal(value, self.mean, self._factor())


def _log_normal(value: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Log-density of paths (..., T, Q) whose covariances (..., Q, T, T) have these factors."""
    return MultivariateNormal(mean.mT, scale_tril=factor, validate_args=False).log_prob(value.mT).sum(-1)


class Rows(TorchDistribution):
    """Some rows of a path, as a distribution of their own: event shape (T, Q).

    :param path: an :class:`~pyro_vgpds.OpperArchambeau`.
    :param rows: their indices, (T,).
    """

    arg_constraints: dict[str, Any] = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, path: OpperArchambeau, rows: Tensor) -> None:
        self.path, self.rows = path, rows
        shape = torch.Size((len(rows), path.event_shape[-1]))
        super().__init__(path.batch_shape, shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.path.mean[..., self.rows, :]

    @property
    def variance(self) -> Tensor:
        return self.path.variance[..., self.rows, :]

    @property
    def covariance_matrix(self) -> Tensor:
        """(..., Q, T, T). Large: made only when asked for."""
        return self.path.covariance_of(self.rows)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Rows:
        return Rows(self.path.expand(batch_shape), self.rows)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.path.rsample(sample_shape)[..., self.rows, :]

    def log_prob(self, value: Tensor) -> Tensor:
        return _log_normal(value, self.mean, cholesky(self.covariance_matrix, "the covariance of a path's rows", None))
