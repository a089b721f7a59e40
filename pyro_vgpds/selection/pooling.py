# SPDX-License-Identifier: Apache-2.0
"""The linear pool of candidates whose outputs are not Gaussian, with weights by their held-out log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import torch
from torch import Tensor

from pyro_vgpds.evaluation.entries import Entries
from pyro_vgpds.evaluation.scores import relative_error
from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.prediction.combination import Combination, Limits
from pyro_vgpds.prediction.intervals import Calibration
from pyro_vgpds.prediction.mixture_prediction import spread_density, spread_probability
from pyro_vgpds.prediction.quantiles import invert
from pyro_vgpds.selection.combining import Choice, folds_of
from pyro_vgpds.selection.distributions import LEVEL

__all__ = ["LARGE", "choose_pool", "choose_spread", "pool", "pool_weights"]

_STEPS = 200  # of the weights
_LEAST = 0.05  # weight that a member needs
LARGE = 2.0  #: times the smallest error: the most with which a member can have a weight
_NEAR = 1.35  # the same for continuous outputs
_EQUAL = 0.5  # part of the weight that members share equally: few origins tell little about which is better
_FAR = 4.0  # standard deviations beyond which an entry does not widen a pool more
_PSEUDO = 50.0  # entries with a spread of 1


def pool_weights(found: Sequence[HeldOut], scale: Tensor, is_continuous: bool = False) -> Tensor:
    """Weights (members,): those with the highest held-out log-probability of the pool, half way to equal ones.

    Weights of continuous outputs have the highest log-probability minus the logarithm of the error of the pool's mean:
    heavy tails forgive a few large errors, which the mean should avoid. They are not equalised.

    Members with less than a twentieth get no weight. Neither do those whose means have large errors, although their
    log-probabilities may be good: the mean of a broad distribution of a log rate can be enormous.

    :param found: the held-out predictions of each member.
    :param scale: standard deviations of the outputs, (D,), in whose units errors are compared.
    :param is_continuous: whether all outputs are continuous.
    """
    errors = torch.tensor([relative_error(member, scale) for member in found])
    near = errors <= (_NEAR if is_continuous else LARGE) * errors.min()
    density = torch.stack([_density(member) for member in found])[near]
    best = _best_weights(density)
    if is_continuous:
        best = _weights_by_both(density, torch.stack([_errors(member, scale) for member in found])[near], best)
    weights = torch.zeros(len(found), dtype=torch.float64)
    weights[near] = best
    kept = weights >= min(_LEAST, float(weights.max()))
    weights, equal = torch.where(kept, weights, 0.0), 0.0 if is_continuous else _EQUAL
    return (1.0 - equal) * weights / weights.sum() + equal * kept / kept.sum()


def _best_weights(density: Tensor) -> Tensor:
    """The weights of a mixture (members,) that maximise its likelihood, from log-densities (members, n)."""
    weights = torch.full((len(density),), 1.0 / len(density), dtype=torch.float64)
    for _ in range(_STEPS):
        weights = torch.softmax(density + weights.log().unsqueeze(-1), 0).mean(1)
    return weights


def _weights_by_both(density: Tensor, errors: Tensor, first: Tensor) -> Tensor:
    """The weights (members,) with the highest mean log-density minus the logarithm of the error of the mean.

    :param density: log-densities (members, n).
    :param errors: of the means, (members, n).
    :param first: weights to start from.
    """
    logits = first.clamp_min(1e-3).log().requires_grad_()
    optimiser = torch.optim.LBFGS([logits], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        weights = torch.log_softmax(logits, 0)
        square = (weights.exp() @ errors).square().mean().clamp_min(1e-300)
        value = 0.5 * square.log() - torch.logsumexp(density + weights.unsqueeze(-1), 0).mean()
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)
    return torch.softmax(logits.detach(), 0)


def _errors(found: HeldOut, scale: Tensor) -> Tensor:
    """Errors of the means (n,), in units of the outputs' scales."""
    return ((found.mean - found.truth) / scale.to(found.mean)[found.output]).to("cpu", torch.float64)


def _density(found: HeldOut) -> Tensor:
    """Log-probabilities (n,), finite also for what a member holds impossible."""
    assert found.log_density is not None
    return found.log_density.to("cpu", torch.float64).clamp_min(-700.0)


def pool(found: Sequence[HeldOut], weights: Tensor) -> HeldOut:
    """The held-out predictions of a pool.

    :param weights: (members,), with sum 1.
    """

    def mixed(values: list[Tensor]) -> Tensor:
        return torch.einsum("i,i...->...", weights.to(values[0]), torch.stack(values))

    mean = mixed([member.mean for member in found])
    variance = mixed([member.variance + (member.mean - mean).square() for member in found])
    density = torch.stack([_density(member) for member in found]) + weights.log().unsqueeze(-1)
    cdf = mixed([member.cdf for member in found if member.cdf is not None])
    log_density = torch.logsumexp(density, 0).to(mean)
    ends = _pool_ends([member.ends for member in found if member.ends is not None], weights)
    return replace(found[0], mean=mean, variance=variance, log_density=log_density, cdf=cdf, ends=ends)


def _pool_ends(ends: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Ends (n, 2) of the intervals of a pool, for pictures: Gaussians with the ends of its members take their place.

    They are exact if all members have the same ends. Those of whole numbers are whole.

    :param ends: of each member.
    """
    each = torch.stack(list(ends))  # (members, n, 2)
    width = NormalDist().inv_cdf(0.5 + 0.5 * LEVEL)
    centre, w = each.mean(-1), weights.to(each).unsqueeze(-1)
    scale = (each[..., 1] - each[..., 0]).clamp_min(1e-12) / (2.0 * width)

    def cdf(y: Tensor) -> Tensor:
        return (w * torch.special.ndtr((y - centre) / scale)).sum(0)

    low, high = each.amin(0), each.amax(0)
    whole = (each == each.round()).all(0)
    found = []
    for side, level in enumerate((0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL)):
        first, last = low[:, side], high[:, side]
        spread = (0.5 * (last - first)).clamp_min(1e-12)
        end = invert(cdf, level, 0.5 * (first + last), spread, needed=last > first).clamp(first, last)
        found.append(torch.where(whole[:, side], end.round(), end))
    return torch.stack(found, -1)


def choose_spread(found: HeldOut) -> float:
    """The factor by which the distributions of a pool of continuous outputs should be wider, from its predictions.

    Pools are too wide if their members are right but disagree. It has the highest likelihood if
    :class:`~pyro_vgpds.prediction.MixturePrediction` is used with it.
    """
    assert found.cdf is not None
    probability = found.cdf[:, 1].double()
    z = torch.special.ndtri(probability).clamp(-_FAR, _FAR)
    return math.sqrt((float(z.square().sum()) + _PSEUDO) / (len(z) + _PSEUDO))


def _with_spread(found: HeldOut, spread: float) -> HeldOut:
    """The predictions of a pool that is wider by a factor."""
    assert found.cdf is not None
    assert found.log_density is not None
    assert found.ends is not None
    cdf, mean = found.cdf, found.mean
    density = found.log_density + spread_density(cdf[:, 1], spread).to(mean)
    ends = mean.unsqueeze(-1) + spread * (found.ends - mean.unsqueeze(-1))
    variance = spread**2 * found.variance
    return replace(found, variance=variance, log_density=density, cdf=spread_probability(cdf, spread), ends=ends)


def choose_pool(
    found: Sequence[HeldOut],
    entries: Entries,
    scale: Tensor,
    is_continuous: bool = False,
    limits: Limits | None = None,
) -> Choice:
    """Combine candidates; the predictions of the choice have weights that were chosen on other held-out entries.

    :param found: the held-out predictions of each candidate.
    :param entries: where the held-out entries are.
    :param scale: as in :func:`pool_weights`.
    :param is_continuous: as in :func:`pool_weights`.
    :param limits: of the means. Default: none.
    """
    if limits is not None:
        found = [limits.clamp_means(member) for member in found]
    fold = folds_of(entries)
    parts, places = [], []
    for number in fold.unique():
        tested = fold == number
        known = ~tested if bool((~tested).any()) else tested
        weights, spread = _choose([member.take(known) for member in found], scale, is_continuous)
        parts.append(_with_spread(pool([member.take(tested) for member in found], weights), spread))
        places.append(tested.nonzero().flatten())
    order = torch.cat(places).argsort()
    weights, spread = _choose(found, scale, is_continuous)
    every = weights.unsqueeze(-1).expand(-1, len(scale)).clone()
    combination = Combination(every, Calibration.none(len(scale)), is_pool=True, spread=spread)
    return Choice(combination, HeldOut.join(parts).take(order), {}, weights)


def _choose(found: Sequence[HeldOut], scale: Tensor, is_continuous: bool) -> tuple[Tensor, float]:
    """Weights and spread of the pool."""
    weights = pool_weights(found, scale, is_continuous)
    return weights, choose_spread(pool(found, weights)) if is_continuous else 1.0
