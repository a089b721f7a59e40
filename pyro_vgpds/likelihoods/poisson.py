# SPDX-License-Identifier: Apache-2.0
"""Counts with an exponential link."""

from __future__ import annotations

from typing import ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_vgpds.likelihoods.factors import Values
from pyro_vgpds.likelihoods.site import SiteLikelihood

__all__ = ["Poisson"]

_LARGEST = 80.0  # exponent, beyond which the expected rate is of no model, and exp() overflows some time later


class Poisson(SiteLikelihood):
    """Counts with the mean exp(f), times their exposure.

    Given x, E log p has a closed form, since E exp(f) = exp(E f + ½ V f). Counts that vary more than a Poisson
    distribution does are better described by :class:`~pyro_vgpds.likelihoods.NegativeBinomial`.

    >>> import torch
    >>> from pyro_vgpds.likelihoods import Poisson
    >>> Poisson()().distribution(torch.zeros(1)).mean
    tensor([1.])
    """

    support: ClassVar[str] = "a count: a whole number of 0 or more"
    takes_exposure: ClassVar[bool] = True
    is_discrete = True

    def distribution(self, f: Tensor, p: Values) -> dist.Poisson:
        return dist.Poisson(f.clamp_max(_LARGEST).exp())

    def link(self, mean: Tensor, p: Values) -> Tensor:
        return mean.log()

    def cdf(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        rate = f.clamp_max(_LARGEST).exp()
        found = torch.special.gammaincc(y.floor().clamp_min(0.0) + 1.0, rate)
        return torch.where(y < 0.0, 0.0, found)

    def is_valid(self, y: Tensor, p: Values) -> Tensor:
        return (y >= 0.0) & (y == y.round())

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, p: Values) -> Tensor:
        rate = (mean + 0.5 * variance).clamp_max(_LARGEST).exp()
        return y * mean - rate - torch.lgamma(y + 1.0)
