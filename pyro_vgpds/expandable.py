# SPDX-License-Identifier: Apache-2.0
"""What our distributions share: an expansion that copies nothing, since their tensors broadcast."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from pyro.distributions import TorchDistribution

__all__ = ["Expandable"]

D = TypeVar("D", bound="Expandable")


class Expandable(TorchDistribution):
    """A distribution whose batch shape is only what it says it is."""

    def expand(self: D, batch_shape: Any, _instance: Any = None) -> D:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._batch_shape = torch.Size(batch_shape)
        return new
