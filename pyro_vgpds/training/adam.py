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

from pyro_vgpds.training.bundle import Bundle, Packed, library

__all__ = ["Adam", "AdamMoments", "AdamState"]

_EPS = 1e-8  # of torch.optim.Adam


class AdamMoments(NamedTuple):
    """What Adam knows of a parameter."""

    step: int  #: steps that moved it
    average: Tensor  #: of the gradient, of the shape of the parameter
    square: Tensor  #: the average of the squared gradient


def _unmoved(parameter: Tensor) -> AdamMoments:
    return AdamMoments(0, torch.zeros_like(parameter), torch.zeros_like(parameter))


class _State(Sequence[AdamMoments | None]):
    """The moments of all parameters as vectors: numbers of steps, averages of gradients and of their squares."""

    def __init__(self, steps: Sequence[int], averages: Packed, squares: Packed) -> None:
        self.steps, self.averages, self.squares = steps, averages, squares

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, i: int) -> AdamMoments | None:  # type: ignore[override]
        return AdamMoments(self.steps[i], self.averages[i], self.squares[i]) if self.steps[i] else None


#: of each parameter; None if it has not moved yet
AdamState: TypeAlias = Sequence[AdamMoments | None]


@functools.cache
def _is_fused() -> bool:
    """Whether torch rounds -1 + 0.1 x 10 once: the result is then the error of 0.1 times 10 instead of 0."""
    start, end = torch.tensor([-1.0, 9.0], dtype=torch.float64, device="cpu")
    return start.lerp(end, 0.1).item() != 0.0


@functools.cache
def _marks_many() -> bool:
    """Whether torch takes a list of tensors that were changed, as it does from 2.4 on."""
    try:
        increment_version([torch.zeros(1)])  # type: ignore[arg-type,unused-ignore]
    except (TypeError, RuntimeError):
        return False
    return True


def _mark_changed(parameters: list[Tensor]) -> None:
    """Tell autograd and caches that parameters were changed in place."""
    if _marks_many():
        increment_version(parameters)  # type: ignore[arg-type,unused-ignore]
        return
    for parameter in parameters:
        increment_version(parameter)


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
        self._bundle = Bundle(self.parameters)
        self._rates = (ctypes.c_double * len(self.rates))(*self.rates)

    def step(self, length: float = 1.0) -> None:
        """Move the parameters, with learning rates multiplied by ``length``."""
        gradients = [parameter.grad for parameter in self.parameters]
        if any(gradient is not None for gradient in gradients):
            self.state = (self._move_compiled if self._bundle.is_compiled else self._move)(gradients, length)

    @torch.no_grad()
    def _move(self, all_gradients: list[Tensor | None], length: float) -> AdamState:
        """Move parameters, and return the new state."""
        moved = [i for i, gradient in enumerate(all_gradients) if gradient is not None]
        parameters, gradients = [self.parameters[i] for i in moved], [g for g in all_gradients if g is not None]
        before = [self.state[i] or _unmoved(self.parameters[i]) for i in moved]
        first, second = self.betas
        lengths = [
            -(self.rates[i] * length / (1 - first ** (old.step + 1))) for i, old in zip(moved, before, strict=True)
        ]
        averages = torch._foreach_lerp([old.average for old in before], gradients, 1 - first)
        squares = torch._foreach_mul([old.square for old in before], second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, [math.sqrt(1 - second ** (old.step + 1)) for old in before])
        torch._foreach_add_(scales, _EPS)
        torch._foreach_addcdiv_(parameters, averages, scales, lengths)
        state = list(self.state)
        for i, old, average, square in zip(moved, before, averages, squares, strict=True):
            state[i] = AdamMoments(old.step + 1, average, square)
        return tuple(state)

    def _move_compiled(self, all_gradients: list[Tensor | None], length: float) -> AdamState:
        """The same in three calls, for all parameters at once."""
        functions, bundle, before, count = library(), self._bundle, self.state, len(all_gradients)
        assert functions is not None
        if not isinstance(before, _State):
            before = self._packed(before)
        given = [None if g is None else g.contiguous() for g in all_gradients]
        steps = [n if g is None else n + 1 for n, g in zip(before.steps, given, strict=True)]
        gradients, moving = bundle.addresses(given), bundle.addresses(self.parameters)
        old = before.averages.vector, before.squares.vector
        averages, squares = torch.empty_like(old[0]), torch.empty_like(old[1])
        vectors = [x.data_ptr() for x in (*old, averages, squares)]
        functions.adam_averages(count, bundle.sizes, *self.betas, _is_fused(), gradients, *vectors)
        scales, numbers = squares.sqrt(), (ctypes.c_long * count)(*steps)
        functions.adam_move(
            count, bundle.sizes, numbers, self._rates, length, *self.betas, _EPS, gradients, vectors[2],
            scales.data_ptr(), moving,
        )  # fmt: skip
        _mark_changed([p for p, g in zip(self.parameters, given, strict=True) if g is not None])
        return _State(steps, bundle.pack(averages), bundle.pack(squares))

    def _packed(self, state: AdamState) -> _State:
        """A state as vectors."""
        moments = [own or _unmoved(parameter) for own, parameter in zip(state, self.parameters, strict=True)]
        averages = torch.cat([own.average.flatten() for own in moments])
        squares = torch.cat([own.square.flatten() for own in moments])
        return _State([own.step for own in moments], self._bundle.pack(averages), self._bundle.pack(squares))

    def state_dict(self) -> dict[str, dict[int, dict[str, Tensor]]]:
        """The state for a file, in the form of ``torch.optim.Adam``."""
        return {
            "state": {
                i: {"step": torch.tensor(float(own.step)), "exp_avg": own.average, "exp_avg_sq": own.square}
                for i, own in enumerate(self.state)
                if own is not None
            }
        }

    def load_state_dict(self, content: Mapping[str, Mapping[int, Mapping[str, Tensor]]]) -> None:
        """Continue from a :meth:`state_dict`, also from one of ``torch.optim.Adam``."""
        state: list[AdamMoments | None] = [None] * len(self.parameters)
        for i, own in content["state"].items():
            parameter = self.parameters[i]
            if any(own[name].shape != parameter.shape for name in ("exp_avg", "exp_avg_sq")):
                raise ValueError(f"the state of parameter {i} has another shape than {tuple(parameter.shape)}.")
            average, square = (own[name].to(parameter, copy=True).contiguous() for name in ("exp_avg", "exp_avg_sq"))
            state[i] = AdamMoments(int(own["step"]), average, square)
        self.state = tuple(state)
