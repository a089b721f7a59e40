# SPDX-License-Identifier: Apache-2.0
"""Training by natural gradient steps for q(X) with Adam for the rest, or by Adam alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from pyro.contrib.gp.kernels import Periodic as PyroGPPeriodic
from torch import Tensor, nn

from pyro_vgpds.inference.ascent import Ascent, Damping
from pyro_vgpds.kernels import Kernel
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.training.adam import Adam, AdamState
from pyro_vgpds.training.problem import NO_START, Problem, Values
from pyro_vgpds.training.settings import ResumeError, Settings

__all__ = ["GradientSteps", "Iterate", "adam_rates"]

_BAD_DROP = 0.05  # nats per observed number that a step may lower the bound by before it is undone
_LEAST_LENGTH = 1e-4  # of a step, relative to the learning rates
_EARLY_LENGTH = 1e-12  # the same for the first steps: a start that fits badly with little noise has huge gradients
_SAME = 1e-6  # relative difference of bounds that only the order of sums can make
_PATIENCE = 10  # consecutive steps with a small relative change that end training
# Steps in which the bound rises by less than that, on average, that also do: Adam's steps do not become short, so that
# the bound goes up and down by more. A fall in the middle of training takes up to 30 steps to make up for.
_IDLE = 50
_PACE = 2.0  # learning rate of scales relative to that of inducing inputs, with natural steps: they have further to go
# A period is known to about its length over the number of cycles, and the bound has many peaks in it. Adam's steps are
# as long for small gradients as for large ones, and would leave the right peak.
_SLOW_PACE = 0.03
_DEVIATION_PACE = 0.5  # of standard deviations, whose logs change half as much as those of variances
_NETWORK_PACE = 0.3  # learning rate of the weights of an amortised guide, each of which moves many frames
# Gradients are huge at the start and small later on: a long memory of their squares would keep Adam's steps tiny.
_BETAS = {"natural": (0.9, 0.95), "adam": (0.9, 0.999)}


class Iterate(NamedTuple):
    """Everything that a step changes or starts from."""

    values: Values
    adam: AdamState
    generator: Tensor  #: state of torch's generator before the evaluation, which samples hyperparameters with priors


class GradientSteps:
    """Steps as a function of a state: each evaluates the bound once, or twice if it has to be undone."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        betas = _BETAS[settings.method]
        rates = adam_rates(problem.parameters, problem.model, problem.guide, settings)
        self.adam = Adam(*rates, betas) if problem.parameters else None
        # The bound as an estimate falls by chance, and Adam alone lowers it on its way up.
        may_fall = problem.random or settings.method == "adam"
        bad_drop = _BAD_DROP * problem.data.num_observed
        self.damping = Damping(
            drop=math.inf if may_fall else bad_drop,
            small=lambda bound: problem.small_change(bound, settings.tolerance),
            patience=_PATIENCE if settings.tolerance else math.inf,
            least=_LEAST_LENGTH,
            early=_EARLY_LENGTH,
            idle=_IDLE if settings.tolerance and not problem.random else math.inf,
            fall=bad_drop,
        )

    def start(self) -> Ascent[Iterate]:
        """The state at the initial parameters."""
        try:
            point, bound = self._evaluate()
        except NumericalError as error:
            raise NumericalError(f"{NO_START} {error}") from error
        return Ascent(point, bound, mark=bound)

    def resumed(self, values: Values, loop: dict[str, Any], num_undone: int) -> Ascent[Iterate]:
        """The state of a checkpoint, whose bound must be that of this problem."""
        self.problem.restore(values)
        if self.adam is not None and loop["adam"] is not None:
            self.adam.load_state_dict(loop["adam"])
        torch.set_rng_state(loop["generator"])
        try:
            point, bound = self._evaluate()
        except NumericalError:
            bound = math.nan
        communicator = self.problem.data.communicator
        # with another number of processes, sums have other rounding errors
        close = 0.0 if loop.get("processes", 1) == communicator.size else _SAME * self.problem.small_change(bound, 1.0)
        if not abs(bound - loop["last"]) <= close:
            raise ResumeError(
                f"Cannot resume: the checkpoint's bound was {loop['last']!r}, but the same step now gives {bound!r}. "
                "The data, the versions or the machine differ."
            )
        settled = loop.get("settled", True)  # checkpoints of earlier versions do not have it
        idle, mark = loop.get("idle", 0), loop.get("mark", bound)
        return Ascent(point, bound, loop["step"], loop["damping"], loop["quiet"], num_undone, settled, idle, mark)

    def step(self, state: Ascent[Iterate]) -> Ascent[Iterate]:
        """The state after one step."""
        return self.damping.step(state, self._advance, self._undo)

    def bounds(self, state: Ascent[Iterate]) -> tuple[float, ...]:
        """The bounds that the step to this state found."""
        return (state.bound,)

    def stopped(self, state: Ascent[Iterate]) -> str | None:
        """Why training ends here; None if it continues."""
        stopped = self.damping.stopped(state)
        if stopped == "stuck" and not state.is_early:
            return "converged"  # to the limit of the digits, as for outputs without noise
        return stopped or ("steps" if state.step >= self.settings.num_steps else None)

    def stored(self, state: Ascent[Iterate]) -> dict[str, Any]:
        """The state for a checkpoint, besides the values. It must be the last one."""
        return {
            "step": state.step,
            "damping": state.length,
            "quiet": state.quiet,
            "settled": state.settled,
            "idle": state.idle,
            "mark": state.mark,
            "last": state.bound,
            "adam": None if self.adam is None else self.adam.state_dict(),
            "generator": state.point.generator,
            "processes": self.problem.data.communicator.size,
        }

    def _evaluate(self) -> tuple[Iterate, float]:
        generator = torch.get_rng_state()
        bound, values = self.problem.evaluate()
        return Iterate(values, () if self.adam is None else self.adam.state, generator), bound

    def _advance(self, state: Ascent[Iterate]) -> tuple[Iterate, float]:
        problem, settings = self.problem, self.settings
        if state.step < settings.num_warmup:
            for parameter in problem.late:
                parameter.grad = None
        problem.move_sites(settings.natural_rate * state.length)
        if self.adam is not None:
            self.adam.step(state.length)
        return self._evaluate()

    def _undo(self, state: Ascent[Iterate]) -> Ascent[Iterate]:
        """Go back and evaluate there again: a step needs the gradients."""
        self.problem.restore(state.point.values)
        if self.adam is not None:
            self.adam.state = state.point.adam
        shorter = replace(state.grown().undone(), quiet=0)
        if self.damping.stopped(shorter):
            return shorter
        point, bound = self._evaluate()
        return replace(shorter, point=point, bound=bound)


def adam_rates(
    parameters: Sequence[Tensor], model: nn.Module, guide: nn.Module, settings: Settings
) -> tuple[list[Tensor], list[float]]:
    """Adam's parameters and their learning rates: inducing inputs, others, standard deviations, networks, slow ones."""
    inducing = getattr(model, "inducing_unconstrained", None)
    slow = {id(p) for p in _slow_parameters(model)}
    network = {id(p) for p in getattr(guide, "network", nn.Module()).parameters()}
    deviations = {id(p) for p in _deviations(model)}
    pace, other = _PACE if settings.method == "natural" else 1.0, slow | network | deviations | {id(inducing)}
    groups = [
        ([p for p in parameters if p is inducing], 1.0),
        ([p for p in parameters if id(p) not in other], pace),
        ([p for p in parameters if id(p) in deviations], _DEVIATION_PACE * pace),
        ([p for p in parameters if id(p) in network], _NETWORK_PACE * pace),
        ([p for p in parameters if id(p) in slow], _SLOW_PACE * pace),
    ]
    return [p for some, _ in groups for p in some], [pace * settings.rate for some, pace in groups for _ in some]


def _slow_parameters(model: nn.Module) -> Iterator[Tensor]:
    """The parameters that the kernels of any model name as slow, and periods of ``pyro.contrib.gp``."""
    for module in model.modules():
        names: Iterable[str] = module.slow_parameters if isinstance(module, Kernel) else ()
        if isinstance(module, PyroGPPeriodic):
            names = ("period",)
        yield from _named(module, names)


def _deviations(model: nn.Module) -> Iterator[Tensor]:
    """The parameters of likelihoods that are standard deviations."""
    for module in model.modules():
        if isinstance(module, Likelihood):
            yield from _named(module, module.deviations)


def _named(module: nn.Module, names: Iterable[str]) -> Iterator[Tensor]:
    """The learned parameters of these names."""
    own = dict(module.named_parameters(recurse=False))
    return (own[f"{name}_unconstrained"] for name in names if f"{name}_unconstrained" in own)
