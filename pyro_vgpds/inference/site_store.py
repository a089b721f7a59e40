# SPDX-License-Identifier: Apache-2.0
"""Where the sites η and λ of all frames are: in memory, or in a file that is mapped into memory."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from pyro_vgpds.kinds import check_path
from pyro_vgpds.types import PathLike

__all__ = ["site_store"]


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
