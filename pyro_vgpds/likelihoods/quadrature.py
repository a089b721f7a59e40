# SPDX-License-Identifier: Apache-2.0
"""Points and weights for expectations under Gaussians."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["hermite_nodes", "normal_draws", "normal_groups", "normal_lattice"]

_END = 3.0  # where the last of the groups begin
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
def normal_groups(num_groups: int) -> tuple[Tensor, Tensor]:
    """Means (H,) and probabilities (H,) of intervals of the standard normal distribution, of equal widths.

    For functions with steps, such as distribution functions, they are better than Gauss–Hermite points.

    :param num_groups: number of intervals, H.

    >>> from pyro_vgpds.likelihoods.quadrature import normal_groups
    >>> z, weight = normal_groups(24)
    >>> round(float(weight.sum()), 9), abs(float((weight * z).sum())) < 1e-12
    (1.0, True)
    """
    inner = torch.linspace(-_END, _END, num_groups - 1, dtype=torch.float64)
    edges = torch.cat([inner.new_tensor([-torch.inf]), inner, inner.new_tensor([torch.inf])])
    weight = torch.special.ndtr(edges).diff()
    density = (-0.5 * edges.square()).exp() / math.sqrt(2.0 * math.pi)
    return -density.diff() / weight, weight


@functools.lru_cache(maxsize=64)
def normal_lattice(num_points: int, num_draws: int) -> Tensor:
    """Points of a standard normal distribution, (num_points, num_draws): its quantiles, shifted in each column.

    Every column stands for the distribution, and all of them together do so more finely: for averages over draws of
    something else, one column for each of them.

    :param num_points: in each column.
    :param num_draws: number of columns.

    >>> from pyro_vgpds.likelihoods.quadrature import normal_lattice
    >>> normal_lattice(4, 8).shape, len(normal_lattice(4, 8).unique())
    (torch.Size([4, 8]), 32)
    """
    # the shifts are in another order than the draws, which come in pairs
    order = torch.quasirandom.SobolEngine(1, scramble=True, seed=_SEED).draw(num_draws).flatten().argsort().argsort()
    shift = (order.double() + 0.5) / num_draws
    level = (torch.arange(num_points, dtype=torch.float64).unsqueeze(-1) + shift) / num_points
    return torch.special.ndtri(level)


@functools.lru_cache(maxsize=64)
def normal_draws(num_draws: int, dim: int) -> Tensor:
    """Quasi-random draws (num_draws, dim) of a standard normal distribution, in antithetic pairs.

    :param num_draws: an even number.
    :param dim: number of dimensions.

    >>> from pyro_vgpds.likelihoods.quadrature import normal_draws
    >>> float(normal_draws(8, 3).sum().abs()) < 1e-12
    True
    """
    # single precision, in which the engine keeps its first point unless torch's default is another
    half = torch.quasirandom.SobolEngine(dim, scramble=True, seed=_SEED).draw(num_draws // 2, dtype=torch.float32)
    z = torch.special.ndtri(half.double().clamp(1e-6, 1.0 - 1e-6))
    # the pairs have mean 0; with the variance 1 in each dimension, quadratic functions are exact, too
    z = z / z.square().mean(0).sqrt()
    return torch.cat([z, -z])
