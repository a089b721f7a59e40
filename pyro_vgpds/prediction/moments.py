# SPDX-License-Identifier: Apache-2.0
"""A prediction that is given by its moments: independent Gaussians, as baselines predict."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.prediction.outputs import Outputs, Parts

__all__ = ["GaussianPrediction"]


class GaussianPrediction(Outputs):
    """Independent Gaussian outputs at T times with given moments.

    :param t: the times, (T,).
    :param data: the sequences that it was made from, for the names of the outputs and the dates.
    :param mean: (T, D).
    :param variance: (T, D); 0 for numbers that were observed.
    :param include_noise: whether the variance includes the noise of the outputs.
    :param parts: the sequences that the frames belong to. Default: one.

    >>> import torch
    >>> from pyro_vgpds.prediction import GaussianPrediction
    >>> t, mean = data.times.t[:3], torch.zeros(3, 5).double()
    >>> GaussianPrediction(t, data, mean, mean + 4.0).interval(0.95)[1][0, 0].round(decimals=6).item()
    3.919928
    """

    def __init__(
        self,
        t: Tensor,
        data: Sequences,
        mean: Tensor,
        variance: Tensor,
        include_noise: bool = True,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(t, data, include_noise, parts)
        self._moments = mean, variance

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        raise AssertionError("the moments are given")

    def sample(self, num_samples: int = 1) -> Tensor:
        check_count("num_samples", num_samples)
        return self.mean + self.stddev * torch.randn(
            num_samples, *self.shape, dtype=self.mean.dtype, device=self.mean.device
        )
