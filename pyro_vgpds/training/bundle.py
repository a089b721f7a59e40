# SPDX-License-Identifier: Apache-2.0
"""Many small tensors at once: copies of all parameters in one compiled call."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library

__all__ = ["Bundle", "Packed", "are_finite", "copies", "library"]


#: the compiled functions of training
library = Library(
    f"{__package__}._adam", adam_averages="n p rr i ppppp", adam_move="n ppp rrrr pppp", bundle_copy="n ppp"
)


def copies(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The current values of parameters."""
    return [parameter.detach().clone() for parameter in parameters]


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers of tensors of the same dtype are finite, and so is their sum; all are read at once, because
    most tensors are a handful of numbers.
    """
    return not tensors or math.isfinite(
        torch.cat([x if x.dim() == 1 else x.flatten() for x in tensors]).sum(dtype=torch.float64)
    )


class Packed(Sequence[Tensor]):
    """Tensors in one vector."""

    def __init__(self, vector: Tensor, shapes: Sequence[torch.Size], ends: Sequence[int]) -> None:
        self.vector, self._shapes, self._ends = vector, shapes, ends

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, i: int) -> Tensor:  # type: ignore[override]
        shape = self._shapes[i]
        end = self._ends[i]
        return self.vector[end - shape.numel() : end].view(shape)


class Bundle:
    """Tensors that are read together.

    :param tensors: whose shapes do not change.

    >>> import torch
    >>> from pyro_vgpds.training.bundle import Bundle
    >>> bundle = Bundle([torch.tensor([1.0, 2.0]).double(), torch.tensor(3.0).double()])
    >>> [x.tolist() for x in bundle.copies()]
    [[1.0, 2.0], 3.0]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self._shapes = [x.shape for x in tensors]
        self._counts = [x.numel() for x in tensors]
        self._ends = list(itertools.accumulate(self._counts))
        #: whether compiled functions can read them
        self.is_compiled = bool(tensors) and library() is not None and all(map(_is_readable, tensors))
        #: their numbers of entries, for compiled functions
        self.sizes = (ctypes.c_long * len(self._counts))(*self._counts)

    def addresses(self, tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
        """The addresses of tensors, for compiled functions; null for None."""
        return (ctypes.c_void_p * len(tensors))(*[None if x is None else x.data_ptr() for x in tensors])

    def pack(self, vector: Tensor) -> Packed:
        """A vector as tensors of these shapes."""
        return Packed(vector, self._shapes, self._ends)

    def copies(self) -> Sequence[Tensor]:
        """The current values."""
        if not self.is_compiled:
            return copies(self.tensors)
        vector = torch.empty(self._ends[-1], dtype=torch.float64)
        given = len(self.tensors), self.sizes, self.addresses(self.tensors), vector.data_ptr()
        library.function("bundle_copy")(*given)
        return self.pack(vector)


def _is_readable(x: Tensor) -> bool:
    return x.dtype is torch.float64 and x.is_cpu and x.is_contiguous()
