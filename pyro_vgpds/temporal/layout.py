# SPDX-License-Identifier: Apache-2.0
"""How the recursions over the frames are laid out: the arguments that need no gradient."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

__all__ = ["Kept", "Layout", "check_inputs"]

#: what a filter leaves for the means of the same precisions; empty if it leaves nothing
Kept: TypeAlias = tuple[Tensor, ...]


class Layout(NamedTuple):
    """Frames, chains and states of a recursion."""

    h: Tensor  #: observation vectors (N, d)
    step: Tensor  #: which of the U different time steps precedes each frame, (N,)
    kernel: Tensor  #: which of the K kernels each of the C chains has, (C,)
    blocks: tuple[int, ...]  #: the block of each of d states: A and Q couple no states of different blocks


def check_inputs(a: Tensor, q: Tensor, layout: Layout, inputs: tuple[Tensor, ...]) -> None:
    """Check what compiled code, which checks nothing, is about to read.

    :raises ValueError: if a dtype, a device, a shape or an index is wrong.
    """
    h, step, kernel, blocks = layout
    for x in (a, q, h, *inputs):
        if x.dtype != torch.float64 or x.device.type != "cpu":
            raise ValueError(f"the compiled recursions need float64 CPU tensors, but got {x.dtype} on {x.device}.")
    (n, d), shapes = h.shape, [tuple(x.shape) for x in (a, q, h, step, kernel, *inputs)]
    right = a.dim() == 4 and a.shape[2:] == (d, d) and q.shape == a.shape and step.shape == (n,) and len(blocks) == d
    if not right or any(x.shape != (len(kernel), n) for x in inputs) or not d or not n:
        raise ValueError(
            "a and q must be (K, U, d, d), h (N, d), step (N,), kernel (C,) and the inputs (C, N), all of them "
            f"nonempty, with d blocks, but got {shapes} and {len(blocks)} blocks."
        )
    for name, x, count in (("kernel", kernel, len(a)), ("step", step, a.shape[1])):
        if len(x) == 0 or int(x.min()) < 0 or int(x.max()) >= count:
            raise ValueError(f"{name} must have entries from 0 to {count - 1}, but got {x.tolist()}.")
