# SPDX-License-Identifier: Apache-2.0
"""The linear pool of candidates whose outputs are not Gaussian, with weights by their held-out log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from pyro_vgpds.evaluation.entries import Entries
from pyro_vgpds.evaluation.scores import relative_error
from pyro_vgpds.evaluation.splits import HeldOut, Predictor, Split
from pyro_vgpds.prediction.ensemble import Combination
from pyro_vgpds.prediction.intervals import Calibration
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.selection.combining import Choice, folds_of

__all__ = ["LARGE", "choose_pool", "covered", "pool", "pool_weights", "predict_distribution"]

_STEPS = 200  # of expectation maximisation
_LEAST = 0.05  # weight that a member needs
LARGE = 2.0  #: times the smallest error: the most with which a member can have a weight
_EQUAL = 0.5  # part of the weight that members share equally: few origins tell little about which is better


def predict_distribution(split: Split, predictor: Predictor) -> HeldOut:
    """The hidden numbers, their predictions, and the probabilities of what is below them."""
    found = cast("list[Outputs]", split.outputs(predictor))
    truth = torch.cat(split.truth)
    density, ends = [], []
    for part, y in zip(found, truth.split([len(part.mean) for part in found]), strict=True):
        density.append(part.log_probs(y))
        upto, whole = part.cdf(y), part.is_whole.to(y)
        ends.append(torch.stack([part.cdf(y - whole) if bool(whole.any()) else upto, upto], -1))
    held_out = split.select(*(torch.cat([getattr(part, name) for part in found]) for name in ("mean", "variance")))
    hidden = truth.isfinite()
    return replace(held_out, log_density=torch.cat(density)[hidden], cdf=torch.cat(ends)[hidden])


def covered(found: HeldOut, level: float) -> Tensor:
    """Whether the numbers (n,) are in their central intervals, whose ends are the quantiles of their distributions."""
    assert found.cdf is not None
    below, upto = found.cdf.unbind(-1)
    tail = 0.5 * (1.0 - level)
    return (upto >= tail) & (below < 1.0 - tail)


def pool_weights(found: Sequence[HeldOut], scale: Tensor) -> Tensor:
    """Weights (members,): those with the highest held-out log-probability of the pool, half way to equal ones.

    Members with less than a twentieth get no weight. Neither do those whose means have large errors, although their
    log-probabilities may be good: the mean of a broad distribution of a log rate can be enormous.

    :param found: the held-out predictions of each member.
    :param scale: standard deviations of the outputs, (D,), in whose units errors are compared.
    """
    errors = torch.tensor([relative_error(member, scale) for member in found])
    usable = errors <= LARGE * errors.min()
    weights = torch.zeros(len(found), dtype=torch.float64)
    weights[usable] = _best_weights(torch.stack([_density(member) for member in found])[usable])
    kept = weights >= min(_LEAST, float(weights.max()))
    weights = torch.where(kept, weights, 0.0)
    return (1.0 - _EQUAL) * weights / weights.sum() + _EQUAL * kept / kept.sum()


def _best_weights(density: Tensor) -> Tensor:
    """The weights of a mixture (members,) that maximise its likelihood, from log-densities (members, n)."""
    weights = torch.full((len(density),), 1.0 / len(density), dtype=torch.float64)
    for _ in range(_STEPS):
        weights = torch.softmax(density + weights.log().unsqueeze(-1), 0).mean(1)
    return weights


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
    return replace(found[0], mean=mean, variance=variance, log_density=log_density, cdf=cdf)


def choose_pool(found: Sequence[HeldOut], entries: Entries, scale: Tensor) -> Choice:
    """Combine candidates; the predictions of the choice have weights that were chosen on other held-out entries.

    :param found: the held-out predictions of each candidate.
    :param entries: where the held-out entries are.
    :param scale: as in :func:`pool_weights`.
    """
    fold = folds_of(entries)
    parts, places = [], []
    for number in fold.unique():
        tested = fold == number
        known = ~tested if bool((~tested).any()) else tested
        weights = pool_weights([member.take(known) for member in found], scale)
        parts.append(pool([member.take(tested) for member in found], weights))
        places.append(tested.nonzero().flatten())
    order = torch.cat(places).argsort()
    weights, num_outputs = pool_weights(found, scale), len(scale)
    every = weights.unsqueeze(-1).expand(-1, num_outputs).clone()
    return Choice(Combination(every, Calibration.none(num_outputs)), HeldOut.join(parts).take(order), {}, weights)
