# SPDX-License-Identifier: Apache-2.0
"""q(X, X*) for new, partly observed frames whose outputs are not Gaussian.

The Gaussian factors of the training outputs are fixed. Those of the new outputs are updated in each step, with the
moments of the functions that the gradients of the bound give.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.likelihoods.factors import Moments, Sites
from pyro_vgpds.likelihoods.guess import guess
from pyro_vgpds.mapping.bound import site_bound, site_limits
from pyro_vgpds.mapping.drawn import correction
from pyro_vgpds.mapping.latent_gp import mean_terms, scaled_sites
from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.mapping.sequence_summary import SequenceSummary
from pyro_vgpds.mapping.site_gp import SiteGP, SitePart
from pyro_vgpds.prediction.reconstruction import Factors, Joint, NewFrames, Solution

__all__ = ["SiteJoint"]


class SiteJoint(Joint):
    """As :class:`~pyro_vgpds.prediction.reconstruction.Joint`, for a training mapping that is a ``SiteGP``."""

    _trained: SiteGP
    _fixed: SitePart | None = None  # of the training frames that are fixed

    def set_outputs(self, new: NewFrames) -> None:
        assert new.data.y is not None
        trained = self.training.likelihood
        assert isinstance(trained, SiteGP)
        self._trained, self._trust = trained, new.trust
        self._y = new.data.y.double()
        self._lengths = new.data.times.lengths
        self._outputs = trained.outputs.elsewhere  # of the new frames
        old = self.rows[~self.is_new]
        self._old = Sites(*(part[old] for part in trained.sites)) if len(old) else None  # of active training frames
        # the places of the active frames, if the training frames are first
        self._order = torch.empty_like(self.rows)
        self._order[~self.is_new] = torch.arange(len(old), device=self.rows.device)
        self._order[self.is_new] = self.rows[self.is_new] - self.num_old + len(old)

    def first_state(self) -> Tensor:
        outputs = self._outputs
        return outputs.initial(self._y, guess(outputs, self._y, self._lengths))

    def fixed_psi(self, rows: Tensor) -> Psi:
        q = self.training.q
        every = len(rows) == self.num_old
        self._fixed = self.training.sites if every else self._trained.part(q.mean[rows], q.variance[rows], rows)
        return self._fixed.psi

    def with_summary(self, summary: SequenceSummary) -> Psi:
        more, fixed = summary.part(self.factor), self._fixed
        if fixed is not None:
            psi, limits = fixed.psi + more.psi, fixed.limits.joined(more.limits)
            more = SitePart(psi, limits, fixed.terms + more.terms)
        self._fixed = more
        return more.psi

    def expected(self, mean: Tensor, variance: Tensor, state: Tensor | None) -> tuple[Tensor, Factors | None]:
        assert state is not None
        outputs, gp, trust = self._outputs, self._trained, self._trust
        fresh = outputs.sites(self._y, state)
        new = active = Sites(*((trust * part).detach().requires_grad_() for part in fresh))
        if self._old is not None:
            active = Sites(*(torch.cat(both) for both in zip(self._old, active, strict=True)))
        weight, linear = scaled_sites(active, gp.output_mean, gp.output_scale)
        order = self._order
        psi = gp.basis.expect(mean, variance, weight[order].mT, linear[order])
        limits, terms = site_limits(weight, linear), mean_terms(active, gp.output_mean) + active.constant.sum()
        if self._fixed is not None:
            psi, limits = self._fixed.psi + psi, limits.joined(self._fixed.limits)
            terms = terms + self._fixed.terms
        value = site_bound(psi, self.factor, limits) + terms
        value, drawn = value + self.training.estimate, None
        if outputs.likelihood.is_drawn:
            more, drawn = self._correction(psi, mean, variance, fresh)
            value = value + trust * more
        return value, Factors(new.weight, new.linear, drawn)

    def next_state(self, state: Tensor | None, functions: Moments | None, rate: float) -> Tensor:
        assert state is not None
        assert functions is not None
        return self._outputs.updated(self._y, state, functions, rate)

    def _correction(self, psi: Psi, mean: Tensor, variance: Tensor, sites: Sites) -> tuple[Tensor, Moments | None]:
        """The part of the new outputs' bound that needs draws of their latent points."""
        given, order = self._trained.gp.given(psi, self.factor), self.new_places
        return correction(given, mean[order], variance[order], self._y, sites, self._outputs)

    def mapping(self, solution: Solution) -> SiteGP:
        assert solution.state is not None
        gp = self._trained
        return gp.with_outputs(torch.cat([gp.y, self._y]), torch.cat([gp.state, solution.state], 1))
