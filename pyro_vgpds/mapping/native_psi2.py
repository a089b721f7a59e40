# SPDX-License-Identifier: Apache-2.0
"""Optional compiled kernels for the midpoint sums of the expected kernel products.

For rows ``a (N,)``, ``r (N, Q)``, ``mu (N, Q)`` and points ``z (M, Q)`` it evaluates

    V[c, m, m'] = sum_n mask[c, n] exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q) / 2)^2)

and its gradients without ever storing an ``N x M x M`` array. The extension ``_midpoint`` is built at install time if a
C compiler is found; :func:`available` returns whether it was. ``PYRO_VGPDS_NATIVE=0`` in the environment disables it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, Loop, added, pointer, run_loops
from pyro_vgpds.mapping.panels import matrices_of, panels_of, panels_size
from pyro_vgpds.types import Context

__all__ = [
    "ROWS", "Gradients", "SumContext", "available", "backward", "backward_loop", "forward", "forward_loop", "is_single",
    "run_with", "single_sums",
]  # fmt: skip

#: unit of the ranges of rows; a multiple of the rows that the kernel processes at once
ROWS = 64
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


_library = Library(
    f"{__package__}._midpoint",
    midpoint_forward="nnnn pppp nn p",
    midpoint_backward="nnnn pppp nn ppppp",
    grouped_forward="nnnn ppppp nn pnp",
    grouped_pack="nnn pppppp",
    grouped_backward="nnnn ppppp nn ppppp",
)


available = _library.available


def _check_kind(*tensors: Tensor | None) -> None:
    for x in tensors:
        if x is not None and not (x.dtype == torch.float64 and x.device.type == "cpu" and x.is_contiguous()):
            raise ValueError("the compiled kernel takes contiguous float64 CPU tensors")


def _loop(
    direction: str,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    make_outputs: Callable[[], tuple[Tensor | None, ...]],
    result: Callable[[list[tuple[Tensor | None, ...]]], object],
) -> Loop:
    """The C function for ranges of rows, each with its own last output."""
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
    _check_kind(*inputs)
    kind = "midpoint" if mask is None else "grouped"
    function = _library.function(f"{kind}_{direction}")
    given = (int(_single.get()), *sizes[:3]) if mask is None else sizes

    def call(range_: tuple[int, int], tensors: tuple[Tensor | None, ...]) -> int:
        pointers = [x.data_ptr() for x in inputs if x is not None]  # of tensors that this function keeps alive
        return function(*given, *pointers, *range_, *map(pointer, tensors))

    return Loop(call, make_outputs, result, row_work(rows, points, dims, 0 if mask is None else len(mask)))


def row_work(rows: int, points: int, dims: int, groups: int = 0) -> float:
    """Multiply-adds of the sums over rows, each way."""
    return rows * points * (points + 1) / 2 * (_EXP + dims + groups)


def entries() -> tuple[int, ...]:
    """The addresses of the functions that ``_bound.c`` calls, 0 if they were not built."""
    names = "midpoint_forward", "midpoint_backward", "grouped_forward", "grouped_backward"
    return tuple(map(_library.address, names))


def run_with(loops: Sequence[Loop], rows: int, mask: Tensor | None) -> list[Any]:
    """The results of loops over ``rows`` rows, as by :func:`~pyro_vgpds.compiled.run_loops`, among them one of this
    module.

    :param mask: of the sums. The sums of groups are so large that each thread has only one range of rows.
    """
    return run_loops(rows, ROWS, loops, shared=mask is None)


def forward_loop(
    a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None = None, decay: Tensor | None = None
) -> Loop:
    """The loop of :func:`forward`. With a mask, its result has panels (C, S) (:mod:`~pyro_vgpds.mapping.panels`).

    :param decay: (M, M), symmetric: a factor of the sums. Default: 1.
    """
    if decay is not None:
        decay = decay.contiguous()
        _check_kind(decay)
    inputs = (a, r, mu, z, mask)
    if mask is not None:
        return _loop("forward", inputs, lambda: (decay, None, a.new_empty(len(mask), panels_size(len(z)))), added)
    return _loop(
        "forward", inputs, lambda: (a.new_empty(1, len(z), len(z)),),
        added if decay is None else lambda outputs: added(outputs).mul_(decay),
    )  # fmt: skip


def forward(a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Midpoint sums ``V (C, M, M)``, with ``C = 1`` and all rows if ``mask`` is None."""
    (found,) = run_with([forward_loop(a, r, mu, z, mask)], len(a), mask)
    return found if mask is None else matrices_of(found, len(z))


Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


def backward_loop(
    g: Tensor,
    a: Tensor,
    r: Tensor,
    mu: Tensor,
    z: Tensor,
    mask: Tensor | None,
    decay: Tensor | None,
    sums: Tensor | None,
) -> tuple[Loop, tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """The loop of :func:`backward` for sums times ``decay``, whose result is the gradient in ``z``; the gradients in
    ``a``, ``r`` and ``mu``, whose rows it writes; and, with these ``sums``, Σ_c g * sums, (M, M), of which only the
    symmetric part matters. With a mask, ``g`` and ``sums`` are panels (C, S).
    """
    points = len(z)
    if g.shape != ((1, points, points) if mask is None else (len(mask), panels_size(points))):
        raise ValueError("g must have the shape of the sums, (C, M, M), or of their panels")
    inputs = (a, r, mu, z, mask)
    rows = torch.empty_like(a), torch.empty_like(r), torch.empty_like(mu)
    if mask is None:
        given = (g if decay is None else g * decay).contiguous()
        total = None if sums is None else (g * sums).sum(0)
    else:
        g, blocks = g.contiguous(), (-(-points // 4) + 1) ** 2 // 4
        given = g.new_empty(blocks, len(mask) + 1, 32)
        total = None if sums is None else torch.empty_like(g[0])
        extra = [x if x is None else x.contiguous() for x in (mask, g, decay, sums, given, total)]
        library = _library()
        assert library is not None
        _check_kind(*extra)
        if library.grouped_pack(len(a), points, len(mask), *map(pointer, extra)):
            raise MemoryError("the compiled kernel ran out of memory")
        total = None if total is None else matrices_of(total.unsqueeze(0), points).squeeze(0)
    _check_kind(given)
    return _loop("backward", inputs, lambda: (given, *rows, torch.empty_like(z)), added), rows, total


def backward(g: Tensor, a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None = None) -> Gradients:
    """Gradients of ``sum(g * V)`` in ``a``, ``r``, ``mu`` and ``z``, for ``g (C, M, M)``."""
    if g.shape != (1 if mask is None else len(mask), len(z), len(z)):
        raise ValueError("g must have the shape (C, M, M) of the sums")
    loop, rows, _ = backward_loop(g if mask is None else panels_of(g), a, r, mu, z, mask, None, None)
    return (*rows, *run_with([loop], len(a), mask))
