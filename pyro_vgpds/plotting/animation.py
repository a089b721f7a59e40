# SPDX-License-Identifier: Apache-2.0
"""Videos and stick figures that move, as matplotlib animations and as files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.animation import AbstractMovieWriter, FuncAnimation
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pyro_vgpds.files.film import write_film
from pyro_vgpds.plotting.frames import check_films, gray
from pyro_vgpds.plotting.poses import bone_lines, check_motions, draw_pose, flatten

__all__ = ["animate_frames", "animate_poses", "save_animation"]


def animate_frames(films: Mapping[str, Any], *, labels: Any = None, fps: float = 12.0) -> Any:
    """Films beside each other, moving.

    :param films: names and frames (T, H, W) of one shape; NaN, which is what was hidden, is drawn in a colour.
    :param labels: of the T frames, written above; left out, nothing is.
    :param fps: frames a second.
    :returns: a matplotlib animation: keep it, and :func:`save_animation` or ``to_jshtml()`` it.
    :raises ValueError: where shapes differ.

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
    size = (2.3 * len(pictures), 2.3 * height / width + (0.65 if labels is not None else 0.4))
    figure, axes = plt.subplots(1, len(pictures), figsize=size, squeeze=False, layout="constrained")
    first = next(iter(pictures.values()))
    limits = {"vmin": float(np.nanmin(first)), "vmax": float(np.nanmax(first))}
    images = []
    for ax, (name, film) in zip(axes[0], pictures.items(), strict=True):
        images.append(ax.imshow(film[0], cmap=gray(), interpolation="nearest", **limits))
        ax.set_title(name, fontsize="medium")
        ax.set_axis_off()
    heading = None if labels is None else figure.suptitle(str(labels[0]), fontsize="small")

    def update(frame: int) -> list[Any]:
        for image, film in zip(images, pictures.values(), strict=True):
            image.set_data(film[frame])
        if heading is not None:
            heading.set_text(str(labels[frame]))
        return images

    return _animation(figure, update, count, fps)


def animate_poses(
    skeleton: Any, motions: Any, *, view: str = "three-quarter", overlay: bool = False, fps: float = 12.0
) -> Any:
    """Stick figures that move.

    :param skeleton: as for :func:`~pyro_vgpds.plotting.plot_poses`.
    :param motions: likewise.
    :param view: likewise.
    :param overlay: draw them on top of each other, not side by side.
    :param fps: frames a second.
    :returns: a matplotlib animation, as :func:`animate_frames` does.
    :raises ValueError: where shapes do not fit or the view is unknown.

    >>> from pyro_vgpds.datasets import make_gait
    >>> from pyro_vgpds.plotting import animate_poses, save_animation
    >>> walks = make_gait(num_sequences=1, length=(5, 5))
    >>> film = animate_poses(walks.skeleton, {"walk": walks.positions(0)})
    >>> save_animation(film, "walk.gif").name
    'walk.gif'
    """
    import matplotlib.pyplot as plt

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

    def update(frame: int) -> list[Any]:
        for line, places in zip(lines, named.values(), strict=True):
            line.set_data(*bone_lines(skeleton, places[frame]))
        return lines

    return _animation(figure, update, len(next(iter(named.values()))), fps)


def save_animation(animation: Any, path: str | os.PathLike[str], *, fps: float = 12.0, dpi: int = 90) -> Path:
    """Write an animation to a ``.gif``, or with ``pyro_vgpds[video]`` to an ``.mp4``, and close its figure.

    :param animation: made by :func:`animate_frames` or :func:`animate_poses`, whose examples show its use.
    :param path: the file; its ending says what is written. Errors as in :func:`~pyro_vgpds.files.write_film`.
    :param fps: frames a second.
    :param dpi: pixels an inch.
    :returns: the path.

    >>> from pyro_vgpds.datasets import make_pendulum_video
    >>> from pyro_vgpds.plotting import animate_frames, save_animation
    >>> video = make_pendulum_video(num_frames=3, height=16, width=16)
    >>> film = animate_frames({"pendulum": video.frames})
    >>> path = save_animation(film, "pendulum.gif", fps=5)
    """
    import matplotlib.pyplot as plt

    writer: Any = _FilmWriter(fps=fps)  # type: ignore[arg-type, unused-ignore]
    animation.save(os.fspath(path), writer=writer, dpi=dpi)
    plt.close(writer.fig)
    return Path(path)


class _FilmWriter(AbstractMovieWriter):  # type: ignore[misc, unused-ignore]
    """Takes the frames that matplotlib draws to :func:`~pyro_vgpds.files.write_film`."""

    def setup(self, fig: Any, outfile: Any, dpi: float | None = None) -> None:
        super().setup(fig, outfile, dpi)
        fig.set_dpi(self.dpi)
        fig.canvas.draw()
        fig.set_layout_engine("none")  # things stay where they are, and need not be laid out for every frame
        self.pictures: list[np.ndarray] = []

    def grab_frame(self, **savefig_kwargs: Any) -> None:
        canvas = self.fig.canvas
        if type(canvas) is not FigureCanvasAgg:  # of a window, which draws when it finds the time
            canvas = FigureCanvasAgg(self.fig)
            canvas.draw()
        self.pictures.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())

    def finish(self) -> None:
        write_film(self.outfile, np.stack(self.pictures), self.fps)


def _animation(figure: Any, update: Any, count: int, fps: float) -> Any:
    return FuncAnimation(figure, update, frames=count, interval=1000.0 / fps, blit=False)
