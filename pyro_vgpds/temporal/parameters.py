# SPDX-License-Identifier: Apache-2.0
"""The parameters of a program as one matrix, and its gradient as those of the parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_vgpds.kernels.programs import Program

__all__ = ["split_gradient", "stacked", "white_of", "with_white"]


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Parameters (1,) or (K,) as (P, K)."""
    count = max(x.shape[0] for x in tensors)
    return torch.stack([x if x.shape[0] == count else x.expand(count) for x in tensors])


def split_gradient(gradient: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The gradient (P, K) for parameters (1,) or (K,)."""
    count, rows = gradient.shape[1], gradient.unbind()
    return [own if x.shape[0] == count else own.sum(0, True) for own, x in zip(rows, tensors, strict=True)]


def white_of(program: Program, values: Tensor) -> Tensor:
    """The variance of the white noise, (K, 1)."""
    rows = program.white
    if len(rows) == 1:
        return values[rows[0]].unsqueeze(-1)
    return values[list(rows)].sum(0).unsqueeze(-1) if rows else values.new_zeros(values.shape[1], 1)


def with_white(program: Program, gradient: Tensor, white: Tensor) -> Tensor:
    """The gradient (P, K), with that in the variance of the white noise, of each chain or kernel, put in its place."""
    if program.white:
        white = white if white.shape[0] == gradient.shape[1] else white.sum(0, True)
        for row in program.white:
            gradient[row] = white
    return gradient
