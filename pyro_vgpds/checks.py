# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several modules share."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

__all__ = [
    "check_count", "check_noise", "check_number", "check_probability", "constrained", "is_real", "is_whole", "positive",
    "undefined",
]  # fmt: skip


def is_whole(value: object) -> TypeGuard[int]:
    """Whether ``value`` is an integer of any type, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise a ValueError if ``value`` is not an integer of at least ``least``."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, but got {value!r}.")


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
    """Raise a ValueError if ``value`` is not one finite number with a property.

    :param wanted: what the number must be, for the error.
    :param is_right: whether a finite number has the property.
    :param default: what else is allowed, for the error.
    """
    if not is_real(value) or not math.isfinite(value) or not is_right(float(value)):
        raise ValueError(f"{name} must be {wanted}{default and f' or {default}'}, but got {value!r:.80}.")


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


def _numbers(name: str, value: object, what: str) -> Tensor:
    keep = isinstance(value, Tensor) and value.is_floating_point()
    try:
        return torch.as_tensor(value, dtype=None if keep else torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be {what} or tensor, but got {value!r}.") from None


def undefined(owner: object, method: str) -> NotImplementedError:
    """The error for a method that a subclass must define."""
    return NotImplementedError(f"{type(owner).__name__} must define {method}.")
