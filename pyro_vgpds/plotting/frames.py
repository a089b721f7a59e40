# SPDX-License-Identifier: Apache-2.0
"""Frames of videos side by side: for example the truth, its observed part, and the reconstruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pyro_vgpds.checks import as_numbers, check_kind
from pyro_vgpds.plotting.style import BASELINE, Labels, check_labels, choose_frames, read_axes
from pyro_vgpds.types import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["check_films", "gray_range", "plot_frames", "show_frame"]


def plot_frames(
    films: Mapping[str, ArrayLike],
    frames: Sequence[int] | None = None,
    axes: np.ndarray | Sequence[Axes] | None = None,
    *,
    labels: Labels | None = None,
) -> np.ndarray:
    """Plot a grid of images: a row for each film, a column for each frame, all with the same grey scale.

    :param films: names and frames (T, H, W), such as ``{"truth": …, "seen": …, "reconstruction": …}``. NaN (hidden
        pixels) is coloured.
    :param frames: indices of the frames. Default: up to eight, evenly spaced.
    :param axes: an array of axes (len(films), len(frames)). Default: those of a new figure.
    :param labels: labels of all T frames, such as their times. Default: their indices.
    :returns: the axes.
    :raises ValueError: if there is no film, shapes differ, or a frame does not exist.

    >>> from pyro_vgpds.datasets import make_pendulum_video
    >>> from pyro_vgpds.plotting import plot_frames
    >>> truth = make_pendulum_video(num_frames=20, height=16, width=16).frames
    >>> seen = truth.copy()
    >>> seen[:, :8] = float("nan")
    >>> plot_frames({"truth": truth, "seen": seen}, frames=[0, 5, 10]).shape
    (2, 3)
    """
    import matplotlib.pyplot as plt

    pictures = check_films(films)
    count, height, width = next(iter(pictures.values())).shape
    chosen = choose_frames(frames, count)
    check_labels(labels, max(chosen) + 1)
    shape = (len(pictures), len(chosen))
    if axes is None:
        cell = 1.25 if len(chosen) > 4 else 1.7
        size = (0.9 + cell * shape[1], 0.35 + cell * height / width * shape[0])
        axes = plt.subplots(*shape, figsize=size, squeeze=False, layout="constrained")[1]
    every = read_axes(axes)
    if len(every) != shape[0] * shape[1]:
        raise ValueError(f"axes must be {shape}, films by frames, but there are {len(every)}.")
    axes = np.asarray(every, dtype=object).reshape(shape)
    limits = gray_range(pictures)
    for row, (name, film) in zip(axes, pictures.items(), strict=True):
        for ax, i in zip(row, chosen, strict=True):
            show_frame(ax, film[i], limits)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    for ax, i in zip(axes[0], chosen, strict=True):
        ax.set_title(str(i if labels is None else labels[i]), fontsize="small")
    return axes


def show_frame(ax: Axes, picture: np.ndarray, limits: tuple[float, float]) -> AxesImage:
    """Draw an image (H, W) in grey, with a colour for NaN."""
    import matplotlib as mpl
    from matplotlib.colors import to_rgb

    gray = mpl.colormaps["gray"].with_extremes(bad=(*to_rgb(BASELINE), 0.4))
    return ax.imshow(picture, cmap=gray, vmin=limits[0], vmax=limits[1], interpolation="nearest")


def check_films(films: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """The films as arrays. Raises a ValueError if they are not of one shape (T, H, W)."""
    check_kind("films", films, Mapping, "{name: images (T, H, W)}")
    pictures = {name: as_numbers(f"films[{name!r}]", film) for name, film in films.items()}
    shapes = {film.shape for film in pictures.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 3 or 0 in next(iter(shapes)):
        raise ValueError(
            "films must be images (T, H, W), all of the same shape, but got "
            + (", ".join(f"{name} {film.shape}" for name, film in pictures.items()) or "none")
            + "."
        )
    return pictures


def gray_range(pictures: dict[str, np.ndarray]) -> tuple[float, float]:
    """The range of the first film, for all: predictions beyond it are clipped, so that all grey scales agree."""
    first = next(iter(pictures.values()))
    return float(np.nanmin(first)), float(np.nanmax(first))
