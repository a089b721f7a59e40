# SPDX-License-Identifier: Apache-2.0
"""The items of a map-style dataset: sequences (t, y)."""

from __future__ import annotations

from typing import Protocol, TypeGuard

import numpy as np
from torch.utils.data import IterableDataset

from pyro_vgpds.types import ArrayLike

__all__ = ["Items", "in_memory", "is_map", "read_item"]


class Items(Protocol):
    """A map-style dataset: ``torch.utils.data.Dataset``, a list, or anything with a length and items."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[ArrayLike, ArrayLike]: ...


def is_map(source: object) -> TypeGuard[Items]:
    """Whether an object has a length and items."""
    has_items = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    # a number as a tensor or an array has no length
    return has_items and not isinstance(source, IterableDataset) and getattr(source, "ndim", 1) != 0


def read_item(source: Items, i: int) -> tuple[ArrayLike, ArrayLike]:
    """The times and outputs of a sequence; a TypeError if there is no such item, or it is not a pair."""
    try:
        item = source[i]
    except LookupError as error:
        raise TypeError(
            f"source must have items 0 to {len(source) - 1}, as its length says, but item {i} raises {error!r:.80}."
        ) from error
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(f"items of source must be pairs (t, y), but item {i} is a {type(item).__name__}.")
    return item[0], item[1]


def in_memory(value: ArrayLike) -> ArrayLike:
    """A memory-mapped array as one in memory: a batch is small and is read once."""
    return np.array(value) if isinstance(value, np.memmap) else value
