# SPDX-License-Identifier: Apache-2.0
"""K_t of white noise, a diagonal: everything is O(N)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.kernels.programs import ProgramOf
from pyro_vgpds.temporal.covariance import PathMoments, TemporalCovariance
from pyro_vgpds.temporal.path_gradients import DiagonalPath, diagonal_path
from pyro_vgpds.temporal.path_reader import DiagonalReader, diagonal_reader

__all__ = ["DiagonalCovariance"]


class DiagonalCovariance(TemporalCovariance):
    """K_t as its diagonal ``k`` (..., N, K), for a kernel with ``is_diagonal``. It needs no jitter."""

    name = "diagonal"

    def __init__(
        self, kernel: KernelValue, times: Times, jitter: float | None, program: ProgramOf | None = None
    ) -> None:
        super().__init__(kernel, times, jitter, program)
        self.k = kernel.diag(times.t).mT

    @property
    def batch_shape(self) -> torch.Size:
        return self.k.shape[:-2]

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.k,)

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

    def posterior(self, mean_bar: Tensor, lam: Tensor) -> PathMoments:
        return self._moments(mean_bar, lam, self._b(lam))

    def diagonal_path(self, mean_bar: Tensor, log_lam: Tensor) -> DiagonalPath | None:
        return diagonal_path(self.k, mean_bar, log_lam)

    def path_reader(self, kernel: nn.Module) -> DiagonalReader | None:
        return diagonal_reader(kernel, self.k)

    def posterior_from_natural(self, eta: Tensor, lam: Tensor) -> PathMoments:
        b = self._b(lam)
        return self._moments(eta / b, lam, b)

    def _moments(self, mean_bar: Tensor, lam: Tensor, b: Tensor) -> PathMoments:
        return PathMoments(self.k * mean_bar, self.k / b, mean_bar, torch.log1p(self.k * lam).sum(-2))

    def _b(self, lam: Tensor) -> Tensor:
        """The diagonal of B."""
        return 1.0 + self.k * lam

    def posterior_matrix(self, lam: Tensor) -> Tensor:
        return torch.diag_embed((self.k / self._b(lam)).mT)

    def posterior_block(self, lam: Tensor, rows: Tensor) -> Tensor:
        same = rows.unsqueeze(-1) == rows
        return torch.where(same, (self.k / self._b(lam)).mT[..., rows].unsqueeze(-1), 0.0)

    def gain(self, lam: Tensor, v: Tensor) -> Tensor:
        return self.k * lam.sqrt() / self._b(lam) * v

    def predictor(self, sequence: int, mean_bar: Tensor, lam: Tensor) -> None:
        return None  # white noise at the frames is independent of that at other times
