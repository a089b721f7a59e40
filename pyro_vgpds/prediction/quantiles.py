# SPDX-License-Identifier: Apache-2.0
"""Quantiles of mixtures of a likelihood over weighted function values."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.likelihoods.base import LikelihoodValue

__all__ = ["Weighted", "count_quantiles", "quantiles"]

_GROUPS = 24  # function values that a mixture is reduced to
_MOST = 500  # counts up to which probabilities are added up one by one
_BISECTIONS = 50
_EXPANSIONS = 60  # doublings of a bracket
_DRAWS = 64  # of an output at each function value, if the likelihood has no distribution function


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
        """Fewer values with equal weights: the means of groups of neighbouring values of the same total weight."""
        if len(self.values) <= size:
            return self
        value, order = self.values.sort(0)
        weight = self.weight.reshape(-1, *[1] * (value.dim() - 1)).expand_as(value).gather(0, order)
        end = weight.cumsum(0)
        edges = torch.linspace(0.0, 1.0, size + 1, dtype=value.dtype, device=value.device)
        groups = []
        for low, high in itertools.pairwise(edges):  # the part of each weight that lies in the group
            part = (torch.minimum(end, high) - torch.maximum(end - weight, low)).clamp_min(0.0)
            groups.append((part * value).sum(0) / part.sum(0).clamp_min(1e-300))
        return Weighted(torch.stack(groups), torch.full((size,), 1.0 / size, dtype=value.dtype, device=value.device))


def _reduce(outputs: LikelihoodValue, f: Tensor, weight: Tensor) -> Weighted:
    """A mixture of fewer function values; several functions for an output have no order."""
    return Weighted(f, weight).reduced(_GROUPS) if outputs.likelihood.num_functions == 1 else Weighted(f, weight)


def count_quantiles(
    outputs: LikelihoodValue, f: Tensor, weight: Tensor, levels: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """The smallest whole numbers of at least these probabilities under a mixture, (T, D).

    :param outputs: the likelihood of counts.
    :param f: function values (K, T, F).
    :param weight: (K,).
    :param levels: the probabilities, increasing.
    """
    f, weight = _reduce(outputs, f, weight)
    distribution, w = outputs.distribution(f), weight[:, None, None]
    shape = distribution.batch_shape[1:]
    total = f.new_zeros(shape)
    found = [f.new_full(shape, torch.nan) for _ in levels]
    for count in range(_MOST):
        total = total + (w * outputs.log_prob_of(distribution, f.new_full(shape, float(count))).exp()).sum(0)
        for level, end in zip(levels, found, strict=True):
            end.masked_fill_((total >= level - 1e-9) & end.isnan(), float(count))
        if not bool(found[-1].isnan().any()):
            return found[0], found[1]
    rest = found[-1].isnan()  # large counts: quantiles of draws
    drawn = _drawn(outputs, f, weight, levels)
    ends = [torch.where(end.isnan() & rest, other.round(), end) for end, other in zip(found, drawn, strict=True)]
    return ends[0], ends[1]


def quantiles(
    outputs: LikelihoodValue, f: Tensor, weight: Tensor, levels: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Quantiles of a mixture of continuous outputs, (T, D), by bisection of its distribution function.

    :param outputs: the likelihood.
    :param f: function values (K, T, F).
    :param weight: (K,).
    :param levels: the probabilities.
    """
    f, weight = _reduce(outputs, f, weight)
    w = weight[:, None, None]
    centre = (w * outputs.moments(f)[0]).sum(0)
    try:
        outputs.cdf(centre, f[:1])
    except NotImplementedError:
        return _drawn(outputs, f, weight, levels)

    def below(x: Tensor, level: float) -> Tensor:
        return (w * outputs.cdf(x, f)).sum(0) < level

    step = centre.abs().clamp_min(1e-3)
    found = []
    for level in levels:
        low, high = centre - step, centre + step
        for end, sign in ((low, -1.0), (high, 1.0)):
            reach = step.clone()
            for _ in range(_EXPANSIONS):
                wrong = below(end, level) if sign > 0 else ~below(end, level)
                if not bool(wrong.any()):
                    break
                reach = torch.where(wrong, 2.0 * reach, reach)
                end.copy_(torch.where(wrong, centre + sign * reach, end))
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            is_low = below(middle, level)
            low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
        found.append(0.5 * (low + high))
    return found[0], found[1]


def _drawn(outputs: LikelihoodValue, f: Tensor, weight: Tensor, levels: tuple[float, float]) -> tuple[Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        y = outputs.distribution(f).sample(torch.Size((_DRAWS,)))  # (draws, K, T, D)
    found = Weighted(y.flatten(0, 1), (weight / _DRAWS).repeat(_DRAWS)).quantiles(levels)
    return found[0], found[1]
