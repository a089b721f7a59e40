# SPDX-License-Identifier: Apache-2.0
"""Predictions of single outputs over time: forecasts with bands, and reconstructions with the truth."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pyro_vgpds.checks import as_numbers, check_list, check_parts, check_probability, find_output
from pyro_vgpds.data.dates import read_dates, to_dates
from pyro_vgpds.plotting.discrete import Drawing
from pyro_vgpds.plotting.style import (
    BASELINE,
    HIDDEN,
    LEARNED,
    array,
    grid_lines,
    labelled,
    legend_above,
    new_axes,
    tidy,
    time_axis,
)
from pyro_vgpds.types import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

__all__ = ["HasMoments", "plot_forecast", "plot_reconstruction"]


class HasMoments(Protocol):
    """The part of a :class:`~pyro_vgpds.Prediction` that every plot uses.

    Bands also need its ``interval(probability)``, which returns lower and upper ends (T, D). ``columns``, ``dates`` and
    ``kind_of`` are optional.
    """

    @property
    def t(self) -> Tensor | np.ndarray:
        """Times (T,)."""

    @property
    def mean(self) -> Tensor | np.ndarray:
        """Means (T, D)."""


def plot_forecast(
    prediction: HasMoments,
    output: int | str = 0,
    ax: Axes | None = None,
    *,
    history: tuple[ArrayLike, ArrayLike] | None = None,
    truth: tuple[ArrayLike, ArrayLike] | None = None,
    levels: Sequence[float] = (0.5, 0.95),
) -> Axes:
    """Plot one output of a forecast: the mean, and central bands of the given probabilities.

    Counts are drawn in steps, with bands that have the cells of the whole numbers in the interval, and the mean as
    their rate. Outputs that are yes or no are dots at 0 and 1; line and bands are those of the probability.

    :param prediction: a :class:`~pyro_vgpds.Prediction`, or anything with ``t``, ``mean`` and ``interval``.
    :param output: index or name of the output.
    :param ax: axes to draw on. Default: those of a new figure.
    :param history: times (N,) and outputs (N, D) before the forecast, drawn as a line; NaN leaves a gap, and so do
        frames that regular times lack. If the prediction has dates, times are dates, or numbers as in
        ``data.times.t``, in seconds from the data's first date.
    :param truth: times and true outputs, drawn as dots; times as for ``history``.
    :param levels: probabilities of the bands.
    :returns: the axes.
    :raises ValueError: if the output is unknown, or a level is not between 0 and 1.
    :raises TypeError: if times are neither numbers nor dates, or differ in kind from those of the prediction.

    >>> from pyro_vgpds.plotting import plot_forecast
    >>> first = data.times.slices()[0]
    >>> ahead = post.forecast([2.6, 2.8, 3.0], sequence=0)
    >>> ax = plot_forecast(ahead, output=1, history=(data.times.t[first], data.read()[first]))
    """
    column, name = _output(prediction, output)
    t, mean = _mean(prediction, column)
    order = np.argsort(t, kind="stable")  # one sequence, whose times may be in any order
    t, mean = t[order], mean[order]
    check_list("levels", levels, "a list of probabilities")
    for level in levels:
        check_probability(level, "levels")
    before, after = (
        None if pair is None else _pair(prediction, pair, column, what)
        for what, pair in (("history", history), ("truth", truth))
    )
    ax, draw = tidy(new_axes(ax)), Drawing(prediction, column)
    if before is not None:
        times, values = _with_breaks(*before, runs=_split_at_gaps(before[0], _runs(before[0])))
        draw.history(ax, times, values)
    for i, level in enumerate(sorted(levels, reverse=True)):  # the widest first, so that the darker ones lie on it
        lower, upper = draw.ends(level)
        draw.band(ax, t, lower[order], upper[order], level, i)
    ax.plot(t, mean, color=LEARNED, linewidth=1.8, label=draw.label("forecast"))
    if after is not None:
        draw.dots(ax, *after, "truth")
    draw.finish(ax)
    _finish(ax, name, t)
    return ax


def plot_reconstruction(
    prediction: HasMoments,
    output: int | str = 0,
    ax: Axes | None = None,
    *,
    truth: ArrayLike | None = None,
    baseline: ArrayLike | None = None,
    seen: ArrayLike | None = None,
    level: float = 0.95,
) -> Axes:
    """Plot one output of a reconstruction with its band, the truth and a baseline. Hidden parts are shaded.

    Counts and yes/no are drawn as in :func:`plot_forecast`.

    Several concatenated sequences, as returned by ``post.impute()``, are drawn as separate lines.

    :param prediction: a :class:`~pyro_vgpds.Prediction`, or anything with ``t``, ``mean`` and ``interval``.
    :param output: index or name of the output.
    :param ax: axes to draw on. Default: those of a new figure.
    :param truth: (T, D), drawn as dots. Default: not drawn.
    :param baseline: (T, D), another prediction, drawn as a dashed line. Default: not drawn.
    :param seen: (T, D), the input of the model, NaN where hidden. If it is the same object as ``truth``, the labels are
        "data" and "missing" instead of "truth" and "hidden". Default: nothing is shaded.
    :param level: probability of the band.
    :returns: the axes.
    :raises ValueError: if the output is unknown, a shape differs, or ``level`` is not between 0 and 1.

    >>> from pyro_vgpds import Solver
    >>> from pyro_vgpds.plotting import plot_reconstruction
    >>> t, truth = data.times.t[:10], data.read()[:10]
    >>> seen = truth.clone()
    >>> seen[4:8, 0] = float("nan")
    >>> whole = post.reconstruct(t, seen, solver=Solver(num_starts=1))
    >>> ax = plot_reconstruction(whole, output=0, truth=truth, seen=seen)
    """
    column, name = _output(prediction, output)
    t, mean = _mean(prediction, column)
    check_probability(level, "level")
    arrays = {"truth": truth, "baseline": baseline, "seen": seen}
    for what, value in arrays.items():
        shape = None if value is None else as_numbers(what, value).shape
        if shape is not None and shape != tuple(prediction.mean.shape):
            raise ValueError(f"{what} must be {tuple(prediction.mean.shape)}, but got {shape}.")
    ax, draw = tidy(new_axes(ax)), Drawing(prediction, column)
    runs = _runs(t)
    if seen is not None:
        _shade(ax, t, np.isnan(array(seen)[:, column]), runs, "missing" if truth is seen else "hidden")
    times, mean, lower, upper = _with_breaks(t, mean, *draw.ends(level), runs=runs)
    draw.band(ax, times, lower, upper, level)
    if truth is not None:
        draw.dots(ax, t, array(truth)[:, column], "data" if truth is seen else "truth")
    if baseline is not None:
        dashes = _with_breaks(t, array(baseline)[:, column], runs=runs)
        ax.plot(*dashes, "--", color=BASELINE, linewidth=1.3, label="baseline")
    ax.plot(times, mean, color=LEARNED, linewidth=1.8, label=draw.label("reconstruction"))
    draw.finish(ax)
    _finish(ax, name, t)
    return ax


def _output(prediction: HasMoments, output: int | str) -> tuple[int, str]:
    check_parts("prediction", prediction, "a Prediction, or an object with t and mean", "t", "mean")
    if len(getattr(prediction.mean, "shape", ())) != 2:
        raise TypeError(f"prediction must be a Prediction, or have a mean (T, D), but got {prediction!r:.80}.")
    columns = getattr(prediction, "columns", None)
    number = find_output("output", output, columns, prediction.mean.shape[1])
    return number, columns[number] if columns else f"output {number}"


def _mean(prediction: HasMoments, column: int) -> tuple[np.ndarray, np.ndarray]:
    dates = getattr(prediction, "dates", None)
    return array(prediction.t if dates is None else dates), array(prediction.mean)[:, column]


def _pair(prediction: Any, pair: Any, column: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Times (n,) and the values (n,) of one output."""
    check_list(name, pair, "a pair of times and outputs")
    if len(pair) != 2 or hasattr(pair, "columns"):
        raise ValueError(f"{name} must be a pair of times (n,) and outputs (n, D), but got {pair!r:.80}.")
    times, values = _times(prediction, pair[0], name), as_numbers(name, pair[1])
    if times.ndim != 1 or values.ndim != 2 or len(values) != len(times) or not values.shape[1] > column:
        raise ValueError(f"{name} must be times (n,) and outputs (n, D), but got {times.shape} and {values.shape}.")
    return times, values[:, column]


def _times(prediction: Any, t: Any, name: str) -> np.ndarray:
    """Times of the prediction's kind: if it has dates, numbers are seconds from the date that its own count from."""
    stamps = read_dates(t, name)
    times, own = array(t) if stamps is None else stamps[0], array(prediction.t)
    dates = own if own.dtype.kind == "M" else getattr(prediction, "dates", None)
    for kind in ("float64", "datetime64[ns]"):  # what Python or pandas keep as objects
        if times.dtype.kind == "O":
            with contextlib.suppress(TypeError, ValueError):
                times = times.astype(kind)
    if times.dtype.kind not in "fiubM":
        raise TypeError(f"the times of {name} must be numbers or dates, but their dtype is {times.dtype}.")
    if (times.dtype.kind == "M") == (dates is not None):
        return times
    if dates is None:
        raise TypeError(f"the times of {name} are dates, but those of the prediction are numbers; give numbers.")
    if own.dtype.kind == "M":
        raise TypeError(f"the times of {name} are numbers, but those of the prediction are dates; give dates.")
    return to_dates(times, to_dates(-own[:1], dates[0])[0])


def _runs(t: np.ndarray) -> list[np.ndarray]:
    """The rows of each line. A time that is not later than its predecessor starts a new sequence; but sequences that do
    not overlap in time are joined to one line.
    """
    runs = np.split(np.arange(len(t)), np.flatnonzero(t[1:] <= t[:-1]) + 1)
    runs.sort(key=lambda rows: t[rows[:1]].tolist())
    apart = all(t[before[-1]] < t[after[0]] for before, after in itertools.pairwise(runs))
    return [np.concatenate(runs)] if apart else runs


def _split_at_gaps(t: np.ndarray, runs: list[np.ndarray]) -> list[np.ndarray]:
    """Runs of times divided where frames are missing, if nine tenths of the steps are equal: not weekdays."""
    parts = []
    for rows in runs:
        steps = np.diff(t[rows]).astype(float)
        step = np.median(steps) if len(steps) else 0.0
        is_regular = len(steps) > 0 and np.mean(np.abs(steps - step) <= 0.01 * step) >= 0.9
        parts += np.split(rows, np.flatnonzero(steps > 1.5 * step) + 1) if is_regular else [rows]
    return parts


def _with_breaks(t: np.ndarray, *columns: np.ndarray, runs: list[np.ndarray]) -> list[np.ndarray]:
    """The runs concatenated, with a row of NaN between them, across which no line is drawn."""
    order = np.concatenate(runs)
    starts = np.cumsum([len(rows) for rows in runs])[:-1]
    return [
        np.insert(t[order], starts, t[order][starts]),
        *(np.insert(column[order].astype(float), starts, np.nan) for column in columns),
    ]


def _shade(ax: Axes, t: np.ndarray, hidden: np.ndarray, runs: list[np.ndarray], label: str | None) -> None:
    """Shade the hidden frames of each line, up to the midpoints to the neighbouring frames."""
    for rows in runs:
        own = t[rows]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], hidden[rows], [False]]).astype(int)))
        ends = np.concatenate([own[:1], own[:-1] + np.diff(own) / 2, own[-1:]])
        for first, after in zip(edges[::2], edges[1::2], strict=True):
            ax.axvspan(ends[first], ends[after], color=HIDDEN, linewidth=0, zorder=0, label=label)
            label = None


def _finish(ax: Axes, name: str, t: np.ndarray) -> None:
    ax.set_ylabel(name)
    time_axis(ax, t)
    legend_above(ax, labelled(ax))
    grid_lines(ax)
