# SPDX-License-Identifier: Apache-2.0
"""Frames as video files: gif with pillow, a dependency of matplotlib; mp4 and others with ``pyro_vgpds[video]``."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np

from pyro_vgpds.checks import as_numbers, check_number, check_path
from pyro_vgpds.datasets.base import require
from pyro_vgpds.files.atomic import atomic_write
from pyro_vgpds.types import ArrayLike, PathLike

__all__ = ["FILM_SUFFIXES", "write_film"]

FILM_SUFFIXES = (".gif", ".mp4", ".avi", ".mkv", ".mov")


def write_film(path: PathLike, frames: ArrayLike, fps: float = 12.0) -> Path:
    """Write frames to a video file.

    The file appears when it is complete.

    Every frame is written, also if it equals the previous one. A gif stores durations in hundredths of a second, up to
    655.35 seconds for a frame, so its rate is rounded. Other formats need sides of even length: if necessary, the last
    row or column is repeated.

    :param path: the file, whose suffix gives the format.
    :param frames: (T, H, W) in grey or (T, H, W, 3) in colour, from 0 to 255; other values are clipped.
    :param fps: frames per second.
    :returns: the path.
    :raises ValueError: if the frames have another shape or contain NaN, the rate is not positive, or the suffix is not
        gif, mp4, avi, mkv or mov.
    :raises ImportError: if the suffix needs ``pyro_vgpds[video]``, and it is not installed.

    >>> from pyro_vgpds.datasets import make_pendulum_video
    >>> from pyro_vgpds.files.film import write_film
    >>> write_film("pendulum.gif", make_pendulum_video(num_frames=5, height=16, width=16).frames).name
    'pendulum.gif'
    """
    check_path("path", path)
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FILM_SUFFIXES:
        raise ValueError(f"path must end in one of {', '.join(FILM_SUFFIXES)}, but got {path}.")
    check_number("fps", fps, "positive", lambda value: value > 0.0)
    pictures = as_numbers("frames", frames)
    if not (pictures.ndim == 3 or (pictures.ndim == 4 and pictures.shape[-1] == 3)) or pictures.size == 0:
        raise ValueError(f"frames must be (T, H, W) or (T, H, W, 3), but their shape is {pictures.shape}.")
    if not np.isfinite(pictures).all():
        raise ValueError("frames must be finite: a video cannot store missing pixels.")
    pixels = np.clip(np.round(pictures), 0, 255).astype(np.uint8)
    with atomic_write(path) as part:
        if suffix == ".gif":
            _write_gif(part, pixels, fps)
        else:
            _write_video(part, pixels, fps)
    return path


def _write_gif(path: Path, pixels: np.ndarray, fps: float) -> None:
    """Frame by frame, of each the part that changes. Pillow's ``save_all`` would drop frames that do not change."""
    from PIL import GifImagePlugin, Image

    duration = min(max(1, round(100.0 / fps)), 65535) * 10  # milliseconds, whole hundredths of a second
    grey = pixels.ndim == 3
    with path.open("wb") as file:
        for i, frame in enumerate(pixels):
            rows, columns = _changed(frame, pixels[i - 1]) if i else (slice(None), slice(None))
            picture = Image.fromarray(np.ascontiguousarray(frame[rows, columns]))
            picture = picture if grey else picture.convert("P", palette=Image.Palette.ADAPTIVE)
            if not i:
                file.writelines(GifImagePlugin.getheader(picture, info={"loop": 0, "duration": duration})[0])
            corner = (columns.start or 0, rows.start or 0)
            file.writelines(
                GifImagePlugin.getdata(picture, corner, duration=duration, include_color_table=not grey and i > 0)
            )
        file.write(b";")


def _changed(frame: np.ndarray, before: np.ndarray) -> tuple[slice, slice]:
    """The rows and columns of the smallest rectangle with all changed pixels; at least one pixel."""
    differs = (frame != before).reshape(*frame.shape[:2], -1).any(-1)
    rows, columns = (np.flatnonzero(differs.any(axis)) for axis in (1, 0))
    if not len(rows):
        return slice(0, 1), slice(0, 1)
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _write_video(path: Path, pixels: np.ndarray, fps: float) -> None:
    require("av", "video")
    imageio = require("imageio.v3", "video")
    odd = [(0, size % 2) for size in pixels.shape[1:3]]
    colour = pixels if pixels.ndim == 4 else np.repeat(pixels[..., None], 3, -1)
    colour = np.pad(colour, [(0, 0), *odd, (0, 0)], mode="edge")
    imageio.imwrite(path, colour, plugin="pyav", codec="libx264", fps=float(_rate(fps)), in_pixel_format="rgb24")


def _rate(fps: float) -> Fraction:
    """The rate as a ratio of small whole numbers, as video files store it; 1001 is the denominator of television."""
    return Fraction(fps).limit_denominator(1001) if fps >= 1.0 else 1 / Fraction(1.0 / fps).limit_denominator(1001)
