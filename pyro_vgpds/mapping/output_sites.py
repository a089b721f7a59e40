# SPDX-License-Identifier: Apache-2.0
"""The Gaussian factors of outputs that are not Gaussian: variational parameters that have an update of their own."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.likelihoods.factors import Moments, Sites
from pyro_vgpds.likelihoods.guess import guess
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.linalg import with_own_gradient

__all__ = [
    "Evaluation", "OutputSites", "evaluated_moments", "first_state", "joined_moments", "site_moments", "sites_of",
]  # fmt: skip

_FIRST_UPDATES = 10  # of the state for data that are met for the first time

Bound = Callable[[Sites], Tensor]


@dataclass
class Evaluation:
    """An evaluation of the bound, which gives the moments of f: by its gradients in the factors, or by draws."""

    likelihood: LikelihoodValue
    y: Tensor
    sites: Sites
    drawn: Moments | None = None  #: of the functions whose bound is an estimate, 0 for others
    share: float = 1.0  #: factor of the bound in the loss

    @property
    def is_used(self) -> bool:
        """Whether the moments are known, as after the backward pass."""
        return self.drawn is not None or (self.sites.weight.grad is not None and self.sites.linear.grad is not None)


class OutputSites(PyroModule):
    """The state of the Gaussian factors of the outputs of one data set, (2, N, F), and its updates.

    The gradients of the bound in the linear part and the weight of a factor are E f and −½ E f² under q, so an
    evaluation with gradients gives all that the next state needs: ::

        elbo = Collapsed_ELBO()
        loss = elbo.loss_and_grads(model, guide, data)  # then calls model.sites.step()

    :ivar state: (2, N, F); empty before the first data.
    :ivar is_held: whether ``Collapsed_ELBO`` leaves the updates to others, as training does, which may undo them.
    """

    state: Tensor
    mark: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 0, 0, dtype=torch.float64))
        self.register_buffer("mark", torch.zeros((), dtype=torch.int64))  # a hash of the outputs
        self.is_held = False
        self._forget()

    def _forget(self) -> None:
        self._evaluations: list[Evaluation] = []
        self._last_data: Callable[[], Sequences | None] = lambda: None

    def __getstate__(self) -> dict[str, Any]:
        kept = dict(self.__dict__)
        kept.pop("_evaluations"), kept.pop("_last_data")
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def read(self, data: Sequences, value: Tensor, likelihood: LikelihoodValue, bound: Bound) -> tuple[Tensor, Tensor]:
        """The outputs in float64 and the state of their factors.

        The state of data that are met for the first time starts from a guess of the functions and some updates. It is
        kept, for the updates after it, if ``value`` are the outputs of ``data``.

        :param data: the sequences.
        :param value: their outputs (N, D), or others at the same times.
        :param likelihood: the likelihood at its parameters.
        :param bound: the bound given the factors, for the first updates.
        """
        y = value.detach().double()
        own = data.y is value
        if own and self._last_data() is data:
            return y, self.state
        mark, communicator = _hash(y), data.communicator if own else SINGLE_PROCESS
        found = self.state.shape[1] and mark == int(self.mark) and self.state.shape[1] == len(y)
        if not communicator.any(not found):
            state = self.state
        else:
            state = first_state(likelihood, y, data.lengths, communicator, bound)
        if own:
            self.set(state, mark)
            self._last_data = weakref.ref(data)
        return y, state

    def set(self, state: Tensor, mark: int | None = None) -> None:
        """Replace the state.

        :param state: (2, N, F).
        :param mark: of the outputs. Default: the current one.
        """
        self.state = state.detach()
        if mark is not None:
            self.mark = torch.tensor(mark, device=state.device)

    def belong_to(self, data: Sequences) -> None:
        """Take the state as that of the outputs of ``data``, whose frames and outputs it has.

        :param data: the sequences, such as those of training in another dtype.
        """
        assert data.y is not None
        self.set(self.state, _hash(data.y.detach().double()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OutputSites:
        before = self.state
        super()._apply(fn, recurse)
        self.state = before.to(self.state.device)  # float64 in a model of any dtype
        return self

    def tracked(self, likelihood: LikelihoodValue, y: Tensor, state: Tensor, share: float = 1.0) -> Evaluation:
        """An evaluation with the factors in a state, which :meth:`step` uses if it is the state of this module.

        :param likelihood: the likelihood at its parameters.
        :param y: outputs (N, D).
        :param state: of their factors.
        :param share: factor of the bound in the loss; 0 if the gradients are not used.
        """
        evaluation = Evaluation(likelihood, y, likelihood.sites(y, state), share=share)
        if torch.is_grad_enabled() and state is self.state and share:
            if not all(part.likelihood.is_drawn for part in likelihood.parts(y.shape[-1])):  # or draws give all moments
                weight, linear, constant = evaluation.sites
                evaluation.sites = Sites(with_own_gradient(weight), with_own_gradient(linear), constant)
            self._evaluations.append(evaluation)
        return evaluation

    def clear(self) -> None:
        """Forget evaluations whose gradients were not used."""
        self._evaluations = []

    def step(self, rate: float = 1.0) -> None:
        """Update the state with the gradients of the evaluations since the last step; without any, do nothing.

        :param rate: length of the step for factors that have no exact update.
        """
        used = [e for e in self._evaluations if e.is_used]
        self.clear()
        if used:
            last = used[-1]
            self.set(last.likelihood.updated(last.y, self.state, evaluated_moments(used), rate))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        found = state_dict.get(f"{prefix}state")
        if found is not None and found.shape != self.state.shape:  # of other data
            self.state = torch.empty_like(found, device=self.state.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._forget()


def sites_of(model: object) -> OutputSites | None:
    """The Gaussian factors of a model's outputs; None if these are Gaussian."""
    if not isinstance(model, torch.nn.Module):
        return None
    return next((module for module in model.modules() if isinstance(module, OutputSites)), None)


def first_state(
    likelihood: LikelihoodValue, y: Tensor, lengths: tuple[int, ...], communicator: Communicator, bound: Bound
) -> Tensor:
    """The state of the factors of outputs (N, D) that are met for the first time: a guess, and some updates."""
    with torch.no_grad():
        state = likelihood.initial(y, guess(likelihood, y, lengths, communicator))
    for _ in range(_FIRST_UPDATES):
        state = likelihood.updated(y, state, site_moments(likelihood.sites(y, state), bound), 1.0)
    return state


def site_moments(sites: Sites, bound: Bound) -> Moments:
    """E f and E f² under the optimal q(U) of these factors."""
    with torch.enable_grad():
        weight, linear = (part.detach().requires_grad_() for part in (sites.weight, sites.linear))
        value = bound(Sites(weight, linear, sites.constant))
        d_weight, d_linear = torch.autograd.grad(value.sum(), (weight, linear))
    return joined_moments(d_linear, -2.0 * d_weight, None)


def evaluated_moments(evaluations: Sequence[Evaluation]) -> Moments:
    """The moments that evaluations after a backward pass give, which may have several draws of the hyperparameters."""
    shares = [e for e in evaluations if e.sites.weight.grad is not None]
    drawn = [e.drawn for e in evaluations if e.drawn is not None]
    known = [torch.stack(found).mean(0) for found in zip(*drawn, strict=True)] if drawn else []
    if not shares:
        return Moments(*known)
    # the gradients are those of minus the bound, of which each evaluation has a share
    mean = _total([(e.sites.linear.grad, -1.0 / e.share) for e in shares])
    square = _total([(e.sites.weight.grad, 2.0 / e.share) for e in shares])
    return joined_moments(mean, square, Moments(*known) if known else None)


def _total(parts: Sequence[tuple[Tensor | None, float]]) -> Tensor:
    """The sum of tensors times numbers."""
    return reduce(torch.add, [x * factor for x, factor in parts if x is not None])


def joined_moments(mean: Tensor, square: Tensor, drawn: Moments | None) -> Moments:
    """The moments (N, F) that gradients give, except for functions whose moments were drawn, which are not 0.

    The estimate with draws has gradients of its own in the factors of these functions.
    """
    if drawn is None:
        return Moments(mean, torch.maximum(square, mean.square()))
    own = (drawn.square > 0).any(0)
    mean, square = torch.where(own, drawn.mean, mean), torch.where(own, drawn.square, square)
    return Moments(mean, torch.maximum(square, mean.square()), drawn.slope, drawn.curvature)


def _hash(y: Tensor) -> int:
    digest = hashlib.blake2b(y.cpu().contiguous().numpy().tobytes(), digest_size=7).digest()
    return int.from_bytes(digest, "little") + 1
