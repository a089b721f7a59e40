# SPDX-License-Identifier: Apache-2.0
"""Weights and intervals of an ensemble, and its predictions for held-out entries by choices made on other entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_vgpds.evaluation.entries import Entries
from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.prediction.combination import Combination, Limits
from pyro_vgpds.prediction.intervals import calibrate_intervals
from pyro_vgpds.selection.importance import entry_importance
from pyro_vgpds.selection.weights import combine, relative_errors, stack

__all__ = ["LEVELS", "Choice", "choose", "folds_of"]

LEVELS = (0.5, 0.8, 0.95)  # probabilities of the intervals whose coverage is reported
_FOLDS = 4
_LEAST = 100  # held-out entries of lost frames or columns that weights of their own need
_MANY = 50  # outputs whose errors, except those of a few origins, do not offset those of another candidate by chance
_DISAGREEMENT = (1.0, 4.0, 16.0, 64.0)  # factors that are tried


@dataclass(frozen=True)
class Choice:
    """An ensemble of candidates, and what it would have predicted for the held-out entries.

    The predictions and the widths of an entry belong to weights, factors and quantiles of the entries of other folds.
    """

    combination: Combination  #: of all candidates
    found: HeldOut  #: the variances are corrected
    widths: dict[float, Tensor]  #: half widths (n,) of the intervals, for each of ``LEVELS``
    shares: Tensor  #: (candidates,), mean weights over the held-out entries


def choose(found: Sequence[HeldOut], entries: Entries, scale: Tensor, limits: Limits | None = None) -> Choice:
    """Combine candidates, separately for lost frames and lost columns if enough entries of both are held out.

    :param found: the held-out predictions of each candidate.
    :param entries: where the held-out entries are.
    :param scale: standard deviations of the outputs, (D,), in whose units errors are compared.
    :param limits: of the outputs. Default: none.
    """
    if limits is not None:
        within = choose([limits.clamp_means(member) for member in found], entries, scale)
        return replace(within, combination=within.combination.within(limits))
    if min(int(entries.lost.sum()), int((~entries.lost).sum())) < _LEAST:
        return _choose(found, entries, scale)
    kinds = [~entries.lost, entries.lost]
    some, lost = (_choose([member.take(kind) for member in found], entries.take(kind), scale) for kind in kinds)
    mean, variance = found[0].mean.clone(), found[0].variance.clone()
    widths = {level: torch.zeros_like(mean) for level in LEVELS}
    for choice, kind in zip((some, lost), kinds, strict=True):
        mean[kind], variance[kind] = choice.found.mean, choice.found.variance
        for level, width in widths.items():
            width[kind] = choice.widths[level]
    part = float(entries.lost.double().mean())
    return Choice(
        replace(some.combination, lost=lost.combination),
        replace(found[0], mean=mean, variance=variance),
        widths,
        (1.0 - part) * some.shares + part * lost.shares,
    )


def _choose(found: Sequence[HeldOut], entries: Entries, scale: Tensor) -> Choice:
    num_outputs, fold, length, group = len(scale), folds_of(entries), entries.gap_length, entries.group
    ahead = bool(found[0].ahead.any())
    limit = _limit(entries, many=num_outputs >= _MANY and not ahead)
    errors = relative_errors(found, scale)
    folds = [fold == k for k in fold.unique()]
    parts = [(tested, ~tested if len(folds) > 1 else tested) for tested in folds]
    chosen = []
    for _, known in parts:
        importance = _importance(errors[known], entries.take(known), ahead)
        some = [member.take(known) for member in found]
        chosen.append(stack(some, num_outputs, scale, limit, gap_length=length, importance=importance))
    sequence = entries.origin

    def mix(where: Tensor, weights: Tensor, disagreement: float | None) -> HeldOut:
        return combine([member.take(where) for member in found], weights, disagreement, scale, sequence[where])

    def misfit(disagreement: float) -> float:
        new = [mix(tested, weights, disagreement) for (tested, _), weights in zip(parts, chosen, strict=True)]
        return _misfit(HeldOut.join(new))

    disagreement = None if entries.gain is None else min(_DISAGREEMENT, key=misfit)
    mean, variance = found[0].mean.clone(), found[0].variance.clone()
    for (tested, known), weights in zip(parts, chosen, strict=True):
        factor = calibrate_intervals(mix(known, weights, disagreement), num_outputs, gap_length=length).factor
        mixed = mix(tested, weights, disagreement)
        mean[tested] = mixed.mean
        variance[tested] = mixed.variance * factor.square().to(mixed.mean)[mixed.output]
    checked = replace(found[0], mean=mean, variance=variance)
    widths = {level: torch.zeros_like(mean) for level in LEVELS}
    for tested, known in parts:
        part, count = checked.take(known), entries.take(known).num_errors
        others = calibrate_intervals(part, num_outputs, part, group=group[known], num_errors=count)
        for level, width in widths.items():
            width[tested] = others.width(level) * variance[tested].sqrt()
    importance = _importance(errors, entries, ahead)
    weights = stack(found, num_outputs, scale, limit, gap_length=length, importance=importance)
    everything = mix(torch.ones_like(entries.lost), weights, disagreement)
    calibration = calibrate_intervals(
        everything, num_outputs, checked, gap_length=length, group=group, num_errors=entries.num_errors
    )
    if entries.gain is not None:
        calibration = replace(calibration, factor=entries.gain * calibration.factor)
    return Choice(Combination(weights, calibration, disagreement=disagreement), checked, widths, weights.mean(1))


def _misfit(found: HeldOut) -> float:
    """Twice the negative mean log-density of Gaussians, if one factor corrects all variances, without a constant."""
    variance = found.variance.clamp_min(1e-300)
    square = ((found.mean - found.truth).square() / variance).mean()
    return float(square.clamp_min(1e-300).log() + variance.log().mean())


def _importance(errors: Tensor, entries: Entries, ahead: bool) -> Tensor | None:
    """How much each entry counts for the weights: all the same, except for forecasts, whose origins are few."""
    if not ahead:
        return None
    return entry_importance(errors, entries.origin, len(entries.sequence.unique()))


def folds_of(entries: Entries) -> Tensor:
    """The fold (n,) of each entry: the origins of forecasts, or consecutive parts, because neighbours are alike."""
    if len(entries.split.unique()) > 1:
        return entries.split
    n = len(entries.split)
    return torch.arange(n) * _FOLDS // max(1, n)


def _limit(entries: Entries, *, many: bool) -> float:
    """How much larger than the best a member's error may be: the fewer frames and outputs, the less an error says."""
    frames = entries.frame.unique(dim=1).shape[1]
    several = len(entries.split.unique()) > 1
    return max(1.2 if many else 1.1, 1.1 + 0.25 * frames / (frames + (1000.0 if several else 200.0)))
