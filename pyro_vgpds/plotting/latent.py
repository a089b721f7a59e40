# SPDX-License-Identifier: Apache-2.0
"""Latent paths with their uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor
from torch.distributions import Distribution

from pyro_vgpds.checks import check_parts
from pyro_vgpds.data.parts import to_stamps
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.plotting.style import (
    array,
    check_labels,
    color,
    labelled,
    legend_above,
    new_axes,
    read_axes,
    read_whole_numbers,
    tidy,
    time_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LatentPaths", "plot_latent", "plot_plane"]

_NAMED = 6  # maximum number of sequences in a legend


class LatentPaths(Protocol):
    """The part of :class:`~pyro_vgpds.Posterior` that is plotted here."""

    @property
    def q(self) -> Distribution:
        """The distribution of the latent path, with mean and variance (N, Q)."""

    @property
    def data(self) -> Sequences:
        """The training sequences."""


def plot_latent(
    posterior: LatentPaths,
    dimensions: Sequence[int] | Tensor | None = None,
    axes: np.ndarray | Sequence[Axes] | Axes | None = None,
    *,
    names: Sequence[str] | None = None,
) -> np.ndarray:
    """Plot latent dimensions over time, one below the other, with bands of two standard deviations.

    Each sequence has its own colour.

    :param posterior: a :class:`~pyro_vgpds.Posterior`.
    :param dimensions: indices of the dimensions. Default: all. The three most relevant are
        ``model.relevance(guide, data).value.argsort(descending=True)[:3]``.
    :param axes: one for each dimension. Default: those of a new figure.
    :param names: names of the sequences, for the legend. Default: those of the data.
    :returns: the axes, an array (len(dimensions),).
    :raises ValueError: if a dimension is unknown, or the number of axes differs from that of the dimensions.

    >>> from pyro_vgpds.plotting import plot_latent
    >>> leading = model.relevance(guide, data).value.argsort(descending=True)[:2]
    >>> plot_latent(post, leading, names=["walk", "run"]).shape
    (2,)
    """
    import matplotlib.pyplot as plt

    mean, sd, slices, times = _paths(posterior)
    names = posterior.data.names if names is None else names
    check_labels(names, len(slices), "names", "sequences")
    chosen = _dimensions(range(mean.shape[1]) if dimensions is None else dimensions, mean.shape[1])
    if axes is None:
        size = (6.4, 0.6 + 1.5 * len(chosen))
        axes = plt.subplots(len(chosen), 1, figsize=size, sharex=True, squeeze=False, layout="constrained")[1]
    axes = np.asarray(read_axes(axes), dtype=object)
    if len(axes) != len(chosen):
        raise ValueError(f"axes must have one entry for each of the {len(chosen)} dimensions, but got {len(axes)}.")
    for ax, q in zip(axes, chosen, strict=True):
        tidy(ax)
        for s, rows in enumerate(slices):
            t, middle, width = _with_gaps(times[rows], mean[rows, q], 2 * sd[rows, q])
            ax.plot(t, middle, color=color(s), linewidth=1.4, label=_name(names, s))
            ax.fill_between(t, middle - width, middle + width, color=color(s), alpha=0.25, linewidth=0)
        ax.set_ylabel(f"latent {q}")
        time_axis(ax, times, label=ax is axes[-1])
    if 1 < len(slices) <= _NAMED:
        legend_above(axes[0], labelled(axes[0]), columns=3)
    return axes


def plot_plane(
    posterior: LatentPaths,
    dimensions: Sequence[int] | Tensor = (0, 1),
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
) -> Axes:
    """Plot two latent dimensions against each other, with an ellipse of one standard deviation around every frame.

    :param posterior: a :class:`~pyro_vgpds.Posterior`.
    :param dimensions: indices of two dimensions, such as the most relevant ones.
    :param ax: axes to draw on. Default: those of a new figure.
    :param names: names of the sequences, for the legend. Default: those of the data.
    :returns: the axes.
    :raises ValueError: if there are not two dimensions, or one is unknown.

    >>> from pyro_vgpds.plotting import plot_plane
    >>> plot_plane(post, (0, 1)).get_xlabel()
    'latent 0'
    """
    from matplotlib.collections import EllipseCollection

    mean, sd, slices, times = _paths(posterior)
    names = posterior.data.names if names is None else names
    check_labels(names, len(slices), "names", "sequences")
    first, second = _dimensions(dimensions, mean.shape[1], count=2)
    ax = tidy(new_axes(ax, (5.0, 4.4)))
    for s, rows in enumerate(slices):
        _, x, y, wide, high = _with_gaps(
            times[rows], mean[rows, first], mean[rows, second], 2 * sd[rows, first], 2 * sd[rows, second]
        )
        ellipses = EllipseCollection(
            wide, high, np.zeros(len(x)), units="xy", offsets=np.stack([x, y], 1),
            offset_transform=ax.transData, facecolors=color(s), alpha=0.12, linewidths=0,
        )  # fmt: skip
        ax.add_collection(ellipses)
        for side in (-0.5, 0.5):  # the automatic limits consider only the centres
            ax.update_datalim(np.stack([x + side * wide, y + side * high], 1)[np.isfinite(x)])
        ax.plot(x, y, "-", color=color(s), linewidth=0.9, marker=".", markersize=4, label=_name(names, s))
    ax.set(xlabel=f"latent {first}", ylabel=f"latent {second}")
    if 1 < len(slices) <= _NAMED:
        ax.legend(frameon=False, fontsize="small")
    return ax


def _paths(posterior: LatentPaths) -> tuple[np.ndarray, np.ndarray, list[slice], np.ndarray]:
    """Means and standard deviations (N, Q), the rows of each sequence, and the times or dates (N,)."""
    check_parts("posterior", posterior, "a Posterior, or an object with q and data", "q", "data")
    q, data = posterior.q, posterior.data
    return array(q.mean), np.sqrt(array(q.variance)), data.times.slices(), to_stamps(data.times.t, data)


def _with_gaps(t: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
    """Insert NaN wherever times are much further apart than three quarters of them are, so that no line is drawn across
    a gap. Times at random have many steps of several medians, which are no gaps.
    """
    steps = np.diff(t).astype(float)
    jumps = np.flatnonzero(steps > 4.0 * np.quantile(steps, 0.75)) + 1 if len(steps) else np.empty(0, dtype=int)
    return [np.insert(t, jumps, t[jumps]), *(np.insert(column, jumps, np.nan) for column in columns)]


def _dimensions(chosen: Iterable[int] | Tensor, total: int, count: int | None = None) -> list[int]:
    dimensions = read_whole_numbers("dimensions", chosen)
    if count is not None and len(dimensions) != count:
        raise ValueError(f"dimensions must have {count} entries, but got {dimensions}.")
    if not dimensions or not all(0 <= q < total for q in dimensions):
        raise ValueError(f"dimensions must be indices from 0 to {total - 1}, but got {dimensions}.")
    return dimensions


def _name(names: Sequence[str] | None, sequence: int) -> str:
    return f"sequence {sequence}" if names is None else str(list(names)[sequence])
