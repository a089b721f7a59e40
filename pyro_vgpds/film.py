# SPDX-License-Identifier: Apache-2.0
"""Frames to video files: gif with pillow, which matplotlib brings; mp4 and others with ``pyro_vgpds[video]``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds.datasets.base import require

__all__ = ["FILM_SUFFIXES", "write_film"]

FILM_SUFFIXES = (".gif", ".mp4", ".avi", ".mkv", ".mov")


def write_film(path: str | os.PathLike[str], frames: Any, fps: float = 12.0) -> Path:
    """Write frames to a video file.

    A gif keeps time in hundredths of a second, so its rate is that of the nearest. Films other than gif need sides of
    even length: the last row or column is doubled where it has to be.

    :param path: the file; its ending says what is written.
    :param frames: (T, H, W) of grey or (T, H, W, 3) of colour, from 0 to 255; what lies outside is clipped.
    :param fps: frames a second.
    :returns: the path.
    :raises ValueError: where the frames are not of that shape or hold NaN, the rate is not positive, or the suffix is
        none of gif, mp4, avi, mkv, mov.
    :raises ImportError: where the suffix needs ``pyro_vgpds[video]``, and it is not installed.

    >>> from pyro_vgpds.datasets import make_pendulum_video
    >>> from pyro_vgpds.film import write_film
    >>> write_film("pendulum.gif", make_pendulum_video(num_frames=5, height=16, width=16).frames).name
    'pendulum.gif'
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FILM_SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(FILM_SUFFIXES)}.")
    pictures = np.asarray(frames)
    if not (pictures.ndim == 3 or (pictures.ndim == 4 and pictures.shape[-1] == 3)) or pictures.size == 0:
        raise ValueError(f"frames must be (T, H, W) or (T, H, W, 3), but their shape is {pictures.shape}.")
    if not np.isfinite(pictures).all():
        raise ValueError("frames must be finite: a film has no way to say that a pixel is missing.")
    if not 0.0 < fps < np.inf:
        raise ValueError(f"fps must be positive, but got {fps!r}.")
    pixels = np.clip(np.round(pictures), 0, 255).astype(np.uint8)
    if suffix == ".gif":
        _write_gif(path, pixels, fps)
    else:
        _write_video(path, pixels, fps)
    return path


def _write_gif(path: Path, pixels: np.ndarray, fps: float) -> None:
    from PIL import Image

    first, *rest = (Image.fromarray(frame) for frame in pixels)
    duration = max(10, round(100.0 / fps) * 10)  # milliseconds, whole hundredths of a second
    first.save(path, format="GIF", save_all=True, append_images=rest, duration=duration, loop=0)


def _write_video(path: Path, pixels: np.ndarray, fps: float) -> None:
    require("av", "video")
    imageio = require("imageio.v3", "video")
    odd = [(0, size % 2) for size in pixels.shape[1:3]]
    colour = pixels if pixels.ndim == 4 else np.repeat(pixels[..., None], 3, -1)
    colour = np.pad(colour, [(0, 0), *odd, (0, 0)], mode="edge")
    imageio.imwrite(path, colour, plugin="pyav", codec="libx264", fps=round(fps), in_pixel_format="rgb24")
