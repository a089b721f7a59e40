# SPDX-License-Identifier: Apache-2.0
"""The recursions of :mod:`pyro_vgpds.temporal.recursions` as compiled loops over the frames, for float64 on a CPU.

The extension ``_chains`` is built at install time if a C compiler is found; :func:`available` tells whether it was.
The environment variable ``PYRO_VGPDS_NATIVE=0`` disables it. Names and shapes are those of ``recursions``.
"""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from pyro_vgpds.compiled import chunks, open_library, pool

__all__ = ["available", "draw", "draw_grad", "matmul", "quadratic", "solve", "undraw", "variance", "variance_grad"]

_LANES = 4  # chains that the compiled code processes at once
_UNROLLED = 5  # size of the largest state for which the compiled code has unrolled loops
_VARIANCE, _SOLVE, _GRADIENT, _DRAW_GRADIENT, _DRAW, _MATMUL, _QUADRATIC = range(7)


@functools.cache
def _library() -> ctypes.CDLL | None:
    library = open_library(f"{__package__}._chains")
    if library is None:
        return None
    try:
        library.chains_run.argtypes = [ctypes.c_int] + [ctypes.c_long] * 4 + [ctypes.c_void_p] * 14
        library.chains_run.restype = ctypes.c_int
    except AttributeError:  # built from another version of the source
        return None
    return library


def available() -> bool:
    """Whether the compiled loops were built and are not disabled."""
    return _library() is not None


def _pattern(a: Tensor) -> Tensor:
    """The nonzero pattern of the matrices of all frames, by rows and by columns: offsets, then indices (as in CSR)."""
    nonzero = (a != 0.0).flatten(0, 1).any(0) if a.shape[-1] > _UNROLLED else torch.ones(a.shape[-2:]).bool()
    parts = []
    for matrix in (nonzero, nonzero.mT):
        ends = torch.nn.functional.pad(matrix.sum(1).cumsum(0), (1, 0))
        parts += [ends, matrix.nonzero()[:, 1]]
    return torch.cat(parts).contiguous()


def _run(
    task: int,
    model: tuple[Tensor, Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, ...],
    num_outputs: int,
    weight: Tensor | None = None,
    gradients: bool = False,
) -> tuple[Tensor, ...]:
    """Outputs (C, N) of a task; with ``gradients``, preceded by the gradients in a and q."""
    a, q, h = (x.contiguous() for x in model[:3])
    index = model[3].to(torch.int64).contiguous()
    inputs = tuple(x.contiguous() for x in inputs)
    chains, (n, d) = len(index), h.shape
    for x in (a, q, h, *inputs):
        if x.dtype != torch.float64 or x.device.type != "cpu":
            raise ValueError(f"the compiled recursions need float64 CPU tensors, but got {x.dtype} on {x.device}.")
    if a.shape[1:] != (n, d, d) or q.shape != a.shape or any(x.shape != (chains, n) for x in inputs) or not d or not n:
        raise ValueError(
            "a and q must be (K, N, d, d), h (N, d), index (C,) and the inputs (C, N), all of them nonempty, but got "
            f"{[tuple(x.shape) for x in (a, q, h, index, *inputs)]}."
        )
    if chains == 0 or int(index.min()) < 0 or int(index.max()) >= len(a):
        raise ValueError(f"index must have an entry from 0 to {len(a) - 1} for each chain, but got {index.tolist()}.")
    outputs = tuple(a.new_empty(chains, n) for _ in range(num_outputs))
    pattern, ranges = _pattern(a), chunks(chains, _LANES)
    totals = [(torch.zeros_like(a), torch.zeros_like(q)) if gradients else () for _ in ranges]
    padded = (None,) * 3
    fixed = [
        None if x is None else x.data_ptr()
        for x in (pattern, index, a, q, h, *(*inputs, *padded)[:3], weight, *(*outputs, *padded)[:3])
    ]
    function = _library().chains_run  # type: ignore[union-attr]

    def call(range_: tuple[int, int], own: tuple[Tensor, ...]) -> int:
        pointers: list[int | None] = [x.data_ptr() for x in own] or [None, None]
        return function(task, n, d, *range_, *fixed, *pointers)

    each = map if len(ranges) == 1 else pool(len(ranges)).map
    status = list(each(call, ranges, totals))
    if any(status):
        raise MemoryError("the compiled recursions ran out of memory.")
    if not gradients:
        return outputs
    for own in totals[1:]:
        for total, part in zip(totals[0], own, strict=True):
            total.add_(part)
    return (*totals[0], *outputs)


def variance(a: Tensor, q: Tensor, h: Tensor, index: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    s, precision, v = _run(_VARIANCE, (a, q, h, index), (lam,), 3)
    return s, precision, torch.log1p(lam * v).sum(-1)


def variance_grad(
    a: Tensor, q: Tensor, h: Tensor, index: Tensor, lam: Tensor, d_lam: Tensor, weight: Tensor
) -> tuple[Tensor, ...]:
    return _run(_GRADIENT, (a, q, h, index), (lam, d_lam), 1, weight.contiguous(), gradients=True)


def solve(a: Tensor, q: Tensor, h: Tensor, index: Tensor, eta: Tensor, lam: Tensor) -> tuple[Tensor, ...]:
    return _run(_SOLVE, (a, q, h, index), (lam, eta), 3)[:2]


def matmul(a: Tensor, q: Tensor, h: Tensor, index: Tensor, b: Tensor) -> Tensor:
    return _run(_MATMUL, (a, q, h, index), (b,), 1)[0]


def quadratic(a: Tensor, q: Tensor, h: Tensor, index: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
    return _run(_QUADRATIC, (a, q, h, index), (left, right), 0, gradients=True)


def draw(a: Tensor, q: Tensor, h: Tensor, index: Tensor, white: Tensor, noise: Tensor) -> Tensor:
    return _run(_DRAW, (a, q, h, index), (1.0 / white, noise), 1)[0]


def draw_grad(
    a: Tensor, q: Tensor, h: Tensor, index: Tensor, white: Tensor, noise: Tensor, grad: Tensor
) -> tuple[Tensor, ...]:
    return _run(_DRAW_GRADIENT, (a, q, h, index), (1.0 / white, noise, grad), 2, gradients=True)


def undraw(a: Tensor, q: Tensor, h: Tensor, index: Tensor, white: Tensor, x: Tensor) -> Tensor:
    return _run(_SOLVE, (a, q, h, index), (1.0 / white, x / white), 3)[2]
