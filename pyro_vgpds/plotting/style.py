# SPDX-License-Identifier: Apache-2.0
"""The common style of all plots, with colours that colour-blind readers can distinguish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from torch import Tensor

from pyro_vgpds.checks import check_list, check_parts, is_whole
from pyro_vgpds.types import ArrayLike

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

__all__ = [
    "BASELINE", "CYCLE", "HIDDEN", "LEARNED", "MUTED", "TRUTH", "Labels", "array", "check_axes", "check_labels",
    "choose_frames", "color", "grid_lines", "labelled", "legend_above", "new_axes", "read_axes",
    "read_whole_numbers", "tidy", "time_axis", "tint",
]  # fmt: skip

#: one label for each frame, printed by ``str``
Labels: TypeAlias = "Sequence[object] | np.ndarray"

#: the colours of Okabe and Ito (2008), the darkest first
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A6A00")
LEARNED, BASELINE = CYCLE[0], CYCLE[1]  # the model; what it is compared with
TRUTH, MUTED, HIDDEN = "#222222", "#B5B5B5", "#F1EFE7"  # the data; the background; hidden data


def color(index: int) -> str:
    """The colour of a sequence; there are seven, in rotation."""
    return CYCLE[index % len(CYCLE)]


def new_axes(ax: Axes | None, size: tuple[float, float] = (6.4, 3.6)) -> Axes:
    """``ax`` itself, or the axes of a new figure."""
    import matplotlib.pyplot as plt

    if ax is not None:
        check_axes("ax", ax)
    return plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def check_axes(name: str, ax: object) -> None:
    """Raise a TypeError if ``ax`` is not axes of matplotlib."""
    check_parts(name, ax, "axes of matplotlib", "plot", "imshow", "spines")


def read_axes(axes: object) -> list[Axes]:
    """All axes in an array or in nested lists, or a single one; a TypeError if something else is among them."""
    if isinstance(axes, np.ndarray):
        axes = axes.ravel().tolist()
    if isinstance(axes, (list, tuple)):
        return [ax for part in axes for ax in read_axes(part)]
    check_axes("axes", axes)
    return [cast("Axes", axes)]


def check_labels(labels: Labels | None, count: int, name: str = "labels", of: str = "frames") -> None:
    """Raise an error if the argument ``name`` does not have a label for each of ``count`` things called ``of``."""
    check_list(name, labels, "a list of labels", optional=True)
    if labels is not None and len(labels) < count:
        raise ValueError(f"{name} must be {count} labels for the {of}, but there are {len(labels)}.")


def tidy(ax: Axes) -> Axes:
    """Remove the top and the right spine."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def grid_lines(ax: Axes) -> None:
    """Draw pale horizontal lines."""
    ax.grid(axis="y", color=MUTED, alpha=0.3, linewidth=0.6)


def labelled(*axes: Axes) -> dict[str, Artist]:
    """What has a label in these axes, each label once."""
    entries: dict[str, Artist] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return entries


def legend_above(ax: Axes, entries: Mapping[str, Artist], columns: int | None = None) -> None:
    """Draw a legend of these labels above the axes. Default: in one row."""
    formatter = ax.yaxis.get_major_formatter()
    formatter.set_locs(ax.get_yticks().tolist())
    left = 0.08 if formatter.get_offset() else 0.0  # a factor such as 1e9 is in the corner
    ax.legend(
        list(entries.values()), list(entries), frameon=False, fontsize="small", ncols=columns or max(1, len(entries)),
        loc="lower left", bbox_to_anchor=(left, 1), borderaxespad=0.2, handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip


def time_axis(ax: Axes, t: np.ndarray, label: bool = True) -> None:
    """Label the time axis; dates are abbreviated so that they do not overlap."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    if label:
        ax.set_xlabel("time")
    ax.margins(x=0.01)
    if t.dtype.kind == "M":
        locator = AutoDateLocator(minticks=3, maxticks=7)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def array(value: ArrayLike) -> np.ndarray:
    """A tensor, an array or a list as numpy."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def read_whole_numbers(name: str, indices: Iterable[int]) -> list[int]:
    """Indices in a list, an array or a tensor; a TypeError if they are not whole numbers."""
    check_list(name, indices, "a list of indices")
    found = indices.tolist() if isinstance(indices, (np.ndarray, Tensor)) else list(indices)
    if not all(is_whole(one) for one in found):
        raise TypeError(f"{name} must be whole numbers, but got {found!r:.80}.")
    return [int(one) for one in found]


def choose_frames(frames: Sequence[int] | None, count: int) -> list[int]:
    """The given indices after a check, or up to eight evenly spaced ones of ``count``."""
    if frames is None:
        return [int(i) for i in np.linspace(0, count - 1, min(8, count)).round()]
    chosen = read_whole_numbers("frames", frames)
    if not chosen or not all(0 <= i < count for i in chosen):
        raise ValueError(f"frames must be indices from 0 to {count - 1}, but got {chosen}.")
    return chosen


def tint(shade: str, white: float) -> tuple[float, float, float]:
    """A colour mixed with white; ``white`` is its fraction."""
    from matplotlib.colors import to_rgb

    red, green, blue = (white + (1.0 - white) * part for part in to_rgb(shade))
    return red, green, blue
