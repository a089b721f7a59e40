# SPDX-License-Identifier: Apache-2.0
"""The latent paths of predictions."""

from __future__ import annotations

from collections.abc import Iterator

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_vgpds.formatting import counted
from pyro_vgpds.prediction.correlations import Correlations

__all__ = ["Latent"]


class Latent:
    """The latent path at the times of a prediction, Gaussian.

    :param path: its distribution, event shape (T, Q).
    :param correlations: of the latent dimensions, in frames with missing outputs, whose variances are then larger.
    :ivar mean: (T, Q).
    :ivar variance: (T, Q).

    >>> latent = post.forecast([2.6, 2.7], sequence=0).latent
    >>> latent
    Latent(2 times, 3 dimensions)
    >>> latent.covariance.shape
    torch.Size([3, 2, 2])
    """

    def __init__(self, path: TorchDistribution, correlations: Correlations | None = None) -> None:
        self.path = path
        self.mean: Tensor = path.mean
        self.variance: Tensor = path.variance if correlations is None else path.variance + correlations.variance

    @property
    def covariance(self) -> Tensor:
        """Covariance over the times, (Q, T, T). Large: computed on access."""
        return self.path.covariance_matrix

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.mean, self.variance))

    def __repr__(self) -> str:
        frames, latent = self.mean.shape
        return f"Latent({counted(frames, 'time')}, {counted(latent, 'dimension')})"
