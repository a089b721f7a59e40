# SPDX-License-Identifier: Apache-2.0
"""Indices, orders and lengths of sequences, as users give them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import is_whole
from pyro_vgpds.kinds import check_kind, check_list

__all__ = ["read_indices", "read_lengths", "read_order"]


def read_indices(
    indices: Sequence[int] | Tensor, count: int, kind: str, empty: bool = False, name: str = "indices"
) -> list[int]:
    """Indices, different from each other, as a list.

    :param kind: what they are, for an error.
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
