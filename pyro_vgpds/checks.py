# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several modules share."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_count", "check_noise", "is_whole", "positive"]


def is_whole(value: Any) -> bool:
    """A whole number of any kind, and not a truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise a ValueError where ``value`` is not a whole number of at least ``least``."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, but got {value!r}.")


def check_noise(noise: Any, num_outputs: int, name: str = "noise") -> Tensor:
    """A noise variance as a positive tensor, a scalar (also where it came as (1,) or (1, 1)) or (D,)."""
    value = positive(name, noise)
    if value.numel() == 1 and value.shape != (num_outputs,):
        return value.reshape(())
    if value.dim() > 1 or (value.dim() == 1 and len(value) != num_outputs):
        raise ValueError(f"{name} must be one number or ({num_outputs},), but got {tuple(value.shape)}.")
    return value


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def positive(name: str, value: Any) -> Tensor:
    """``value`` as a floating tensor, after a check that all of it is finite and positive."""
    tensor = torch.as_tensor(value, dtype=value.dtype if _is_floating(value) else torch.float64)
    if tensor.numel() == 0 or not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
        raise ValueError(f"{name} must be positive and finite, but got {value!r}.")
    return tensor.detach().clone()
