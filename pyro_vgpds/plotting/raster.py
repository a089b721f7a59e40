# SPDX-License-Identifier: Apache-2.0
"""Heat maps of many outputs over time, such as the spikes of neurons, next to their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pyro_vgpds.checks import as_numbers, check_list, check_number, find_output
from pyro_vgpds.data.parts import sequence_names, to_stamps
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.plotting.style import HIDDEN, MUTED, array, read_axes, time_axis
from pyro_vgpds.types import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_raster"]

_NAMED, _SOME = 30, 8  # outputs that have room for their names, and how many of more are named
_LABELLED = 12  # sequences that have room for theirs
_SMALL = 0.1  # part of a range of colours in which an output is hardly seen
_COLORS = ("#FFFFFF", "#9CC9E3", "#0072B2", "#00233A")  # from 0 to the largest: white paper and dark ink


def plot_raster(
    data: Sequences | ArrayLike,
    prediction: Any = None,
    axes: Sequence[Axes] | None = None,
    *,
    outputs: Sequence[int | str] | None = None,
    largest: float | None = None,
) -> list[Axes]:
    """Plot outputs as a heat map, outputs by time, and their prediction next to it on the same scale.

    A single sequence has its own time axis. Several are drawn one after the other in the order of the data, with a gap
    between them. Missing entries have a colour of their own. Outputs of very different units, of which one scale would
    show only the largest, have scales of their own, from their smallest to their largest observed number.

    :param data: the sequences, or outputs (N, D) of one sequence with frames 0, 1, 2, ...
    :param prediction: of the same frames: a :class:`~pyro_vgpds.Prediction`, such as ``post.impute(fill=False)``, whose
        means are drawn, or an array (N, D). Default: none.
    :param axes: one to draw on, or two with a prediction. Default: those of a new figure.
    :param outputs: indices or names of the outputs, from top to bottom. Default: all.
    :param largest: the number with the darkest colour. Default: 99 % of the observed entries are not larger, and it is
        at least 1 for whole numbers.
    :returns: the axes.
    :raises ValueError: if a shape differs, an output is unknown, ``largest`` is not positive, or the number of axes is
        not that of the pictures.

    >>> from pyro_vgpds.plotting import plot_raster
    >>> seen, rates = plot_raster(data, post.impute(fill=False))
    """
    from matplotlib.ticker import MaxNLocator

    sequences, y = _read(data)
    pictures = {"data": y}
    if prediction is not None:
        mean = getattr(prediction, "mean", None)
        pictures["prediction"] = as_numbers("prediction", prediction if mean is None or callable(mean) else mean)
        if pictures["prediction"].shape != y.shape:
            raise ValueError(f"prediction must be {y.shape}, but its shape is {pictures['prediction'].shape}.")
    chosen, names = _outputs(sequences, y.shape[1], outputs)
    pictures = {title: picture[:, chosen] for title, picture in pictures.items()}
    top = _largest(y[:, chosen], largest)
    places = _axes(axes, len(pictures), len(chosen))
    low = min(0.0, *(float(np.nanmin(picture, initial=0.0)) for picture in pictures.values()))
    ends = _own_scales(pictures["data"], top - low) if largest is None else None
    if ends is not None:
        pictures = {title: (picture - ends[0]) / (ends[1] - ends[0]) for title, picture in pictures.items()}
        low, top = 0.0, 1.0
    for ax, (title, picture) in zip(places, pictures.items(), strict=True):
        mesh = _draw(ax, sequences, picture, (low, top))
        ax.set_title(title, loc="left", fontsize="medium")
    _name_outputs(places[0], names, sequences is not None and sequences.columns is not None)
    for ax in places[1:]:
        ax.set_yticks([])
    above = any(float(np.nanmax(picture, initial=low)) > top for picture in pictures.values())
    figure: Any = places[0].figure
    bar = figure.colorbar(mesh, ax=places, extend="max" if above else "neither", pad=0.01, fraction=0.05, aspect=30)
    if ends is not None:
        bar.set_ticks([0.0, 1.0], labels=["smallest", "largest"], fontsize="small")
    elif _whole(y):
        bar.locator = MaxNLocator(integer=True, nbins=6)
        bar.update_ticks()
    return places


def _read(data: Sequences | ArrayLike) -> tuple[Sequences | None, np.ndarray]:
    if isinstance(data, Sequences):
        if data.y is None:
            raise ValueError("data must have outputs, but these sequences have times only.")
        return data, array(data.read(0, data.num_base_outputs)).astype(float)
    y = as_numbers("data", data)
    if y.ndim != 2 or 0 in y.shape:
        raise ValueError(f"data must be Sequences or (N, D), but its shape is {y.shape}.")
    return None, y


def _outputs(
    sequences: Sequences | None, count: int, outputs: Sequence[int | str] | None
) -> tuple[list[int], list[str]]:
    """Indices and names of the chosen outputs."""
    columns = None if sequences is None else sequences.base_columns
    check_list("outputs", outputs, "a list of indices or names", optional=True)
    chosen = [find_output("outputs", one, columns, count) for one in (range(count) if outputs is None else outputs)]
    if not chosen:
        raise ValueError("outputs must have at least one output, but got none.")
    return chosen, [columns[i] if columns else str(i) for i in chosen]


def _largest(y: np.ndarray, largest: float | None) -> float:
    if largest is not None:
        check_number("largest", largest, "positive", lambda value: value > 0.0)
        return float(largest)
    seen = y[np.isfinite(y)]
    if not len(seen):
        return 1.0
    found = float(np.quantile(seen, 0.99, method="higher"))
    if _whole(y):
        return max(found, 1.0)
    return found if found > 0.0 else 1.0


def _own_scales(y: np.ndarray, common: float) -> tuple[np.ndarray, np.ndarray] | None:
    """The smallest and the largest number (D,) of each output, if more than half of those that vary would have only a
    small part of the ``common`` range of colours.
    """
    if _whole(y):
        return None
    low, high = np.nanmin(y, 0, initial=np.inf), np.nanmax(y, 0, initial=-np.inf)
    varies = high > low
    if 2 * np.count_nonzero((high - low)[varies] < _SMALL * common) <= np.count_nonzero(varies):
        return None
    return np.where(varies, low, low - 0.5), np.where(varies, high, low + 0.5)


def _whole(y: np.ndarray) -> bool:
    """Whether all observed numbers are whole."""
    seen = y[np.isfinite(y)]
    return bool((seen == seen.round()).all())


def _axes(axes: Sequence[Axes] | None, count: int, num_outputs: int) -> list[Axes]:
    import matplotlib.pyplot as plt

    if axes is None:
        height = min(7.0, max(2.4, 0.05 * num_outputs + 1.5))
        made = plt.subplots(1, count, figsize=(6.4 * count, height), squeeze=False, layout="constrained")[1]
        return list(made[0])
    found = read_axes(axes)
    if len(found) != count:
        raise ValueError(f"axes must be {count}, one for each picture, but got {len(found)}.")
    return found


def _draw(ax: Axes, sequences: Sequences | None, y: np.ndarray, limits: tuple[float, float]) -> Any:
    """Draw all sequences, and return the last mesh."""
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("raster", _COLORS).with_extremes(bad=HIDDEN)
    lengths = (len(y),) if sequences is None else sequences.lengths
    rows = np.arange(y.shape[1] + 1) - 0.5
    gap = 0.01 * len(y) if len(lengths) > 1 else 0.0
    starts: list[float] = []
    at, mesh = 0.0, None
    for part, length in zip(np.split(y, np.cumsum(lengths)[:-1]), lengths, strict=True):
        edges = _edges(sequences, length) if len(lengths) == 1 else at + np.arange(length + 1)
        shown = np.ma.masked_invalid(part.T)
        mesh = ax.pcolormesh(edges, rows, shown, cmap=colors, vmin=limits[0], vmax=limits[1], rasterized=True)
        if starts:
            ax.axvline(at - 0.5 * gap, color=MUTED, linewidth=0.8)
        starts.append(at)
        at += length + gap
    ax.set_ylim(len(rows) - 1.5, -0.5)
    ax.set_facecolor(HIDDEN if len(lengths) == 1 else "white")
    ax.spines[["top", "right", "left", "bottom"]].set_visible(False)
    if len(lengths) == 1:
        _name_times(ax, sequences, len(y))
    else:
        _name_sequences(ax, cast("Sequences", sequences), starts)
    return mesh


def _times(sequences: Sequences | None, count: int) -> np.ndarray:
    return np.arange(count, dtype=float) if sequences is None else to_stamps(sequences.times.t, sequences)


def _edges(sequences: Sequences | None, count: int) -> np.ndarray:
    """Edges of the frames, (N + 1,): midpoints of neighbouring times."""
    t = _times(sequences, count)
    if len(t) == 1:
        half = np.timedelta64(500, "ms") if t.dtype.kind == "M" else 0.5
        return np.array([t[0] - half, t[0] + half])
    steps = np.diff(t)
    middle = t[:-1] + steps / 2
    return np.concatenate([[t[0] - steps[0] / 2], middle, [t[-1] + steps[-1] / 2]])


def _name_times(ax: Axes, sequences: Sequences | None, count: int) -> None:
    time_axis(ax, _times(sequences, count))
    ax.margins(x=0.0)
    if sequences is None:
        ax.set_xlabel("frame")


def _name_sequences(ax: Axes, sequences: Sequences, starts: Sequence[float]) -> None:
    """Names of the sequences below them; of many, some."""
    names = sequence_names(sequences)
    every = max(1, -(-len(names) // _LABELLED))
    middles = [start + 0.5 * length for start, length in zip(starts, sequences.lengths, strict=True)]
    ax.set_xticks(middles[::every], names[::every], fontsize="small")
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("sequence")


def _name_outputs(ax: Axes, names: list[str], named: bool) -> None:
    """Names of the outputs; of many outputs, only some."""
    every = 1 if len(names) <= _NAMED else -(-len(names) // _SOME)
    ax.set_yticks(range(0, len(names), every), names[::every], fontsize="small")
    if every == 1:
        ax.tick_params(axis="y", length=0)
    if not named:
        ax.set_ylabel("output")
