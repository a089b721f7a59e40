# SPDX-License-Identifier: Apache-2.0
"""The sites of all frames, and the factors of all outputs, of which training in batches has some at a time."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from pyro_vgpds.checks import check_path
from pyro_vgpds.mapping.output_sites import OutputSites
from pyro_vgpds.types import PathLike

__all__ = ["BatchFactors", "site_store"]


def site_store(
    path: PathLike | None, num_frames: int, latent_dim: int, num_functions: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Two tensors of zeros, (N, Q), for η and λ, and one of NaN, (2, N, F), for factors of outputs, in float64.

    :param path: a new file, of 16 N (Q + F) bytes, which has the numbers as they change. Default: in memory.
    :param num_functions: F; 0 if outputs are Gaussian.
    :raises ValueError: if the file exists, its folder does not, or the device is not the CPU.
    """
    size = 2 * num_frames * (latent_dim + num_functions)
    if path is None:
        every = torch.zeros(size, dtype=torch.float64, device=device)
    else:
        check_path("store", path)
        file = Path(path).absolute()
        if file.exists() or not file.parent.is_dir():
            fault = "exists already" if file.exists() else f"is in the folder {file.parent}, which does not exist"
            raise ValueError(f"store must be the name of a new file, but {path} {fault}.")
        if device is not None and device.type != "cpu":
            raise ValueError(f"store needs data on the CPU, but they are on {device}.")
        with file.open("xb") as new:
            os.truncate(new.fileno(), 8 * size)  # zeros, which take no place before they are written
        every = torch.from_file(str(file), shared=True, size=size, dtype=torch.float64)
    both = every[: 2 * num_frames * latent_dim].view(2, num_frames, latent_dim)
    factors = every[2 * num_frames * latent_dim :].view(2, num_frames, num_functions)
    return both[0], both[1], factors.fill_(torch.nan)


class BatchFactors(OutputSites):
    """The factors of the outputs of a batch. Their updates are written to the store of all frames.

    :param store: the state of all factors, (2, N, F); NaN for frames that were not visited yet.
    :param rows: the frames of the batch, (n,). Default: all.
    :param is_held: whether ``Collapsed_ELBO`` leaves the updates to others.
    """

    def __init__(self, store: Tensor, rows: Tensor | None, is_held: bool = False) -> None:
        super().__init__()
        rows = torch.arange(store.shape[1], device=store.device) if rows is None else rows
        self._place = store, rows
        self.state, self.is_held = store[:, rows], is_held

    def set(self, state: Tensor, mark: int | None = None) -> None:
        super().set(state)
        store, rows = self._place
        store[:, rows] = self.state
