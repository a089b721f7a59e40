# SPDX-License-Identifier: Apache-2.0
"""Names for the kinds of arguments that many functions take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas

__all__ = ["ArrayLike", "Context", "DataLike", "DetachedContext", "PathLike", "Shape"]

#: numbers or dates of one sequence: numpy, torch, pandas, or (nested) lists
ArrayLike: TypeAlias = "np.ndarray | Tensor | pandas.DataFrame | pandas.Series | pandas.Index | Sequence[object]"
#: the same for one sequence, or a list with one entry for each of several
DataLike: TypeAlias = "ArrayLike | Sequence[ArrayLike]"
#: the name of a file
PathLike: TypeAlias = "str | os.PathLike[str]"
#: the shape of a tensor, such as the ``sample_shape`` of draws
Shape: TypeAlias = "torch.Size | list[int] | tuple[int, ...]"


class Context(Protocol):
    """What torch gives to the forward and backward pass of a custom function."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class DetachedContext:
    """A context without autograd, for those who call the forward and backward pass of a custom function themselves."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors  # type: ignore[assignment]

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        pass
