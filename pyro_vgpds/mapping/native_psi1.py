# SPDX-License-Identifier: Apache-2.0
r"""Compiled loops over the latent points and inducing inputs of the squared exponential kernel: Ψ1 and gradients.

They do in one pass over N × M numbers what takes about forty operations of torch. The product of Ψ1 with Y can be part
of the pass: then Ψ1 is never stored, and the backward pass computes it again. With s the variances of the latent
points, r = w / (1 + ws) and ρ = w / (1 + 2ws):

.. math:: \Psi_1 = \sigma^2 \prod_q (1 + w s)^{-1/2} \exp(-\tfrac12 r (\mu - z)^2)

``_psi1.h`` has the equations of the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, Loop, added, pointer, run_loops

__all__ = [
    "RowGradients", "RowTerms", "available", "backward", "backward_loop", "entries", "forward", "forward_loop",
    "row_work",
]  # fmt: skip

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


_library = Library(
    f"{__package__}._midpoint",
    rows_forward="nnnn pppppp r nn pppp",
    rows_backward="nnnn pppppp r ppppp nn ppp",
)


available = _library.available


def forward(mu: Tensor, s: Tensor, z: Tensor, w: Tensor, scale: float) -> RowTerms:
    """The terms of all latent points N(mu_n, diag s_n), (N, Q), for inducing inputs z (M, Q) and weights w (Q,). All
    tensors are contiguous, float64 and on the CPU.
    """
    loop, a, rho = forward_loop(mu, s, z, w, None, scale)
    return RowTerms(a, rho, *run_loops(len(mu), _UNIT, [loop]))


def forward_loop(
    mu: Tensor, s: Tensor, z: Tensor, w: Tensor, y: Tensor | None, scale: float, used: Tensor | None = None
) -> tuple[Loop, Tensor, Tensor]:
    """The loop that computes Ψ1ᵀ (M, N) or, with ``y``, Ψ1ᵀY (M, R); and ``a`` and ``rho``, whose rows it writes.

    :param y: (N, R).
    :param used: the number of columns of ``y`` in each row after which all are zero, (N,). Default: R. Others as in
        :func:`forward`.
    """
    a, rho, own = mu.new_empty(len(mu)), torch.empty_like(mu), (mu, s, z, w, y, used)
    if y is None:
        psi1 = mu.new_empty(len(z), len(mu))
        return _loop("forward", own, scale, (), lambda: (a, rho, psi1, None), lambda _: psi1), a, rho
    shape = len(z), y.shape[1]
    return _loop("forward", own, scale, (), lambda: (a, rho, None, mu.new_empty(shape)), added), a, rho


def backward(
    mu: Tensor, s: Tensor, z: Tensor, w: Tensor, psi1: Tensor, grad: Tensor, sums: tuple[Tensor, Tensor, Tensor]
) -> RowGradients:
    """Gradients in all that Ψ1 and the sums of Ψ2 depend on, from Ψ1ᵀ (M, N) and the gradient in it, and from the
    gradients of the sums of Ψ2 in ``a`` (N,), ``rho`` (N, Q) and ``mu`` (N, Q). Other parameters as in :func:`forward`.
    """
    loop = backward_loop(mu, s, z, w, None, 0.0, (psi1, grad, *sums))
    return run_loops(len(mu), _UNIT, [loop])[0]


def backward_loop(
    mu: Tensor,
    s: Tensor,
    z: Tensor,
    w: Tensor,
    y: Tensor | None,
    scale: float,
    given: tuple[Tensor | None, ...],
    used: Tensor | None = None,
) -> Loop:
    """The loop of :func:`backward`.

    :param given: with ``y``, None and the gradient in Ψ1ᵀY (M, R); otherwise Ψ1ᵀ and the gradient in it; then ``sums``.
    """
    g_mean, g_s, size = torch.empty_like(mu), torch.empty_like(s), z.numel() + len(w) + 1

    def result(outputs: list[tuple[Tensor | None, ...]]) -> RowGradients:
        g_z, g_w, g_log = added(outputs).split([z.numel(), len(w), 1])
        return RowGradients(g_mean, g_s, g_z.view_as(z), g_w, g_log)

    return _loop("backward", (mu, s, z, w, y, used), scale, given, lambda: (g_mean, g_s, mu.new_empty(size)), result)


def _loop(
    direction: str,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    scale: float,
    more: tuple[Tensor | None, ...],
    make_outputs: Callable[[], tuple[Tensor | None, ...]],
    result: Callable[[list[tuple[Tensor | None, ...]]], object],
) -> Loop:
    """The C function for ranges of rows, each with its own outputs."""
    mu, _, z, _, y, used = inputs
    (count, dims), points, width = mu.shape, len(z), 0 if y is None else y.shape[-1]
    rows, pairs = (count, dims), (points, count if y is None else width)
    shapes = [rows, rows, (points, dims), (dims,), (count, width), pairs, pairs, (count,), rows, rows]
    tensors = (*inputs[:5], *more)
    fit = used is None or (
        used.shape == (count,) and used.dtype is torch.int64 and used.is_cpu and used.is_contiguous()
    )
    fit = fit and all(x is None or x.shape == shape for x, shape in zip(tensors, shapes, strict=False))
    if min(count, dims, points) < 1 or not fit:
        raise ValueError("mu, s, z, w must be (N, Q), (N, Q), (M, Q), (Q,), and the others (M, N), (M, R) or (N, ...)")
    for x in tensors:
        if not (x is None or (x.dtype is torch.float64 and x.is_cpu and x.is_contiguous())):
            raise ValueError("the compiled loops take contiguous float64 CPU tensors")
    function, sizes = _library.function(f"rows_{direction}"), (count, points, dims, width)

    def call(range_: tuple[int, int], outputs: tuple[Tensor | None, ...]) -> int:
        first, other, last = (map(pointer, x) for x in (inputs, more, outputs))  # of tensors that are kept alive here
        return function(*sizes, *first, scale, *other, *range_, *last)

    return Loop(call, make_outputs, result, row_work(count, points, dims, width))


def row_work(count: int, points: int, dims: int, width: int) -> float:
    """Multiply-adds of the loops over rows, each way."""
    return count * points * (_EXP + 4 * dims + width)


def entries() -> tuple[int, int]:
    """The addresses of the compiled loops, 0 if they were not built."""
    return _library.address("rows_forward"), _library.address("rows_backward")
