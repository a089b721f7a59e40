# SPDX-License-Identifier: Apache-2.0
"""The base class of our distributions: their tensors broadcast, so that ``expand`` copies nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

from pyro_vgpds.types import Shape

__all__ = ["IntegratedDistribution", "MatrixDistribution"]

D = TypeVar("D", bound="MatrixDistribution")


class MatrixDistribution(TorchDistribution):
    """A distribution of real matrices whose batch shape is independent of the shapes of its tensors."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.independent(constraints.real, 2)

    def expand(self: D, batch_shape: Iterable[int], _instance: object = None) -> D:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._batch_shape = torch.Size(batch_shape)
        return new


class IntegratedDistribution(MatrixDistribution):
    """Outputs with latent variables integrated out: only their bound is computed."""

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} is for the bound; sample the model itself.")
