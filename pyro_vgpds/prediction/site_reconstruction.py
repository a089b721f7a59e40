# SPDX-License-Identifier: Apache-2.0
"""q(X, X*) for new, partly observed frames whose outputs are not Gaussian.

The Gaussian factors of the training outputs are fixed. Those of the new outputs are updated in each step, with the
moments of the functions that the gradients of the bound tell.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.likelihoods.factors import Moments, Sites
from pyro_vgpds.likelihoods.guess import guess
from pyro_vgpds.mapping.bound import site_bound
from pyro_vgpds.mapping.drawn import correction
from pyro_vgpds.mapping.latent_gp import mean_terms, scaled_sites
from pyro_vgpds.mapping.output_sites import joined_moments
from pyro_vgpds.mapping.pseudo import PseudoGP
from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.prediction.reconstruction import Joint, Solution, added

__all__ = ["SiteJoint"]


class SiteJoint(Joint):
    """As :class:`~pyro_vgpds.prediction.reconstruction.Joint`, for a training mapping that is a ``PseudoGP``."""

    _trained: PseudoGP

    def set_outputs(self, new: Sequences, trust: float) -> None:
        assert new.y is not None
        trained = self.training.likelihood
        assert isinstance(trained, PseudoGP)
        self._trained, self._trust = trained, trust
        self._y = new.y.double()
        self._lengths = new.times.lengths
        self._old = trained.sites
        self._outputs = trained.outputs.elsewhere  # of the new frames
        #: what draws add to the bound of the training outputs, with the q(U) of training
        self._old_rest = trained.estimate(self.training.q)

    def first_state(self) -> Tensor:
        outputs = self._outputs
        return outputs.initial(self._y, guess(outputs, self._y, self._lengths))

    def _scaled(self, sites: Sites) -> tuple[Tensor, Tensor]:
        return scaled_sites(sites, self._trained.output_mean, self._trained.output_scale)

    def _statistics(self, weight: Tensor, linear: Tensor, mean: Tensor, variance: Tensor) -> Psi:
        return self._trained.basis.expect(mean, variance, weight.mT, linear)

    def psi(self, rows: Tensor, mean: Tensor, variance: Tensor) -> Psi:
        weight, linear = self._scaled(self._old)
        return self._statistics(weight[rows], linear[rows], mean, variance)

    def expected(self, mean: Tensor, variance: Tensor, state: Tensor | None) -> tuple[Tensor, Moments | None]:
        assert state is not None
        outputs, gp = self._outputs, self._trained
        fresh = outputs.sites(self._y, state)
        free_weight, free_linear = fresh.weight.detach().requires_grad_(), fresh.linear.detach().requires_grad_()
        # of all frames: the training frames, then the new ones
        every = Sites(
            torch.cat([self._old.weight, self._trust * free_weight]),
            torch.cat([self._old.linear, self._trust * free_linear]),
            torch.cat([self._old.constant, self._trust * fresh.constant]),
        )
        weight, linear = self._scaled(every)
        psi = self._statistics(weight[self.rows], linear[self.rows], mean, variance)
        if self.rest is not None:
            psi = added(self.rest, psi)
        value = site_bound(psi, self.factor, weight, linear) + mean_terms(every, gp.output_mean) + every.constant.sum()
        d_weight, d_linear = torch.autograd.grad(value, (free_weight, free_linear), retain_graph=True)
        value = value + self._old_rest
        drawn = None
        if outputs.likelihood.is_drawn:
            more, drawn = self._correction(psi, mean, variance, fresh)
            value = value + self._trust * more
        return value, joined_moments(d_linear / self._trust, -2.0 * d_weight / self._trust, drawn)

    def next_state(self, state: Tensor | None, functions: Moments | None, rate: float) -> Tensor:
        assert state is not None
        assert functions is not None
        return self._outputs.updated(self._y, state, functions, rate)

    def _correction(self, psi: Psi, mean: Tensor, variance: Tensor, sites: Sites) -> tuple[Tensor, Moments | None]:
        """The part of the new outputs' bound that needs draws of their latent points."""
        given, order = self._trained.gp.given(psi, self.factor), self.new_places
        return correction(given, mean[order], variance[order], self._y, sites, self._outputs)

    def mapping(self, solution: Solution) -> PseudoGP:
        assert solution.state is not None
        gp = self._trained
        return gp.with_outputs(torch.cat([gp.y, self._y]), torch.cat([gp.state, solution.state], 1))
