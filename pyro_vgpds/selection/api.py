# SPDX-License-Identifier: Apache-2.0
"""The automatic choice: candidates are scored on held-out data, combined, calibrated and trained on everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

from torch import Tensor

from pyro_vgpds.checks import (
    check_count,
    check_flags,
    check_horizon,
    check_list,
    check_number,
    check_path,
    check_seed,
    check_texts,
)
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.entries import Entries
from pyro_vgpds.evaluation.scores import relative_error, score
from pyro_vgpds.evaluation.splits import HeldOut, check_hidden, check_task, default_task
from pyro_vgpds.prediction.combination import find_growth_limits, find_limits
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.pyro_state import one_at_a_time
from pyro_vgpds.selection.combining import Choice, choose
from pyro_vgpds.selection.comparison import ENSEMBLE, Comparison
from pyro_vgpds.selection.configuration import Configuration
from pyro_vgpds.selection.distributions import covered
from pyro_vgpds.selection.jobs import workplace
from pyro_vgpds.selection.likelihoods import LikelihoodLike, are_continuous, check_shared, is_own, meet_likelihood
from pyro_vgpds.selection.named_baselines import BASELINES
from pyro_vgpds.selection.pooling import choose_pool
from pyro_vgpds.selection.problem import Problem, tested_horizon
from pyro_vgpds.selection.progress import ProgressLike, watch_candidates
from pyro_vgpds.selection.proposals import check_candidates, propose_baselines, propose_models, propose_origins
from pyro_vgpds.selection.race import Outcome, race
from pyro_vgpds.selection.report import Report, Scored
from pyro_vgpds.selection.trials import Candidate, Trial, name_of
from pyro_vgpds.training.progress import check_progress
from pyro_vgpds.types import PathLike

__all__ = ["auto"]


@one_at_a_time
def auto(
    data: Sequences,
    task: str | None = None,
    *,
    likelihood: LikelihoodLike = None,
    candidates: Sequence[Configuration] | None = None,
    baselines: Sequence[str] | None = None,
    horizon: int | None = None,
    hidden: Sequence[int | str] | None = None,
    seconds: float = math.inf,
    seed: int = 0,
    processes: int | None = None,
    folder: PathLike | None = None,
    refit: bool = True,
    progress: ProgressLike = None,
) -> Ensemble:
    """Predictions without any choice to make: models and baselines are compared on held-out data and combined.

    1. A part of the data is hidden, of the kind that will be predicted (:func:`~pyro_vgpds.evaluation.hold_out`).
    2. Each candidate is trained on the rest and predicts the hidden part; also other parts, if the first has few gaps,
       and later origins of a forecast, unless its error on the first part is far above the smallest one. Of the models
       of small data, only the best one continues.
    3. Weights that minimise the held-out error combine the best candidates, separately for each output, and for lost
       frames and lost columns if the data have both. For forecasts it is the mean logarithm of the error of each
       origin, so that a single origin with large errors does not decide.
    4. The widths of intervals are set to what held-out errors need, with weights that were chosen on other entries.
    5. The candidates with a weight are trained on all data.

    With a ``likelihood``, such as ``"negative-binomial"`` for counts, predictions are mixtures of the candidates'
    distributions, with weights that have the highest held-out log-probability. The baselines of counts have negative
    binomial distributions, those of yes/no are rates, and those of numbers with outliers are Gaussian. With a
    likelihood of your own, only models are compared.

    :param data: the training sequences.
    :param task: what will be predicted: ``"impute"`` (missing entries of these sequences), ``"reconstruct"`` (hidden
        columns of new or partly observed frames) or ``"forecast"``. Default: ``"reconstruct"`` if ``hidden`` is given,
        ``"impute"`` if something is missing and no ``horizon`` is given, else ``"forecast"``.
    :param likelihood: of the outputs, if they are not Gaussian: a name, a likelihood, or a dictionary from these to
        columns, as in :meth:`VGPDS.from_data <pyro_vgpds.VGPDS.from_data>`. It stays as it is.
    :param candidates: models to try. Default: a short list that suits the data and the task.
    :param baselines: names of baselines to try. Default: all that suit the data and the task; ``[]`` for none.
    :param horizon: number of frames to forecast. Default: an eighth of the median sequence. With more than half of the
        longest sequence there is a warning, and candidates are compared with that half.
    :param hidden: names or indices of the columns that will be hidden, for ``"reconstruct"``: the comparison hides
        these. Default: half of the columns, others in each held-out sequence.
    :param seconds: time budget: no further candidate is started after it. If it ends before all candidates were tried
        on the first held-out part, that part alone decides. The training on all data is not counted.
    :param seed: of the held-out part and of the initial values.
    :param processes: number of processes that train candidates. Default: one for each core if the data are large,
        else 1, and 1 for a likelihood of your own.
    :param folder: a folder in which finished candidates are kept, so that a call that was interrupted continues when it
        is repeated. Default: none.
    :param refit: train the chosen candidates on all data. If False, they are those of the comparison, which never saw
        the held-out part. The report is the same.
    :param progress: show a progress bar, or a function that is called with each
        :class:`~pyro_vgpds.selection.progress.Event`. Default: a bar, on a terminal only.
    :returns: an :class:`~pyro_vgpds.Ensemble` with the methods of a posterior, and a ``report``.
    :raises ValueError: if the data are too few, an argument is out of its range, or no candidate succeeded.
    :raises TypeError: if the data are a DataFrame, or a candidate is not a
        :class:`~pyro_vgpds.selection.Configuration`.

    >>> from pyro_vgpds import auto
    >>> found = auto(data, "forecast", baselines=["column mean", "last value"], horizon=3)
    >>> found.forecast([2.6, 2.7], sequence=0).mean.shape
    torch.Size([2, 5])
    >>> found.report.table().columns
    ['candidate', 'kind', 'error', 'in 95 %', 'weight', 'CPU s']
    """
    check_data(data)
    if data.communicator.size > 1:
        raise ValueError("auto needs the data in one process, but they are shared by several.")
    check_flags(refit=refit)
    check_path("folder", folder, optional=True)
    check_progress(progress)
    check_seed(seed)
    check_texts("baselines", baselines, optional=True)
    check_list("candidates", candidates, "a list of Configuration", optional=True)
    if task is None:
        task = default_task(data, horizon, hidden)
    check_task(task)
    if not isinstance(seconds, float) or seconds != math.inf:
        check_number("seconds", seconds, "positive", lambda value: value > 0.0)
    if processes is not None:
        check_count("processes", processes)
    columns = check_hidden(hidden, data, task)
    outputs = meet_likelihood(likelihood, data, task)
    names = propose_baselines(data, task, outputs) if baselines is None else list(baselines)
    models = (
        propose_models(data, task, None if outputs is None else likelihood) if candidates is None else list(candidates)
    )
    check_candidates(names, models, outputs)
    for model in models:
        model.check(data)
    likelihoods = [likelihood, *(model.likelihood for model in models)]
    for each in likelihoods:
        check_shared(each, processes, folder is not None)
    if any(is_own(each) for each in likelihoods):
        processes = 1
    if horizon is not None:
        check_horizon(horizon)
        horizon = tested_horizon(data, horizon) if task == "forecast" else horizon
    origins, own = propose_origins(data, horizon, outputs), None if outputs is None else likelihood
    problem = Problem(data, task, horizon, seed, origins, own, columns)
    entries = Entries.of(problem.splits, data)
    scale = data.output_scales[: data.num_base_outputs]
    deadline = monotonic() + seconds
    todo: list[Candidate] = [*names, *models]
    with (
        watch_candidates(len(todo), progress) as watch,
        workplace(problem, None if folder is None else Path(folder), processes) as place,
    ):
        outcome = race(place, todo, entries, scale, deadline, watch)
        trials = outcome.complete
        if not trials:
            raise ValueError(f"no candidate succeeded: {outcome.failures}.")
        if outputs is None:
            combine = partial(choose, limits=find_limits(data))
        else:
            limits = find_growth_limits(data, outputs) if task == "forecast" else None
            combine = partial(choose_pool, is_continuous=are_continuous(outputs), limits=limits)
        known = outcome.entries
        if not refit and known.gain is not None:
            known = replace(known, gain=1.0)  # the candidates of the comparison are not trained on more sequences
        choice = combine([trial.found for trial in trials], known, scale)
        used = choice.combination.used
        kept = [trial for trial, use in zip(trials, used.tolist(), strict=True) if use]
        if refit:
            watch.final([trial.name for trial in kept])
        members = place.finals(kept) if refit else [trial.predictor for trial in kept]
    ensemble = Ensemble(members, {task: choice.combination.take(used)}, [trial.name for trial in kept])
    ensemble.report = _report(task, [name_of(candidate) for candidate in todo], outcome, choice, scale)
    return ensemble


def _report(task: str, names: list[str], outcome: Outcome, choice: Choice, scale: Tensor) -> Report:
    """:param names: of all candidates, in their order."""
    weights = zip(outcome.complete, choice.shares.tolist(), strict=True)
    candidates = [_score(trial, relative_error(trial.found, scale), scale, weight) for trial, weight in weights]
    candidates += [_score(trial, error, scale) for trial, error in outcome.stopped.values()]
    total = sum(candidate.seconds for candidate in candidates)
    candidates.sort(key=lambda candidate: names.index(candidate.name))
    candidates += [
        Scored(name, name in BASELINES, math.nan, math.nan, 0.0, failure=text)
        for name, text in outcome.failures.items()
    ]
    _, log_score = _quality(choice.found, scale)
    found = {ENSEMBLE: choice.found, **{trial.name: trial.found for trial in outcome.complete}}
    comparison = Comparison(outcome.entries, found, choice.widths)
    inside, error = comparison.coverage(ENSEMBLE, 0.95), relative_error(choice.found, scale)
    ensemble = Scored(ENSEMBLE, False, error, inside, total, 1.0, log_score=log_score)
    stopped = list(outcome.stopped)
    return Report(task, candidates, ensemble, len(choice.found.truth), outcome.skipped, stopped, comparison)


def _score(trial: Trial, error: float, scale: Tensor, weight: float = 0.0) -> Scored:
    inside, log_score = _quality(trial.found, scale)
    return Scored(trial.name, trial.is_baseline, error, inside, trial.seconds, weight, log_score=log_score)


def _quality(found: HeldOut, scale: Tensor) -> tuple[float, float | None]:
    """The percentage in 95 % intervals, and the log score of outputs that are not Gaussian."""
    if found.log_density is None or found.cdf is None:
        return float(score(found, scale)["in 95 %"] or 0.0), None
    return 100.0 * float(covered(found, 0.95).double().mean()), float(found.log_density.mean())
