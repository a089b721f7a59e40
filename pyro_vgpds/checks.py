# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several modules share."""

from __future__ import annotations

import numbers
from typing import Any

from torch import Tensor

from pyro_vgpds.kernels.base import positive

__all__ = ["check_count", "check_noise", "is_whole"]


def is_whole(value: Any) -> bool:
    """A whole number of any kind, and not a truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise a ValueError where ``value`` is not a whole number of at least ``least``."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, but got {value!r}.")


def check_noise(noise: Any, num_outputs: int) -> Tensor:
    """A noise variance as a positive tensor, a scalar (also where it came as (1,) or (1, 1)) or (D,)."""
    value = positive("noise", noise)
    if value.numel() == 1 and value.shape != (num_outputs,):
        return value.reshape(())
    if value.dim() > 1 or (value.dim() == 1 and len(value) != num_outputs):
        raise ValueError(f"noise must be one number or ({num_outputs},), but got {tuple(value.shape)}.")
    return value
