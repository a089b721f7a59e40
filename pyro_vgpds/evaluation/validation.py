# SPDX-License-Identifier: Apache-2.0
"""Cross-validation and backtests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol

from pyro_vgpds.checks import check_callable, check_count, check_horizon, check_parts, check_seed
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.scores import Table, Value, inside_intervals, score, score_predictor
from pyro_vgpds.evaluation.splits import Predictor, check_task, hold_out
from pyro_vgpds.training.forking import run_forked
from pyro_vgpds.training.progress import check_progress, counting_bar

__all__ = ["Conditional", "backtest", "cross_validate"]


def cross_validate(
    model_factory: Callable[[Sequences], Predictor],
    data: Sequences,
    task: str = "impute",
    *,
    num_folds: int = 3,
    share: float = 0.1,
    horizon: int | None = None,
    pattern: str | None = None,
    hidden: Sequence[int | str] | None = None,
    seed: int = 0,
    processes: int = 1,
    progress: bool | None = None,
) -> Table:
    """Train on a part of the data and predict the rest, several times.

    :param model_factory: trains on sequences and returns a predictor, such as a :class:`~pyro_vgpds.Posterior`.
    :param data: all sequences.
    :param task: what is held out, see :func:`hold_out`. The folds of ``"forecast"`` are rolling origins; those of the
        other tasks are random parts of the data.
    :param num_folds: number of times.
    :param share: as in :func:`hold_out`.
    :param horizon: as in :func:`hold_out`.
    :param pattern: as in :func:`hold_out`.
    :param hidden: as in :func:`hold_out`.
    :param seed: of the random parts.
    :param processes: number of folds that are run at the same time, each in a process of its own with one thread
        (Linux; on other systems they are run one after the other). ``model_factory`` may be any function, but what it
        changes outside of itself is lost, and random numbers are those of the call: set a seed in it.
    :param progress: show a progress bar over the folds. Default: on a terminal only.
    :returns: one row for each fold: errors in the units of the data and of standard deviations, the negative
        log-density, the percentage inside the intervals, and the seconds of training.
    :raises ValueError: if an argument is out of its range, or the data are too short.

    >>> from pyro_vgpds.evaluation import cross_validate
    >>> from pyro_vgpds.selection import Configuration
    >>> small = Configuration("small", latent_dim=3, num_inducing=12, num_steps=20)
    >>> table = cross_validate(small.fit, data, "forecast", num_folds=2, horizon=3)
    >>> table.columns[:4], len(table)
    (['fold', 'hidden', 'rmse', 'nrmse'], 2)
    """
    check_callable("model_factory", model_factory, "a function from data to a predictor")
    check_data(data)
    check_task(task)
    check_progress(progress)
    check_count("num_folds", num_folds)
    check_seed(seed)
    check_count("processes", processes)
    scale = data.output_scales[: data.num_base_outputs]
    part = partial(hold_out, data, task, share=share, horizon=horizon, pattern=pattern, hidden=hidden)
    first = part(seed=seed)
    step = max(len(t) for t in first.t) if task == "forecast" else 0

    def run(fold: int) -> dict[str, Value]:
        split = part(seed=seed + fold, skip=fold * step)
        start = perf_counter()
        predictor = model_factory(split.train)
        seconds = perf_counter() - start
        hidden = sum(int(part.isfinite().sum()) for part in split.truth)
        return {"fold": fold, "hidden": hidden, **score_predictor(predictor, split, scale), "seconds": seconds}

    rows: dict[int, dict[str, Value]] = {}
    with counting_bar(num_folds, "folds", progress) as bar:
        for fold, row in run_forked([partial(run, fold) for fold in range(num_folds)], processes):
            rows[fold] = row
            bar.update()
    return Table([rows[fold] for fold in range(num_folds)])


class Conditional(Predictor, Protocol):
    """A predictor that can be conditioned on other data without training."""

    @property
    def data(self) -> Sequences: ...

    def condition(self, data: Sequences) -> Predictor: ...


def backtest(posterior: Conditional, horizon: int, *, num_origins: int = 5, step: int | None = None) -> Table:
    """Forecasts from earlier origins, by a model whose hyperparameters are not trained again.

    The sequences are cut at each origin, the model is conditioned on what comes before, and the next frames are
    predicted. The hyperparameters have seen all data, so errors are a little optimistic; :func:`cross_validate` with
    ``task="forecast"`` trains again at each origin.

    :param posterior: a :class:`~pyro_vgpds.Posterior`, a mixture or an ensemble.
    :param horizon: number of frames to predict.
    :param num_origins: number of origins.
    :param step: number of frames between two origins. Default: ``horizon``.
    :returns: one row for each origin and number of frames ahead.
    :raises ValueError: if the sequences are too short.

    >>> from pyro_vgpds.evaluation import backtest
    >>> backtest(post, horizon=3, num_origins=2).columns[:4]
    ['origin', 'ahead', 'rmse', 'nrmse']
    """
    check_parts("posterior", posterior, "a Posterior, or a predictor with data and condition", "data", "condition")
    check_horizon(horizon)
    check_count("num_origins", num_origins)
    data = posterior.data
    scale = data.output_scales[: data.num_base_outputs]
    step = horizon if step is None else step
    check_count("step", step)
    if (longest := max(data.lengths)) < (needed := 3 + horizon + (num_origins - 1) * step):
        raise ValueError(
            f"num_origins={num_origins} with horizon={horizon} and step={step} needs a sequence of {needed} frames, "
            f"but the longest has {longest}."
        )
    rows: list[dict[str, Value]] = []
    for origin in reversed(range(num_origins)):
        split = hold_out(data, "forecast", horizon=horizon, skip=origin * step)
        predicted = split.outputs(posterior.condition(split.train))
        found, inside = split.held_out(predicted), inside_intervals(predicted, split)
        for ahead in range(1, horizon + 1):
            at = found.ahead == ahead
            own = {name: 100.0 * float(hit[at].double().mean()) for name, hit in inside.items()}
            rows.append({"origin": -origin * step - horizon, "ahead": ahead, **score(found.take(at), scale), **own})
    return Table(rows)
