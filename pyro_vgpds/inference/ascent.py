# SPDX-License-Identifier: Apache-2.0
"""Maximising a bound: damped steps that undo themselves, and L-BFGS that survives points without a finite value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from pyro_vgpds.linalg import NumericalError

__all__ = ["Ascent", "Damping", "lbfgs", "lbfgs_steps"]

P = TypeVar("P")


@dataclass(frozen=True)
class Ascent(Generic[P]):
    """The state of a damped ascent, between two steps."""

    point: P  #: the current point, with whatever the next step needs
    bound: float  #: its bound
    step: int = 0  #: steps so far, including those that were undone
    length: float = 1.0  #: length of the next step, relative to a full one
    quiet: int = 0  #: consecutive steps that changed the bound very little
    num_undone: int = 0  #: steps that were undone

    def grown(self) -> Ascent[P]:
        """The same with a longer next step."""
        return replace(self, length=min(1.0, 1.2 * self.length))

    def undone(self) -> Ascent[P]:
        """The same point after a step from it that failed: the next one has half the length."""
        return replace(self, step=self.step + 1, length=0.5 * self.length, num_undone=self.num_undone + 1)


@dataclass(frozen=True)
class Damping:
    """When a step is undone, and when the ascent ends."""

    drop: float  #: a step that lowers the bound by more is undone
    small: Callable[[float], float]  #: the change that counts as small, given the new bound
    patience: float  #: consecutive steps with such a change that end the ascent
    least: float  #: an ascent that needs shorter steps than this is stuck

    def step(
        self,
        state: Ascent[P],
        advance: Callable[[Ascent[P]], tuple[P, float]],
        undo: Callable[[Ascent[P]], Ascent[P]] = Ascent.undone,
    ) -> Ascent[P]:
        """The state after one step.

        :param state: the current state.
        :param advance: takes a step of length ``state.length`` and returns the new point and its bound, or raises a
            NumericalError.
        :param undo: the state after a step that failed.
        """
        try:
            point, bound = advance(state)
        except NumericalError:
            return undo(state)
        if bound < state.bound - self.drop:
            return undo(state)
        quiet = state.quiet + 1 if abs(bound - state.bound) <= self.small(bound) else 0
        return replace(state.grown(), point=point, bound=bound, step=state.step + 1, quiet=quiet)

    def stopped(self, state: Ascent[P]) -> str | None:
        """Why the ascent ends here: "stuck" or "converged"; None if it continues."""
        if state.length < self.least:
            return "stuck"
        return "converged" if state.quiet >= self.patience else None


def lbfgs(parameters: Sequence[Tensor], rate: float = 1.0) -> torch.optim.LBFGS:
    """L-BFGS with a strong Wolfe line search, which only the number of evaluations ends."""
    return torch.optim.LBFGS(
        parameters, lr=rate, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=0.0, tolerance_change=0.0
    )


def lbfgs_steps(
    optimiser: torch.optim.LBFGS, evaluate: Callable[[], float], wall: Callable[[], float], num_evaluations: int
) -> None:
    """Maximise a bound by L-BFGS.

    :param optimiser: from :func:`lbfgs`.
    :param evaluate: returns the bound and leaves the gradients of minus the bound with the parameters. If it raises a
        NumericalError or the bound is not finite, the line search sees a flat wall there, and tries shorter steps.
    :param wall: the height of the wall.
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
