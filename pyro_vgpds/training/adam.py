# SPDX-License-Identifier: Apache-2.0
"""Adam with a state that is never changed in place: a step that fails is undone without copies.

The arithmetic is that of ``torch.optim.Adam`` to the last digit, and so are the contents of checkpoints. Most
parameters are a handful of numbers: so compiled functions move all of them, or, if they do not know their dtype or
device, a few calls of torch.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

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


class _Packed(Sequence[Moments | None]):
    """The moments of all parameters as vectors, with one parameter after the other.

    :param steps: steps that moved each parameter.
    :param averages: of all gradients.
    :param squares: the averages of the squared gradients.
    :param ends: where each parameter ends.
    """

    def __init__(self, steps: Sequence[int], averages: Tensor, squares: Tensor, ends: Sequence[int]) -> None:
        self.steps, self.averages, self.squares, self.ends = steps, averages, squares, ends

    @classmethod
    def of(cls, state: AdamState, parameters: Sequence[Tensor]) -> _Packed:
        """From the moments of each parameter."""
        moments = [own or _unmoved(parameter) for own, parameter in zip(state, parameters, strict=True)]
        averages = torch.cat([own.average.flatten() for own in moments])
        squares = torch.cat([own.square.flatten() for own in moments])
        ends = list(itertools.accumulate(parameter.numel() for parameter in parameters))
        return cls([own.step for own in moments], averages, squares, ends)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, i: Any) -> Any:
        if self.steps[i] == 0:
            return None
        own = slice(self.ends[i - 1] if i else 0, self.ends[i])
        return Moments(self.steps[i], self.averages[own], self.squares[own])


#: of each parameter; None if it has not moved yet
AdamState: TypeAlias = Sequence[Moments | None]


@functools.cache
def _library() -> ctypes.CDLL | None:
    number, real, pointer = ctypes.c_long, ctypes.c_double, ctypes.c_void_p
    return open_library(
        f"{__package__}._adam",
        adam_averages=[number, pointer, real, real, ctypes.c_int, *[pointer] * 5],
        adam_move=[number, *[pointer] * 3, real, *[pointer] * 4],
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
        self._sizes = (ctypes.c_long * len(self.parameters))(*[p.numel() for p in self.parameters])

    @torch.no_grad()
    def step(self, length: float = 1.0) -> None:
        """Move the parameters.

        :param length: what the learning rates are multiplied by.
        """
        gradients = [parameter.grad for parameter in self.parameters]
        if any(gradient is not None for gradient in gradients):
            self.state = (self._move_compiled if self._is_compiled else self._move)(gradients, length)

    def _factors(self, steps: Sequence[int], length: float) -> tuple[list[float], list[float]]:
        """What the steps of parameters are multiplied by, and what the roots of the average squares are divided by.

        :param steps: the steps that moved each, with this one; 0 if none did.
        """
        first, second = self.betas
        known = {n: (1 - first**n, math.sqrt(1 - second**n)) for n in {*steps} if n}
        found = [known.get(n, (1.0, 1.0)) for n in steps]
        lengths = [-(rate * length / correction) for rate, (correction, _) in zip(self.rates, found, strict=True)]
        return lengths, [root for _, root in found]

    def _move(self, all_gradients: list[Tensor | None], length: float) -> AdamState:
        """Move parameters, and return the new state."""
        moved = [i for i, gradient in enumerate(all_gradients) if gradient is not None]
        parameters, gradients = [self.parameters[i] for i in moved], [g for g in all_gradients if g is not None]
        before = [self.state[i] or _unmoved(self.parameters[i]) for i in moved]
        steps = [0] * len(all_gradients)
        for i, old in zip(moved, before, strict=True):
            steps[i] = old.step + 1
        lengths, roots = ([own[i] for i in moved] for own in self._factors(steps, length))
        first, second = self.betas
        averages = torch._foreach_lerp([old.average for old in before], gradients, 1 - first)
        squares = torch._foreach_mul([old.square for old in before], second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, roots)
        torch._foreach_add_(scales, _EPS)
        torch._foreach_addcdiv_(parameters, averages, scales, lengths)
        state = list(self.state)
        for i, average, square in zip(moved, averages, squares, strict=True):
            state[i] = Moments(steps[i], average, square)
        return tuple(state)

    def _move_compiled(self, all_gradients: list[Tensor | None], length: float) -> AdamState:
        """The same in three calls, for all parameters at once."""
        library, count, before = _library(), len(all_gradients), self.state
        assert library is not None
        if not isinstance(before, _Packed):
            before = _Packed.of(before, self.parameters)
        given = [None if g is None else g.contiguous() for g in all_gradients]
        steps = [n if g is None else n + 1 for n, g in zip(before.steps, given, strict=True)]
        numbers, pointers = ctypes.c_double * count, ctypes.c_void_p * count
        sizes, gradients = self._sizes, pointers(*[None if g is None else g.data_ptr() for g in given])
        averages, squares = torch.empty_like(before.averages), torch.empty_like(before.squares)
        old, new = (before.averages.data_ptr(), before.squares.data_ptr()), averages.data_ptr()
        library.adam_averages(count, sizes, *self.betas, _is_fused(), gradients, *old, new, squares.data_ptr())
        lengths, roots = (numbers(*own) for own in self._factors(steps, length))
        scales, moving = squares.sqrt(), pointers(*[p.data_ptr() for p in self.parameters])
        library.adam_move(count, sizes, lengths, roots, _EPS, gradients, new, scales.data_ptr(), moving)
        for parameter, gradient in zip(self.parameters, given, strict=True):
            if gradient is not None:
                increment_version(parameter)
        return _Packed(steps, averages, squares, before.ends)

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
