# SPDX-License-Identifier: Apache-2.0
"""Points and weights for expectations under Gaussians."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["hermite_nodes", "normal_draws"]

_SEED = 20110  # of the scrambling: the draws are the same in every call


@functools.lru_cache(maxsize=64)
def hermite_nodes(num_points: int, dim: int = 1) -> tuple[Tensor, Tensor]:
    """Gauss–Hermite points (H, dim) and weights (H,) for the standard normal distribution, H = num_points ** dim.

    :param num_points: in each dimension.
    :param dim: number of dimensions.

    >>> from pyro_vgpds.likelihoods.quadrature import hermite_nodes
    >>> z, weight = hermite_nodes(5)
    >>> round(float((weight * z[:, 0] ** 4).sum()), 9)
    3.0
    """
    x, w = np.polynomial.hermite_e.hermegauss(num_points)
    w = w / math.sqrt(2.0 * math.pi)
    points = np.array(list(itertools.product(x, repeat=dim)))
    weights = np.prod(np.array(list(itertools.product(w, repeat=dim))), axis=1)
    return torch.from_numpy(points), torch.from_numpy(weights)


@functools.lru_cache(maxsize=64)
def normal_draws(num_draws: int, dim: int, seed: int = _SEED) -> Tensor:
    """Quasi-random draws (num_draws, dim) of a standard normal distribution, in antithetic pairs.

    :param num_draws: an even number.
    :param dim: number of dimensions.
    :param seed: of the scrambled Sobol points.

    >>> from pyro_vgpds.likelihoods.quadrature import normal_draws
    >>> float(normal_draws(8, 3).sum().abs()) < 1e-12
    True
    """
    half = torch.quasirandom.SobolEngine(dim, scramble=True, seed=seed).draw(num_draws // 2, dtype=torch.float64)
    z = torch.special.ndtri(half.clamp(1e-6, 1.0 - 1e-6))
    # the pairs have mean 0; with the variance 1 in each dimension, quadratic functions are exact, too
    z = z / z.square().mean(0).sqrt()
    return torch.cat([z, -z])
