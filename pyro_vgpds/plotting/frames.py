# SPDX-License-Identifier: Apache-2.0
"""Frames of videos side by side: the truth, what was seen of it, and what the model makes of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyro_vgpds.plotting.style import BASELINE, array

__all__ = ["check_films", "gray", "plot_frames"]


def plot_frames(
    films: Mapping[str, Any], frames: Sequence[int] | None = None, axes: Any = None, *, labels: Any = None
) -> np.ndarray:
    """A grid of pictures: a row for each film, a column for each frame, all on one scale of grey.

    :param films: names and frames (T, H, W), such as ``{"truth": …, "seen": …, "reconstruction": …}``; NaN, which is
        what was hidden, is drawn in a colour.
    :param frames: which frames; left out, up to eight, evenly.
    :param axes: an array of axes (len(films), len(frames)); left out, those of a new figure.
    :param labels: of all T frames, such as their times; left out, their numbers.
    :returns: the axes.
    :raises ValueError: where there is no film, shapes differ, or a frame is not there.

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
    chosen = np.linspace(0, count - 1, min(8, count)).round().astype(int).tolist() if frames is None else list(frames)
    if not chosen or not all(0 <= i < count for i in chosen):
        raise ValueError(f"frames must be some of 0 to {count - 1}, but got {chosen}.")
    shape = (len(pictures), len(chosen))
    if axes is None:
        cell = 1.25 if len(chosen) > 4 else 1.7
        size = (0.9 + cell * shape[1], 0.35 + cell * height / width * shape[0])
        axes = plt.subplots(*shape, figsize=size, squeeze=False, layout="constrained")[1]
    axes = np.asarray(axes, dtype=object).reshape(shape)
    low, high = _range(pictures)
    for row, (name, film) in zip(axes, pictures.items(), strict=True):
        for ax, i in zip(row, chosen, strict=True):
            ax.imshow(film[i], cmap=gray(), vmin=low, vmax=high, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    for ax, i in zip(axes[0], chosen, strict=True):
        ax.set_title(str(i if labels is None else labels[i]), fontsize="small")
    return axes


def gray() -> Any:
    """Grey, with a colour for what is NaN."""
    import matplotlib as mpl
    from matplotlib.colors import to_rgb

    return mpl.colormaps["gray"].with_extremes(bad=(*to_rgb(BASELINE), 0.4))


def check_films(films: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Films of one shape (T, H, W). Raises a ValueError where they are not."""
    pictures = {name: array(film) for name, film in films.items()}
    shapes = {film.shape for film in pictures.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 3:
        raise ValueError(
            "films must be pictures (T, H, W), all of one shape, but got "
            + (", ".join(f"{name} {film.shape}" for name, film in pictures.items()) or "none")
            + "."
        )
    return pictures


def _range(pictures: dict[str, np.ndarray]) -> tuple[float, float]:
    """Of the first film: predictions that overshoot are clipped, so that greys mean the same in all rows."""
    first = next(iter(pictures.values()))
    return float(np.nanmin(first)), float(np.nanmax(first))
