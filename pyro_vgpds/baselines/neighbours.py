# SPDX-License-Identifier: Apache-2.0
"""The paper's baseline: the training frames nearest to the observed part of a test frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Filled
from pyro_vgpds.checks import as_numbers, check_flags, is_whole
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["as_given", "nearest_neighbour", "read_pair"]


def nearest_neighbour(train: DataLike | Sequences, test: DataLike, k: int = 1, scaled: bool = False) -> Filled:
    """Fill the NaN of test frames with the mean of the k training frames that are nearest in the observed columns.

    A frame without observations is filled with the mean of all training frames.

    :param train: frames (N, D) without NaN, or a list of them, one per sequence, or :class:`~pyro_vgpds.Sequences`.
    :param test: frames (N*, D) with NaN, or a list of them.
    :param k: number of neighbours to average.
    :param scaled: divide each column by its standard deviation in ``train`` (with N - 1) to compute distances.
    :returns: float64 (N*, D) without NaN, or a list of them.
    :raises ValueError: if shapes disagree, ``train`` is not finite, or k is not between 1 and N.

    >>> from pyro_vgpds.baselines import nearest_neighbour
    >>> nearest_neighbour([[0.0, 5.0], [10.0, 7.0]], [[9.0, float("nan")]]).tolist()
    [[9.0, 7.0]]
    """
    known, parts = read_pair(train, test)
    check_flags(scaled=scaled)
    frames, filled = torch.cat(known), torch.cat(parts)
    if not is_whole(k) or not 1 <= k <= len(frames):
        raise ValueError(f"k must be between 1 and the {len(frames)} training frames, but got {k!r:.80}.")
    scale = torch.ones_like(frames[0])
    if scaled and len(frames) > 1:
        spread = frames.std(0, unbiased=True)
        scale = torch.where(spread > 0, spread, 1.0)
    for row in filled:
        seen = ~torch.isnan(row)
        if bool(seen.all()):
            continue
        if not bool(seen.any()):
            row[:] = frames.mean(0)
            continue
        distance = ((frames[:, seen] - row[seen]) / scale[seen]).square().sum(1)
        nearest = distance.topk(k, largest=False).indices
        row[~seen] = frames[nearest][:, ~seen].mean(0)
    return as_given(filled, test, parts)


def read_pair(train: DataLike | Sequences, test: DataLike) -> tuple[list[Tensor], list[Tensor]]:
    """Training frames without NaN and test frames with NaN, (n, D) for each sequence, as float64 on the CPU."""
    if isinstance(train, Sequences):
        train = [train.read()[rows] for rows in train.times.slices()]
    known, parts = _read("train", train), _read("test", test)
    if not all(bool(part.isfinite().all()) for part in known):
        raise ValueError("train must be finite: impute missing values first, for example by linear_interpolation.")
    if parts[0].shape[1] != known[0].shape[1]:
        raise ValueError(f"test has {parts[0].shape[1]} columns, but train has {known[0].shape[1]}.")
    if any(bool(part.isinf().any()) for part in parts):
        raise ValueError("test must be finite or NaN, but has infinite values.")
    return known, parts


def as_given(filled: Tensor, test: DataLike, parts: Sequence[Tensor]) -> Filled:
    """Frames of all sequences (N*, D) as ``test`` was given: one tensor, or a list with one for each sequence."""
    return list(filled.split([len(part) for part in parts])) if _is_list(test) else filled


def _is_list(value: DataLike) -> TypeGuard[Sequence[ArrayLike]]:
    """Whether ``value`` is a list with one (N, D) for each sequence."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and np.ndim(value[0]) == 2


def _read(name: str, value: DataLike) -> list[Tensor]:
    if _is_list(value):
        parts = [part for i, one in enumerate(value) for part in _read(f"{name}[{i}]", one)]
        widths = [part.shape[1] for part in parts]
        if len(set(widths)) > 1:
            raise ValueError(f"all sequences of {name} must have the same number of columns, but got {widths}.")
        return parts
    array = torch.from_numpy(as_numbers(name, value).copy())
    if array.dim() != 2 or array.numel() == 0:
        raise ValueError(f"{name} must be frames (N, D), but its shape is {tuple(array.shape)}.")
    return [array]
