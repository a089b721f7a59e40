# SPDX-License-Identifier: Apache-2.0
"""Pictures of a comparison on held-out data, drawn on axes: errors, coverage, errors by horizon, and predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pyro_vgpds.plotting.style import (
    CYCLE,
    LEARNED,
    MUTED,
    TRUTH,
    grid_lines,
    labelled,
    legend_above,
    tidy,
    time_axis,
    tint,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["HeldOutPanel", "choose_colors", "draw_ahead", "draw_coverage", "draw_errors", "draw_panel"]

_MOST = 5.0  # bars are cut at this multiple of the smallest error, or at the median or _LONGEST if that is larger
_LONGEST = 1.5  # the error of predicting the mean is 1: bars up to it are whole
_SIDE = (0.0, -0.45, 0.45, 0.8)  # frames by which markers of candidates are moved
_KINDS = {"ensemble": LEARNED, "model": CYCLE[5], "baseline": CYCLE[4]}


def choose_colors(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name; the first one's is that of our predictions."""
    return {name: CYCLE[i % len(CYCLE)] for i, name in enumerate(names)}


def draw_errors(
    ax: Axes, names: Sequence[str], errors: Sequence[float], kinds: Sequence[str], estimated: Collection[str] = ()
) -> None:
    """Horizontal bars of errors, the first on top, by their kinds: ``"ensemble"``, ``"model"`` or ``"baseline"``.

    :param estimated: names of candidates whose errors are estimates; their bars are hatched.
    """
    from matplotlib.patches import Patch

    values, at = np.array(errors), np.arange(len(errors))
    limit = min(float(values.max()), max(_MOST * float(values.min()), float(np.median(values)), _LONGEST))
    hatches = ["////" if name in estimated else "" for name in names]
    colors = [_KINDS[kind] for kind in kinds]
    ax.barh(at, np.minimum(values, limit), color=colors, hatch=hatches, edgecolor="white", linewidth=0.0, height=0.7)
    for y, value in enumerate(values.tolist()):
        text = f" {value:.3g}" if value <= limit else f" {value:.3g} (bar is cut)"
        ax.text(min(value, limit), y, text, va="center", fontsize="small", color=TRUTH)
    ax.set_yticks(at, names)
    ax.invert_yaxis()
    ax.set_xlim(0.0, 1.18 * limit)
    ax.set_xlabel("root mean squared error, in standard deviations of the outputs")
    ax.tick_params(axis="y", length=0)
    legend = {kind: Patch(color=color) for kind, color in _KINDS.items() if kind in kinds}
    if any(hatches):
        legend["estimated"] = Patch(facecolor=MUTED, edgecolor="white", linewidth=0.0, hatch="////")
    legend_above(ax, legend)
    tidy(ax)


def draw_coverage(
    ax: Axes, levels: Sequence[float], inside: Mapping[str, Sequence[float]], colors: Mapping[str, str]
) -> None:
    """Percentages inside intervals, for each name in the order of ``levels``, compared with the nominal ones."""
    at = np.arange(len(levels), dtype=float)
    width = 0.7 / len(inside)
    for i, level in enumerate(levels):
        ax.hlines(100.0 * level, i - 0.45, i + 0.45, color=TRUTH, linewidth=1.4, label="_" if i else "nominal")
    for k, (name, values) in enumerate(inside.items()):
        x = at + (k - 0.5 * (len(inside) - 1)) * width
        ax.bar(x, values, 0.85 * width, color=colors[name], label=name, zorder=0 if k else 1)
    ax.set_xticks(at, [f"{100 * level:.0f} % intervals" for level in levels])
    ax.set_ylim(0.0, 102.0)
    ax.set_ylabel("held-out entries inside, %")
    ax.tick_params(axis="x", length=0)
    _finish(ax)


def draw_ahead(ax: Axes, ahead: np.ndarray, errors: Mapping[str, np.ndarray], colors: Mapping[str, str]) -> None:
    """Errors by the number of frames ahead."""
    from matplotlib.ticker import MaxNLocator

    for name, values in reversed(list(errors.items())):
        first = name == next(iter(errors))
        width, below = (2.6, 1.9) if first else (1.1, 2.0)  # the lines of a single member are the same
        ax.plot(ahead, values, ".-", color=colors[name], linewidth=width, label=name, zorder=below)
    ax.set_xlabel("frames ahead")
    ax.set_ylabel("error, standard deviations")
    ax.set_ylim(bottom=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(ax, backwards=True)


@dataclass(frozen=True)
class HeldOutPanel:
    """One output of one sequence: what was known, what was hidden, and its predictions."""

    name: str
    t: np.ndarray  #: (T,) of all frames, numbers or dates
    known: np.ndarray  #: (T,), NaN where hidden or missing
    at: np.ndarray  #: (n,), frames with hidden entries
    run: np.ndarray  #: (n,), entries of one number are connected
    truth: np.ndarray  #: (n,)
    means: Mapping[str, np.ndarray]  #: (n,) for each name
    band: tuple[np.ndarray, np.ndarray]  #: ends (n,) of the intervals of the first name


def draw_panel(ax: Axes, panel: HeldOutPanel, colors: Mapping[str, str], level: float) -> None:
    """Draw a panel: bands and lines for several hidden frames in a row, markers and bars for single ones."""
    ax.plot(panel.t, panel.known, ".-", color=MUTED, linewidth=1.0, markersize=3, label="known", zorder=1)
    names = list(panel.means)
    shade = tint(colors[names[0]], 0.75)
    step = np.median(np.diff(panel.t)) if len(panel.t) > 1 else 0.0
    labels = {name: name for name in [*names, "band"]}
    labels["band"] = f"{100 * level:.0f} % interval of the {names[0]}"
    for number in np.unique(panel.run):
        rows = np.flatnonzero(panel.run == number)
        t, low, high = panel.t[panel.at[rows]], panel.band[0][rows], panel.band[1][rows]
        label = labels.pop("band", "_")
        if len(rows) > 1:
            ax.fill_between(t, low, high, color=shade, linewidth=0, label=label, zorder=0)
        else:
            ax.vlines(t, low, high, color=shade, linewidth=6, label=label, zorder=0)
        for k, name in reversed(list(enumerate(names))):
            alone = len(rows) == 1  # markers side by side, because they would hide one another
            ax.plot(
                t + _SIDE[k % len(_SIDE)] * step if alone else t,
                panel.means[name][rows],
                "_" if alone and k == 0 else "d" if alone else "-",
                color=colors[name],
                linewidth=2.6 if k == 0 else 1.1,
                markersize=8.0 if k == 0 else 3.0,
                markeredgewidth=1.8 if k == 0 else 0.0,
                label=labels.pop(name, None),
                zorder=2 + 0.1 * k,
            )
    ax.plot(panel.t[panel.at], panel.truth, ".", color=TRUTH, markersize=4.5, label="hidden", zorder=4)
    _fit_range(ax, panel)
    ax.set_ylabel(panel.name)
    time_axis(ax, panel.t, label=False)
    if len(panel.t) > 1:  # panels of the same times have the same axis, even if the first values of one are missing
        ax.set_xlim(panel.t[0] - step, panel.t[-1] + step)
    grid_lines(ax)
    tidy(ax)


def _fit_range(ax: Axes, panel: HeldOutPanel) -> None:
    """The range of the data and of the first prediction, so that a candidate that is far off does not hide them."""
    values = np.concatenate([panel.known, panel.truth, panel.means[next(iter(panel.means))], *panel.band])
    low, high = np.nanmin(values), np.nanmax(values)
    margin = 0.06 * (high - low) if high > low else 1.0
    ax.set_ylim(low - margin, high + margin)


def _finish(ax: Axes, backwards: bool = False) -> None:
    entries = list(labelled(ax).items())
    legend_above(ax, dict(reversed(entries) if backwards else entries), columns=3)
    grid_lines(ax)
    ax.set_axisbelow(True)
    tidy(ax)
