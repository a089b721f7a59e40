# SPDX-License-Identifier: Apache-2.0
"""Which latent dimensions a model uses."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.kernels import Kernel

__all__ = ["Relevance", "mapping_weights"]

_ACTIVE = 0.05  # share of the largest relevance above which a dimension is active


class Relevance(NamedTuple):
    """The relevance of each latent dimension, and whether it is active.

    >>> value, active = model.relevance(guide, data)
    >>> value.shape, active.dtype
    (torch.Size([3]), torch.bool)
    """

    value: Tensor  #: (Q,), weight times spread
    active: Tensor  #: (Q,) of bool

    @classmethod
    def of(cls, value: Tensor) -> Relevance:
        """Active dimensions have at least 5 % of the largest value.

        :param value: (Q,).
        """
        return cls(value, value >= _ACTIVE * value.max())


def mapping_weights(mapping: Kernel, latent_dim: int) -> Tensor:
    """The weights (Q,) of the latent dimensions in a mapping kernel, summed over its parts, of which one has some."""
    leaves = [leaf for leaf in mapping.leaves() if "weight" in leaf.parameter_names]
    if not leaves:
        raise ValueError(f"the mapping kernel has no weights of latent dimensions: {mapping}.")
    # a random weight counts by the mean of its prior, because reading it would draw it
    means: list[Any] = [getattr(leaf.prior("weight"), "mean", None) for leaf in leaves]
    weights = [leaf.weight if mean is None else mean for mean, leaf in zip(means, leaves, strict=True)]
    return torch.stack([weight.expand(latent_dim) for weight in weights]).sum(0)
