# SPDX-License-Identifier: Apache-2.0
"""q(X) of a Markov kernel from η and λ with the gradients of its parameters, without autograd.

It is what :func:`~pyro_vgpds.temporal.fused.natural_posterior` and :mod:`~pyro_vgpds.temporal.divergence` compute. In
small problems the steps of autograd and the operations of torch on N × Q numbers take longer than the recursions; here
compiled code does them (``_natural.c``).
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_vgpds.compiled import open_library
from pyro_vgpds.linalg import default_jitter
from pyro_vgpds.temporal.fused import Frames
from pyro_vgpds.temporal.parameters import exponent_of, stacked, white_of, with_white
from pyro_vgpds.temporal.rounding import are_digits, lost_digits
from pyro_vgpds.temporal.tiles import Packed

__all__ = ["KnownPath", "known_path"]


@functools.cache
def _library() -> ctypes.CDLL | None:
    sizes, real, pointer = [ctypes.c_long] * 3, ctypes.c_double, ctypes.c_void_p
    return open_library(
        f"{__package__}._natural",
        natural_sites=[*sizes, *[pointer] * 5],
        natural_moments=[*sizes, real, *[pointer] * 9],
        natural_before=[*sizes, real, *[pointer] * 9],
        natural_after=[*sizes, real, *[pointer] * 12],
        natural_step=[*sizes, real, real, *[pointer] * 8],
    )


def known_path(frames: Frames, eta: Tensor, lam: Tensor, tensors: Sequence[Tensor]) -> KnownPath | None:
    """q(X); None if its gradients need autograd.

    :param frames: of a program.
    :param eta: η, (N, Q).
    :param lam: λ, (N, Q).
    :param tensors: the parameters of the program.
    """
    if _library() is None or eta.shape != lam.shape or lam.dim() != 2 or eta.requires_grad or lam.requires_grad:
        return None
    if eta.dtype != torch.float64 or lam.dtype != torch.float64 or not (eta.is_cpu and lam.is_cpu):
        return None
    exponents = [exponent_of(x) for x in tensors]
    if any(x.requires_grad and exponent is None for x, exponent in zip(tensors, exponents, strict=True)):
        return None
    with torch.no_grad():
        return KnownPath(frames, eta.contiguous(), lam.contiguous(), tensors, exponents)


class KnownPath:
    """The moments of q(X) and KL(q, p), and the gradients of KL(q, p) minus a function of the moments.

    :param exponents: for each parameter the tensor of which it is the exponential, which gets the gradients; None if it
        is fixed. Others as in :func:`known_path`.
    :raises NumericalError: if rounding errors are all that is left of the divergence.
    """

    batch_shape = torch.Size()

    def __init__(
        self,
        frames: Frames,
        eta: Tensor,
        lam: Tensor,
        tensors: Sequence[Tensor],
        exponents: Sequence[Tensor | None],
    ) -> None:
        self.eta, self.lam = eta, lam
        self._frames, self._tensors, self._exponents = frames, tensors, exponents
        values = self._values = stacked(tensors)
        n, q = lam.shape
        self._sizes = n, q, values.shape[1]
        self._white = white_of(frames.program, values).contiguous()
        self._model, variance = frames.model(values, q)
        #: the variance (K,) of the prior
        self.prior_variance = variance + self._white[:, 0]
        own_eta, self._own = lam.new_empty(2, q, n)
        self._call("sites", eta, lam, self._white, own_eta, self._own)
        self._s, _, logdet, self._kept = self._model.variance(self._own)
        self._mean, self._bar = self._model.solve(own_eta, self._own, self._kept)
        #: μ and diag S, without negative values that rounding errors made, (N, Q)
        self.mean, self.variance = torch.empty_like(lam), torch.empty_like(lam)
        numbers = lam.new_empty(4)
        own = self._white, self._mean, self._bar, self._s, logdet, self.mean, self.variance, numbers
        self._call("moments", default_jitter(lam.dtype), lam, *own)
        #: KL(q, p)
        self.divergence, *limits = numbers.tolist()
        if not (math.isfinite(self.divergence) and are_digits(*limits)):
            raise lost_digits(numbers)
        #: the derivatives of the function in ``mean`` and ``variance``, once they are known
        self.derivatives: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def add_gradients(self, d_mean: Tensor, d_variance: Tensor) -> None:
        """Add the gradients of KL(q, p) minus a function to those of the parameters.

        :param d_mean: the derivative of the function in ``mean``, (N, Q).
        :param d_variance: that in ``variance``, (N, Q).
        """
        d_mean, d_variance = d_mean.contiguous(), d_variance.contiguous()
        self.derivatives = d_mean, d_variance
        direction, sites = torch.empty_like(self._own), torch.empty_like(self._own)
        given = self.lam, self._white, self.mean, self._bar, self._s, d_mean, d_variance
        self._call("before", 0.5, *given, direction, sites)
        g_a, g_q, g_own = self._model.variance_grad(self._own, direction, self._own.new_full(self._sizes[1:2], 0.5))
        through, left = self._model.solve(sites, self._own, self._kept)
        more_a, more_q = self._model.quadratic(left, self._bar)
        g_white = self._own.new_empty(self._sizes[1])
        self._call("after", 0.5, self.eta, *given[:3], self._mean, *given[3:], g_own, through, g_white)
        half = g_a if isinstance(self._model, Packed) else None
        more_a = more_a if half is not None else g_a.add_(more_a)
        program = self._frames.program
        gradient = program.states_grad(self._values, self._frames.own, more_a, half, g_q.add_(more_q))
        # of the exponents: d exp(x) = exp(x) dx
        rows = with_white(program, gradient, g_white).mul_(self._values).unbind()
        for x, row, exponent in zip(self._tensors, rows, self._exponents, strict=True):
            if exponent is not None and x.requires_grad:
                own = (row if x.shape == row.shape else row.sum(0, True)).view(exponent.shape)
                exponent.grad = own if exponent.grad is None else exponent.grad + own

    def natural_step(self, rate: float, floor: float) -> tuple[Tensor, Tensor]:
        """The next η and λ, with the derivatives that :meth:`add_gradients` was given.

        :param rate: length of the step.
        :param floor: the least λ, in units of the inverse prior variance.
        """
        assert self.derivatives is not None
        found = torch.empty_like(self.eta), torch.empty_like(self.lam)
        given = self.eta, self.lam, self.mean, *self.derivatives, self.prior_variance
        self._call("step", rate, floor, *given, *found)
        return found

    def _call(self, name: str, *arguments: Tensor | float) -> None:
        given = (x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)
        getattr(_library(), f"natural_{name}")(*self._sizes, *given)
