# SPDX-License-Identifier: Apache-2.0
"""Data and parameters at which all libraries are timed. Numpy only, so that each can have its own environment."""

from __future__ import annotations

from typing import Any

import numpy as np

#             N      D     Q  M
SIZES = {
    "S": (500, 50, 5, 50),
    "M": (2613, 59, 9, 100),
    "L": (1000, 1000, 9, 50),
    "XL": (10000, 60, 5, 100),
}
JITTER = 1e-8  # on the diagonal of K_MM, in every library


def draw(size: str) -> dict[str, Any]:
    """Data Y and one point in parameter space of a Bayesian GP-LVM; S is the variance of the factorised q(X)."""
    n, d, q, m = SIZES[size]
    rng = np.random.default_rng(0)
    mu = rng.standard_normal((n, q))
    y = np.sin(mu @ rng.standard_normal((q, d))) + 0.3 * rng.standard_normal((n, d))
    s = 0.05 + 0.45 * rng.random((n, q))
    z = rng.standard_normal((m, q))
    lengthscale = np.linspace(0.8, 2.0, q)
    return {"Y": y, "mu": mu, "S": s, "Z": z, "variance": 1.3, "lengthscale": lengthscale, "noise": 0.1}
