# SPDX-License-Identifier: Apache-2.0
"""Compiled passes over the frames of a Markov kernel (``_natural.c``): q(X) from the kernel's parameters, and back.

A pass is one call for each range of latent dimensions. Their chains do not depend on each other, so that threads may
divide them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, chunks, run
from pyro_vgpds.kernels import programs
from pyro_vgpds.temporal import chains, tiles
from pyro_vgpds.temporal.markov_autograd import Frames

__all__ = ["Passes", "is_available", "natural_step", "passes_of"]

T = TypeVar("T")


_library = Library(
    f"{__package__}._natural",
    natural_size="p n p",
    natural_forward="p nn r pppppppp",
    natural_backward="p nn pppppppp",
    natural_step="nnn rr pppppppp",
)


is_available = _library.available


class _Plan(ctypes.Structure):
    """The struct ``plan`` of ``_natural.c``."""

    _fields_: ClassVar = [
        *[(name, ctypes.c_long) for name in (
            "frames", "chains", "kernels", "parameters", "steps", "size", "width", "tiles", "whites",
        )],
        *[(name, ctypes.c_void_p) for name in (
            "code", "begins", "place", "step", "pattern", "white_rows", "dt", "h", "states", "states_grad", "run_tiles",
            "run_chains",
        )],
    ]  # fmt: skip


class Passes:
    """The passes over some frames. All tensors are contiguous, float64 and on the CPU.

    :param frames: of a program.
    :param num_parameters: P.
    :param num_kernels: K, 1 or Q.
    :param num_chains: Q.
    """

    def __init__(self, frames: Frames, num_parameters: int, num_kernels: int, num_chains: int) -> None:
        program, own, (count, width) = frames.program, frames.own, frames.own_h.shape
        white = torch.tensor(program.white, dtype=torch.int64)
        shape = count, num_chains, num_kernels, num_parameters
        sizes = len(own.dt), own.size, width, frames.count if frames.is_tiled else 0, len(white)
        numbers = program.code, own.begins, own.place, frames.step, chains.pattern(frames.blocks), white
        pointers = [x.data_ptr() for x in (*numbers, own.dt, frames.own_h)]
        self._plan = _Plan(*shape, *sizes, *pointers, *programs.entries(), tiles.entry(), chains.entry())
        self._address, self._kept = ctypes.addressof(self._plan), (*numbers, own.dt, frames.own_h)
        self._num_chains, self._unit = num_chains, 1 if frames.is_tiled else chains.lanes(width)
        self._work = chains.FRAME_WORK * num_chains * count * width * width
        self._sizes: dict[int, int] = {}

    def ranges(self) -> list[tuple[int, int]]:
        """The ranges of chains, as many as there are threads that pay off."""
        return chunks(self._num_chains, self._unit, self._work)

    def make_memory(self, ranges: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Memory for each range, in which :meth:`forward` leaves what :meth:`backward` needs."""
        return [torch.empty(self._size(last - first), dtype=torch.float64) for first, last in ranges]

    def _size(self, count: int) -> int:
        if count not in self._sizes:
            size = ctypes.c_long()
            _library.function("natural_size")(self._address, count, ctypes.addressof(size))
            self._sizes[count] = size.value
        return self._sizes[count]

    def forward(
        self, ranges: Sequence[tuple[int, int]], memory: Sequence[Tensor], jitter: float, *tensors: Tensor
    ) -> None:
        """Write μ, diag S, the variance of the prior and the numbers of ``moments`` in ``_natural.c``.

        :param jitter: size of rounding errors.
        :param tensors: values (P, K), η and λ; and the results (N, Q), (N, Q), (K,) and (Q, 4).
        """
        (values, eta, lam), results = (x.data_ptr() for x in tensors[:3]), [x.data_ptr() for x in tensors[3:]]
        function, plan = _library.function("natural_forward"), self._address

        def call(range_: tuple[int, int], own: Tensor) -> int:
            return function(plan, *range_, jitter, values, eta, lam, own.data_ptr(), *results)

        self._run(call, ranges, memory)

    def backward(self, ranges: Sequence[tuple[int, int]], memory: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        """The gradients in the logs of the values, (P, K).

        :param tensors: values, η and λ; μ, and the derivatives of a function in μ and diag S.
        """
        (values, eta, lam), given = (x.data_ptr() for x in tensors[:3]), [x.data_ptr() for x in tensors[3:]]
        gradients = torch.zeros(len(ranges), *tensors[0].shape, dtype=torch.float64)
        function, plan = _library.function("natural_backward"), self._address

        def call(range_: tuple[int, int], own: tuple[Tensor, Tensor]) -> int:
            work, gradient = own
            return function(plan, *range_, values, eta, lam, work.data_ptr(), *given, gradient.data_ptr())

        self._run(call, ranges, list(zip(memory, gradients.unbind(), strict=True)))
        return gradients[0] if len(ranges) == 1 else gradients.sum(0)

    def _run(
        self, call: Callable[[tuple[int, int], T], int], ranges: Sequence[tuple[int, int]], own: Sequence[T]
    ) -> None:
        if any(run(call, ranges, own, self._work)):
            raise MemoryError("the compiled recursions ran out of memory.")


def passes_of(frames: Frames, values: Tensor, num_chains: int) -> Passes:
    """The passes over frames with Q chains and values (P, K) of the parameters, made once."""
    key = values.shape[1], num_chains
    found = frames.passes.get(key)
    if not isinstance(found, Passes):
        found = frames.passes[key] = Passes(frames, len(values), *key)
    return found


def natural_step(rate: float, floor: float, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """The next η and λ.

    :param rate: length of the step.
    :param floor: the least λ, in units of the inverse prior variance.
    :param tensors: η, λ, μ and the derivatives in μ and diag S, (N, Q) each, and the variance (K,) of the prior.
    """
    found = torch.empty_like(tensors[0]), torch.empty_like(tensors[0])
    pointers = [x.data_ptr() for x in (*tensors, *found)]
    _library.function("natural_step")(*tensors[0].shape, len(tensors[-1]), rate, floor, *pointers)
    return found
