# SPDX-License-Identifier: Apache-2.0
r"""Points and weights for expectations under Gaussians, and mixtures of a few Gaussians with given moments.

Given a draw :math:`x_s` of the latent point, f is Gaussian with a mean :math:`m_s` and a variance :math:`v_s`. The
mixture over S draws stands for the distribution of f, but in many latent dimensions a few draws do not have its
moments, and if the :math:`v_s` are small, the mixture has gaps between its components and tails that are cut off. The
exact mean m and variance v of f are known, so with B = v − mean of the :math:`v_s`, the variance that x causes,

.. math:: m_s' = m + \sqrt{\tfrac{B - b}{\mathrm{var}_s(m_s)}} \, (m_s - \bar m), \qquad v_s' = v_s + b,

have these moments for every b. b is 0 if the components overlap. Otherwise each is widened, up to the bandwidth of
Silverman's rule: b = h² B − mean of the :math:`v_s`, if that is positive, with h = 1.06 S^{−1/5}. One more component,
N(m, v), has the tails that draws do not reach.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["hermite_nodes", "normal_draws", "normal_groups", "normal_lattice", "usual_nodes", "with_moments"]

_END = 3.0  # where the last of the groups begin
_SEED = 20110  # of the scrambling: the draws are the same in every call
_BANDWIDTH = 1.06  # of Silverman's rule, in standard deviations, times S^(−1/5)


def usual_nodes(num_functions: int) -> int:
    """Gauss–Hermite points of each function value, with this number of functions for each output."""
    return 15 if num_functions == 1 else 9


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


def with_moments(
    centre: Tensor, spread: Tensor, mean: Tensor, variance: Tensor, *, widen: bool = True
) -> tuple[Tensor, Tensor]:
    """Means and variances of the components of a mixture with the given moments, (S + 1, T, F) each.

    :param centre: mean of f given each draw, (S, T, F).
    :param spread: variance of f given each draw, (S, T, F).
    :param mean: of f, (T, F).
    :param variance: of f, (T, F).
    :param widen: close gaps between components, and add the component for the tails; if False, there are S.

    >>> import torch
    >>> from pyro_vgpds.likelihoods.quadrature import with_moments
    >>> centre, spread = torch.tensor([[[-1.0]], [[2.0]]]), torch.full((2, 1, 1), 0.1)
    >>> m, v = with_moments(centre, spread, torch.zeros(1, 1), torch.ones(1, 1))
    >>> m.shape, abs(float(m.mean())) < 1e-6, round(float((m.square() + v).mean()), 4)
    (torch.Size([3, 1, 1]), True, 1.0)
    """
    least = torch.finfo(variance.dtype).tiny
    within = spread.mean(0)
    # f given x cannot vary more than f; draws may tell so
    spread = spread * (variance / within.clamp_min(least)).clamp_max(1.0)
    within = torch.minimum(within, variance)
    through = variance - within
    extra = torch.zeros_like(through)
    if widen:
        extra = ((_BANDWIDTH * len(centre) ** -0.2) ** 2 * through - within).clamp_min(0.0)
    centred = centre - centre.mean(0)
    between = centred.square().mean(0)
    scale = ((through - extra) / between.clamp_min(least)).sqrt()
    # without any difference between draws the rest cannot be in their means
    is_known = between > torch.finfo(variance.dtype).eps ** 2 * variance
    extra = torch.where(is_known, extra, through)
    centre, spread = mean + torch.where(is_known, scale, 0.0) * centred, spread + extra
    if not widen:
        return centre, spread
    return torch.cat([centre, mean.unsqueeze(0)]), torch.cat([spread, variance.unsqueeze(0)])
