# SPDX-License-Identifier: Apache-2.0
"""Distributions of the outputs given the latent functions."""

from pyro_vgpds.likelihoods.base import Likelihood, LikelihoodValue
from pyro_vgpds.likelihoods.families import Bernoulli, Binomial, Gaussian, NegativeBinomial, StudentT
from pyro_vgpds.likelihoods.tangent import TangentLikelihood

__all__ = [
    "Bernoulli",
    "Binomial",
    "Gaussian",
    "Likelihood",
    "LikelihoodValue",
    "NegativeBinomial",
    "StudentT",
    "TangentLikelihood",
]
