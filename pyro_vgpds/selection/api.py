# SPDX-License-Identifier: Apache-2.0
"""The automatic choice: candidates are scored on held-out data, combined, calibrated and trained on everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import process_time

import torch
from torch import Tensor

from pyro_vgpds.baselines import BaselinePosterior
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.scores import relative_error, score
from pyro_vgpds.evaluation.splits import HeldOut, Split, check_task, hold_out
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.prediction.conditioning import continue_training
from pyro_vgpds.prediction.ensemble import Combination, Ensemble, Member
from pyro_vgpds.prediction.intervals import Calibration, calibrate_intervals
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.settings import TRAINED, Settings, apply_settings, choose_settings
from pyro_vgpds.prediction.weights import combine, stack
from pyro_vgpds.selection.comparison import Entries, compare
from pyro_vgpds.selection.configuration import Configuration
from pyro_vgpds.selection.progress import ProgressLike, watch_candidates
from pyro_vgpds.selection.proposals import check_candidates, propose_baselines, propose_models
from pyro_vgpds.selection.report import Report, Scored
from pyro_vgpds.selection.rivals import RIVALS, make_rival

__all__ = ["auto"]

_STEPS = 30  # of further training on all data
_FAILURES = (ValueError, NumericalError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Trial:
    """A candidate that was trained on the split's training data."""

    candidate: str | Configuration
    predictor: Posterior | BaselinePosterior
    settings: Settings
    found: HeldOut
    seconds: float

    @property
    def name(self) -> str:
        return self.candidate if isinstance(self.candidate, str) else self.candidate.name

    @property
    def is_baseline(self) -> bool:
        return isinstance(self.predictor, BaselinePosterior)


def auto(
    data: Sequences,
    task: str | None = None,
    *,
    candidates: Sequence[Configuration] | None = None,
    baselines: Sequence[str] | None = None,
    horizon: int | None = None,
    seconds: float = math.inf,
    seed: int = 0,
    progress: ProgressLike = None,
) -> Ensemble:
    """Predictions without any choice to make: models and baselines are compared on held-out data and combined.

    1. A part of the data is hidden, of the kind that will be predicted (:func:`~pyro_vgpds.evaluation.hold_out`).
    2. Each candidate is trained on the rest and predicts the hidden part.
    3. Weights that minimise the held-out error combine the best candidates, separately for each output.
    4. The widths of intervals are set to what the held-out errors need.
    5. The candidates with a weight are trained further on all data.

    :param data: the training sequences.
    :param task: what will be predicted: ``"impute"`` (missing entries of these sequences), ``"reconstruct"`` (hidden
        columns of new or partly observed frames) or ``"forecast"``. Default: ``"impute"`` if something is missing, else
        ``"forecast"``.
    :param candidates: models to try. Default: a short list that suits the data and the task.
    :param baselines: names of baselines to try. Default: all that suit the data and the task; ``[]`` for none.
    :param horizon: number of frames to forecast. Default: an eighth of the median sequence.
    :param seconds: budget of CPU time: no further candidate is tried after it. The final training is not counted.
    :param seed: of the held-out part and of the initial values.
    :param progress: show a progress bar, or a function that is called with each
        :class:`~pyro_vgpds.selection.progress.Event`. Default: a bar, on a terminal only.
    :returns: an :class:`~pyro_vgpds.Ensemble` with the methods of a posterior, and a ``report``.
    :raises ValueError: if the data are too few, an argument is out of its range, or no candidate succeeded.
    :raises TypeError: if a candidate is not a :class:`~pyro_vgpds.selection.Configuration`.

    >>> from pyro_vgpds import auto
    >>> found = auto(data, "forecast", baselines=["column mean", "last value"], horizon=3)
    >>> found.forecast([2.6, 2.7], sequence=0).mean.shape
    torch.Size([2, 5])
    >>> found.report.table().columns
    ['candidate', 'kind', 'error', 'in 95 %', 'weight', 'CPU s']
    """
    if not isinstance(data, Sequences) or data.y is None:
        raise ValueError(f"data must be Sequences(t, y) with outputs, but got {data!r:.80}.")
    if task is None:
        task = "impute" if data.num_missing else "forecast"
    check_task(task)
    if not seconds > 0.0:
        raise ValueError(f"seconds must be positive, but got {seconds!r}.")
    names = propose_baselines(data, task) if baselines is None else list(baselines)
    models = propose_models(data, task) if candidates is None else list(candidates)
    check_candidates(names, models)
    splits = _splits(data, task, horizon, seed)
    todo: list[str | Configuration] = [*names, *models]
    trials: list[Trial] = []
    failures: dict[str, str] = {}
    skipped: list[str] = []
    start = process_time()
    scale = data.output_scales[: data.num_base_outputs]
    with watch_candidates(len(todo), progress) as watch:
        for candidate in todo:
            name = candidate if isinstance(candidate, str) else candidate.name
            if process_time() - start > seconds and trials:
                skipped.append(name)
                watch.skip(name)
                continue
            watch.start(name)
            try:
                trials.append(_try(candidate, splits, seed))
                watch.done(name, relative_error(trials[-1].found, scale), trials[-1].seconds)
            except _FAILURES as error:
                failures[name] = str(error)
                watch.fail(name)
        if not trials:
            raise ValueError(f"no candidate succeeded: {failures}.")
        weights, calibration = _combine([trial.found for trial in trials], scale)
        used = (weights > 0).any(1)
        kept = [trial for trial, use in zip(trials, used.tolist(), strict=True) if use]
        watch.final([trial.name for trial in kept])
        members = [_final(trial, splits[0], data, scale, seed) for trial in kept]
    ensemble = Ensemble(members, {task: Combination(weights[used], calibration)}, [trial.name for trial in kept])
    found = {trial.name: trial.found for trial in trials}
    comparison = compare(Entries.of(splits, data), found, lambda some: _combine(some, scale))
    ensemble.report = replace(_report(task, trials, weights, scale, failures, skipped), comparison=comparison)
    return ensemble


def _splits(data: Sequences, task: str, horizon: int | None, seed: int) -> list[Split]:
    """Held-out parts, of which the first is trained without; the others need no training of their own."""
    first = hold_out(data, task, horizon=horizon, seed=seed)
    if task != "forecast":
        return [first]
    width = max(len(t) for t in first.t)
    try:
        return [hold_out(data, task, horizon=width, skip=width), first]
    except ValueError:  # too short for an earlier origin
        return [first]


def _try(candidate: str | Configuration, splits: list[Split], seed: int) -> Trial:
    start = process_time()
    train = splits[0].train
    if isinstance(candidate, str):
        rival = make_rival(candidate, train)
        found = [split.predict(rival.condition(split.train)) for split in splits]
        return Trial(candidate, rival, TRAINED, _with_errors(_joined(found), rival), process_time() - start)
    posterior = candidate.fit(train, seed)
    settings, first = choose_settings(posterior, splits[0])
    ready = apply_settings(posterior, settings)
    found = [first, *(split.predict(ready.condition(split.train, list(split.kept))) for split in splits[1:])]
    return Trial(candidate, posterior, settings, _joined(found), process_time() - start)


def _joined(parts: list[HeldOut]) -> HeldOut:
    names = ("truth", "mean", "variance", "output", "ahead")
    return HeldOut(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _mean_squares(found: HeldOut, num_outputs: int) -> Tensor:
    """Mean squared held-out error of each output (D,); that of all outputs counts for ten entries."""
    square = (found.mean - found.truth).square()
    total = torch.zeros(num_outputs, dtype=square.dtype, device=square.device).index_add_(0, found.output, square)
    count = torch.zeros_like(total).index_add_(0, found.output, torch.ones_like(square))
    return (total + 10.0 * square.mean()) / (count + 10.0)


def _with_errors(found: HeldOut, rival: BaselinePosterior) -> HeldOut:
    """Held-out predictions of a baseline without variances: its mean squared errors take their place."""
    if not torch.equal(found.variance, rival.variance.to(found.variance)[found.output]):
        return found
    return replace(found, variance=_mean_squares(found, rival.num_outputs)[found.output].clamp_min(1e-300))


def _combine(found: list[HeldOut], scale: Tensor) -> tuple[Tensor, Calibration]:
    weights = stack(found, len(scale), scale)
    return weights, calibrate_intervals(combine(found, weights), len(scale))


def _final(trial: Trial, split: Split, data: Sequences, scale: Tensor, seed: int) -> Member:
    """The candidate, trained on all data."""
    if isinstance(trial.predictor, BaselinePosterior):
        return make_rival(trial.name, data, _mean_squares(trial.found, len(scale)))
    assert isinstance(trial.candidate, Configuration)
    if len(split.kept) < data.num_sequences:  # whole sequences are new: their paths need a start of their own
        posterior = trial.candidate.fit(data, seed)
    else:
        posterior = continue_training(trial.predictor, data, num_steps=_STEPS)
    return apply_settings(posterior, trial.settings)


def _report(
    task: str, trials: list[Trial], weights: Tensor, scale: Tensor, failures: dict[str, str], skipped: list[str]
) -> Report:
    candidates = []
    for trial, weight in zip(trials, weights.mean(1).tolist(), strict=True):
        error, inside = relative_error(trial.found, scale), float(score(trial.found, scale)["in 95 %"] or 0.0)
        candidates.append(Scored(trial.name, trial.is_baseline, error, inside, trial.seconds, weight))
    candidates += [
        Scored(name, name in RIVALS, math.nan, math.nan, 0.0, failure=text) for name, text in failures.items()
    ]
    total = sum(trial.seconds for trial in trials)
    error, inside = _cross_fitted([trial.found for trial in trials], scale)
    ensemble = Scored("ensemble", False, error, inside, total, 1.0)
    return Report(task, candidates, ensemble, len(trials[0].found.truth), skipped)


def _cross_fitted(found: list[HeldOut], scale: Tensor) -> tuple[float, float]:
    """Error and coverage of the ensemble on each half of the held-out entries, with choices made on the other half."""
    half = len(found[0].truth) // 2
    squares = inside = 0.0
    for fitted, tested in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
        known, new = ([_part(f, rows) for f in found] for rows in (fitted, tested))
        if not len(known[0].truth) or not len(new[0].truth):
            return relative_error(combine(found, stack(found, len(scale), scale)), scale), math.nan
        weights, calibration = _combine(known, scale)
        mixed = combine(new, weights)
        size = mixed.variance.sqrt() * calibration.factor.to(mixed.mean)[mixed.output]
        error = (mixed.mean - mixed.truth).abs()
        inside += float((error <= calibration.width(0.95) * size).double().sum())
        squares += float((error / scale.to(error)[mixed.output]).square().sum())
    count = len(found[0].truth)
    return math.sqrt(squares / count), 100.0 * inside / count


def _part(found: HeldOut, rows: slice) -> HeldOut:
    names = ("truth", "mean", "variance", "output", "ahead")
    return HeldOut(*(getattr(found, name)[rows] for name in names))
