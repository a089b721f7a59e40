# SPDX-License-Identifier: Apache-2.0
"""Animations of videos and of stick figures, in matplotlib and as files."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.animation import AbstractMovieWriter, Animation, FuncAnimation
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pyro_vgpds.checks import check_count, check_flags, check_kind, check_number, check_path
from pyro_vgpds.files.film import write_film
from pyro_vgpds.plotting.frames import check_films, gray_range, show_frame
from pyro_vgpds.plotting.poses import Motions, bone_lines, check_motions, draw_pose, flatten
from pyro_vgpds.plotting.style import Labels, check_labels
from pyro_vgpds.types import ArrayLike, PathLike

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    from pyro_vgpds.datasets.skeleton import Skeleton

__all__ = ["EmbeddedAnimation", "animate_frames", "animate_poses", "embed_animation", "save_animation"]


_LEAST = 10  # dots per inch, for which a font has a size


def animate_frames(films: Mapping[str, ArrayLike], *, labels: Labels | None = None, fps: float = 12.0) -> FuncAnimation:
    """Animate films side by side.

    :param films: names and frames (T, H, W) of one shape. NaN (hidden pixels) is coloured.
    :param labels: labels of the T frames, printed above. Default: no labels.
    :param fps: frames per second.
    :returns: a matplotlib animation. Keep a reference; write it by :func:`save_animation` or ``to_jshtml()``.
    :raises ValueError: if shapes differ.

    >>> from pyro_vgpds.datasets import make_pendulum_video
    >>> from pyro_vgpds.plotting import animate_frames, save_animation
    >>> video = make_pendulum_video(num_frames=5, height=16, width=16)
    >>> film = animate_frames({"pendulum": video.frames})
    >>> save_animation(film, "pendulum.gif").name
    'pendulum.gif'
    """
    import matplotlib.pyplot as plt

    pictures = check_films(films)
    count, height, width = next(iter(pictures.values())).shape
    check_labels(labels, count)
    _check_rate(fps)
    size = (2.3 * len(pictures), 2.3 * height / width + (0.65 if labels is not None else 0.4))
    figure, axes = plt.subplots(1, len(pictures), figsize=size, squeeze=False, layout="constrained")
    limits = gray_range(pictures)
    images = []
    for ax, (name, film) in zip(axes[0], pictures.items(), strict=True):
        images.append(show_frame(ax, film[0], limits))
        ax.set_title(name, fontsize="medium")
        ax.set_axis_off()
    heading = None if labels is None else figure.suptitle(str(labels[0]), fontsize="small")

    def update(frame: int) -> list[Artist]:
        for image, film in zip(images, pictures.values(), strict=True):
            image.set_data(film[frame])
        if labels is not None and heading is not None:
            heading.set_text(str(labels[frame]))
        return [*images]

    return FuncAnimation(figure, update, frames=count, interval=1000.0 / fps, blit=False)


def animate_poses(
    skeleton: Skeleton, motions: Motions, *, view: str = "three-quarter", overlay: bool = False, fps: float = 12.0
) -> FuncAnimation:
    """Animate stick figures.

    :param skeleton: as for :func:`~pyro_vgpds.plotting.plot_poses`.
    :param motions: as for :func:`~pyro_vgpds.plotting.plot_poses`.
    :param view: as for :func:`~pyro_vgpds.plotting.plot_poses`.
    :param overlay: draw the figures on top of each other instead of side by side.
    :param fps: frames per second.
    :returns: a matplotlib animation, as :func:`animate_frames`.
    :raises ValueError: if shapes do not match or the view is unknown.

    >>> from pyro_vgpds.datasets import make_gait
    >>> from pyro_vgpds.plotting import animate_poses, save_animation
    >>> walks = make_gait(num_sequences=1, length=(5, 5))
    >>> film = animate_poses(walks.skeleton, {"walk": walks.positions(0)})
    >>> save_animation(film, "walk.gif").name
    'walk.gif'
    """
    import matplotlib.pyplot as plt

    check_flags(overlay=overlay)
    _check_rate(fps)
    named = {name: flatten(places, view) for name, places in check_motions(skeleton, motions).items()}
    everything = np.concatenate([places.reshape(-1, 2) for places in named.values()])
    (left, bottom), (right, top) = np.nanmin(everything, 0), np.nanmax(everything, 0)
    panels = 1 if overlay else len(named)
    figure, axes = plt.subplots(1, panels, figsize=(2.2 * panels, 3.2), squeeze=False, layout="constrained")
    edge = 0.04 * (top - bottom)
    for ax in axes[0]:
        ax.set(xlim=(left - edge, right + edge), ylim=(bottom - edge, top + edge), aspect="equal")
        ax.set_axis_off()
    lines = []
    for m, (name, places) in enumerate(named.items()):
        ax = axes[0][0] if overlay else axes[0][m]
        lines.append(draw_pose(ax, skeleton, places[0], m if overlay else 1, name if overlay else None))
        if not overlay:
            ax.set_title(name, fontsize="medium")
    if overlay and len(named) > 1:
        axes[0][0].legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 1.12))

    def update(frame: int) -> list[Artist]:
        for line, places in zip(lines, named.values(), strict=True):
            line.set_data(*bone_lines(skeleton, places[frame]))
        return [*lines]

    count = len(next(iter(named.values())))
    return FuncAnimation(figure, update, frames=count, interval=1000.0 / fps, blit=False)


def save_animation(animation: FuncAnimation, path: PathLike, *, fps: float = 12.0, dpi: int = 90) -> Path:
    """Write an animation to a ``.gif``, or with ``pyro_vgpds[video]`` to an ``.mp4``, and close its figure.

    :param animation: made by :func:`animate_frames` or :func:`animate_poses`.
    :param path: the file; its suffix selects the format. Errors as in :func:`~pyro_vgpds.files.write_film`.
    :param fps: frames per second.
    :param dpi: pixels per inch.
    :returns: the path.

    >>> from pyro_vgpds.datasets import make_pendulum_video
    >>> from pyro_vgpds.plotting import animate_frames, save_animation
    >>> video = make_pendulum_video(num_frames=3, height=16, width=16)
    >>> film = animate_frames({"pendulum": video.frames})
    >>> path = save_animation(film, "pendulum.gif", fps=5)
    """
    import matplotlib.pyplot as plt

    check_kind("animation", animation, Animation, "an animation of matplotlib")
    check_path("path", path)
    _check_rate(fps)
    check_count("dpi", dpi, _LEAST)
    writer = _FilmWriter(fps=fps)  # type: ignore[arg-type, unused-ignore]
    animation.save(os.fspath(path), writer=writer, dpi=dpi)
    plt.close(writer.fig)
    return Path(path)


@dataclass(frozen=True)
class EmbeddedAnimation:
    """An animation that a notebook shows as the result of a cell and keeps in its file.

    >>> from pyro_vgpds.plotting import EmbeddedAnimation
    >>> EmbeddedAnimation(b"GIF89a", width=20, height=10)._repr_html_()
    '<img src="data:image/gif;base64,R0lGODlh" width="20" height="10" alt="animation">'
    """

    gif: bytes = field(repr=False)  #: the content of a gif file
    width: int  #: in pixels of the page
    height: int  #: in pixels of the page

    def _repr_html_(self) -> str:
        source = base64.b64encode(self.gif).decode("ascii")
        return f'<img src="data:image/gif;base64,{source}" width="{self.width}" height="{self.height}" alt="animation">'


def embed_animation(
    animation: FuncAnimation, *, fps: float = 12.0, dpi: int = 80, density: int = 2
) -> EmbeddedAnimation:
    """An animation to show inline in a notebook: in Jupyter, the last expression of a cell.

    It is a gif inside the notebook's file, so it needs no other program and no other file. It also closes the figure.

    :param animation: made by :func:`animate_frames` or :func:`animate_poses`.
    :param fps: frames per second.
    :param dpi: pixels of the page per inch of the figure.
    :param density: pixels of the picture per pixel of the page: 2 is sharp on screens of high resolution.
    :raises ValueError: if ``dpi`` or ``density`` is not a positive whole number.

    >>> from pyro_vgpds.datasets import make_pendulum_video
    >>> from pyro_vgpds.plotting import animate_frames, embed_animation
    >>> video = make_pendulum_video(num_frames=3, height=16, width=16)
    >>> embed_animation(animate_frames({"pendulum": video.frames}), dpi=60)
    EmbeddedAnimation(width=138, height=162)
    """
    check_kind("animation", animation, Animation, "an animation of matplotlib")
    _check_rate(fps)
    check_count("dpi", dpi, _LEAST)
    check_count("density", density)
    with TemporaryDirectory() as folder:
        gif = save_animation(animation, Path(folder) / "a.gif", fps=fps, dpi=density * dpi).read_bytes()
    width, height = (int.from_bytes(gif[at : at + 2], "little") for at in (6, 8))  # of the gif's header
    return EmbeddedAnimation(gif, round(width / density), round(height / density))


def _check_rate(fps: float) -> None:
    check_number("fps", fps, "positive", lambda value: value > 0.0)


class _FilmWriter(AbstractMovieWriter):  # type: ignore[misc, unused-ignore]
    """Passes the frames that matplotlib draws to :func:`~pyro_vgpds.files.write_film`."""

    def setup(self, fig: Figure, outfile: str | Path, dpi: float | None = None) -> None:
        super().setup(fig, outfile, dpi)
        fig.set_dpi(self.dpi)
        width, height = (np.round(self.dpi * fig.get_size_inches()) + 1e-6) / self.dpi  # or some versions round down
        fig.set_size_inches(width, height)
        fig.canvas.draw()
        fig.set_layout_engine("none")  # the layout is fixed, and need not be computed for every frame
        self.pictures: list[np.ndarray] = []

    def grab_frame(self, **savefig_kwargs: Any) -> None:
        canvas = self.fig.canvas
        if type(canvas) is not FigureCanvasAgg:  # the canvas of a window draws asynchronously
            canvas = FigureCanvasAgg(self.fig)
            canvas.draw()
        self.pictures.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())

    def finish(self) -> None:
        write_film(self.outfile, np.stack(self.pictures), self.fps)
