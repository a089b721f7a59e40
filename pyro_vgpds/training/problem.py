# SPDX-License-Identifier: Apache-2.0
"""The bound as a function of the parameters that training changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple, Protocol

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.communication import Communicator
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.elbo import Collapsed_ELBO
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.inference.natural import NaturalGradient
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.bound import strict_rounding
from pyro_vgpds.mapping.output_sites import OutputSites, sites_of
from pyro_vgpds.training.bundle import Bundle, are_finite
from pyro_vgpds.training.settings import ResumeError

__all__ = ["NO_START", "Problem", "Trainable", "Values", "noise_parameters", "put_back"]

NO_START = "the bound has no finite value at the initial parameters: check the scale of the data and the parameters."


def put_back(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Set parameters, in place, to copies of their values."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


class Values(NamedTuple):
    """The values of everything that a step changes."""

    parameters: Sequence[Tensor]
    sites: Sequence[Tensor]  #: η and λ with natural steps, the state of the outputs' factors; never changed in place


class Trainable(Protocol):
    """What is trained, as the loop sees it."""

    model: PyroModule
    best: Values
    best_bound: float

    @property
    def outputs(self) -> OutputSites | None: ...
    @property
    def late(self) -> Sequence[Tensor]: ...
    @property
    def communicator(self) -> Communicator:
        """The processes that have the data together."""

    @property
    def frame_tensors(self) -> list[int]: ...
    def __enter__(self) -> object: ...
    def __exit__(self, *error: object) -> None: ...
    def values(self) -> Values: ...
    def loaded(self, tensors: list[Tensor]) -> Values: ...


class Problem:
    """The bound of a model and a guide on data. As a context manager, it leaves them at the best values of the block.

    :param natural: move q(X) by natural gradient steps.
    """

    def __init__(self, model: PyroModule, guide: OpperArchambeauGuide, data: Sequences, natural: bool) -> None:
        self.model, self.guide, self.data = model, guide, data
        self.natural = NaturalGradient(guide, data) if natural and isinstance(guide, AutoOpperArchambeau) else None
        self._everything = [*model.parameters(), *guide.parameters()]
        own = {id(p) for p in (guide.mean_bar_unconstrained, guide.lam_unconstrained)} if self.natural else set()
        self.parameters = [p for p in self._everything if p.requires_grad and id(p) not in own]
        self._bundle = Bundle(self.parameters)
        self.outputs = sites_of(model)
        #: parameters that are fixed at first, so that the model does not explain everything as noise
        self.late = noise_parameters(model)
        # With priors on hyperparameters the bound is an estimate from one draw: the best of many is only the luckiest.
        self.random = guide.has_random_parameters
        self.best, self.best_bound = Values((), ()), -math.inf
        self._elbo, self._observed = Collapsed_ELBO(), data.num_observed
        self._strict, self._begun = True, False

    def __enter__(self) -> Problem:
        if self.natural is not None:
            self.natural.__enter__()
        if self.outputs is not None:
            self.outputs.is_held = True
        self.best = self.values()
        return self

    def __exit__(self, *error: object) -> None:
        self.restore(self.best)
        if self.outputs is not None:
            self.outputs.is_held = False
        if self.natural is not None:
            self.natural.__exit__(*error)

    def values(self) -> Values:
        """Copies of the current values."""
        sites = () if self.natural is None else (self.natural.eta, self.natural.lam)
        return Values(self._bundle.copies(), sites if self.outputs is None else (*sites, self.outputs.state))

    @property
    def communicator(self) -> Communicator:
        """The processes that have the data together."""
        return self.data.communicator

    @property
    def frame_tensors(self) -> list[int]:
        """Which of the values, parameters and then sites, have a row for each frame, in the last but one dimension."""
        own, count = {id(p) for p in self.guide.frame_parameters}, len(self.parameters)
        sites = range(count, count + (0 if self.natural is None else 2) + (self.outputs is not None))
        return [*(i for i, p in enumerate(self.parameters) if id(p) in own), *sites]

    def restore(self, values: Values) -> None:
        """Go back to values from before."""
        put_back(self.parameters, values.parameters)
        if self.natural is not None:
            self.natural.eta, self.natural.lam = values.sites[:2]
        if self.outputs is not None:
            self.outputs.set(values.sites[-1])

    def move_sites(self, natural_rate: float) -> None:
        """Move q(X) and the factors of the outputs by a natural step, with the gradients of the last evaluation."""
        if self.natural is not None:
            self.natural.step(natural_rate)
        if self.outputs is not None:
            self.outputs.step(natural_rate)

    def loaded(self, tensors: Sequence[Tensor]) -> Values:
        """Values from a checkpoint, where sites follow the parameters."""
        current = self.values()
        if [value.shape for value in tensors] != [value.shape for value in (*current.parameters, *current.sites)]:
            raise ResumeError("Cannot resume: the checkpoint's parameters are not those of this model and guide.")
        count = len(current.parameters)
        return Values(tensors[:count], tensors[count:])

    def evaluate(self) -> tuple[float, Values]:
        """The bound and the values it belongs to. The gradients of minus the bound are left with the parameters."""
        try:
            bound = self._bound_and_gradients()
        except NumericalError:
            if self._begun:
                raise
            self._strict = False  # the start itself is close to the limit of rounding errors: so may be later points
            bound = self._bound_and_gradients()
        self._begun = True
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self.natural is not None:
            gradients += self.natural.derivatives()
        finite = math.isfinite(bound) and are_finite(gradients)
        self.data.communicator.check(
            None if finite else NumericalError("the bound or one of its gradients is not finite.")
        )
        values = self.values()
        if bound > self.best_bound or self.random:
            self.best, self.best_bound = values, bound
        return bound, values

    def _bound_and_gradients(self) -> float:
        for parameter in self._everything:
            parameter.grad = None
        with strict_rounding() if self._strict else nullcontext():
            return -float(self._elbo.loss_and_grads(self.model, self.guide, self.data))

    def small_change(self, bound: float, tolerance: float) -> float:
        """The change that is small for a bound, which may cross zero: so its size alone is no measure."""
        return tolerance * max(abs(bound), self._observed)


def noise_parameters(model: PyroModule) -> list[Tensor]:
    """The noise variance, or the parameters of the likelihood."""
    likelihood = getattr(model, "output_likelihood", None)
    if likelihood is not None:
        return list(likelihood.parameters())
    noise: Tensor | None = getattr(model, "noise_unconstrained", None)
    return [] if noise is None else [noise]
