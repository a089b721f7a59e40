# SPDX-License-Identifier: Apache-2.0
"""Items, indices, orders and lengths of sequences, as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from pyro_vgpds.checks import check_kind, check_list, is_whole
from pyro_vgpds.types import ArrayLike

__all__ = ["Items", "in_memory", "is_map", "read_indices", "read_item", "read_lengths", "read_order"]


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


def read_indices(
    indices: Sequence[int] | Tensor, count: int, kind: str, empty: bool = False, name: str = "indices"
) -> list[int]:
    """Indices, different from each other, as a list.

    :param empty: whether there may be none.
    :raises ValueError: if one does not exist or repeats.
    """
    if not isinstance(indices, range):
        check_list(name, indices, f"a list of {kind}")
    given = np.asarray(indices).tolist() if hasattr(indices, "tolist") else list(indices)
    given = given if isinstance(given, list) else [given]
    wrong = [i for i in given if not is_whole(i) or not 0 <= i < count]
    if (not given and not empty) or wrong or len(set(given)) < len(given):  # what is hashed is whole numbers
        fault = f"{wrong[0]!r} is not one" if wrong else "one repeats" if given else "there are 0"
        raise ValueError(f"{name} must be different {kind} from 0 to {count - 1}, but {fault}.")
    return [int(i) for i in given]


def read_order(order: Tensor | None, count: int, kind: str) -> Tensor:
    """A permutation of all sequences or frames, (count,), or else a ValueError. Default: as they are."""
    order = torch.arange(count) if order is None else order
    check_kind("order", order, Tensor, f"a tensor of all {kind} in an order")
    if order.dtype != torch.long or not torch.equal(order.sort().values, torch.arange(count)):
        raise ValueError(f"order must have each of the {count} {kind} once, but got {order!r:.80}.")
    return order


def read_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """Numbers of frames; a TypeError if they are not a list of whole numbers."""
    check_list("lengths", lengths, "a list of numbers of frames")
    given = [] if getattr(lengths, "ndim", 1) != 1 else list(lengths)
    if not given or not all(is_whole(n) for n in given):
        raise TypeError(f"lengths must be whole numbers of frames, one for each sequence, but got {lengths!r:.80}.")
    return tuple(int(n) for n in given)


def in_memory(value: ArrayLike) -> ArrayLike:
    """A memory-mapped array as one in memory: a batch is small and is read once."""
    return np.array(value) if isinstance(value, np.memmap) else value
