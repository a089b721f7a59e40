# SPDX-License-Identifier: Apache-2.0
"""Candidates on held-out parts: all of them on the first part, those that are not far behind on the others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import torch
from torch import Tensor

from pyro_vgpds.evaluation.entries import Entries
from pyro_vgpds.evaluation.scores import relative_error
from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.selection.jobs import Workplace
from pyro_vgpds.selection.pooling import LARGE
from pyro_vgpds.selection.progress import Watch
from pyro_vgpds.selection.trials import Candidate, Trial, name_of

__all__ = ["Outcome", "promising", "race"]

_BEHIND = 1.35  # times the smallest error: the most with which a candidate on all parts can have a weight
_BEHIND_MODEL = 1.15  # times the smallest error of a model: models have similar errors and take most of the time
_SMALL = 5000  # observed numbers below which only the best model continues, since others add little to it


@dataclass
class Outcome:
    """What became of the candidates, in their order."""

    entries: Entries  #: that were predicted: of all parts, or of the first if there was no time for the others
    complete: list[Trial] = field(default_factory=list)  #: on all of these entries
    stopped: dict[str, tuple[Trial, float]] = field(default_factory=dict)  #: on the first part; error of all estimated
    failures: dict[str, str] = field(default_factory=dict)  #: the reasons
    skipped: list[str] = field(default_factory=list)  #: not tried because of the time budget


def race(
    place: Workplace, candidates: Sequence[Candidate], entries: Entries, scale: Tensor, deadline: float, watch: Watch
) -> Outcome:
    """Try candidates on the first held-out part, and those that are not far behind on the others.

    :param entries: of all parts.
    :param scale: standard deviations of the outputs, (D,), in whose units errors are compared.
    :param deadline: time of ``time.monotonic`` from which no further candidate and no second part is started.
    """
    found, tried = Outcome(entries), []
    first = entries.split == 0
    single = bool(first.all())
    for candidate, result in place.tries(candidates, deadline, watch.start):
        name = name_of(candidate)
        if result is None:
            found.skipped.append(name)
            watch.skip(name)
        elif isinstance(result, str):
            found.failures[name] = result
            watch.fail(name)
        else:
            tried.append(result)
            if single:
                watch.done(name, relative_error(result.found, scale), result.seconds)
    tried.sort(key=lambda trial: candidates.index(trial.candidate))
    if not tried or single or monotonic() > deadline:
        for trial in () if single else tried:
            watch.done(trial.name, relative_error(trial.found, scale), trial.seconds)
        found.entries, found.complete = entries.take(first), tried
        return found
    baselines = [trial.is_baseline for trial in tried]
    one = place.problem.data.num_observed < _SMALL and place.problem.task != "reconstruct"
    near = promising([trial.found for trial in tried], baselines, entries.lost[first], scale, one_model=one)
    groups = [[trial for trial, good in zip(tried, near, strict=True) if good is wanted] for wanted in (True, False)]
    done: list[tuple[Trial, Trial]] = []
    while groups and not done:  # the others only if all that are near fail
        for trial, result in place.complete(groups.pop(0), watch.start):
            if isinstance(result, str):
                found.failures[trial.name] = result
                watch.fail(trial.name)
            else:
                done.append((trial, result))
                watch.done(trial.name, relative_error(result.found, scale), result.seconds)
    found.complete = sorted((result for _, result in done), key=lambda trial: candidates.index(trial.candidate))
    for trial in itertools.chain(*groups):
        error = _estimate(trial, done, scale)
        found.stopped[trial.name] = trial, error
        watch.done(trial.name, error, trial.seconds)
    return found


def promising(
    found: Sequence[HeldOut], is_baseline: Sequence[bool], lost: Tensor, scale: Tensor, *, one_model: bool = False
) -> list[bool]:
    """Whether the error of each candidate is not far above the smallest one, and that of a model with Gaussian outputs
    also not far above the smallest one of a model.

    Lost frames and lost columns have weights of their own, so a candidate that is good for one kind continues.

    :param found: predictions of the same entries, by candidate.
    :param is_baseline: whether each is a baseline, not a model.
    :param lost: (n,), whether nothing is observed in the frame of an entry.
    :param scale: standard deviations of the outputs, (D,), in whose units errors are compared.
    :param one_model: only the best model with Gaussian outputs, not those near it.
    """
    is_gaussian = found[0].log_density is None
    limit = _BEHIND if is_gaussian else LARGE
    good, model = torch.zeros(len(found), dtype=torch.bool), ~torch.tensor(is_baseline)
    for kind in (lost, ~lost):
        if bool(kind.any()):
            errors = torch.tensor([relative_error(member.take(kind), scale) for member in found])
            near = errors <= limit * errors.min()
            if is_gaussian and bool(model.any()):
                near &= ~model | (errors <= (1.0 if one_model else _BEHIND_MODEL) * errors[model].min())
            good |= near
    return [bool(one) for one in good]


def _estimate(trial: Trial, done: Sequence[tuple[Trial, Trial]], scale: Tensor) -> float:
    """The error on all parts of a candidate that predicted the first only: its mean squared error exceeds that of the
    best by as much in all parts as in the first.

    :param done: the trials of other candidates on the first part and on all parts.
    """
    own = relative_error(trial.found, scale)
    pairs = [(relative_error(first.found, scale), relative_error(every.found, scale)) for first, every in done]
    best, complete = min(pairs)
    return math.sqrt(max(own**2 - best**2, 0.0) + complete**2)
