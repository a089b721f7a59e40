# SPDX-License-Identifier: Apache-2.0
"""One run of training: a loop that carries the optimiser's state, and records, stores and shows where it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from pyro_vgpds.files.container import FileFormatError
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.training.checkpoints import Checkpoints, Snapshot
from pyro_vgpds.training.gradient import GradientSteps
from pyro_vgpds.training.lbfgs import LbfgsSteps
from pyro_vgpds.training.problem import Problem, Trainable, Values
from pyro_vgpds.training.progress import interruptible, is_shown, progress_bar
from pyro_vgpds.training.result import FitResult, Record, pack_records, unpack_records
from pyro_vgpds.training.settings import ResumeError, Settings

__all__ = ["Observers", "Run", "Steps", "run"]

#: what a snapshot of unexpected content raises
_BAD_CONTENT = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, MemoryError)


class State(Protocol):
    """The part of an optimiser's state that the loop reads."""

    @property
    def num_undone(self) -> int: ...


S = TypeVar("S", bound=State)


class Steps(Protocol[S]):
    """An optimiser: a step is a function of a state."""

    def start(self) -> S: ...
    def resumed(self, values: Values, loop: dict[str, Any], num_undone: int) -> S: ...
    def step(self, state: S) -> S: ...
    def bounds(self, state: S) -> Sequence[float]: ...
    def stopped(self, state: S) -> str | None: ...
    def stored(self, state: S) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Observers:
    """The observers of a run: progress bar, callback and checkpoints."""

    label: str  #: of the progress bar
    progress: bool | None  #: show it; None for on a terminal only
    callback: Callable[[Record], object] | None
    checkpoints: Checkpoints | None = None


def run(problem: Problem, settings: Settings, observers: Observers, snapshot: Snapshot | None = None) -> FitResult:
    """Train from the current parameters, or from a snapshot, and leave the best ones.

    :raises ValueError: if the snapshot is of another run.
    :raises NumericalError: if the bound has no finite value at the start.
    """
    if snapshot is not None:
        settings = settings.resumed(snapshot["method"], snapshot["settings"])
    if settings.method == "lbfgs":
        return Run(LbfgsSteps(problem, settings), problem, settings, observers).result(snapshot)
    return Run(GradientSteps(problem, settings), problem, settings, observers).result(snapshot)


@contextmanager
def _resuming(problem: Trainable, best: Values, bound: float) -> Iterator[None]:
    """A block in which errors come from the content of a snapshot. They leave the model and guide at ``best``.

    :raises FileFormatError: for all errors that say nothing to a user.
    """
    try:
        yield
    except BaseException as error:
        problem.best, problem.best_bound = best, bound
        if isinstance(error, _BAD_CONTENT) and not isinstance(error, (NumericalError, ResumeError)):
            raise FileFormatError(f"the checkpoint cannot be continued: {error!r:.200}.") from None
        raise


class Run(Generic[S]):
    """A loop over the steps of an optimiser."""

    def __init__(self, steps: Steps[S], problem: Trainable, settings: Settings, observers: Observers) -> None:
        self.steps, self.problem, self.settings, self.observers = steps, problem, settings, observers
        self.history: list[Record] = []
        self.begin = time.perf_counter()

    def result(self, snapshot: Snapshot | None) -> FitResult:
        """Train from the current parameters, or from a snapshot."""
        observers, problem, settings = self.observers, self.problem, self.settings
        show = is_shown(observers.progress)
        with (
            interruptible() as interrupted,
            progress_bar(problem, settings.num_steps, observers.label, show) as update,
            problem,
        ):
            guard: Callable[[], AbstractContextManager[None]] = nullcontext
            if snapshot is not None:
                guard = partial(_resuming, problem, problem.best, problem.best_bound)
            with guard():
                state = self.steps.start() if snapshot is None else self.resumed(snapshot)
                stopped = self.steps.stopped(state)
            if snapshot is None:
                self.record(state, update)
            communicator = problem.communicator
            asked = communicator.any(interrupted())
            while stopped is None and not asked:
                with guard():  # the first step uses all that was resumed
                    state = self.steps.step(state)
                    stopped = self.steps.stopped(state)
                guard = nullcontext
                self.record(state, update)
                asked = communicator.any(interrupted())
            if stopped is None or (stopped == "steps" and asked):
                stopped = "interrupted"
            if observers.checkpoints is not None:
                observers.checkpoints.finish(len(self.history) - 1, lambda: self.snapshot(state))
        return FitResult(problem.best_bound, self.history, stopped, state.num_undone, settings.method)

    def record(self, state: S, update: Callable[[int, float], None]) -> None:
        """Record the bounds that led to a state, all of them before the checkpoint and the callback."""
        seconds = time.perf_counter() - self.begin
        new = [Record(step, seconds, bound) for step, bound in enumerate(self.steps.bounds(state), len(self.history))]
        self.history += new
        if self.observers.checkpoints is not None:
            self.observers.checkpoints.offer(len(self.history) - 1, lambda: self.snapshot(state))
        for record in new:
            if self.observers.callback is not None:
                self.observers.callback(record)
            update(record.step, record.bound)

    def snapshot(self, state: S) -> Snapshot:
        current, best = self.problem.values(), self.problem.best
        return {
            "method": self.settings.method,
            "settings": self.settings.stored(),
            "state": [*current.parameters, *current.sites],
            "best": [*best.parameters, *best.sites],
            "best_bound": self.problem.best_bound,
            "history": pack_records(self.history),
            "num_undone": state.num_undone,
            "loop": self.steps.stored(state),
            "frame_tensors": self.problem.frame_tensors,
        }

    def resumed(self, snapshot: Snapshot) -> S:
        """The state of a snapshot."""
        problem = self.problem
        best, values = problem.loaded(snapshot["best"]), problem.loaded(snapshot["state"])
        state = self.steps.resumed(values, snapshot["loop"], snapshot["num_undone"])
        problem.best, problem.best_bound = best, snapshot["best_bound"]
        self.history = unpack_records(snapshot["history"])
        if self.history:
            self.begin -= self.history[-1].seconds
        return state
