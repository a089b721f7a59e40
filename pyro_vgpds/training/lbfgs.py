# SPDX-License-Identifier: Apache-2.0
"""Training by L-BFGS over all parameters; every evaluation counts as a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.inference.ascent import lbfgs, lbfgs_continued, lbfgs_steps
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.training.problem import NO_START, Problem, Values
from pyro_vgpds.training.settings import Settings

__all__ = ["Chunk", "LbfgsSteps"]

_CHUNK = 20  # evaluations between two states that can be written to a file


@dataclass(frozen=True)
class Chunk:
    """The state after some evaluations in a row."""

    phase: int = 0  #: 0 is the warm-up, 1 moves the noise, too
    spent: int = 0  #: evaluations of this phase so far
    last: float = -math.inf  #: the best bound of the last chunk of this phase
    optimiser: dict[str, Any] | None = None  #: its state; None at the beginning of a phase
    bounds: tuple[float, ...] = ()  #: of the chunk that led here
    num_undone: int = 0  #: evaluations without a finite value
    converged: bool = False
    generator: Tensor = field(default_factory=torch.get_rng_state)  #: state of torch's generator after the chunk


class LbfgsSteps:
    """Chunks of evaluations as a function of a state."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        late = {id(p) for p in problem.late}
        others = [p for p in problem.parameters if id(p) not in late]
        warmup = min(settings.num_warmup, settings.num_steps) if len(others) < len(problem.parameters) else 0
        self._phases = [(others, warmup), (problem.parameters, settings.num_steps + 1 - warmup)]

    def start(self) -> Chunk:
        """The state before the first evaluation."""
        return self._next(Chunk())

    def resumed(self, values: Values, loop: dict[str, Any], num_undone: int) -> Chunk:
        """The state of a checkpoint."""
        self.problem.restore(values)
        torch.set_rng_state(loop["generator"])
        return self._next(Chunk(**loop, num_undone=num_undone))

    def step(self, state: Chunk) -> Chunk:
        """The state after one more chunk."""
        parameters, budget = self._phases[state.phase]
        optimiser = lbfgs(parameters, self.settings.rate)
        if state.optimiser is not None:
            lbfgs_continued(optimiser, state.optimiser)
        problem, bounds, num_failed = self.problem, list[float](), 0

        def evaluate() -> float:
            bound, _ = problem.evaluate()
            bounds.append(bound)
            return bound

        def wall() -> float:
            nonlocal num_failed
            num_failed += 1
            return 100.0 * (1.0 + abs(problem.best_bound)) - problem.best_bound

        lbfgs_steps(optimiser, evaluate, wall, min(_CHUNK, budget - state.spent))
        if not math.isfinite(problem.best_bound):
            raise NumericalError(NO_START)
        last = max(bounds, default=state.last)
        small = problem.small_change(state.last, self.settings.tolerance) if math.isfinite(state.last) else 0.0
        quiet = last - state.last <= small
        spent = budget if quiet and state.phase == 0 else state.spent + max(1, len(bounds))
        undone, converged = state.num_undone + num_failed, quiet and state.phase == 1
        chunk = Chunk(state.phase, spent, last, optimiser.state_dict(), tuple(bounds), undone, converged)
        return self._next(chunk)

    def _next(self, chunk: Chunk) -> Chunk:
        """The same at the beginning of the next phase, if its own has ended."""
        if chunk.phase == 0 and chunk.spent >= self._phases[0][1]:
            # A new optimiser: the old curvature is that of another problem.
            return Chunk(phase=1, bounds=chunk.bounds, num_undone=chunk.num_undone)
        return chunk

    def bounds(self, state: Chunk) -> tuple[float, ...]:
        """The bounds that the chunk found."""
        return state.bounds

    def stopped(self, state: Chunk) -> str | None:
        """Why training ends here; None if it continues."""
        if state.converged:
            return "converged"
        return "steps" if state.phase == 1 and state.spent >= self._phases[1][1] else None

    def stored(self, state: Chunk) -> dict[str, Any]:
        """The state for a checkpoint, besides the values. It must be the last one."""
        return {name: value for name, value in vars(state).items() if name not in ("bounds", "num_undone")}
