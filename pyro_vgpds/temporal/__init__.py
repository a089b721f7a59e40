# SPDX-License-Identifier: Apache-2.0
"""The latent path: its Gaussian process prior and posterior, and the covariances that they compute with."""

from pyro_vgpds.temporal import kl as kl  # registers the divergences
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.gaussian import GaussianPosterior

__all__ = [
    "GaussianPosterior", "OpperArchambeau", "TemporalGP",
]  # fmt: skip
