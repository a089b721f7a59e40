# SPDX-License-Identifier: Apache-2.0
r"""Compiled loops over the latent points and inducing inputs of the squared exponential kernel: Ψ1 and gradients.

They do in one pass over N × M numbers what takes about forty operations of torch. With s the variances of the latent
points, r = w / (1 + ws) and ρ = w / (1 + 2ws):

.. math:: \Psi_1 = \sigma^2 \prod_q (1 + w s)^{-1/2} \exp(-\tfrac12 r (\mu - z)^2)

``_psi1.h`` has the equations of the gradients.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.compiled import chunks, open_library, run

__all__ = ["RowGradients", "RowTerms", "available", "backward", "forward", "joined"]

_UNIT = 64  # unit of the chunks of rows
_EXP = 16  # multiply-adds that an exponential costs


class RowTerms(NamedTuple):
    """What the latent points have to do with the inducing inputs."""

    a: Tensor  #: −½ Σ_q log(1 + 2ws), (N,)
    rho: Tensor  #: (N, Q)
    psi1: Tensor  #: Ψ1ᵀ, (M, N)


class RowGradients(NamedTuple):
    """The gradients through Ψ1 and through the sums of Ψ2."""

    mean: Tensor  #: (N, Q)
    variance: Tensor  #: (N, Q)
    z: Tensor  #: through Ψ1, (M, Q)
    weight: Tensor  #: (Q,)
    log_scale: Tensor  #: through Ψ1, one number


@functools.cache
def _library() -> ctypes.CDLL | None:
    long, pointer = ctypes.c_long, ctypes.c_void_p
    sizes, inputs, rows = [long] * 3, [pointer] * 4, [long] * 2
    return open_library(
        f"{__package__}._midpoint",
        rows_forward=[*sizes, *inputs, ctypes.c_double, *rows, *[pointer] * 3],
        rows_backward=[*sizes, *inputs, *[pointer] * 5, *rows, *[pointer] * 3],
    )


def available() -> bool:
    """Whether the compiled loops were built and are not disabled."""
    return _library() is not None


def forward(mu: Tensor, s: Tensor, z: Tensor, w: Tensor, scale: float) -> RowTerms:
    """The terms of all latent points. All tensors are contiguous, float64 and on the CPU.

    :param mu: means, (N, Q).
    :param s: variances, (N, Q).
    :param z: inducing inputs, (M, Q).
    :param w: weights, (Q,).
    :param scale: σ².
    """
    terms = RowTerms(mu.new_empty(len(mu)), torch.empty_like(mu), mu.new_empty(len(z), len(mu)))
    _run("forward", (mu, s, z, w), (scale,), lambda: terms)
    return terms


def backward(
    mu: Tensor, s: Tensor, z: Tensor, w: Tensor, psi1: Tensor, grad: Tensor, sums: tuple[Tensor, Tensor, Tensor]
) -> RowGradients:
    """Gradients in all that Ψ1 and the sums of Ψ2 depend on. Parameters as in :func:`forward`, and:

    :param psi1: Ψ1ᵀ, (M, N).
    :param grad: the gradient in it, (M, N).
    :param sums: the gradients of the sums of Ψ2 in ``a`` (N,), ``rho`` (N, Q) and ``mu`` (N, Q).
    """
    g_mean, g_s, inputs = torch.empty_like(mu), torch.empty_like(s), (psi1, grad, *sums)
    pointers = tuple(x.data_ptr() for x in inputs)
    outputs = (g_mean, g_s)
    parts = _run("backward", (mu, s, z, w, *inputs), pointers, lambda: (*outputs, mu.new_empty(z.numel() + len(w) + 1)))
    total = functools.reduce(torch.Tensor.add_, (part[-1] for part in parts))  # in the order of the rows
    g_z, g_w, g_log = total.split([z.numel(), len(w), 1])
    return RowGradients(g_mean, g_s, g_z.view_as(z), g_w, g_log)


def joined(parts: Sequence[RowGradients]) -> RowGradients:
    """The gradients of all rows from those of blocks of them, in order.

    :param parts: the blocks.
    """
    mean, variance, *sums = zip(*parts, strict=True)
    return RowGradients(torch.cat(mean), torch.cat(variance), *(functools.reduce(torch.add, each) for each in sums))


def _run(
    direction: str, inputs: tuple[Tensor, ...], more: tuple[float, ...], make_outputs: Callable[[], tuple[Tensor, ...]]
) -> list[tuple[Tensor, ...]]:
    """Call the C function for ranges of rows, and return the outputs of each."""
    mu, _, z, _, *_ = inputs
    (count, dims), points = mu.shape, len(z)
    rows, pairs = (count, dims), (points, count)
    shapes = [rows, rows, (points, dims), (dims,), pairs, pairs, (count,), rows, rows]
    if min(count, dims, points) < 1 or [x.shape for x in inputs] != shapes[: len(inputs)]:
        raise ValueError("mu, s, z, w must be (N, Q), (N, Q), (M, Q), (Q,), and the others (M, N) or (N, ...)")
    for x in inputs:
        if not (x.dtype is torch.float64 and x.is_cpu and x.is_contiguous()):
            raise ValueError("the compiled loops take contiguous float64 CPU tensors")
    work = count * points * (_EXP + 4 * dims)
    ranges = chunks(count, _UNIT, work)
    outputs = [make_outputs() for _ in ranges]
    function = getattr(_library(), f"rows_{direction}")
    pointers = [x.data_ptr() for x in inputs[:4]]

    def call(range_: tuple[int, int], tensors: tuple[Tensor, ...]) -> int:
        return function(count, points, dims, *pointers, *more, *range_, *(x.data_ptr() for x in tensors))

    if any(run(call, ranges, outputs, work)):
        raise MemoryError("the compiled loop ran out of memory")
    return outputs
