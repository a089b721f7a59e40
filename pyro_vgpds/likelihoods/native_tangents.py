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

__all__ = ["is_compiled", "logistic", "student", "student_gradients"]


@functools.cache
def _library() -> ctypes.CDLL | None:
    number, real, pointer = ctypes.c_long, ctypes.c_double, ctypes.c_void_p
    return open_library(
        f"{__package__}._tangents",
        tangents_logistic=[number, *[pointer] * 2, real, *[pointer] * 2],
        tangents_student=[*[number] * 2, *[pointer] * 6, real, *[pointer] * 4],
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


def logistic(y: Tensor, state: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Tanh(c/2) / 2c and what the tangents of −log 2cosh(c/2) have at 0, for c² = E f²; 0 for entries without output.

    :param y: (N, D), NaN if it was not observed.
    :param state: E f and E f², (2, N, D).
    :param least: of E f².
    """
    weight, value = torch.empty_like(y), torch.empty_like(y)
    _call("logistic", y.numel(), y, state[1], least, weight, value)
    return weight, value


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
    sums, step = y.new_empty(5, y.shape[1]), int(any(g_value.stride()))
    g_value = g_value.contiguous() if step else g_value  # that of a sum is one number
    given = weight, log, g_weight.contiguous(), g_linear.contiguous(), g_value
    _call("student_gradients", *y.shape, y, state[0], state[1], least, *given, step, sums)
    return sums
