# SPDX-License-Identifier: Apache-2.0
"""Training in batches: natural steps for q(X) of the batch and for q(U), Adam for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_rate
from pyro_vgpds.data.batches import Batch
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.training.adam import Adam, AdamMoments, AdamState
from pyro_vgpds.training.batch_problem import BatchProblem, unpacked
from pyro_vgpds.training.bundle import copies
from pyro_vgpds.training.gradient import adam_rates
from pyro_vgpds.training.problem import NO_START, Values, put_back
from pyro_vgpds.training.settings import ResumeError, Settings

__all__ = ["SCHEDULES", "BatchSettings", "BatchState", "BatchSteps"]

SCHEDULES = ("cosine", "constant")
_LAST = 0.02  # of the learning rate, at the end of a cosine schedule
_LEAST_LENGTH = 1e-4  # of a step, relative to the learning rates
_BETAS = (0.8, 0.95)
_BAD_DROP = 3.0  # nats per observed number below the average estimate, at which the step before is undone
_MEMORY = 0.9  # of that average
_LEAST_AFTER_DROP = 0.05  # length of the steps after it: a batch may also be worse than others
_PATIENCE = 3  # consecutive epochs with a small relative change that end training
# ρ of q(U) in the first steps, in which old statistics soon belong to another kernel. It falls with the learning rate
# to the share of a batch among all sequences. If this share is large, one batch contains almost all information.
_FIRST_RATE = 0.3
_FIRST_SHARES = 3.6  # of the data that a batch has: the first ρ, if it is larger
_MOST_RATE = 0.9


@dataclass(frozen=True)
class BatchSettings:
    """The arguments of :func:`~pyro_vgpds.fit` for batches."""

    batch_size: int
    schedule: str
    inducing_rate: float | None
    num_units: int  #: sequences in all processes, or frames of a single one
    most_batches: int  #: of an epoch: each process has a sequence or more in each of them

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.inducing_rate is not None:
            check_rate("inducing_rate", self.inducing_rate)

    @property
    def num_batches(self) -> int:
        """The number of batches of an epoch."""
        return min(-(-self.num_units // self.batch_size), self.most_batches)

    def rate(self, count: int, step: int, num_steps: int) -> float:
        """ρ of q(U) of a step: the first ones average what they see.

        q(U) has seen ``count`` batches before, ``step`` of them in this run of ``num_steps``.
        """
        if self.inducing_rate is not None:
            return max(self.inducing_rate, 1.0 / (1.0 + count))
        first = max(_FIRST_RATE, min(_MOST_RATE, _FIRST_SHARES / self.num_batches))
        return max(first * self.pace(step, num_steps), 1.0 / self.num_batches, 1.0 / (1.0 + count))

    def pace(self, step: int, num_steps: int) -> float:
        """The learning rate after ``step`` of ``num_steps`` batches, relative to the first."""
        if self.schedule == "constant":
            return 1.0
        return _LAST + (1.0 - _LAST) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / num_steps)))

    def stored(self, num_steps: int) -> list[float | str]:
        """What must be the same in a run that continues this one."""
        length = num_steps if self.schedule == "cosine" else 0
        return [self.batch_size, self.schedule, self.inducing_rate or 0.0, self.num_units, length]


class _Undo(NamedTuple):
    """Everything that the last step changed, as it was before."""

    parameters: list[Tensor]
    adam: AdamState
    dual: Dual
    rows: Tensor
    eta: Tensor
    lam: Tensor
    factors: Tensor


@dataclass(frozen=True)
class BatchState:
    """The state of training, between two steps."""

    order: Tensor  #: in which the sequences of this epoch come
    visited: int = 0  #: batches so far
    num_undone: int = 0  #: steps that were undone
    bound: float = -math.inf  #: the last estimate
    length: float = 1.0  #: of the next step, relative to a full one
    sum: float = 0.0  #: of the estimates of this epoch
    mean: float = -math.inf  #: estimate of the last epoch
    quiet: int = 0  #: consecutive epochs that changed it very little
    level: float = -math.inf  #: average of the estimates, in nats per observed number
    undo: _Undo | None = None


class BatchSteps:
    """Steps as a function of a state: each evaluates the bound of one batch."""

    def __init__(self, problem: BatchProblem, settings: Settings, batches: BatchSettings) -> None:
        self.problem, self.settings, self.batches = problem, settings, batches
        self.adam = Adam(*adam_rates(problem.parameters, problem.model, problem.guide, settings), _BETAS)
        self._small = settings.tolerance

    def start(self) -> BatchState:
        """The state at the initial parameters, after an evaluation of the first batch."""
        state = BatchState(torch.randperm(self.problem.data.num_units))
        try:
            return replace(state, bound=self._evaluate(state)[1])
        except NumericalError as error:
            raise NumericalError(f"{NO_START} {error}") from error

    def resumed(self, values: Values, loop: dict[str, Any], num_undone: int) -> BatchState:
        """The state of a checkpoint of the same settings and data."""
        own, found = self.batches.stored(self.settings.num_steps), loop.get("batches")
        if found != own:
            raise ResumeError(
                f"Cannot resume: batch_size, schedule, inducing_rate, the number of sequences and that of steps were "
                f"{found} and are now {own}. With schedule='constant' the number of steps may differ."
            )
        undo, own = None, loop["own"]
        self.adam.load_state_dict(loop["adam"])
        if loop["undo"] is not None:
            (parameters, adam, dual), (rows, *sites) = loop["undo"], own["undo"]
            before = tuple(None if kept is None else AdamMoments(int(kept[0]), kept[1], kept[2]) for kept in adam)
            undo = _Undo(parameters, before, unpacked(dual), rows.long(), *sites)
        visited, *numbers = loop["numbers"]
        state = replace(BatchState(own["order"].long(), visited, num_undone, *numbers), undo=undo)
        torch.set_rng_state(own["generator"])
        self.problem.restore(values)  # last: what is wrong in the file leaves model and guide as they were
        return state

    def stored(self, state: BatchState) -> dict[str, Any]:
        """The state for a checkpoint, besides the values. "own" is that of the sequences of this process."""
        undo: list[object] | None = None
        if state.undo is not None:
            adam = [None if kept is None else list(kept) for kept in state.undo.adam]
            dual = [part.double() for part in state.undo.dual.tensors()]
            undo = [state.undo.parameters, adam, dual]
        own = {
            "order": state.order,
            "position": [state.visited % self.batches.num_batches, self.batches.num_batches],
            "generator": torch.get_rng_state(),
            "undo": None if state.undo is None else list(state.undo[3:]),
        }
        return {
            "batches": self.batches.stored(self.settings.num_steps),
            "numbers": [state.visited, state.bound, state.length, state.sum, state.mean, state.quiet, state.level],
            "adam": self.adam.state_dict(),
            "undo": undo,
            "own": own,
        }

    def step(self, state: BatchState) -> BatchState:
        """The state after one step."""
        problem, settings = self.problem, self.settings
        try:
            batch, bound = self._evaluate(state)
        except NumericalError:
            if state.undo is None:
                raise
            return self._undone(state, state.undo)
        level = bound / (batch.scale * max(1, batch.num_observed))
        if level < state.level - _BAD_DROP and state.undo is not None and state.length > _LEAST_AFTER_DROP:
            return self._undone(state, state.undo)
        if state.visited < settings.num_warmup:
            for parameter in problem.late:
                parameter.grad = None
        guide, rows = problem.guide, batch.rows
        undo = _Undo(
            copies(problem.parameters),
            self.adam.state,
            guide.dual,
            rows,
            guide.eta[rows].clone(),
            guide.lam[rows].clone(),
            guide.factors[:, rows].clone(),
        )
        problem.natural.step(settings.natural_rate * state.length)
        self.adam.step(state.length * self.batches.pace(state.visited, settings.num_steps))
        new = replace(
            state, visited=state.visited + 1, bound=bound, length=min(1.0, 1.2 * state.length), undo=undo,
            sum=state.sum + bound * batch.count / batch.num_sequences,
            level=level if state.level == -math.inf else _MEMORY * state.level + (1.0 - _MEMORY) * level,
        )  # fmt: skip
        return self._next_epoch(new) if new.visited % self.batches.num_batches == 0 else new

    def _next_epoch(self, state: BatchState) -> BatchState:
        size = max(abs(state.sum), float(self.problem.guide.data.total_frames))
        quiet = state.quiet + 1 if abs(state.sum - state.mean) <= self._small * size else 0
        order = torch.randperm(self.problem.data.num_units)
        return replace(state, order=order, sum=0.0, mean=state.sum, quiet=quiet)

    def bounds(self, state: BatchState) -> tuple[float, ...]:
        """The estimate of the bound that the step to this state found."""
        return (state.bound,)

    def stopped(self, state: BatchState) -> str | None:
        """Why training ends here; None if it continues."""
        if state.length < _LEAST_LENGTH:
            return "stuck"
        if self._small and state.quiet >= _PATIENCE:
            return "converged"
        return "steps" if state.visited >= self.settings.num_steps else None

    def _evaluate(self, state: BatchState) -> tuple[Batch, float]:
        parts = self.problem.data.parts(state.order, self.batches.batch_size)
        batch = self.problem.data.batch(parts[state.visited % self.batches.num_batches])
        rate = self.batches.rate(self.problem.guide.dual.count, state.visited, self.settings.num_steps)
        return batch, self.problem.evaluate(batch, rate)

    def _undone(self, state: BatchState, undo: _Undo) -> BatchState:
        """Go back to before the last step; the next one has half its length, and the batches continue."""
        guide = self.problem.guide
        put_back(self.problem.parameters, undo.parameters)
        guide.dual = undo.dual
        guide.eta[undo.rows], guide.lam[undo.rows], guide.factors[:, undo.rows] = undo[4:]
        self.adam.state = undo.adam
        return replace(state, num_undone=state.num_undone + 1, length=0.5 * state.length / 1.2, undo=None)
