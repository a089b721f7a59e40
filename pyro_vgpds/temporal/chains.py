# SPDX-License-Identifier: Apache-2.0
"""The recursions of :mod:`pyro_vgpds.temporal.recursions` as compiled loops over the frames, for float64 on a CPU.

The extension ``_chains`` is built at install time if a C compiler is found; :func:`available` returns whether it was.
The environment variable ``PYRO_VGPDS_NATIVE=0`` disables it. Names and shapes are those of ``recursions``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, chunks, run

__all__ = [
    "FRAME_WORK", "UNROLLED", "Chains", "Kept", "Layout", "RangeCall", "available", "check_inputs", "entry", "lanes",
    "pattern",
]  # fmt: skip

UNROLLED = 5  #: size of the largest state for which the compiled code has unrolled loops
FRAME_WORK = 60.0  #: multiply-adds that a frame costs for each entry of the state's covariance: each waits for the last
_VARIANCE, _SOLVE, _GRADIENT, _DRAW_GRADIENT, _DRAW, _MATMUL, _QUADRATIC = range(7)


_library = Library(f"{__package__}._chains", run_chains="i nnnnn ppppppppppppppp", chains_lanes="n")


available = _library.available


def entry() -> int:
    """The address of the compiled function."""
    return _library.address("run_chains")


def lanes(size: int) -> int:
    """The number of chains that the compiled code processes at once, whose states have this size."""
    return _library.function("chains_lanes")(size)


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


@functools.cache
def pattern(blocks: tuple[int, ...]) -> Tensor:
    """The nonzero pattern of the matrices, by rows and by columns: offsets, then indices (as in CSR)."""
    number = torch.tensor(blocks)
    matrix = number.unsqueeze(-1) == number
    if len(blocks) <= UNROLLED:
        matrix = torch.ones_like(matrix)  # the unrolled loops read everything
    part = torch.cat([torch.nn.functional.pad(matrix.sum(1).cumsum(0), (1, 0)), matrix.nonzero()[:, 1]])
    return torch.cat([part, part])  # it is symmetric


class RangeCall(NamedTuple):
    """A compiled function of ranges of chains."""

    function: Callable[..., int]
    sizes: tuple[int, ...]  #: its first arguments, which the range follows
    tensors: Sequence[Tensor | None]  #: those after them
    work: float  #: multiply-adds of all chains

    def run(self, ranges: Sequence[tuple[int, int]], summed: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run it on all ranges, and return the sums of its last two outputs, which have the shapes of ``summed``."""
        totals = [tuple(map(torch.zeros_like, summed)) for _ in ranges]
        fixed = [None if x is None else x.data_ptr() for x in self.tensors]

        def call(range_: tuple[int, int], own: tuple[Tensor, ...]) -> int:
            pointers: list[int | None] = [x.data_ptr() for x in own] or [None, None]
            return self.function(*self.sizes, *range_, *fixed, *pointers)

        if any(run(call, ranges, totals, self.work)):
            raise MemoryError("the compiled recursions ran out of memory.")
        return tuple(functools.reduce(torch.Tensor.add_, parts) for parts in zip(*totals, strict=True))


class Chains(NamedTuple):
    """Transitions of K kernels, the frames, and the kernel of each of C chains. Nothing is checked."""

    a: Tensor  #: (K, U, d, d)
    q: Tensor
    h: Tensor  #: (N, d)
    step: Tensor  #: (N,), integers
    kernel: Tensor  #: (C,), integers
    blocks: tuple[int, ...]

    @classmethod
    def of(cls, a: Tensor, q: Tensor, layout: Layout) -> Chains:
        """The recursions of a layout."""
        step, index = (x.to(torch.int64).contiguous() for x in (layout.step, layout.kernel))
        return cls(a.contiguous(), q.contiguous(), layout.h.contiguous(), step, index, layout.blocks)

    def run(
        self,
        task: int,
        inputs: tuple[Tensor, ...],
        num_outputs: int,
        weight: Tensor | None = None,
        gradients: bool = False,
    ) -> tuple[Tensor, ...]:
        """Outputs (C, N) of a task; with ``gradients``, preceded by the gradients in a and q."""
        a, q, h, step, index, blocks = self
        inputs = tuple(x.contiguous() for x in inputs)
        chains, (n, d) = len(index), h.shape
        outputs = tuple(a.new_empty(chains, n) for _ in range(num_outputs))
        work = FRAME_WORK * chains * n * d * d
        ranges = chunks(chains, lanes(d), work)
        padded = (None,) * 3
        tensors = pattern(blocks), step, index, a, q, h, *(*inputs, *padded)[:3], weight, *(*outputs, *padded)[:3]
        call = RangeCall(_library.function("run_chains"), (task, n, d, a.shape[1]), tensors, work)
        return (*call.run(ranges, (a, q) if gradients else ()), *outputs)

    def variance(self, lam: Tensor) -> tuple[Tensor, Tensor, Tensor, Kept]:
        """The diagonals of S and of (K_f + Λ⁻¹)⁻¹, log|I + Λ K_f|, and what :meth:`solve` needs: nothing."""
        s, precision, v = self.run(_VARIANCE, (lam,), 3)
        return s, precision, torch.log1p(lam * v).sum(-1), ()

    def variance_grad(self, lam: Tensor, d_lam: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """The gradients in a, q and λ."""
        return self.run(_GRADIENT, (lam, d_lam), 1, weight.contiguous(), gradients=True)

    def solve(self, eta: Tensor, lam: Tensor, kept: Kept = ()) -> tuple[Tensor, ...]:
        """S η and (I + Λ K_f)⁻¹ η."""
        return self.run(_SOLVE, (lam, eta), 2)

    def matmul(self, b: Tensor) -> Tensor:
        """K_f b."""
        return self.run(_MATMUL, (b,), 1)[0]

    def quadratic(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        """The gradients of left·K_f right in a and q."""
        return self.run(_QUADRATIC, (left, right), 0, gradients=True)

    def draw(self, white: Tensor, noise: Tensor) -> Tensor:
        """L ε."""
        return self.run(_DRAW, (1.0 / white, noise), 1)[0]

    def draw_grad(self, white: Tensor, noise: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        """The gradients in a, q, the white noise and ε."""
        return self.run(_DRAW_GRADIENT, (1.0 / white, noise, grad), 2, gradients=True)

    def undraw(self, white: Tensor, x: Tensor) -> Tensor:
        """L⁻¹ x."""
        return self.run(_SOLVE, (1.0 / white, x / white), 3)[2]
