# SPDX-License-Identifier: Apache-2.0
"""Adam with a state that is never changed in place: a step that fails is undone without copies.

The arithmetic is that of ``torch.optim.Adam`` to the last digit, and so are the contents of checkpoints. Most
parameters are a handful of numbers: so compiled functions move all of them, or, if they do not know their dtype or
device, a few calls of torch.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from pyro_vgpds.compiled import open_library

__all__ = ["Adam", "AdamState", "Moments"]

_EPS = 1e-8  # of torch.optim.Adam


class Moments(NamedTuple):
    """What Adam knows of a parameter."""

    step: int  #: steps that moved it
    average: Tensor  #: of the gradient, of the shape of the parameter or as a vector
    square: Tensor  #: the average of the squared gradient


def _unmoved(parameter: Tensor) -> Moments:
    return Moments(0, torch.zeros_like(parameter), torch.zeros_like(parameter))


#: of each parameter; None if it has not moved yet
AdamState: TypeAlias = tuple[Moments | None, ...]


@functools.cache
def _library() -> ctypes.CDLL | None:
    number, real, pointer = ctypes.c_long, ctypes.c_double, ctypes.c_void_p
    return open_library(
        f"{__package__}._adam",
        adam_averages=[number, pointer, real, real, ctypes.c_int, *[pointer] * 5],
        adam_move=[number, *[pointer] * 3, real, *[pointer] * 3],
    )


@functools.cache
def _is_fused() -> bool:
    """Whether torch rounds -1 + 0.1 x 10 once: the result is then the error of 0.1 times 10 instead of 0."""
    start, end = torch.tensor([-1.0, 9.0], dtype=torch.float64, device="cpu")
    return start.lerp(end, 0.1).item() != 0.0


class Adam:
    """Moves parameters by their gradients; those without one stay.

    :param parameters: the parameters.
    :param rates: the learning rate of each.
    :param betas: the decay of the averages of gradients and of their squares.

    >>> import torch
    >>> from pyro_vgpds.training.adam import Adam
    >>> number = torch.tensor([1.0], requires_grad=True)
    >>> adam = Adam([number], [0.1], betas=(0.9, 0.999))
    >>> number.grad = torch.tensor([5.0])
    >>> adam.step()
    >>> number.item()  # the first step is as long as the learning rate
    0.8999999761581421
    """

    def __init__(self, parameters: Sequence[Tensor], rates: Sequence[float], betas: tuple[float, float]) -> None:
        self.parameters, self.rates, self.betas = list(parameters), list(rates), betas
        #: never changed in place: keep it to go back
        self.state: AdamState = (None,) * len(self.parameters)
        self._is_compiled = _library() is not None and all(
            p.dtype == torch.float64 and p.is_cpu and p.is_contiguous() for p in self.parameters
        )

    @torch.no_grad()
    def step(self, length: float = 1.0) -> None:
        """Move the parameters.

        :param length: what the learning rates are multiplied by.
        """
        pairs = [(i, parameter.grad) for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if not pairs:
            return
        moved, gradients = [i for i, _ in pairs], [gradient for _, gradient in pairs]
        before = [self.state[i] or _unmoved(self.parameters[i]) for i in moved]
        first, second = self.betas
        lengths = [
            -(self.rates[i] * length / (1 - first ** (old.step + 1))) for i, old in zip(moved, before, strict=True)
        ]
        roots = [math.sqrt(1 - second ** (old.step + 1)) for old in before]
        move = self._move_compiled if self._is_compiled else self._move
        averages, squares = move([self.parameters[i] for i in moved], gradients, before, lengths, roots)
        state = list(self.state)
        for i, old, average, square in zip(moved, before, averages, squares, strict=True):
            state[i] = Moments(old.step + 1, average, square)
        self.state = tuple(state)

    def _move(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        before: list[Moments],
        lengths: list[float],
        roots: list[float],
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Move parameters, and return the averages of their gradients and of the squares of these."""
        first, second = self.betas
        averages = torch._foreach_lerp([old.average for old in before], gradients, 1 - first)
        squares = torch._foreach_mul([old.square for old in before], second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, roots)
        torch._foreach_add_(scales, _EPS)
        torch._foreach_addcdiv_(parameters, averages, scales, lengths)
        return averages, squares

    def _move_compiled(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        before: list[Moments],
        lengths: list[float],
        roots: list[float],
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The same in three calls, whose results are vectors."""
        library, count, sizes = _library(), len(parameters), [p.numel() for p in parameters]
        assert library is not None
        numbers, pointers, counts = ctypes.c_double * count, ctypes.c_void_p * count, (ctypes.c_long * count)(*sizes)
        given = [g.contiguous() for g in gradients]
        averages, squares = parameters[0].new_empty(2, sum(sizes))
        tensors = (given, [old.average for old in before], [old.square for old in before])
        old = [pointers(*[x.data_ptr() for x in some]) for some in tensors]
        library.adam_averages(count, counts, *self.betas, _is_fused(), *old, averages.data_ptr(), squares.data_ptr())
        scales = squares.sqrt()
        moving = pointers(*[p.data_ptr() for p in parameters])
        library.adam_move(
            count, counts, numbers(*lengths), numbers(*roots), _EPS, averages.data_ptr(), scales.data_ptr(), moving
        )
        for parameter in parameters:
            increment_version(parameter)
        return averages.split(sizes), squares.split(sizes)

    def state_dict(self) -> dict[str, dict[int, dict[str, Tensor]]]:
        """The state for a file, in the form of ``torch.optim.Adam``."""
        return {
            "state": {
                i: {
                    "step": torch.tensor(float(own.step)),
                    "exp_avg": own.average.view(parameter.shape),
                    "exp_avg_sq": own.square.view(parameter.shape),
                }
                for i, (own, parameter) in enumerate(zip(self.state, self.parameters, strict=True))
                if own is not None
            }
        }

    def load_state_dict(self, content: Mapping[str, Mapping[int, Mapping[str, Tensor]]]) -> None:
        """Continue from a :meth:`state_dict`, also from one of ``torch.optim.Adam``.

        :param content: the state.
        :raises ValueError: if it is not that of these parameters.
        """
        state: list[Moments | None] = [None] * len(self.parameters)
        for i, own in content["state"].items():
            parameter = self.parameters[i]
            if any(own[name].shape != parameter.shape for name in ("exp_avg", "exp_avg_sq")):
                raise ValueError(f"the state of parameter {i} has another shape than {tuple(parameter.shape)}.")
            average, square = (own[name].to(parameter, copy=True).contiguous() for name in ("exp_avg", "exp_avg_sq"))
            state[i] = Moments(int(own["step"]), average, square)
        self.state = tuple(state)
