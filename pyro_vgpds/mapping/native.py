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
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_vgpds.compiled import chunks, open_library, pool

_ROWS = 64  # unit of the chunks of rows; a multiple of the rows that the kernel processes at once


@functools.cache
def _library(name: str) -> ctypes.CDLL | None:
    """The functions for ``"midpoint"`` sums over all rows, or for ``"grouped"`` ones over groups of them."""
    sizes, inputs = (3, 4) if name == "midpoint" else (4, 5)
    given = [ctypes.c_long] * sizes + [ctypes.c_void_p] * inputs + [ctypes.c_long] * 2
    types = {f"{name}_forward": given + [ctypes.c_void_p], f"{name}_backward": given + [ctypes.c_void_p] * 5}
    return open_library(f"{__package__}._{name}", **types)


def available() -> bool:
    """Whether the compiled kernels were built and are not disabled."""
    return _library("midpoint") is not None and _library("grouped") is not None


def _run(
    direction: str,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    ranges: list[tuple[int, int]],
    outputs: Sequence[tuple[Tensor, ...]],
) -> None:
    """Call the C function for every range of rows, each with its own tuple of ``outputs``."""
    a, r, mu, z, mask = inputs
    for x in (*inputs, *outputs[0]):
        if x is not None and not (x.dtype == torch.float64 and x.device.type == "cpu" and x.is_contiguous()):
            raise ValueError("the compiled kernel takes contiguous float64 CPU tensors")
    rows, dims, points = r.shape[0], r.shape[1], z.shape[0]
    shapes = [(rows,), (rows, dims), (rows, dims), (points, dims)]
    sizes = (rows, points, dims) if mask is None else (rows, points, dims, len(mask))
    if (
        min(sizes) < 1
        or [tuple(x.shape) for x in (a, r, mu, z)] != shapes
        or (mask is not None and mask.shape[1:] != (rows,))
    ):
        raise ValueError("a, r, mu, z and mask must be (N,), (N, Q), (N, Q), (M, Q) and (C, N), all of them nonempty")
    kind = "midpoint" if mask is None else "grouped"
    function = getattr(_library(kind), f"{kind}_{direction}")
    pointers = [x.data_ptr() for x in inputs if x is not None]

    def call(range_: tuple[int, int], tensors: tuple[Tensor, ...]) -> int:
        return function(*sizes, *pointers, *range_, *(x.data_ptr() for x in tensors))

    each = map if len(ranges) == 1 else pool(len(ranges)).map
    status = list(each(call, ranges, outputs))
    if any(status):
        raise MemoryError("the compiled kernel ran out of memory")


def forward(a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Midpoint sums ``V (C, M, M)``, with ``C = 1`` and all rows if ``mask`` is None."""
    groups = 1 if mask is None else mask.shape[0]
    ranges = chunks(len(a), _ROWS)
    parts = [(a.new_empty(groups, len(z), len(z)),) for _ in ranges]
    _run("forward", (a, r, mu, z, mask), ranges, parts)
    return functools.reduce(torch.Tensor.add_, (V for (V,) in parts))  # in the order of the rows


def backward(
    g: Tensor, a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of ``sum(g * V)`` in ``a``, ``r``, ``mu`` and ``z``, for ``g (C, M, M)``."""
    groups = 1 if mask is None else mask.shape[0]
    if g.shape != (groups, len(z), len(z)):
        raise ValueError("g must have the shape (C, M, M) of the sums")
    g, ranges = g.contiguous(), chunks(len(a), _ROWS)
    grad_a, grad_r, grad_mu = torch.empty_like(a), torch.empty_like(r), torch.empty_like(mu)
    parts = [(g, grad_a, grad_r, grad_mu, torch.empty_like(z)) for _ in ranges]
    _run("backward", (a, r, mu, z, mask), ranges, parts)
    return grad_a, grad_r, grad_mu, functools.reduce(torch.Tensor.add_, (part[-1] for part in parts))
