# SPDX-License-Identifier: Apache-2.0
"""A trained mapping to outputs that are not Gaussian: Gaussian factors take the place of the outputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.mapping.bound import SiteLimits, site_limits
from pyro_vgpds.mapping.drawn import correction
from pyro_vgpds.mapping.latent_gp import CollapsedLatent, LatentGP, mean_terms, scaled_sites
from pyro_vgpds.mapping.output_sites import Evaluation, evaluated_moments
from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.mapping.sparse_gp import SparseGP

__all__ = ["SiteGP", "SitePart"]

_UPDATES = 100  # of the factors, at most
_RATE = 0.5  # of updates that are not exact
_SETTLED = 1e-6  # change of the state that ends the updates


class SitePart(NamedTuple):
    """What the Gaussian factors of some frames add to the bound of all."""

    psi: Psi  #: their statistics
    limits: SiteLimits
    terms: Tensor  #: their logs at the means of the functions, summed


class SiteGP(SparseGP):
    """p(f given x) with the Gaussian factors of outputs y (N, D) in the state (2, N, F), in the form of a mapping to
    Gaussian outputs.

    An entry with the factor exp(linear f − ½ weight f²) counts as the output linear / weight, with noise of the
    variance 1 / weight.
    """

    def __init__(self, gp: LatentGP, outputs: LikelihoodValue, y: Tensor, state: Tensor) -> None:
        super().__init__(
            gp.x, gp.kernel, inducing=gp.inducing, noise=torch.ones_like(gp.output_mean), mean=gp.output_mean,
            scale=gp.output_scale, jitter=gp.jitter,
        )  # fmt: skip
        self.gp, self.outputs, self.y, self.state = gp, outputs, y, state

    @property
    def sites(self) -> Sites:
        """The Gaussian factors."""
        return self.outputs.sites(self.y, self.state)

    def with_outputs(self, y: Tensor, state: Tensor) -> SiteGP:
        """The same mapping with the factors of more outputs (N, D), in the state (2, N, F), after those that it has."""
        return SiteGP(self.gp, self.outputs.longer(len(y) - len(self.y)), y, state)

    def settled(self, posterior: TorchDistribution) -> SiteGP:
        """The same mapping with the factors at their optimum given q(x), from those that it has."""
        latent, state = CollapsedLatent(self.gp, posterior), self.state
        for _ in range(_UPDATES):
            before, found = state, self.outputs.sites(self.y, state)
            with torch.enable_grad():
                sites = Sites(found.weight.requires_grad_(), found.linear.requires_grad_(), found.constant)
                bound, drawn = latent.evaluate(self.outputs, self.y, sites)
                sites.weight.grad, sites.linear.grad = torch.autograd.grad(-bound, sites[:2])
            moments = evaluated_moments([Evaluation(self.outputs, self.y, sites, drawn)])
            state = self.outputs.updated(self.y, state, moments, 1.0 if drawn is None else _RATE)
            if torch.allclose(state, before, rtol=_SETTLED, atol=_SETTLED):
                break
        return self.with_outputs(self.y, state)

    def num_functions(self, data: Sequences) -> int:
        return len(self.output_mean)

    def groups_of(self, data: Sequences, columns: bool = True) -> ColumnGroups:
        weight, linear = scaled_sites(self.sites, self.output_mean, self.output_scale)
        count = weight.shape[1]
        ones = torch.ones(count, dtype=weight.dtype, device=weight.device)
        index = torch.arange(count, device=weight.device)
        return ColumnGroups(
            mask=weight.mT.contiguous(), columns=ones, rows=(weight > 0).sum(0).to(weight),
            square=torch.zeros_like(ones), factor=linear, widths=(1,) * count, of_column=index,
            log_scale=ones.new_zeros(()), order=index,
        )  # fmt: skip

    def targets(self, data: Sequences, start: int, stop: int) -> Tensor:
        return scaled_sites(self.sites, self.output_mean, self.output_scale)[1][:, start:stop]

    def part(self, mean: Tensor, variance: Tensor, rows: Tensor | None = None) -> SitePart:
        """What frames, with the moments (n, Q) of their latent points, add to the bound. Default: all frames."""
        sites = self.sites if rows is None else Sites(*(each[rows] for each in self.sites))
        weight, linear = scaled_sites(sites, self.output_mean, self.output_scale)
        psi = self.basis.expect(mean, variance, weight.mT.contiguous(), linear)
        terms = mean_terms(sites, self.output_mean) + sites.constant.sum()
        return SitePart(psi, site_limits(weight, linear), terms)

    @torch.no_grad()
    def estimate(self, posterior: TorchDistribution, part: SitePart) -> float:
        """What draws add to the bound of the outputs of all frames; 0 for likelihoods that need none."""
        if not self.outputs.likelihood.is_drawn:
            return 0.0
        given = self.gp.given(part.psi, self.inducing_factor())
        x, variance = posterior.mean.double(), posterior.variance.double()
        return float(correction(given, x, variance, self.y, self.sites, self.outputs)[0])

    def integrate(self, posterior: TorchDistribution) -> _Bound:  # type: ignore[override]
        return _Bound(self, posterior)


class _Bound:
    """The bound of the outputs whose factors a mapping has."""

    def __init__(self, mapping: SiteGP, posterior: TorchDistribution) -> None:
        self.mapping, self.latent = mapping, CollapsedLatent(mapping.gp, posterior)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.latent.evaluate(self.mapping.outputs, self.mapping.y, self.mapping.sites)[0]
