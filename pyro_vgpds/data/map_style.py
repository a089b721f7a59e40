# SPDX-License-Identifier: Apache-2.0
"""Map-style datasets of sequences: items, indices, orders and lengths as users give them, and mapped files of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from pyro_vgpds.checks import check_kind, check_list, check_number, check_path, is_real, is_whole
from pyro_vgpds.types import ArrayLike, PathLike

__all__ = ["Items", "MappedSequences", "in_memory", "is_map", "read_indices", "read_item", "read_lengths", "read_order"]


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


class MappedSequences(Dataset):
    """A dataset of sequences that lie one after the other in ``.npy`` files, which are mapped and never read whole.

    :param y: file of the outputs of all sequences, (N, D).
    :param lengths: the number of frames of each sequence, with sum N.
    :param t: file of the times of all frames, (N,), as numbers that increase within each sequence; or one number, the
        time between two frames of all sequences, which then start at 0.
    :raises ValueError: if a shape does not fit, or ``t`` is not positive.

    >>> import numpy as np
    >>> from pyro_vgpds.data import MappedSequences, SequenceDataset
    >>> np.save("y.npy", np.random.randn(500, 3))
    >>> walks = MappedSequences("y.npy", lengths=[200, 300], t=0.01)
    >>> SequenceDataset(walks)
    SequenceDataset(2 sequences, 500 frames)
    """

    def __init__(self, y: PathLike, lengths: Sequence[int], t: PathLike | float) -> None:
        self.step: float | None = None  #: between two frames, if there are no times
        if is_real(t):
            check_number("t", t, "a positive time between frames, or a file", lambda value: value > 0.0)
            self.step = float(t)  # type: ignore[arg-type]
        self.y, self.t = _mapped("y", y), np.empty(0) if self.step is not None else _mapped("t", t)  # type: ignore[arg-type]
        self.lengths = read_lengths(lengths)
        self._starts = tuple(itertools.accumulate(self.lengths, initial=0))
        if self.y.ndim != 2 or self._starts[-1] != len(self.y) or min(self.lengths, default=0) < 1:
            raise ValueError(
                f"y must be (N, D) and lengths positive numbers with sum N, but y is {self.y.shape} and the sum of "
                f"lengths is {self._starts[-1]}."
            )
        if self.step is None and self.t.shape != (len(self.y),):
            raise ValueError(f"t must be ({len(self.y)},), one time for each frame, but its shape is {self.t.shape}.")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(self._starts[index], self._starts[index + 1])
        t = self.t[rows] if self.step is None else self.step * np.arange(self.lengths[index])
        return np.asarray(t, dtype=np.float64), np.array(self.y[rows])


def _mapped(name: str, path: PathLike) -> np.ndarray:
    check_path(name, path)
    if Path(path).suffix != ".npy":
        raise ValueError(f"{name} must be a .npy file, but got {path}.")
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
