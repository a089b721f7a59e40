# SPDX-License-Identifier: Apache-2.0
"""Times, outputs and exposures as users have them (numpy, torch, pandas, lists), checked and as arrays."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import as_numbers, check_texts, plain
from pyro_vgpds.data.dates import common_zone, format_times, has_dates, read_dates, to_dates, to_seconds
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = [
    "Array", "Stamps", "is_list", "join_exposures", "read_exposure", "read_names", "read_outputs", "read_times",
    "to_tensor", "view",
]  # fmt: skip

Array: TypeAlias = "np.ndarray | Tensor"


def is_list(value: object) -> TypeGuard[Sequence[ArrayLike]]:
    """Whether ``value`` is a list of sequences, and not one sequence written as a list of numbers."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and not all(np.ndim(v) == 0 for v in value)


class Stamps(NamedTuple):
    """Times as numbers."""

    parts: list[np.ndarray]  #: one array for each sequence
    origin: np.datetime64 | None  #: the date that they count from, UTC; None if they are not dates
    zone: str | None  #: the time zone of the dates, if they have one


def read_times(t: DataLike, origin: np.datetime64 | None = None, increasing: bool = True) -> Stamps:
    """Times as one array of numbers for each sequence, and the date that they count from, if they are dates.

    :param origin: the date to count from. Default: the earliest.
    :param increasing: raise an error if times repeat or decrease.
    """
    parts: list[ArrayLike] = list(t) if is_list(t) else [t]
    if isinstance(t, (list, tuple)) and len(t) == 0:
        raise ValueError("t is empty: there must be at least one sequence with at least one time.")
    names = [f"t[{i}]" if is_list(t) else "t" for i in range(len(parts))]
    found = [read_dates(part, name) for part, name in zip(parts, names, strict=True)]
    dated = [one for one in found if one is not None]
    zone = None
    if not dated:
        origin = None
        raw = [_as_numpy(part, name) for part, name in zip(parts, names, strict=True)]
    elif len(dated) < len(parts):
        raise TypeError("t has dates in some sequences and numbers in others; use one kind for all.")
    else:
        zones = {one[1] for one in dated}
        if len(zones) > 1 and None in zones:
            raise TypeError("t has dates with a time zone in some sequences and without one in others; use one kind.")
        zone = common_zone({one for one in zones if one is not None})
        start = min((a.min() for a, _ in dated if a.size), default=np.datetime64(0, "ns")) if origin is None else origin
        raw, origin = [to_seconds(a, start) for a, _ in dated], start
    checked = [_check_times(a, name, increasing, origin) for a, name in zip(raw, names, strict=True)]
    return Stamps(checked, origin, zone)


def read_names(names: Sequence[str] | None, count: int) -> list[str] | None:
    """Names of ``count`` sequences, which must differ."""
    if names is None:
        return None
    check_texts("names", names)
    if len(names) != count or len(set(names)) < count:
        raise ValueError(f"names must be {count} different names, one for each sequence of t, but got {list(names)}.")
    return list(names)


def _check_times(t: np.ndarray, name: str, increasing: bool, origin: np.datetime64 | None) -> np.ndarray:
    if t.ndim != 1:
        hint = " Times come first, then outputs: Sequences(t, y)." if t.ndim == 2 and t.shape[1] > 1 else ""
        if t.ndim == 0:
            hint = " Give a list or an array of times, also for a single one."
        raise ValueError(f"{name} must have one dimension, (N,), but its shape is {t.shape}.{hint}")
    if len(t) == 0:
        raise ValueError(f"{name} is empty: a sequence needs at least one time.")
    if t.dtype.kind not in "fiu":
        hint = {
            "U": f" Convert text to dates with np.array({name}, 'datetime64[s]').",
            "m": f" Convert durations to hours: np.array({name}, 'timedelta64[us]') / np.timedelta64(1, 'h').",
        }.get(t.dtype.kind, "")
        raise TypeError(f"{name} must be numbers or dates, but its dtype is {t.dtype}.{hint}")
    t = t.astype(np.float64)
    if not np.isfinite(t).all():
        i = int(np.flatnonzero(~np.isfinite(t))[0])
        raise ValueError(f"{name} must be finite, but {name}[{i}] is {t[i]}.")
    step = np.diff(t)
    if increasing and (step <= 0).any():
        i = int(np.flatnonzero(step <= 0)[0])
        before, after = t[i : i + 2] if origin is None else format_times(to_dates(t[i : i + 2], origin))
        fault = f"repeats {before}" if step[i] == 0 else f"decreases from {before} to {after}"
        raise ValueError(
            f"{name} must increase, but it {fault} at index {i + 1}. Sort t and y together (order = t.argsort(), or "
            "frame.sort_index() and frame.sort_values() of a DataFrame), merge frames of the same time, or, if a new "
            "sequence begins there, pass a list with one array for each sequence (for a DataFrame, the column of their "
            "names: Sequences.from_frame(frame, sequence=...))."
        )
    return t


def read_outputs(
    y: DataLike, stamps: list[np.ndarray], several: bool, argument: str = "y"
) -> tuple[list[Array], list[str] | None]:
    """Outputs as one array (n, D) for each sequence, and the names of their columns if they have names.

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
        _check_columns(part, name)
        array = _check_outputs(part, name, len(t))
        if arrays and array.shape[1] != arrays[0].shape[1]:
            raise ValueError(
                f"{name} has {array.shape[1]} columns, but the sequences before it have {arrays[0].shape[1]}."
            )
        arrays.append(array)
    return arrays, names


def _check_columns(part: ArrayLike, name: str) -> None:
    """Raise a TypeError if a column of a DataFrame has dates, which pandas would convert to huge numbers."""
    if not hasattr(part, "columns") or not hasattr(part, "iloc"):
        return
    for i, column in enumerate(part.columns):
        if has_dates(part.iloc[:, i]):
            raise TypeError(
                f"column {column!r} of {name} has dates or durations, but outputs must be numbers. If it has the "
                "times, use it as t, or as time= of Sequences.from_frame; else drop it or convert it to numbers."
            )


def _check_outputs(part: ArrayLike, name: str, num_times: int) -> Array:
    array = plain(name, part).detach() if isinstance(part, Tensor) else _as_numpy(part, name)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2:
        raise ValueError(f"{name} must be (N, D), frames by outputs, but its shape is {tuple(array.shape)}.")
    if len(array) != num_times:
        hint = f" {name}.T has as many rows as there are times." if array.shape[1] == num_times else ""
        raise ValueError(f"{name} has {len(array)} rows, but t has {num_times} times: each frame needs one.{hint}")
    if array.shape[1] == 0:
        raise ValueError(f"{name} has no columns: there must be at least one output.")
    real = not array.is_complex() if isinstance(array, Tensor) else array.dtype.kind in "fiub"
    if not real:
        raise TypeError(f"{name} must be real numbers, but its dtype is {array.dtype}.")
    return array


def _as_numpy(value: ArrayLike, name: str) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        return np.ma.filled(value.astype(np.float64), np.nan)
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":  # a memmap stays a memmap
        return value
    if isinstance(value, Tensor):
        return plain(name, value).detach().cpu().numpy()
    try:
        array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, for example
        raise TypeError(f"{name} must be numbers, as an array, a tensor or lists, but got {value!r:.80}.") from None
    if array.dtype.kind == "O" and any(isinstance(one, datetime.timedelta) for one in array.flat):
        return array.astype("timedelta64[ns]")  # which gets its own error
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
    with np.errstate(over="ignore"):  # numbers that are too large become infinite, which is an error of its own
        return torch.from_numpy(np.array(array, dtype=np.float64 if dtype == torch.float64 else np.float32))


def read_exposure(
    exposure: DataLike | None, lengths: Sequence[int], num_outputs: int, several: bool, device: torch.device
) -> Tensor | None:
    """Exposures (D,), the same in every frame, or (N, D), also from a list of (n, D); None stays None.

    :param num_outputs: D, or 0 if it is not known.
    :param several: whether the times were a list of sequences.
    :raises ValueError: if the shape is another, or an exposure is not positive and finite.
    :raises TypeError: if it is not numbers.
    """
    if exposure is None:
        return None
    if several and is_list(exposure):
        if len(exposure) != len(lengths):
            raise ValueError(f"t has {len(lengths)} sequences, but exposure has {len(exposure)}.")
        parts = [as_numbers(f"exposure[{i}]", part) for i, part in enumerate(exposure)]
        if len({part.shape[1:] for part in parts}) > 1 or parts[0].ndim == 0:
            raise ValueError(f"exposure must be (n, D) for each sequence, but got {[part.shape for part in parts]}.")
        value = np.concatenate(parts)
    else:
        value = as_numbers("exposure", exposure)
    width = num_outputs or value.shape[-1] if value.ndim else 0
    if value.shape not in ((width,), (sum(lengths), width)):
        raise ValueError(
            f"exposure must be (D,) or (N, D) with N = {sum(lengths)} frames and D = {num_outputs or 'any number of'} "
            f"outputs, but its shape is {value.shape}."
        )
    wrong = np.argwhere(~(np.isfinite(value) & (value > 0.0)))
    if len(wrong):
        *row, column = wrong[0].tolist()
        raise ValueError(
            f"exposure must be positive and finite, but it is {float(value[tuple(wrong[0])])!r} for output {column}"
            f"{_frame(row[0], lengths) if row else ''}."
        )
    return torch.from_numpy(value.copy()).to(device)


def _frame(row: int, lengths: Sequence[int]) -> str:
    sequence = 0
    while row >= lengths[sequence]:
        row -= lengths[sequence]
        sequence += 1
    return f", frame {row} of sequence {sequence}"


def join_exposures(exposures: Sequence[tuple[Tensor | None, int]], num_outputs: int) -> Tensor | None:
    """The exposures of data that are joined, each (D,), (N, D) or None with its number of frames; None counts as 1."""
    known = [each for each, _ in exposures if each is not None]
    if not known:
        return None
    if len(known) == len(exposures) and all(each.dim() == 1 and each.equal(known[0]) for each in known):
        return known[0]
    ones = torch.ones(num_outputs, dtype=known[0].dtype, device=known[0].device)
    return torch.cat([(ones if each is None else each).expand(count, num_outputs) for each, count in exposures])
