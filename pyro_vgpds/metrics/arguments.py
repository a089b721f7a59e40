# SPDX-License-Identifier: Apache-2.0
"""Checks of truth and predictions, which all metrics share."""

from __future__ import annotations

import numpy as np

from pyro_vgpds.checks import as_numbers
from pyro_vgpds.types import ArrayLike

__all__ = ["check_entries", "compare", "first_entry", "read_truth"]


def read_truth(truth: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The mask of entries that are not NaN, and the truth. Raises a ValueError if all are NaN."""
    true = as_numbers("truth", truth)
    counts = ~np.isnan(true)
    if not counts.any():
        raise ValueError("truth must have entries that are not NaN, but it is empty or all NaN.")
    return counts, true


def compare(truth: ArrayLike, **others: ArrayLike) -> tuple[np.ndarray, ...]:
    """The mask of entries that are not NaN in the truth, the truth, and the others, after checks."""
    counts, true = read_truth(truth)
    arrays = []
    for name, value in others.items():
        array = as_numbers(name, value)
        if array.shape != true.shape:
            raise ValueError(f"{name} must have the shape of truth, {true.shape}, but got {array.shape}.")
        if not np.isfinite(array[counts]).all():
            raise ValueError(f"{name} must be finite where truth is not NaN.")
        arrays.append(array)
    return counts, true, *arrays


def first_entry(bad: np.ndarray) -> tuple[int, ...]:
    """The indices of the first entry that is true."""
    return tuple(int(i) for i in np.argwhere(bad)[0])


def check_entries(name: str, values: np.ndarray, good: np.ndarray, wanted: str) -> None:
    """Raise a ValueError that names the first entry that is not good."""
    if not good.all():
        place = first_entry(~good)
        raise ValueError(f"{name} must be {wanted}, but entry {place} is {values[place]:g}.")
