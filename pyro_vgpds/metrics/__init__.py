# SPDX-License-Identifier: Apache-2.0
"""Errors and scores of predictions. Truth and prediction have the same shape; NaN in the truth is ignored."""

from pyro_vgpds.metrics.discrete import (
    bits_per_spike,
    brier_score,
    discrete_coverage,
    log_score,
    poisson_log_prob,
    randomized_pit,
    sample_cdf,
)
from pyro_vgpds.metrics.errors import coverage, mae, mse, nlpd, ra, sc

__all__ = [
    "bits_per_spike", "brier_score", "coverage", "discrete_coverage", "log_score", "mae", "mse", "nlpd",
    "poisson_log_prob", "ra", "randomized_pit", "sample_cdf", "sc",
]  # fmt: skip
