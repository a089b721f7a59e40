# SPDX-License-Identifier: Apache-2.0
"""Maximising a bound: damped steps that undo themselves, and L-BFGS that survives points without a finite value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from pyro_vgpds.linalg import NumericalError

__all__ = ["Ascent", "Damping", "lbfgs", "lbfgs_continued", "lbfgs_steps"]

P = TypeVar("P")

_GROWTH, _FAST_GROWTH = 1.2, 3.0  # of the length of a step after one that succeeded
_SHORT = 1e-3  # below this length, steps grow and shrink faster: the right length may be far away
_EARLY = 10  # successful steps after which an ascent has left its start


@dataclass(frozen=True)
class Ascent(Generic[P]):
    """The state of a damped ascent, between two steps."""

    point: P  #: the current point, with whatever the next step needs
    bound: float  #: its bound
    step: int = 0  #: steps so far, including those that were undone
    length: float = 1.0  #: length of the next step, relative to a full one
    quiet: int = 0  #: consecutive steps that changed the bound very little
    num_undone: int = 0  #: steps that were undone
    settled: bool = False  #: whether a step of an ordinary length succeeded
    idle: int = 0  #: successful steps since the bound last rose by more than a small change for each of them
    mark: float = -math.inf  #: the bound at that time

    @property
    def is_early(self) -> bool:
        """Whether hardly any step from the start succeeded yet."""
        return self.step - self.num_undone < _EARLY

    def grown(self) -> Ascent[P]:
        """The same with a longer next step."""
        return replace(self, length=min(1.0, _GROWTH * self.length))

    def undone(self) -> Ascent[P]:
        """The same point after a step from it that failed: the next one has half the length, or less."""
        length = (0.5 if self.length >= _SHORT else 0.1) * self.length
        return replace(self, step=self.step + 1, length=length, num_undone=self.num_undone + 1)


@dataclass(frozen=True)
class Damping:
    """When a step is undone, and when the ascent ends."""

    drop: float  #: a step that lowers the bound by more is undone
    small: Callable[[float], float]  #: the change that counts as small, given the new bound
    patience: float  #: consecutive steps with such a change that end the ascent
    least: float  #: an ascent that needs shorter steps than this is stuck
    early: float = math.inf  #: the same before it has left its start, if it is less: a bad start has huge gradients
    idle: float = math.inf  #: successful steps without a rise of more than a small change each that end the ascent
    fall: float = math.inf  #: an ascent that is further than this below an earlier bound is on its way back, not idle

    def step(
        self,
        state: Ascent[P],
        advance: Callable[[Ascent[P]], tuple[P, float]],
        undo: Callable[[Ascent[P]], Ascent[P]] = Ascent.undone,
    ) -> Ascent[P]:
        """The state after one step, or ``undo(state)`` if it fails.

        ``advance`` takes a step of length ``state.length`` and returns the new point and its bound, or raises a
        NumericalError.
        """
        try:
            point, bound = advance(state)
        except NumericalError:
            return undo(state)
        if bound < state.bound - self.drop:
            return undo(state)
        quiet = state.quiet + 1 if abs(bound - state.bound) <= self.small(bound) else 0
        length = min(1.0, (_GROWTH if state.length >= _SHORT else _FAST_GROWTH) * state.length)
        settled = state.settled or state.length >= self.least
        idle, mark = state.idle + 1, state.mark
        if bound - mark > idle * self.small(bound):
            idle, mark = 0, bound
        elif bound < mark - self.fall:
            idle = 0
        return Ascent(point, bound, state.step + 1, length, quiet, state.num_undone, settled, idle, mark)

    def stopped(self, state: Ascent[P]) -> str | None:
        """Why the ascent ends here: "stuck" or "converged"; None if it continues."""
        left = state.settled and not state.is_early
        if state.length < (self.least if left else min(self.least, self.early)):
            return "stuck"
        return "converged" if state.quiet >= self.patience or state.idle >= self.idle else None


def lbfgs(parameters: Sequence[Tensor], rate: float = 1.0) -> torch.optim.LBFGS:
    """L-BFGS with a strong Wolfe line search, which only the number of evaluations ends."""
    return torch.optim.LBFGS(
        parameters, lr=rate, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=0.0, tolerance_change=0.0
    )


def lbfgs_continued(optimiser: torch.optim.LBFGS, state: dict[str, Any]) -> None:
    """Give ``optimiser`` the state that ``state_dict`` returned.

    ``load_state_dict`` alone would convert all vectors to the dtype of the first parameter. They have that of all
    parameters together, which is float64 for a float32 model with the sites of q(X).
    """
    optimiser.load_state_dict(state)
    for parameter, kept in zip(optimiser.param_groups[0]["params"], state["state"].values(), strict=False):
        optimiser.state[parameter] = _on_device(kept, parameter.device)


def _on_device(value: Any, device: torch.device) -> Any:
    """A copy of a state, dictionaries and lists of tensors included, on a device."""
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, dict):
        return {key: _on_device(part, device) for key, part in value.items()}
    return [_on_device(part, device) for part in value] if isinstance(value, list) else value


def lbfgs_steps(
    optimiser: torch.optim.LBFGS, evaluate: Callable[[], float], wall: Callable[[], float], num_evaluations: int
) -> None:
    """Maximise a bound with an optimiser of :func:`lbfgs`.

    ``evaluate`` returns the bound and leaves the gradients of minus the bound with the parameters. If it raises a
    NumericalError or the bound is not finite, the line search sees a flat wall of height ``wall()`` there, and tries
    shorter steps.

    :param num_evaluations: evaluations of the bound, and iterations, at the most.
    """

    def closure() -> float:
        optimiser.zero_grad()
        try:
            bound = evaluate()
        except NumericalError:
            bound = math.nan
        if math.isfinite(bound):
            return -bound
        optimiser.zero_grad()
        return wall()

    optimiser.param_groups[0].update(max_iter=num_evaluations, max_eval=num_evaluations)
    optimiser.step(closure)
