# SPDX-License-Identifier: Apache-2.0
r"""Tangents of log-probabilities, and the Gaussian factors that they give, by optional compiled functions.

The functions go over all entries once, and autograd needs one more pass. Likelihoods compute the same with the
operations of torch, each of which goes over the memory of all entries (:class:`TangentLikelihood
<pyro_vgpds.likelihoods.TangentLikelihood>`). ``_tangents.c`` has the equations. Of a Student-t likelihood, with the
width w = νσ², the power k = −(ν + 1)/2 and r = E(f − y)²:

.. math:: \omega = \frac{-2k}{w + r}, \qquad \text{linear} = \omega y, \qquad
          \text{constant} = c + k \log(1 + r/w) + \tfrac{\omega}{2} (r - y^2)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.compiled import Library
from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.types import Context

__all__ = ["different_counts", "is_compiled", "logistic", "negative_binomial_sites", "student_sites"]

_MANY = 4  # frames for each count from which on a table of log-gamma functions takes less time


_library = Library(
    f"{__package__}._tangents",
    tangents_logistic="n pp r pp",
    tangents_student="nn pppppp r pppp",
    tangents_negative_binomial="nnn ppppppp",
    tangents_dispersion_gradients="nnn pppppp n p",
    tangents_student_gradients="nn ppp r ppppp n p",
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
    _library.function(f"tangents_{name}")(*(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments))


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


def _steps(gradient: Tensor) -> tuple[Tensor, int]:
    """A gradient and whether its entries differ: that in the constants, which are summed, is one number."""
    step = int(any(gradient.stride()))
    return gradient.contiguous() if step else gradient, step


def student_sites(y: Tensor, state: Tensor, least: float, width: Tensor, power: Tensor, constant: Tensor) -> Sites:
    """The factors of a Student-t likelihood.

    :param y: outputs (N, D), NaN if they were not observed.
    :param state: E f and E f² where the tangents touch, (2, N, D).
    :param least: of r.
    :param width: w, one number or (D,).
    :param power: k, one number or (D,).
    :param constant: c, one number or (D,).
    """
    return Sites(*_StudentSites.apply(y, state, least, width, power, constant))


class _Pass(Context):
    least: float


class _StudentSites(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Pass, y: Tensor, state: Tensor, least: float, *parameters: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight, linear, value, log = (torch.empty_like(y) for _ in range(4))
        own = [x.detach().to(y).expand(y.shape[1]).contiguous() for x in parameters]
        _call("student", *y.shape, y, *state, *own, least, weight, linear, value, log)
        ctx.least = least
        ctx.save_for_backward(y, state, weight, log, *parameters)
        return weight, linear, value

    @staticmethod
    @once_differentiable
    def backward(ctx: _Pass, g_weight: Tensor, g_linear: Tensor, g_value: Tensor) -> tuple[Tensor | None, ...]:
        y, state, weight, log, width, power, constant = ctx.saved_tensors
        found, (g_value, step) = y.new_empty(5, y.shape[1]), _steps(g_value)
        given = weight, log, g_weight.contiguous(), g_linear.contiguous(), g_value
        _call("student_gradients", *y.shape, y, *state, ctx.least, *given, step, found)
        # the gradients in w, k and c from sums over the rows, with dω/dk = ω/k and dω/dw = ω²/2k
        first, second, logs, weights, count = found
        g_power = first / power + logs
        g_width = second / (2.0 * power) - 0.5 * weights - count * power / width
        pairs = (g_width, width), (g_power, power), (count, constant)
        return None, None, None, *(g.sum_to_size(x.shape) for g, x in pairs)


def different_counts(y: Tensor) -> Tensor:
    """The counts 0 to the largest one, (K, 1), if they are few compared with the frames; otherwise the outputs.

    :param y: counts (N, D), NaN if they were not observed.
    """
    most = int(y.nan_to_num(nan=0.0).max()) if y.numel() else 0
    if y.dim() != 2 or _MANY * most >= y.shape[0]:
        return y
    return torch.arange(most + 1, dtype=y.dtype, device=y.device).unsqueeze(-1)


def negative_binomial_sites(y: Tensor, tangents: Tensor, dispersion: Tensor) -> Sites:
    """The factors of a negative binomial likelihood.

    :param y: counts (N, D), NaN if they were not observed.
    :param tangents: weight and constant for b = 1, without κ, (2, N, D), as :func:`logistic` gives them.
    :param dispersion: r, one number or (D,).
    """
    return Sites(*_NegativeBinomialSites.apply(y, tangents, dispersion))


class _NegativeBinomialSites(torch.autograd.Function):
    # ``ways`` is a part of the constants: (N, D), or (K, D) for the counts 0 to K − 1 < N − 1

    @staticmethod
    def forward(ctx: Context, y: Tensor, tangents: Tensor, dispersion: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r, k = dispersion.to(y).expand(y.shape[1]).contiguous(), different_counts(y)
        ctx.save_for_backward(y, tangents, dispersion, r, k)
        ways = torch.lgamma(k + r) - torch.lgamma(r) - torch.lgamma(k + 1.0)
        found = torch.empty_like(y), torch.empty_like(y), torch.empty_like(y)
        _call("negative_binomial", *y.shape, _rows(y, ways), y, r, ways, tangents, *found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, g_weight: Tensor, g_linear: Tensor, g_value: Tensor) -> tuple[None, None, Tensor]:
        y, tangents, dispersion, r, k = ctx.saved_tensors
        ways = torch.digamma(k + r) - torch.digamma(r)
        found, (g_value, step) = y.new_empty(y.shape[1]), _steps(g_value)
        given = y, ways, tangents, g_weight.contiguous(), g_linear.contiguous(), g_value
        _call("dispersion_gradients", *y.shape, _rows(y, ways), *given, step, found)
        return None, None, found.to(dispersion).sum_to_size(dispersion.shape)


def _rows(y: Tensor, ways: Tensor) -> int:
    """The rows of a table; 0 if there is a number for each entry."""
    return 0 if ways.shape == y.shape else len(ways)
