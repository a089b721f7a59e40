# SPDX-License-Identifier: Apache-2.0
"""Quantiles, probabilities and log-probabilities of mixtures of a likelihood over function values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.likelihoods.quadrature import hermite_nodes, normal_groups
from pyro_vgpds.likelihoods.value import LikelihoodValue

__all__ = ["Weighted", "invert", "mixture_cdf", "mixture_log_probs", "mixture_quantiles"]

_GROUPS = 32  # function values that a mixture is reduced to
_FEW = 32  # counts up to which probabilities are added up one by one
_STEPS = 80  # of a bracket
_EXPANSIONS = 80  # doublings of a bracket
_CLOSE = 1e-9  # width of a bracket that ends the search, relative to the first one
_ROUNDING = 1e-9  # of a sum of probabilities
_DRAWS = 64  # of an output at each function value, if the likelihood has no distribution function
_NEWTON_STEPS = 12  # of Newton's method
_MOST_STEP = 1.5  # in units of f
_NARROW = 0.1  # variance of f times the curvature of log p above which p counts, and not only the distribution of f
_LEAST_VARIANCE = 1e-12
_REACH = 4.0  # standard deviations of f within which the mode is looked for first

Function = Callable[[Tensor], Tensor]


class Weighted(NamedTuple):
    """Values (K, ...) with weights (K,)."""

    values: Tensor
    weight: Tensor

    def quantiles(self, levels: tuple[float, ...]) -> tuple[Tensor, ...]:
        """Quantiles of the weighted values, interpolated between them."""
        value, order = self.values.sort(0)
        weight = self.weight.reshape(-1, *[1] * (value.dim() - 1)).expand_as(value).gather(0, order)
        middle = weight.cumsum(0) - 0.5 * weight
        found = []
        for level in levels:
            above = (middle < level).sum(0, keepdim=True).clamp(1, len(value) - 1)
            low, high = value.gather(0, above - 1), value.gather(0, above)
            at_low, at_high = middle.gather(0, above - 1), middle.gather(0, above)
            share = ((level - at_low) / (at_high - at_low).clamp_min(1e-12)).clamp(0.0, 1.0)
            found.append((low + share * (high - low)).squeeze(0))
        return tuple(found)

    def reduced(self, size: int) -> Weighted:
        """Fewer values: the means of groups of neighbouring values, whose weights are those of ``normal_groups``."""
        if len(self.values) <= size:
            return self
        value, order = self.values.flatten(1).mT.sort(-1)  # (entries, K)
        weight = self.weight.to(value)[order]
        end = weight.cumsum(-1)
        total = (weight * value).cumsum(-1)
        # the integral of the quantile function up to each edge
        share = normal_groups(size)[1].to(value)
        edges = share.cumsum(0)[:-1].expand(len(value), -1)
        at = torch.searchsorted(end, edges.contiguous()).clamp_max(value.shape[1] - 1)
        inner = total.gather(1, at) - (end.gather(1, at) - edges) * value.gather(1, at)
        integral = torch.cat([torch.zeros_like(inner[:, :1]), inner, total[:, -1:]], -1)
        groups = (integral.diff(dim=-1) / share).mT.unflatten(1, self.values.shape[1:])
        return Weighted(groups, share)


def mixture_quantiles(
    outputs: LikelihoodValue, f: Tensor, weight: Tensor, levels: tuple[float, ...]
) -> tuple[Tensor, ...]:
    """Quantiles (T, D) of all outputs under a mixture over function values f (K, T, F) with weights (K,)."""
    found = [f.new_empty(f.shape[1], f.shape[-1] // outputs.likelihood.num_functions) for _ in levels]
    for index, value, own in _groups(outputs, f, weight):
        solve = _count_quantiles if value.likelihood.is_discrete else _quantiles
        for end, result in zip(found, solve(value, *own, levels), strict=True):
            end[:, index] = result
    return tuple(found)


def mixture_cdf(outputs: LikelihoodValue, f: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    """P(output ≤ y), (T, D), under the mixture of :func:`mixture_quantiles`."""
    found = torch.empty_like(y)
    for index, value, own in _groups(outputs, f, weight):
        try:
            found[:, index] = (own.weight[:, None, None] * value.cdf(y[:, index], own.values)).sum(0)
        except NotImplementedError:
            drawn = _drawn(value, *own)
            found[:, index] = (drawn.weight[:, None, None] * (drawn.values <= y[:, index])).sum(0)
    return found


def _groups(outputs: LikelihoodValue, f: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, LikelihoodValue, Weighted]]:
    """The indices of the outputs of each likelihood, its value, and fewer function values of these outputs."""
    count = outputs.likelihood.num_functions
    num_outputs = f.shape[-1] // count
    for part in outputs.parts(num_outputs):
        index = part.columns(num_outputs).to(f.device)
        own = f.unflatten(-1, (num_outputs, count))[..., index, : part.likelihood.num_functions].flatten(-2)
        mixture = Weighted(own, weight)
        if part.likelihood.num_functions == 1:  # several functions for an output have no order
            mixture = mixture.reduced(_GROUPS)
        yield index, outputs.of(part), mixture


def _count_quantiles(
    outputs: LikelihoodValue, f: Tensor, weight: Tensor, levels: tuple[float, ...]
) -> tuple[Tensor, ...]:
    """The same for counts: the smallest whole numbers of at least these probabilities, which increase."""
    distribution, w = outputs.distribution(f), weight[:, None, None]
    shape = distribution.batch_shape[1:]
    total, count = f.new_zeros(shape), 0
    found = [f.new_full(shape, torch.nan) for _ in levels]
    while count <= _FEW and bool(found[-1].isnan().any()):
        total = total + (w * outputs.log_prob_of(distribution, f.new_full(shape, float(count))).exp()).sum(0)
        for level, end in zip(levels, found, strict=True):
            end.masked_fill_((total >= level - _ROUNDING) & end.isnan(), float(count))
        count += 1
    if not bool(found[-1].isnan().any()):
        return tuple(found)
    mean, variance = outputs.moments(f)
    centre = (w * mean).sum(0)
    spread = (w * (variance + (mean - centre).square())).sum(0).sqrt()

    def cdf(y: Tensor) -> Tensor:
        return (w * outputs.cdf(y, f)).sum(0) + _ROUNDING

    for level, end in zip(levels, found, strict=True):
        rest = end.isnan()
        if bool(rest.any()):
            large = invert(cdf, level, centre.round(), spread, is_whole=True, needed=rest)
            end.copy_(torch.where(rest, large, end))
    return tuple(found)


def _quantiles(outputs: LikelihoodValue, f: Tensor, weight: Tensor, levels: tuple[float, ...]) -> tuple[Tensor, ...]:
    """The same for continuous outputs."""
    w = weight[:, None, None]
    means, variances = outputs.moments(f)
    centre = (w * means).sum(0)
    try:
        outputs.cdf(centre, f[:1])
    except NotImplementedError:
        return _drawn(outputs, f, weight).quantiles(levels)
    spread = (w * (means - centre).square()).sum(0) + torch.where(torch.isfinite(variances), w * variances, 0.0).sum(0)
    spread = torch.where(spread > 0.0, spread.sqrt(), centre.abs().clamp_min(1e-3))
    return tuple(invert(lambda y: (w * outputs.cdf(y, f)).sum(0), level, centre, spread) for level in levels)


def invert(
    cdf: Function, level: float, centre: Tensor, spread: Tensor, *, is_whole: bool = False, needed: Tensor | None = None
) -> Tensor:
    """Where distribution functions reach a level, by Chandrupatla's method: a bracket with inverse interpolation.

    :param centre: a guess of the places.
    :param spread: of the distributions, positive.
    :param is_whole: find the smallest whole numbers of at least this probability.
    :param needed: the entries that count; others have any value.
    """
    needed = torch.ones_like(centre, dtype=torch.bool) if needed is None else needed
    reach = spread.clamp_min(1.0).ceil() if is_whole else spread
    a, b = centre - reach, centre + reach
    at_a, at_b = cdf(a) - level, cdf(b) - level
    for _ in range(_EXPANSIONS):  # the bracket that does not hold the place moves on
        under, over = (at_b < 0.0) & needed, (at_a >= 0.0) & needed
        if not bool((under | over).any()):
            break
        reach = 2.0 * reach
        a, b = torch.where(under, b, torch.where(over, a - reach, a)), torch.where(
            over, a, torch.where(under, b + reach, b)
        )  # fmt: skip
        at_a, at_b = cdf(a) - level, cdf(b) - level
    close = torch.where(needed, _CLOSE * spread, torch.inf)
    share = torch.full_like(a, 0.5)
    for _ in range(_STEPS):
        width = b - a
        if not bool(((width > 1.0) & needed).any() if is_whole else (width > close).any()):
            break
        x = a + share * width
        if is_whole:
            x = x.round().clamp(a + 1.0, b - 1.0)
            x = torch.where(width > 1.0, x, b)
        at_x = cdf(x) - level
        low = at_x < 0.0
        # a and b are the new bracket, c the end that is given up
        c, at_c = torch.where(low, a, b), torch.where(low, at_a, at_b)
        a, at_a = torch.where(low, x, a), torch.where(low, at_x, at_a)
        b, at_b = torch.where(low, b, x), torch.where(low, at_b, at_x)
        share = _share(torch.where(low, a, b), torch.where(low, b, a), c, torch.where(low, at_a, at_b),
                       torch.where(low, at_b, at_a), at_c)  # fmt: skip
        share = torch.where(low, share, 1.0 - share).clamp(1e-3, 1.0 - 1e-3)
    return b if is_whole else 0.5 * (a + b)


def _share(x: Tensor, other: Tensor, before: Tensor, at_x: Tensor, at_other: Tensor, at_before: Tensor) -> Tensor:
    """The part of the way from the newest end to the other one: by inverse quadratic interpolation, or the middle."""
    xi, phi = (x - other) / (before - other), (at_x - at_other) / (at_before - at_other)
    smooth = (phi.square() < xi) & ((1.0 - phi).square() < 1.0 - xi)
    quadratic = at_x / (at_other - at_x) * at_before / (at_other - at_before) + (before - x) / (other - x) * at_x / (
        at_before - at_x
    ) * at_other / (at_before - at_other)
    return torch.where(smooth & torch.isfinite(quadratic), quadratic, 0.5)


def _drawn(outputs: LikelihoodValue, f: Tensor, weight: Tensor) -> Weighted:
    """Draws of the outputs, the same in each call, for likelihoods without a distribution function."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        y = outputs.distribution(f).sample(torch.Size((_DRAWS,)))  # (draws, K, T, D)
    return Weighted(y.flatten(0, 1), (weight / _DRAWS).repeat(_DRAWS))


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
    for _ in range(_NEWTON_STEPS):
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
