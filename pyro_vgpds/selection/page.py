# SPDX-License-Identifier: Apache-2.0
"""The report of a comparison as a self-contained HTML page with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from pyro_vgpds.data.dates import format_duration, format_times
from pyro_vgpds.data.parts import base_outputs, to_stamps
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.scores import format_value
from pyro_vgpds.formatting import counted
from pyro_vgpds.plotting.pages import Chapter, Highlight, ReportFigure, ReportTable, save_page
from pyro_vgpds.selection.combining import LEVELS
from pyro_vgpds.selection.comparison import ENSEMBLE, Comparison
from pyro_vgpds.selection.pictures import Pictures
from pyro_vgpds.selection.report import Report
from pyro_vgpds.types import PathLike
from pyro_vgpds.version import __version__

__all__ = ["write_page"]

_KEPT = {
    "impute": "Entries that are known were hidden in the way in which entries are missing, or at random.",
    "reconstruct": "Columns were hidden in frames that no candidate was trained on.",
    "forecast": "The last frames of each sequence were hidden, and predicted from what comes before them.",
}


def write_page(
    path: PathLike, report: Report, data: Sequences, *, source: str = "data", names: Sequence[str] | None = None
) -> Path:
    """Write the report of :func:`~pyro_vgpds.auto` as one HTML page with its pictures.

    :param path: the file. An existing file is replaced when the new one is complete.
    :param report: the report, from the call itself: files do not contain the held-out predictions.
    :param data: the sequences that were given to :func:`~pyro_vgpds.auto`.
    :param source: name of the data.
    :param names: of the sequences. Default: their numbers.
    :returns: the path.
    :raises ValueError: if the report has no held-out predictions.

    >>> from pyro_vgpds import auto
    >>> from pyro_vgpds.selection.page import write_page
    >>> found = auto(data, "forecast", candidates=[], baselines=["column mean", "last value"], horizon=3)
    >>> write_page("comparison.html", found.report, data).name
    'comparison.html'
    """
    if report.comparison is None:
        raise ValueError("report must have held-out predictions: it must come from auto itself, not from a file.")
    pictures, is_pool = Pictures(report, report.comparison, data, names), report.comparison.is_pool
    lead = (
        f"Models and baselines predicted held-out parts of <strong>{escape(source)}</strong>. "
        f"{_KEPT[report.task]} Errors are root mean squared errors in standard deviations of the outputs: "
        "1 is as bad as predicting the mean, 0 is perfect. "
        f"{_SCORES if is_pool else ''}"
        f"This page was made by pyro_vgpds {__version__}."
    )
    coverage = _COVERAGE + (_POOLED if is_pool else _CALIBRATED)
    chapters = [
        Chapter("Conclusions", _conclusions(report)),
        Chapter("The data", [_describe(data, source, names)]),
        Chapter("Candidates", [_table(report, report.comparison), ReportFigure(pictures.errors(), _ERRORS)]),
        Chapter("Held-out predictions", [ReportFigure(pictures.predictions(), _PREDICTIONS)]),
        Chapter("Are the intervals right?", [ReportFigure(pictures.coverage(), coverage)]),
    ]
    ahead = pictures.ahead()
    if ahead is not None:
        chapters.append(Chapter("How far ahead?", [ReportFigure(ahead, _AHEAD)]))
    title = f"Comparison on {source}"
    return save_page(Path(path), title, f"{title}: {report.task}", lead, chapters)


_ERRORS = "Held-out error of the ensemble and of each candidate. Shorter is better."
_PREDICTIONS = (
    "Outputs for which the best candidates differ most. Grey: what was known. Black: what was hidden. The ensemble and "
    "the best candidates predicted the black dots without seeing them."
)
_COVERAGE = (
    "Percentage of the held-out entries that lie in the intervals. The black lines are the nominal percentages: bars "
    "below them mean intervals that are too narrow, bars above them intervals that are too wide. "
)
_CALIBRATED = (
    "Intervals of the ensemble were calibrated on the other half of the held-out entries; those of single candidates "
    "are their own."
)
_POOLED = (
    "Intervals are quantiles of the predicted distributions. Those of counts and of yes/no are whole numbers and hold "
    "at least the nominal percentage."
)
_SCORES = (
    "Log scores are mean log-probabilities of the held-out entries, in nats: higher is better. The ensemble is the "
    "mixture of the candidates' distributions. "
)
_AHEAD = "Held-out error by the number of frames since the last known frame."


def _conclusions(report: Report) -> list[str | Highlight | ReportFigure | ReportTable]:
    lines = report.conclusions()
    wins = [line for line in lines if line.startswith("A baseline wins")]
    return [*(Highlight(line) for line in wins), *(line for line in lines if line not in wins)]


def _table(report: Report, comparison: Comparison) -> ReportTable:
    rows = []
    keys = ["log score", "error"] if comparison.is_pool else ["error"]
    for row in report.table():
        name = str(row["candidate"])
        known = name in comparison.found  # on all held-out parts
        inside = [f"{comparison.coverage(name, level):.1f}" if known else "" for level in LEVELS]
        weight = "" if name == ENSEMBLE else f"{100 * float(row['weight'] or 0.0):.0f} %"
        seconds = f"{float(row['CPU s'] or 0.0):.1f}"
        scores = [format_value(row[key]) for key in keys]
        rows.append([name, str(row["kind"]), *scores, *inside, weight, seconds])
    head = ["candidate", "kind", *keys, *(f"in {100 * level:.0f} %" for level in LEVELS), "weight", "CPU s"]
    caption = (
        f"Scores on {report.hidden} held-out entries: the {' and the '.join(keys)}, the percentages inside 50, 80 and "
        "95 % intervals, the mean weight in the ensemble, and the CPU time. Weights and intervals of the ensemble's "
        "own row come from the other half of the entries."
    )
    return ReportTable(head, rows, caption, text=2)


def _describe(data: Sequences, source: str, names: Sequence[str] | None) -> ReportTable:
    outputs, entries = data.num_base_outputs, data.num_frames * data.num_base_outputs
    missing = int(base_outputs(data).isnan().sum())
    lengths = data.lengths
    sizes = f"{lengths[0]}" if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
    rows = [
        ["source", source],
        ["sequences", f"{len(lengths)}" + (f": {_some(names)}" if names else "")],
        ["frames", f"{data.num_frames}" + (f", {sizes} in each sequence" if len(lengths) > 1 else "")],
        ["outputs", f"{outputs}" + (f": {_some(data.base_columns)}" if data.base_columns else "")],
        ["missing", f"{missing} of {entries} entries, {100.0 * missing / entries:.3g} %" if missing else "nothing"],
        ["times", _span(data)],
        ["sampling", _sampling(data)],
    ]
    return ReportTable(["", ""], rows, "The data that the candidates were compared on.", bold=False, text=2)


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _span(data: Sequences) -> str:
    ends = np.array([float(data.times.t.min()), float(data.times.t.max())])
    first, last = format_times(to_stamps(ends, data))
    return f"from {first} to {last}"


_MONTHS = 0.11  # part of the median step by which steps differ that are taken for regular, as months are


def _sampling(data: Sequences) -> str:
    steps = np.concatenate([data.times.t[rows].diff().cpu().numpy() for rows in data.times.slices()])
    if not len(steps):
        return f"{counted(1, 'frame')} in each sequence"
    low, middle, high = (float(value) for value in (steps.min(), np.median(steps), steps.max()))
    show = format_duration if data.time_origin is not None else lambda step: f"{step:.4g}"
    if high - low <= 0.01 * middle:
        return f"regular, every {show(middle)}"
    if high - low <= _MONTHS * middle:
        return f"regular, every {show(low)} to {show(high)}"
    return f"irregular: steps from {show(low)} to {show(high)}, median {show(middle)}"
