# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of outputs under mixtures over the latent point and the function value."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_vgpds.likelihoods.base import LikelihoodValue
from pyro_vgpds.likelihoods.quadrature import hermite_nodes

__all__ = ["mixture_log_probs"]

_STEPS = 12  # of Newton's method
_MOST_STEP = 1.5  # in units of f
_NARROW = 0.1  # variance of f times the curvature of log p above which p counts, and not only the distribution of f
_LEAST_VARIANCE = 1e-12
_REACH = 4.0  # standard deviations of f within which the mode is looked for first


def mixture_log_probs(
    outputs: LikelihoodValue, y: Tensor, mean: Tensor, variance: Tensor, num_nodes: Mapping[int, int]
) -> Tensor:
    """Log of the average of ∫ p(y given f) N(f; mean, variance) df over draws, (T, D); −∞ for what is not possible.

    The moments of the functions given the draws are (S, T, F). Gauss–Hermite quadrature, around the mode of the
    integrand where p(y given f) is narrow: a count of ten thousand determines f much better than the points of a broad
    distribution of f can resolve.

    :param num_nodes: number of points by the number of functions of an output.
    """
    count = outputs.likelihood.num_functions
    points, weight = (part.to(mean) for part in hermite_nodes(num_nodes.get(count, 3), count))
    possible = outputs.likelihood.is_valid(y, outputs.parameters)
    centre, spread = mean, variance.sqrt()
    correction: Tensor | float = 0.0
    if count == 1:
        points = points.squeeze(-1)[:, None, None, None]
        variance = variance.clamp_min(_LEAST_VARIANCE)
        mode, precision, is_narrow = _mode(
            outputs, torch.where(possible, y, outputs.moments(mean)[0][0].round()), mean, variance
        )
        centre, spread = torch.where(is_narrow, mode, mean), torch.where(is_narrow, precision.rsqrt(), variance.sqrt())
        f = centre + spread * points
        correction = 0.5 * (points.square() - (f - mean).square() / variance) + (spread.square() / variance).log() / 2.0
    else:
        points = points.repeat(1, mean.shape[-1] // count)[:, None, None]
        f = centre + spread * points
    terms = outputs.log_prob_of(outputs.distribution(f), y)
    if count == 1:
        terms = terms + correction
    terms = terms + weight.log().reshape(-1, 1, 1, 1)
    return torch.logsumexp(terms.flatten(0, 1), 0) - math.log(len(mean))


def _mode(outputs: LikelihoodValue, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mode of p(y given f) N(f; mean, variance), the precision there, and whether p is the narrower factor."""
    # from where the output is its own mean: far from it a heavy tail has no curvature to follow
    own, reach = outputs.link(y), _REACH * variance.sqrt()
    f = torch.where(torch.isfinite(own), own.clamp(mean - reach, mean + reach), mean)
    for _ in range(_STEPS):
        slope, curvature = _derivatives(outputs, y, f)
        precision = 1.0 / variance + curvature.clamp_min(0.0)
        step = (slope - (f - mean) / variance) / precision
        f = f + step.clamp(-_MOST_STEP, _MOST_STEP)
        if bool((step.abs() * precision.sqrt() < 0.01).all()):
            break
    _, curvature = _derivatives(outputs, y, f)
    is_narrow = torch.isfinite(f) & torch.isfinite(curvature) & (curvature * variance > _NARROW)
    precision = 1.0 / variance + torch.where(is_narrow, curvature, 0.0)
    return torch.where(is_narrow, f, mean), precision, is_narrow


def _derivatives(outputs: LikelihoodValue, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """The derivative of log p(y given f), and minus the second one."""
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        (slope,) = torch.autograd.grad(outputs.distribution(f).log_prob(y).sum(), f, create_graph=True)
        if not slope.requires_grad:
            return slope, torch.zeros_like(slope)
        (second,) = torch.autograd.grad(slope.sum(), f)
    return slope.detach(), -second
