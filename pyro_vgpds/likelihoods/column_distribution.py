# SPDX-License-Identifier: Apache-2.0
"""Independent outputs with different distributions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.linalg import broadcast_shapes
from pyro_vgpds.matrix_distribution import MatrixDistribution
from pyro_vgpds.types import Shape

__all__ = ["ColumnDistribution", "joined_outputs"]


def joined_outputs(parts: Sequence[Tensor], order: Tensor) -> Tensor:
    """Numbers (..., d) of the outputs of each part side by side, in another order, (..., D)."""
    shape = broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(shape + part.shape[-1:]) for part in parts], -1)[..., order]


class ColumnDistribution(MatrixDistribution):
    """Independent outputs with different distributions, of batch shape (..., D).

    :param parts: distributions of batch shape (..., d).
    :param outputs: the indices (d,) of their outputs.
    """

    def __init__(self, parts: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        self.parts, self.outputs = list(parts), list(outputs)
        self._order = torch.cat(self.outputs).argsort()
        batch = broadcast_shapes(*(part.batch_shape[:-1] for part in parts))
        super().__init__(batch + self._order.shape, torch.Size(()), validate_args=False)

    def _joined(self, found: Sequence[Tensor]) -> Tensor:
        return joined_outputs(found, self._order)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._joined([part.log_prob(value[..., i]) for part, i in zip(self.parts, self.outputs, strict=True)])

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            drawn = [part.sample(torch.Size(sample_shape)) for part in self.parts]
            dtype = functools.reduce(torch.promote_types, [each.dtype for each in drawn])
            return self._joined([each.to(dtype) for each in drawn])

    @property
    def mean(self) -> Tensor:
        return self._joined([part.mean for part in self.parts])

    @property
    def variance(self) -> Tensor:
        return self._joined([part.variance for part in self.parts])
