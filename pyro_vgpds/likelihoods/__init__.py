# SPDX-License-Identifier: Apache-2.0
"""Distributions of the outputs given the latent functions."""

from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.columns import ByColumn
from pyro_vgpds.likelihoods.families import Bernoulli, Binomial, Gaussian, NegativeBinomial, StudentT
from pyro_vgpds.likelihoods.names import parse_likelihood, register_likelihood
from pyro_vgpds.likelihoods.poisson import Poisson
from pyro_vgpds.likelihoods.site import SiteLikelihood
from pyro_vgpds.likelihoods.tangent import TangentLikelihood
from pyro_vgpds.likelihoods.value import LikelihoodValue

__all__ = [
    "Bernoulli", "Binomial", "ByColumn", "Gaussian", "Likelihood", "LikelihoodValue", "NegativeBinomial", "Poisson",
    "SiteLikelihood", "StudentT", "TangentLikelihood", "parse_likelihood", "register_likelihood",
]  # fmt: skip

for _likelihood in (Bernoulli, Binomial, ByColumn, Gaussian, NegativeBinomial, Poisson, StudentT):
    register_likelihood(_likelihood)
