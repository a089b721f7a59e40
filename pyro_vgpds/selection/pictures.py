# SPDX-License-Identifier: Apache-2.0
"""The pictures of a comparison, as the content of png files."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from pyro_vgpds.data.parts import base_outputs, to_stamps
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.plotting.comparisons import (
    HeldOutPanel,
    choose_colors,
    draw_ahead,
    draw_coverage,
    draw_errors,
    draw_panel,
)
from pyro_vgpds.prediction.combination import find_limits
from pyro_vgpds.selection.combining import LEVELS
from pyro_vgpds.selection.comparison import ENSEMBLE, Comparison
from pyro_vgpds.selection.distributions import LEVEL
from pyro_vgpds.selection.report import Report

__all__ = ["Pictures"]

_PANELS = 4  # outputs
_WIDTH = 9.2  # inches
_FRAMES = 120  # in a panel


class Pictures:
    """Pictures of the ensemble and of the best candidates.

    :param report: of the comparison.
    :param comparison: its held-out predictions.
    :param data: all sequences.
    :param names: of the sequences. Default: their numbers.
    """

    def __init__(
        self, report: Report, comparison: Comparison, data: Sequences, names: Sequence[str] | None = None
    ) -> None:
        self.report, self.comparison, self.data = report, comparison, data
        self.names = [str(i) for i in range(data.num_sequences)] if names is None else list(names)
        self.scale = data.output_scales[: data.num_base_outputs]
        self.shown = _shown(report)
        self.colors = choose_colors(self.shown)

    def errors(self) -> bytes:
        """Bars of all candidates."""
        rows = list(self.report.table())
        figure = Figure((_WIDTH, 0.9 + 0.27 * len(rows)), layout="constrained")
        names, kinds = ([str(row[key]) for row in rows] for key in ("candidate", "kind"))
        errors = [float(row["error"] or 0.0) for row in rows]
        draw_errors(figure.subplots(), names, errors, kinds, self.report.stopped)
        return _png(figure)

    def coverage(self) -> bytes:
        """Nominal and held-out coverage."""
        figure = Figure((_WIDTH, 3.4), layout="constrained")
        inside = {name: [self.comparison.coverage(name, level) for level in LEVELS] for name in self.shown}
        draw_coverage(figure.subplots(), LEVELS, inside, self.colors)
        return _png(figure)

    def ahead(self) -> bytes | None:
        """Error by frames ahead; None if it is not a forecast of several frames."""
        ahead = self.comparison.found[ENSEMBLE].ahead
        steps = ahead.unique()
        if len(steps) < 2:
            return None
        figure = Figure((_WIDTH, 3.2), layout="constrained")
        errors = {
            name: np.array([self.comparison.error(name, self.scale, ahead == step) for step in steps])
            for name in self.shown
        }
        draw_ahead(figure.subplots(), steps.cpu().numpy(), errors, self.colors)
        return _png(figure)

    def predictions(self) -> bytes:
        """Held-out predictions of the most telling outputs."""
        panels = [self._panel(output) for output in self._telling()]
        figure = Figure((_WIDTH, 0.5 + 1.9 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for ax, panel in zip(axes, panels, strict=True):
            draw_panel(ax, panel, self.colors, LEVEL)
        axes[-1].set_xlabel("time")
        figure.align_ylabels(axes)
        for ax, panel, after in zip(axes, panels, panels[1:], strict=False):
            if np.array_equal(panel.t, after.t):  # one label of the times is enough
                ax.tick_params(axis="x", labelbottom=False)
                ax.xaxis.get_offset_text().set_visible(False)
        handles, labels = axes[0].get_legend_handles_labels()
        place = {name: i for i, name in enumerate([*self.shown, "known", "hidden"])}
        order = sorted(range(len(labels)), key=lambda i: place.get(labels[i], len(place)))  # the band at the end
        figure.legend(
            [handles[i] for i in order], [labels[i] for i in order], loc="outside upper left", ncols=3, frameon=False,
            fontsize="small", handlelength=1.4,
        )  # fmt: skip
        return _png(figure)

    def _telling(self) -> list[int]:
        """The outputs for which the candidates that are shown differ most, and which can be predicted at all."""
        comparison, count = self.comparison, len(self.scale)
        output = comparison.output.cpu()
        unit = self.scale.to(comparison.truth)[comparison.output]
        means = torch.stack([comparison.found[name].mean for name in self.shown]) / unit
        spread, left = means.var(0, unbiased=False).cpu(), (means[0] - comparison.truth / unit).square().cpu()
        number = torch.bincount(output, minlength=count)
        spread, left = (
            torch.zeros(count, dtype=part.dtype).index_add_(0, output, part) / number.clamp_min(1)
            for part in (spread, left)
        )
        rank = spread * (1.0 - left).clamp_min(0.05) * number / (number + 2.0)  # few entries make a poor picture
        best = rank.masked_fill(number == 0, -1.0).argsort(descending=True, stable=True)[:_PANELS].tolist()
        return sorted(i for i in best if number[i] > 0)

    def _panel(self, output: int) -> HeldOutPanel:
        entries, comparison = self.comparison.entries, self.comparison
        mine = comparison.output.cpu() == output
        if self.report.task == "forecast":
            mine &= entries.apart()  # lines of overlapping forecasts could not be told apart
        sequence = int(torch.bincount(entries.sequence[mine]).argmax())
        rows = self.data.times.slices()[sequence]
        times = self.data.times.t[rows].cpu()
        which = (mine & (entries.sequence == sequence)).nonzero()[:, 0]
        which = which[entries.t[which].argsort(stable=True)]
        at = torch.searchsorted(times, entries.t[which]).numpy()
        first, last = _window(at, len(times), self.report.task)
        which, at = which[(at >= first) & (at < last)], at[(at >= first) & (at < last)] - first
        known = base_outputs(self.data)[rows, output].cpu().numpy()[first:last].copy()
        known[at] = np.nan
        split = entries.split[which].numpy()
        run = np.concatenate([[0], np.cumsum((np.diff(at) != 1) | (np.diff(split) != 0))])
        ends = comparison.interval()
        if not comparison.is_pool and (limits := find_limits(self.data)) is not None:  # as predictions
            ends = limits.clamp_entries(ends[0], comparison.output), limits.clamp_entries(ends[1], comparison.output)
        lower, upper = (end[which].cpu().numpy() for end in ends)
        columns = self.data.columns
        name = f"output {output}" if columns is None else columns[output]
        return HeldOutPanel(
            name if self.data.num_sequences == 1 else f"{name}\n({self.names[sequence]})",
            to_stamps(times[first:last], self.data),
            known,
            at,
            run,
            comparison.truth[which].cpu().numpy(),
            {one: comparison.found[one].mean[which].cpu().numpy() for one in self.shown},
            (lower, upper),
        )


def _shown(report: Report) -> list[str]:
    """The ensemble and the three best candidates, among them the best model and the best baseline."""
    complete = (c for c in report.candidates if c.failure is None and c.name not in report.stopped)
    ranked = sorted(complete, key=lambda c: c.loss)
    firsts = [next((c for c in ranked if c.is_baseline is kind), None) for kind in (False, True)]
    kept = {c.name for c in firsts if c is not None}
    for candidate in ranked:
        if len(kept) < 3:
            kept.add(candidate.name)
    return [ENSEMBLE, *(c.name for c in ranked if c.name in kept)]


def _window(at: np.ndarray, length: int, task: str) -> tuple[int, int]:
    """The frames to draw: those with most hidden entries, and for forecasts what comes before them."""
    if task == "forecast":
        width = int(at[-1] - at[0]) + 1
        return max(0, int(at[0]) - max(2 * width, 10)), int(at[-1]) + 1
    if length <= _FRAMES:
        return 0, length
    starts = np.arange(0, length - _FRAMES + 1, max(1, _FRAMES // 4))
    counts = [int(((at >= start) & (at < start + _FRAMES)).sum()) for start in starts]
    first = int(starts[int(np.argmax(counts))])
    return first, first + _FRAMES


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130)
    return stream.getvalue()
