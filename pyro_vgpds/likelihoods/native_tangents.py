# SPDX-License-Identifier: Apache-2.0
"""Tangents of log-probabilities by optional compiled functions, in one pass over all entries.

Everything here is also computed with the operations of torch, each of which goes over the memory of all entries.
``_tangents.c`` has the equations.
"""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from pyro_vgpds.compiled import open_library

__all__ = [
    "dispersion_gradients", "is_compiled", "logistic", "negative_binomial", "student", "student_gradients",
]  # fmt: skip


@functools.cache
def _library() -> ctypes.CDLL | None:
    number, real, pointer = ctypes.c_long, ctypes.c_double, ctypes.c_void_p
    return open_library(
        f"{__package__}._tangents",
        tangents_logistic=[number, *[pointer] * 2, real, *[pointer] * 2],
        tangents_student=[*[number] * 2, *[pointer] * 6, real, *[pointer] * 4],
        tangents_negative_binomial=[*[number] * 3, *[pointer] * 7],
        tangents_dispersion_gradients=[*[number] * 3, *[pointer] * 6, number, pointer],
        tangents_student_gradients=[*[number] * 2, *[pointer] * 3, real, *[pointer] * 5, number, pointer],
    )


def is_compiled(y: Tensor, state: Tensor) -> bool:
    """Whether the functions can be used: compiled, float64 on a CPU, one state for each output, not traced.

    :param y: (N, D).
    :param state: (2, N, D).
    """
    return (
        y.dim() == 2
        and state.shape == (2, *y.shape)
        and all(x.dtype is torch.float64 and x.is_cpu and x.is_contiguous() for x in (y, state))
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
        and _library() is not None
    )


def _call(name: str, *arguments: Tensor | float) -> None:
    getattr(_library(), f"tangents_{name}")(*(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments))


def logistic(y: Tensor, state: Tensor, least: float) -> Tensor:
    """Tanh(c/2) / 2c and what the tangents of −log 2cosh(c/2) have at 0, (2, N, D), for c² = E f²; both are 0 for
    entries without output.

    :param y: (N, D), NaN if it was not observed.
    :param state: E f and E f², (2, N, D).
    :param least: of E f².
    """
    found = torch.empty_like(state)
    _call("logistic", y.numel(), y, state[1], least, *found)
    return found


def negative_binomial(y: Tensor, dispersion: Tensor, ways: Tensor, one: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, linear part and constant of the factors, (N, D) each.

    :param y: counts (N, D), NaN if they were not observed.
    :param dispersion: r, (D,).
    :param ways: a part of the constants: (N, D), or (K, D) for the counts 0 to K − 1 < N − 1.
    :param one: the result of :func:`logistic`.
    """
    found = torch.empty_like(y), torch.empty_like(y), torch.empty_like(y)
    _call("negative_binomial", *y.shape, _rows(y, ways), y, dispersion, ways, one, *found)
    return found


def dispersion_gradients(y: Tensor, ways: Tensor, one: Tensor, gradients: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The gradient in r through :func:`negative_binomial`, (D,).

    :param ways: the derivatives of those of :func:`negative_binomial` in r.
    :param gradients: in weight, linear part and constant, (N, D). Others as in :func:`negative_binomial`.
    """
    g_weight, g_linear, g_value = gradients
    found, (g_value, step) = y.new_empty(y.shape[1]), _steps(g_value)
    given = y, ways, one, g_weight.contiguous(), g_linear.contiguous(), g_value
    _call("dispersion_gradients", *y.shape, _rows(y, ways), *given, step, found)
    return found


def _rows(y: Tensor, ways: Tensor) -> int:
    """The rows of a table; 0 if there is a number for each entry."""
    return 0 if ways.shape == y.shape else len(ways)


def _steps(gradient: Tensor) -> tuple[Tensor, int]:
    """A gradient and whether its entries differ: that in the constants, which are summed, is one number."""
    step = int(any(gradient.stride()))
    return gradient.contiguous() if step else gradient, step


def student(
    y: Tensor, state: Tensor, parameters: tuple[Tensor, Tensor, Tensor], least: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weight, linear part and constant of the factors, and log(1 + r/w), (N, D) each.

    :param parameters: w, k and c, (D,) or one number each. Others as in :func:`logistic`.
    """
    found = tuple(torch.empty_like(y) for _ in range(4))
    own = [x.detach().to(y).expand(y.shape[1]).contiguous() for x in parameters]
    _call("student", *y.shape, y, state[0], state[1], *own, least, *found)
    return found  # type: ignore[return-value]


def student_gradients(
    y: Tensor, state: Tensor, least: float, weight: Tensor, log: Tensor, gradients: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Sums over the rows that the gradients in the parameters are made of, (5, D).

    :param weight: (N, D).
    :param log: log(1 + r/w), (N, D).
    :param gradients: in weight, linear part and constant, (N, D). Others as in :func:`logistic`.
    """
    g_weight, g_linear, g_value = gradients
    sums, (g_value, step) = y.new_empty(5, y.shape[1]), _steps(g_value)
    given = weight, log, g_weight.contiguous(), g_linear.contiguous(), g_value
    _call("student_gradients", *y.shape, y, state[0], state[1], least, *given, step, sums)
    return sums
