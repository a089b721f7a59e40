# SPDX-License-Identifier: Apache-2.0
"""The likelihood around the means of a baseline: its parameters are those under which held-out outputs are likely."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.columns import ByColumn
from pyro_vgpds.likelihoods.families import Bernoulli, Binomial, Gaussian, NegativeBinomial, StudentT
from pyro_vgpds.likelihoods.poisson import Poisson

__all__ = ["HeldOutMeans", "fit_dispersion", "fit_likelihood", "is_fitted"]

_DISPERSIONS = np.exp(np.linspace(-5.0, 5.0, 101))  # that are compared
_FREEDOMS = (3.0, 5.0, 10.0, 30.0)  # degrees of freedom that are compared
_PSEUDO = 10.0  # errors of an output that those of all outputs count for
_STEPS = 30  # of expectation maximisation
_LEAST = 1e-6  # scale of errors, in units of the output


class HeldOutMeans(NamedTuple):
    """Held-out outputs and the means of a baseline."""

    truth: Tensor  #: (n,)
    means: Tensor  #: of the components, (K, n)
    output: Tensor  #: (n,), index of the output
    unit: Tensor  #: (D,), in which errors of different outputs are compared

    def take(self, columns: Tensor) -> HeldOutMeans:
        """Those of some outputs, which have the indices 0, 1, ... then."""
        place = self.output.new_full((len(self.unit),), -1)
        place[columns] = torch.arange(len(columns))
        own = place[self.output] >= 0
        return HeldOutMeans(self.truth[own], self.means[:, own], place[self.output[own]], self.unit[columns])


def is_fitted(likelihood: Likelihood) -> bool:
    """Whether :func:`fit_likelihood` knows all parts of a likelihood."""
    parts = likelihood.groups if isinstance(likelihood, ByColumn) else [likelihood]
    return all(type(part) in (Bernoulli, Binomial, Gaussian, NegativeBinomial, Poisson, StudentT) for part in parts)


def fit_likelihood(likelihood: Likelihood, found: HeldOutMeans) -> Likelihood:
    """A likelihood of the same kinds, for which :func:`is_fitted` is true, with parameters for the errors of a
    baseline. Counts are negative binomial.
    """
    if isinstance(likelihood, ByColumn):
        parts = likelihood().parts(len(found.unit))
        return ByColumn(
            [(fit_likelihood(part.likelihood, found.take(part.outputs)), part.outputs.tolist()) for part in parts]
        )
    if isinstance(likelihood, (NegativeBinomial, Poisson)):
        return NegativeBinomial(dispersion=fit_dispersion(found.truth, found.means))
    if isinstance(likelihood, (Bernoulli, Binomial)):
        return likelihood
    error = ((found.truth - found.means.mean(0)) / found.unit[found.output]).double()
    if isinstance(likelihood, Gaussian):
        return Gaussian(scale=_scales(error, found, math.inf)[0] * found.unit)
    tried = {df: _scales(error, found, df) for df in _FREEDOMS}
    best = max(tried, key=lambda df: tried[df][1])
    return StudentT(scale=tried[best][0] * found.unit, df=best)


def fit_dispersion(counts: Tensor, means: Tensor) -> float:
    """The dispersion under which counts (n,) are most likely, given the means (K, n) of their components."""
    found = []
    for dispersion in _DISPERSIONS:
        outputs = NegativeBinomial(dispersion=float(dispersion))().detached()
        terms = outputs.distribution(outputs.link(means.double())).log_prob(counts.double())
        found.append(float(torch.logsumexp(terms, 0).sum()))
    return float(_DISPERSIONS[int(np.argmax(found))])


def _scales(error: Tensor, found: HeldOutMeans, df: float) -> tuple[Tensor, float]:
    """Scales (D,) of Student-t distributions of errors (n,), and the log-likelihood; Gaussian errors for infinite
    ``df``.

    A few errors of each output are those of all outputs.
    """
    square, count = error.square(), torch.bincount(found.output, minlength=len(found.unit))
    scale = square.mean().sqrt().clamp_min(_LEAST).expand(len(found.unit))
    for _ in range(_STEPS):
        ratio = square / scale[found.output].square()
        weighted = square if df == math.inf else square * (df + 1.0) / (df + ratio)
        total = torch.zeros_like(found.unit, dtype=error.dtype).index_add_(0, found.output, weighted)
        scale = ((total + _PSEUDO * weighted.mean()) / (count + _PSEUDO)).sqrt().clamp_min(_LEAST)
    if df == math.inf:
        return scale, math.nan
    own = torch.distributions.StudentT(df, 0.0, scale[found.output])
    return scale, float(own.log_prob(error).sum())
