# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: numbers, tensors, flags, strings, lists, files, functions and objects of a class."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

__all__ = [
    "as_numbers", "check_callable", "check_choice", "check_count", "check_device", "check_dict", "check_dtype",
    "check_flags", "check_horizon", "check_kind", "check_lengths", "check_list", "check_noise", "check_not_negative",
    "check_number", "check_parts", "check_path", "check_probability", "check_rate", "check_seed", "check_tensor",
    "check_texts", "constrained", "find_output", "finite", "is_real", "is_whole", "plain", "positive", "undefined",
]  # fmt: skip

_MOST = 2**31  # more than any count that fits into memory
_REAL = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8,
)  # fmt: skip


def is_whole(value: object) -> TypeGuard[int]:
    """Whether ``value`` is an integer of any type, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(name: str, value: object, least: int = 1, what: str = "a whole number") -> None:
    """Raise a ValueError, which says ``what`` is wanted, if ``value`` is not an integer of at least ``least``."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be {what} of at least {least}, but got {value!r:.80}.")
    if value >= _MOST:
        raise ValueError(f"{name} must be less than 2**31, but got {value!r:.80}.")


def check_seed(seed: object) -> None:
    """Raise a ValueError if ``seed`` is not a whole number that all generators of random numbers take."""
    if not is_whole(seed) or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, but got {seed!r:.80}.")


def check_horizon(horizon: object) -> None:
    """Raise a ValueError if ``horizon`` is not a number of frames; a duration such as ``"24h"`` is not."""
    check_count("horizon", horizon, what="a number of frames, a whole number")


def check_device(device: torch.device | str | None) -> torch.device:
    """The device of computations; a ValueError if torch cannot use it on this machine."""
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(1, device=found)
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
        fault = str(error).splitlines()[0][:200]
        raise ValueError(f"device must be one that torch can use, such as 'cpu', but got {device!r}: {fault}") from None
    return found


def check_dtype(dtype: object) -> None:
    """Raise a TypeError if ``dtype`` is not float64 or float32."""
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float64, torch.float32):
        raise TypeError(f"dtype must be torch.float64 or torch.float32, but got {dtype!r:.80}.")


def check_rate(name: str, value: object) -> None:
    """Raise a ValueError if ``value`` is not a number in (0, 1]."""
    check_number(name, value, "in (0, 1]", lambda value: 0.0 < value <= 1.0)


def check_not_negative(name: str, value: object) -> None:
    """Raise a ValueError if ``value`` is not a finite number of 0 or more."""
    check_number(name, value, "finite and 0 or more", lambda value: value >= 0.0)


def check_lengths(length: object) -> None:
    """Raise a ValueError if ``length`` is not a pair of whole numbers, the smallest and the largest length."""
    pair = tuple(length) if isinstance(length, (tuple, list)) else ()
    if len(pair) != 2 or not all(is_whole(one) for one in pair) or not 1 <= pair[0] <= pair[1]:
        raise ValueError(f"length must be (shortest, longest) with 1 <= shortest <= longest, but got {length!r:.80}.")


def check_noise(noise: object, num_outputs: int, name: str = "noise") -> Tensor:
    """A noise variance as a positive tensor, (D,) or a scalar (also if it was given as (1,) or (1, 1))."""
    value = positive(name, noise)
    if value.numel() == 1 and value.shape != (num_outputs,):
        return value.reshape(())
    if value.dim() > 1 or (value.dim() == 1 and len(value) != num_outputs):
        raise ValueError(f"{name} must be one number or ({num_outputs},), but its shape is {tuple(value.shape)}.")
    return value


def is_real(value: object) -> bool:
    """Whether ``value`` is one real number, also as a tensor or array without dimensions, and not a bool."""
    if isinstance(value, Tensor):
        return value.dim() == 0 and value.dtype != torch.bool and not value.is_complex()
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "fiu"
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_number(
    name: str, value: Any, wanted: str, is_right: Callable[[float], bool] = lambda value: True, default: str = ""
) -> None:
    """Raise a ValueError, which says what is ``wanted``, if ``value`` is not one finite number that ``is_right``.

    :param default: what else is allowed, for the error.
    """
    if not is_real(value) or not _is_finite(value) or not is_right(float(value)):
        raise ValueError(f"{name} must be {wanted}{default and f' or {default}'}, but got {value!r:.80}.")


def _is_finite(value: float) -> bool:
    """Whether a number is finite, and not an integer that is too large for tensors."""
    return abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)


def check_probability(value: float, name: str = "probability") -> None:
    """Raise a ValueError if ``value`` is not strictly between 0 and 1."""
    check_number(name, value, "between 0 and 1", lambda value: 0.0 < value < 1.0)


def positive(name: str, value: object) -> Tensor:
    """A copy of ``value`` as a floating-point tensor, checked to be finite and positive."""
    tensor = _numbers(name, value, "a positive number")
    if tensor.numel() == 0 or not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
        raise ValueError(f"{name} must be positive and finite, but got {value!r}.")
    return tensor.detach().clone()


def constrained(name: str, value: object, constraint: constraints.Constraint) -> Tensor:
    """A copy of ``value`` as a floating-point tensor, checked to be finite and to satisfy the constraint."""
    tensor = _numbers(name, value, "a number")
    if tensor.numel() == 0 or not bool((torch.isfinite(tensor) & constraint.check(tensor)).all()):
        raise ValueError(f"{name} must be finite and satisfy {constraint}, but got {value!r}.")
    return tensor.detach().clone()


def finite(name: str, value: object) -> Tensor:
    """``value`` as a floating-point tensor, checked to be finite."""
    tensor = _numbers(name, value, "numbers, an array")
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite, but it has values that are not.")
    return tensor


def as_numbers(name: str, value: object) -> np.ndarray:
    """An array, a tensor, a table or nested lists of numbers, also NaN and infinity, as float64; else a TypeError."""
    try:
        if value is None:
            raise TypeError
        array = np.ma.filled(value, np.nan) if isinstance(value, np.ma.MaskedArray) else value
        array = np.asarray(array.detach().cpu() if isinstance(array, Tensor) else array)
        if array.dtype.kind == "O" and not any(isinstance(one, (str, bytes, dict)) for one in array.flat):
            array = array.astype(np.float64)  # missing values of pandas, for example
        if array.dtype.kind not in "fiub":
            raise TypeError
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError):
        raise TypeError(f"{name} must be numbers, as an array, a tensor or lists, but got {value!r:.80}.") from None


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a ValueError if ``value`` is not one of some words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, but got {value!r:.80}.")


def find_output(argument: str, output: int | str, columns: Sequence[str] | None, count: int) -> int:
    """The index of one of ``count`` outputs, given by name or index in the argument of this name; else a ValueError."""
    if isinstance(output, str):
        if columns is None or output not in columns:
            raise ValueError(f"{argument} must be one of {columns or f'0 to {count - 1}'}, but got {output!r}.")
        return columns.index(output)
    if not is_whole(output) or not -count <= output < count:
        raise ValueError(f"{argument} must be a whole number from 0 to {count - 1}, but got {output!r:.80}.")
    return int(output) % count


def _numbers(name: str, value: object, what: str) -> Tensor:
    try:
        kind = value.dtype if isinstance(value, Tensor) else np.asarray(value).dtype.kind
        if kind not in ("f", "i", "u") and not (isinstance(kind, torch.dtype) and kind in _REAL):
            raise TypeError
        keep = isinstance(value, Tensor) and value.is_floating_point()
        return plain(name, torch.as_tensor(value, dtype=None if keep else torch.float64))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{name} must be {what} or tensor, but got {value!r:.200}.") from None


def check_tensor(name: str, value: object, dims: int = 0, optional: bool = False) -> None:
    """Raise an error if ``value`` is not a tensor of real numbers with at least ``dims`` dimensions."""
    if value is None and optional:
        return
    if not isinstance(value, Tensor) or value.dtype not in _REAL:
        raise TypeError(f"{name} must be a tensor of real numbers, but got {value!r:.80}.")
    if plain(name, value).dim() < dims:
        raise ValueError(f"{name} must have at least {dims} dimensions, but its shape is {tuple(value.shape)}.")


def plain(name: str, tensor: Tensor) -> Tensor:
    """``tensor`` itself; a TypeError if its numbers are not in memory one by one, as those of a sparse tensor."""
    if tensor.layout != torch.strided or tensor.is_meta:
        raise TypeError(f"{name} must be a dense tensor with values, but got {tensor!r:.80}.")
    return tensor


def undefined(owner: object, method: str) -> NotImplementedError:
    """The error for a method that a subclass must define."""
    return NotImplementedError(f"{type(owner).__name__} must define {method}.")


def check_kind(name: str, value: object, kind: type | tuple[type, ...], wanted: str, optional: bool = False) -> None:
    """Raise a TypeError, which says what is ``wanted``, if ``value`` is not an instance of a class."""
    if not isinstance(value, kind) and not (optional and value is None):
        raise TypeError(f"{name} must be {wanted}{' or None' if optional else ''}, but got {value!r:.80}.")


def check_parts(name: str, value: object, wanted: str, *parts: str) -> None:
    """Raise a TypeError, which says what is ``wanted``, if an object of any class lacks one of these attributes."""
    if isinstance(value, (type, np.ndarray, np.generic)) or not all(hasattr(value, part) for part in parts):
        raise TypeError(f"{name} must be {wanted}, but got {value!r:.80}.")


def check_flags(**flags: object) -> None:
    """Raise a TypeError if one of some arguments is not True or False.

    >>> from pyro_vgpds.checks import check_flags
    >>> check_flags(fill=True, include_noise="no")
    Traceback (most recent call last):
    TypeError: include_noise must be True or False, but got 'no'.
    """
    for name, value in flags.items():
        if not isinstance(value, (bool, np.bool_)) and not (is_whole(value) and value in (0, 1)):
            raise TypeError(f"{name} must be True or False, but got {value!r:.80}.")


def check_callable(name: str, value: object, wanted: str = "a function", optional: bool = False) -> None:
    """Raise a TypeError if ``value`` cannot be called."""
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{name} must be {wanted}{' or None' if optional else ''}, but got {value!r:.80}.")


def check_path(name: str, value: object, optional: bool = False) -> None:
    """Raise an error if ``value`` is not the name of a file: a TypeError, or a ValueError for an empty string."""
    if value is None and optional:
        return
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name} must be the name of a file, a string or Path, but got {value!r:.80}.")
    if not text or "\0" in text:
        raise ValueError(f"{name} must be the name of a file, but got {text!r:.80}.")


def check_list(name: str, value: object, wanted: str = "a list", optional: bool = False) -> None:
    """Raise a TypeError if ``value`` is not a list; also a tuple, an array, or a series or index of pandas is one."""
    if value is None and optional:
        return
    is_one = isinstance(value, (np.ndarray, Tensor)) and value.ndim == 0
    is_other = isinstance(value, (str, bytes, Mapping, set, frozenset, type)) or hasattr(value, "columns")
    if is_one or is_other or not (isinstance(value, Iterable) and isinstance(value, Sized)):
        raise TypeError(f"{name} must be {wanted}, but got {value!r:.80}.")
    if isinstance(value, Tensor):
        plain(name, value)


def check_dict(name: str, value: object, wanted: str, kind: type | tuple[type, ...]) -> None:
    """Raise a TypeError if ``value`` is not a dictionary of things of one kind, or a ValueError if it is empty."""
    if not isinstance(value, Mapping) or not all(isinstance(one, kind) for one in value.values()):
        raise TypeError(f"{name} must be {wanted}, but got {value!r:.80}.")
    if not value:
        raise ValueError(f"{name} must be {wanted} with at least one entry, but it is empty.")


def check_texts(name: str, value: object, optional: bool = False) -> None:
    """Raise a TypeError if ``value`` is not a list of strings."""
    if value is None and optional:
        return
    check_list(name, value, "a list of strings")
    wrong = [one for one in value if not isinstance(one, str)]  # type: ignore[attr-defined]
    if wrong:
        raise TypeError(f"{name} must be a list of strings, but one of them is {wrong[0]!r:.80}.")
