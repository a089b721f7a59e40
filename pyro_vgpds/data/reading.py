# SPDX-License-Identifier: Apache-2.0
"""Times and outputs as users have them (numpy, torch, pandas, lists), checked and as arrays."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.data.dates import to_seconds, to_utc
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["Array", "is_list", "read_names", "read_outputs", "read_times", "to_tensor", "view"]

Array: TypeAlias = "np.ndarray | Tensor"


def is_list(value: object) -> TypeGuard[Sequence[ArrayLike]]:
    """Whether ``value`` is a list of sequences, and not one sequence written as a list of numbers."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and not all(np.ndim(v) == 0 for v in value)


def read_times(
    t: DataLike, origin: np.datetime64 | None = None, increasing: bool = True
) -> tuple[list[np.ndarray], Any]:
    """Times as one array of numbers for each sequence, and the date that they count from, if they are dates.

    :param origin: the date to count from. Default: the earliest.
    :param increasing: raise an error if times repeat or decrease.
    """
    parts: list[ArrayLike] = list(t) if is_list(t) else [t]
    if isinstance(t, (list, tuple)) and len(t) == 0:
        raise ValueError("t is empty: there must be at least one sequence with at least one time.")
    names = [f"t[{i}]" if is_list(t) else "t" for i in range(len(parts))]
    raw = [_as_numpy(to_utc(part), name) for part, name in zip(parts, names, strict=True)]
    if any(a.dtype.kind == "M" for a in raw):
        if not all(a.dtype.kind == "M" for a in raw):
            raise TypeError("t has dates in some sequences and numbers in others; use one kind for all.")
        origin = min(a.min() for a in raw if len(a)) if origin is None else origin
        raw = [to_seconds(a, origin) for a in raw]
    else:
        origin = None
    return [_check_times(a, name, increasing) for a, name in zip(raw, names, strict=True)], origin


def read_names(names: Sequence[str] | None, count: int) -> list[str] | None:
    """Names of ``count`` sequences, which must differ."""
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be a list of strings, one for each sequence, but got {names!r}.")
    if len(names) != count or len(set(names)) < count:
        raise ValueError(f"names must be {count} different names, one for each sequence, but got {list(names)}.")
    return list(names)


def _check_times(t: np.ndarray, name: str, increasing: bool) -> np.ndarray:
    if t.ndim != 1:
        hint = " Times come first, then outputs: Sequences(t, y)." if t.ndim == 2 and t.shape[1] > 1 else ""
        raise ValueError(f"{name} must have one dimension, (N,), but its shape is {t.shape}.{hint}")
    if len(t) == 0:
        raise ValueError(f"{name} is empty: a sequence needs at least one time.")
    if t.dtype.kind not in "fiub":
        hint = {
            "U": f" Convert text to dates with np.array({name}, 'datetime64[s]').",
            "m": f" Convert durations to numbers, such as hours: {name} / np.timedelta64(1, 'h').",
        }.get(t.dtype.kind, "")
        raise TypeError(f"{name} must be numbers or dates, but its dtype is {t.dtype}.{hint}")
    t = t.astype(np.float64)
    if not np.isfinite(t).all():
        i = int(np.flatnonzero(~np.isfinite(t))[0])
        raise ValueError(f"{name} must be finite, but {name}[{i}] is {t[i]}.")
    step = np.diff(t)
    if increasing and (step <= 0).any():
        i = int(np.flatnonzero(step <= 0)[0])
        fault = f"repeats {t[i]}" if step[i] == 0 else f"decreases from {t[i]} to {t[i + 1]}"
        raise ValueError(
            f"{name} must increase, but it {fault} at index {i + 1}. Sort t and y together (order = t.argsort()), "
            "merge frames of the same time, or, if a new sequence begins there, pass a list with one array for each "
            "sequence (for a DataFrame, the column of their names: Sequences.from_frame(frame, sequence=...))."
        )
    return t


def read_outputs(
    y: DataLike, stamps: list[np.ndarray], several: bool, argument: str = "y"
) -> tuple[list[Array], list[str] | None]:
    """Outputs as one array (n, D) for each sequence, and the names of their columns if they have names.

    :param stamps: the times of each sequence.
    :param several: whether the times were given as a list of sequences.
    :param argument: the argument that ``y`` was given as, for errors.
    """
    if several and not isinstance(y, (list, tuple)):
        raise ValueError(
            f"t is a list of {len(stamps)} sequences, so {argument} must be a list of the same length, but got "
            f"{type(y).__name__}."
        )
    parts: list[ArrayLike] = list(y) if several else [y]
    if len(parts) != len(stamps):
        raise ValueError(f"t has {len(stamps)} sequences, but {argument} has {len(parts)}.")
    arrays: list[Array] = []
    names: list[str] | None = None
    for i, (part, t) in enumerate(zip(parts, stamps, strict=True)):
        name = f"{argument}[{i}]" if several else argument
        own = [str(c) for c in part.columns] if hasattr(part, "columns") else None
        if i > 0 and own != names:
            raise ValueError(f"{name} has columns {own}, but the sequences before it have {names}.")
        names = own
        array = _check_outputs(part, name, len(t))
        if arrays and array.shape[1] != arrays[0].shape[1]:
            raise ValueError(
                f"{name} has {array.shape[1]} columns, but the sequences before it have {arrays[0].shape[1]}."
            )
        arrays.append(array)
    return arrays, names


def _check_outputs(part: ArrayLike, name: str, num_times: int) -> Array:
    array = part.detach() if isinstance(part, Tensor) else _as_numpy(part, name)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2:
        raise ValueError(f"{name} must be (N, D), frames by outputs, but its shape is {tuple(array.shape)}.")
    if len(array) != num_times:
        hint = f" {name}.T has as many rows as there are times." if array.shape[1] == num_times else ""
        raise ValueError(f"{name} has {len(array)} rows, but {num_times} times: each frame needs one time.{hint}")
    if array.shape[1] == 0:
        raise ValueError(f"{name} has no columns: there must be at least one output.")
    real = not array.is_complex() if isinstance(array, Tensor) else array.dtype.kind in "fiub"
    if not real:
        raise TypeError(f"{name} must be real numbers, but its dtype is {array.dtype}.")
    return array


def _as_numpy(value: ArrayLike, name: str) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        return np.ma.filled(value.astype(np.float64), np.nan)
    if isinstance(value, np.ndarray):  # a memmap stays a memmap
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    if array.dtype.kind == "O":
        try:  # pandas has many ways to mark missing values
            array = (
                value.to_numpy(dtype=np.float64, na_value=np.nan) if hasattr(value, "to_numpy") else array.astype(float)
            )
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be numbers, but holds other objects: {error}") from None
    return array


def view(array: np.ndarray) -> Tensor:
    """A tensor on the memory of ``array``."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # nothing here writes to it
        return torch.from_numpy(array)


def to_tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """A copy on the CPU."""
    if isinstance(array, Tensor):
        return array.to("cpu", dtype, copy=True)
    return torch.from_numpy(np.array(array, dtype=np.float64 if dtype == torch.float64 else np.float32))
