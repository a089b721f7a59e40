# SPDX-License-Identifier: Apache-2.0
"""The paper's baseline: the training frames nearest to the observed part of a test frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import as_numbers, check_flags, is_whole
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["is_list_of_frames", "nearest_neighbour", "read_frames"]


def nearest_neighbour(
    train: DataLike | Sequences, test: DataLike, k: int = 1, scaled: bool = False
) -> Tensor | list[Tensor]:
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
    frames = read_frames("train", train.read() if isinstance(train, Sequences) else train)
    if not bool(torch.isfinite(frames).all()):
        raise ValueError("train must be finite: impute missing values first, for example by linear_interpolation.")
    check_flags(scaled=scaled)
    if not is_whole(k) or not 1 <= k <= len(frames):
        raise ValueError(f"k must be between 1 and the {len(frames)} training frames, but got {k!r:.80}.")
    if is_list_of_frames(test):
        return [_fill(frames, read_frames("test", part), k, scaled) for part in test]
    return _fill(frames, read_frames("test", test), k, scaled)


def _fill(frames: Tensor, test: Tensor, k: int, scaled: bool) -> Tensor:
    if test.shape[1] != frames.shape[1]:
        raise ValueError(f"test has {test.shape[1]} columns, but train has {frames.shape[1]}.")
    if bool(torch.isinf(test).any()):
        raise ValueError("test must be finite or NaN, but has infinite values.")
    scale = torch.ones_like(frames[0])
    if scaled and len(frames) > 1:
        spread = frames.std(0, unbiased=True)
        scale = torch.where(spread > 0, spread, 1.0)
    filled = test.clone()
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
    return filled


def is_list_of_frames(value: DataLike) -> TypeGuard[Sequence[ArrayLike]]:
    """Whether ``value`` is a list with one (N, D) for each sequence."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and np.ndim(value[0]) == 2


def read_frames(name: str, value: DataLike) -> Tensor:
    """Frames as float64 (N, D) on the CPU; those of several sequences are joined. ``name`` is for error messages."""
    if is_list_of_frames(value):
        parts = [read_frames(f"{name}[{i}]", part) for i, part in enumerate(value)]
        if len({part.shape[1] for part in parts}) > 1:
            widths = [part.shape[1] for part in parts]
            raise ValueError(f"all sequences of {name} must have the same number of columns, but got {widths}.")
        return torch.cat(parts)
    array = torch.from_numpy(as_numbers(name, value).copy())
    if array.dim() != 2 or array.numel() == 0:
        raise ValueError(f"{name} must be frames (N, D), but its shape is {tuple(array.shape)}.")
    return array
