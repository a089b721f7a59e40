# SPDX-License-Identifier: Apache-2.0
"""Optional compiled kernels for the midpoint sums of the expected kernel products.

For rows ``a (N,)``, ``r (N, Q)``, ``mu (N, Q)`` and points ``z (M, Q)`` it evaluates

    V[c, m, m'] = sum_n mask[c, n] exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q) / 2)^2)

and its gradients without ever storing an ``N x M x M`` array. The extensions ``_midpoint``, for all rows, and
``_grouped``, for groups of rows, are built at install time if a C compiler is found; :func:`available` tells whether
they were. ``PYRO_VGPDS_NATIVE=0`` in the environment disables them.
"""

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.compiled import chunks, open_library, start
from pyro_vgpds.types import Context

_ROWS = 64  # unit of the chunks of rows; a multiple of the rows that the kernel processes at once
_EXP = 16  # multiply-adds that an exponential costs
_single = ContextVar("_single", default=False)


@contextmanager
def single_sums(allowed: bool) -> Iterator[None]:
    """A context in which exponentials, with ``allowed``, are computed in float32, which takes half the time. Inputs and
    results stay float64. Sums over groups of rows are not faster, and stay as they are.
    """
    token = _single.set(allowed)
    try:
        yield
    finally:
        _single.reset(token)


def is_single() -> bool:
    """Whether this is a context of :func:`single_sums`."""
    return _single.get()


class SumContext(Context, Protocol):
    """The context of an operation with these sums, whose backward pass is as precise as its forward pass."""

    single: bool


@functools.cache
def _library(name: str) -> ctypes.CDLL | None:
    """The functions for ``"midpoint"`` sums over all rows, or for ``"grouped"`` ones over groups of them."""
    sizes, inputs = (4, 4) if name == "midpoint" else (4, 5)
    given = [ctypes.c_long] * sizes + [ctypes.c_void_p] * inputs + [ctypes.c_long] * 2
    types = {f"{name}_forward": given + [ctypes.c_void_p], f"{name}_backward": given + [ctypes.c_void_p] * 5}
    return open_library(f"{__package__}._{name}", **types)


def available() -> bool:
    """Whether the compiled kernels were built and are not disabled."""
    return _library("midpoint") is not None and _library("grouped") is not None


def _start(
    direction: str,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    make_outputs: Callable[[], tuple[Tensor, ...]],
) -> Callable[[], list[tuple[Tensor, ...]]]:
    """Begin the C function for ranges of rows, each with outputs of its own, which a call of the result gives."""
    a, r, mu, z, mask = inputs
    rows, dims, points = r.shape[0], r.shape[1], z.shape[0]
    shapes = [(rows,), (rows, dims), (rows, dims), (points, dims)]
    sizes = (rows, points, dims, 1 if mask is None else len(mask))
    if (
        min(sizes) < 1
        or [tuple(x.shape) for x in (a, r, mu, z)] != shapes
        or (mask is not None and mask.shape[1:] != (rows,))
    ):
        raise ValueError("a, r, mu, z and mask must be (N,), (N, Q), (N, Q), (M, Q) and (C, N), all of them nonempty")
    work = rows * points * (points + 1) / 2 * (_EXP + dims + (0 if mask is None else len(mask)))
    ranges = chunks(rows, _ROWS, work, shared=mask is None)
    outputs = [make_outputs() for _ in ranges]
    for x in (*inputs, *outputs[0]):
        if x is not None and not (x.dtype == torch.float64 and x.device.type == "cpu" and x.is_contiguous()):
            raise ValueError("the compiled kernel takes contiguous float64 CPU tensors")
    kind = "midpoint" if mask is None else "grouped"
    function = getattr(_library(kind), f"{kind}_{direction}")
    given = (int(_single.get()), *sizes[:3]) if mask is None else sizes

    def call(range_: tuple[int, int], tensors: tuple[Tensor, ...]) -> int:
        pointers = [x.data_ptr() for x in inputs if x is not None]  # of tensors that this function keeps alive
        return function(*given, *pointers, *range_, *(x.data_ptr() for x in tensors))

    finish = start(call, ranges, outputs, work)

    def result() -> list[tuple[Tensor, ...]]:
        if any(finish()):
            raise MemoryError("the compiled kernel ran out of memory")
        return outputs

    return result


def start_forward(a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None = None) -> Callable[[], Tensor]:
    """Begin :func:`forward` on other threads, if there are any. The result of a call of the result is its result."""
    groups = 1 if mask is None else mask.shape[0]
    finish = _start("forward", (a, r, mu, z, mask), lambda: (a.new_empty(groups, len(z), len(z)),))
    return lambda: functools.reduce(torch.Tensor.add_, (V for (V,) in finish()))  # in the order of the rows


def forward(a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Midpoint sums ``V (C, M, M)``, with ``C = 1`` and all rows if ``mask`` is None."""
    return start_forward(a, r, mu, z, mask)()


Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


def start_backward(
    g: Tensor, a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None = None
) -> Callable[[], Gradients]:
    """Begin :func:`backward` on other threads, as :func:`start_forward` does."""
    groups = 1 if mask is None else mask.shape[0]
    if g.shape != (groups, len(z), len(z)):
        raise ValueError("g must have the shape (C, M, M) of the sums")
    g = g.contiguous()
    rows = torch.empty_like(a), torch.empty_like(r), torch.empty_like(mu)
    finish = _start("backward", (a, r, mu, z, mask), lambda: (g, *rows, torch.empty_like(z)))

    def result() -> Gradients:
        return *rows, functools.reduce(torch.Tensor.add_, (part[-1] for part in finish()))

    return result


def backward(g: Tensor, a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None = None) -> Gradients:
    """Gradients of ``sum(g * V)`` in ``a``, ``r``, ``mu`` and ``z``, for ``g (C, M, M)``."""
    return start_backward(g, a, r, mu, z, mask)()
