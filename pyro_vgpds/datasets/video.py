# SPDX-License-Identifier: Apache-2.0
"""Videos as data: every pixel is an output, every frame a row."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from types import ModuleType

import numpy as np

from pyro_vgpds.checks import as_numbers, check_choice, check_count, check_kind, check_path
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.datasets.base import DAMAGED, Dataset, require
from pyro_vgpds.datasets.cache import find_file
from pyro_vgpds.types import PathLike

__all__ = ["Video", "load_clip", "load_missa", "load_video"]

_NO_LICENCE = "No licence stated: do not redistribute."
_CLIPS = {
    "mouse": ("mouse/mouse_run_100f_half_gray.npz", "a mouse that runs on a wheel, period 15 frames", "MIT licence."),
    "ocean": ("ocean64/ocean64_gray.npz", "water", _NO_LICENCE),
    "pendulum": ("pendulum/pendulum_102f_quarter_gray.npz", "a pendulum, period 26 frames", _NO_LICENCE),
    "seawave": ("seawave/seawave_half_gray.npz", "sea waves", _NO_LICENCE),
}
_MISSA_SHAPE = (150, 144, 176)
_MISSA_TERMS = "Part of Ptolemy II (github.com/icyphy/ptII), BSD-like licence."


@dataclass(frozen=True, repr=False)
class Video(Dataset):
    """A greyscale video as one sequence: ``y[0]`` is (T, H W), brightness from 0 to 255, and time is the frame number.

    A video with a split has ``train`` and ``test`` frames, and pixels that are ``hidden`` in the test frames.

    >>> from dataclasses import replace
    >>> import numpy as np
    >>> from pyro_vgpds.datasets import make_pendulum_video
    >>> video = make_pendulum_video(num_frames=20, height=8, width=8)
    >>> split = replace(video, train=np.arange(15), test=np.arange(15, 20), hidden=np.arange(64) < 32)
    >>> split.training()
    Sequences(1 sequence, 15 frames, 64 outputs)
    """

    shape: tuple[int, int] = field(kw_only=True)  #: (H, W) of a frame
    fps: float = field(kw_only=True)  #: frames per second; NaN if unknown
    train: np.ndarray | None = None  #: indices of the training frames
    test: np.ndarray | None = None  #: indices of the test frames
    hidden: np.ndarray | None = None  #: (H W,) of bool, pixels that are hidden in test frames

    @property
    def frames(self) -> np.ndarray:
        """The video as images (T, H, W)."""
        return self.to_frames(self.y[0])

    def to_frames(self, y: np.ndarray) -> np.ndarray:
        """Rows of pixels as images (..., H, W), for example to plot predictions.

        :param y: (..., H W).
        :raises ValueError: if the size of the last axis is not H W.
        """
        rows, pixels = as_numbers("y", y), self.shape[0] * self.shape[1]
        if rows.shape[-1:] != (pixels,):
            raise ValueError(f"the last axis of y must have {pixels} pixels, but the shape of y is {rows.shape}.")
        return rows.reshape(*rows.shape[:-1], *self.shape)

    def training(self) -> Sequences:
        """The training frames. Raises a ValueError if the video has no split."""
        rows = self._split()[0]
        return Sequences(self.t[0][rows], self.y[0][rows])

    def partial(self) -> tuple[np.ndarray, np.ndarray]:
        """Times (N,) and pixels (N, H W) of the test frames, NaN where hidden. Raises as :meth:`training`."""
        _, rows, hidden = self._split()
        return self.t[0][rows], np.where(hidden, np.nan, self.y[0][rows])

    def truth(self) -> np.ndarray:
        """The hidden pixels (N, H W) of the test frames, NaN where observed. Raises as :meth:`training`."""
        _, rows, hidden = self._split()
        return np.where(hidden, self.y[0][rows], np.nan)

    def _split(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.train is None or self.test is None or self.hidden is None:
            raise ValueError("this video has no split: add one by dataclasses.replace(video, train=, test=, hidden=).")
        return self.train, self.test, self.hidden


def load_video(path: PathLike, *, factor: int = 1, start: int = 0, stop: int | None = None, every: int = 1) -> Video:
    """Load a video file as greyscale pixels.

    :param path: an ``.npz`` with ``frames`` (T, H, W) and optionally ``fps``; an ``.npy`` with the frames; or any video
        that ``pyro_vgpds[video]`` (imageio and av) can read: mp4, avi, mkv, gif. Colour is converted to grey. A gif
        frame that is shown k times as long as the shortest is repeated k times.
    :param factor: integer by which to downsample: each pixel is the mean of factor x factor pixels. Remaining pixels
        at the right and at the bottom are cropped.
    :param start: the first frame; ``start``, ``stop`` and ``every`` work as in a slice. Times are frame numbers in the
        file.
    :param stop: the frame after the last. Default: up to the end.
    :param every: step between frames.
    :raises FileNotFoundError: if the file does not exist.
    :raises ValueError: if the file is not a video, or no frame or pixel remains.

    >>> import numpy as np
    >>> from pyro_vgpds.datasets import load_video
    >>> np.savez("clip.npz", frames=np.zeros((30, 16, 24), dtype=np.uint8), fps=25)
    >>> video = load_video("clip.npz", factor=2, stop=20)
    >>> video.frames.shape, video.fps
    ((20, 8, 12), 25.0)
    """
    check_path("path", path)
    check_count("factor", factor)
    check_count("every", every)
    check_kind("start", start, Integral, "a whole number")
    check_kind("stop", stop, Integral, "a whole number", optional=True)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"the video {path} does not exist.")
    frames, fps = _read_arrays(path) if path.suffix.lower() in (".npz", ".npy") else _read_film(path)
    number = np.arange(len(frames))[start:stop:every]
    pictures = _shrink(frames[start:stop:every], factor)
    if pictures.size == 0:
        raise ValueError(f"no pixels remain of {path}, {frames.shape}, with {start=}, {stop=}, {every=}, {factor=}.")
    shape = (pictures.shape[1], pictures.shape[2])
    return Video(
        [number.astype(np.float64)],
        [pictures.reshape(len(pictures), -1)],
        f"{path.name}, {len(pictures)} frames of {shape[0]} x {shape[1]}",
        shape=shape,
        fps=fps,
    )


def load_missa(*, data_home: PathLike | None = None, download: bool = False) -> Video:
    """Load the paper's 'Missa' (Miss America) at QCIF size, 150 frames of 144 x 176, with the paper's split.

    Blocks of four frames alternate between training and test. The last six frames and the frames 48, 63, 78, 86, 96,
    111 and 118 (counted from 1) are also for training. This gives 85 training and 65 test frames. The top 78 rows of
    the test frames are hidden.

    Terms: part of Ptolemy II, BSD-like licence.

    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: has no effect: the file cannot be downloaded.
    :raises FileNotFoundError: if the file is missing; it has to be copied by hand, as the message describes.
    :raises ValueError: if its frames have another shape.

    >>> from pyro_vgpds.datasets import load_missa
    >>> video = load_missa()  # doctest: +SKIP
    >>> video.training()  # doctest: +SKIP
    Sequences(1 sequence, 85 frames, 25344 outputs)
    """
    video = load_video(find_file("missa_qcif/missa_qcif.npz", data_home, download))
    if video.frames.shape != _MISSA_SHAPE:
        raise ValueError(f"the frames of missa_qcif.npz must be {_MISSA_SHAPE}, but got {video.frames.shape}.")
    training = np.arange(_MISSA_SHAPE[0]) % 8 < 4
    training[-6:] = True
    training[np.array([48, 63, 78, 86, 96, 111, 118]) - 1] = True
    return replace(
        video,
        description="Miss America, 150 frames of 144 x 176",
        terms=_MISSA_TERMS,
        train=np.flatnonzero(training),
        test=np.flatnonzero(~training),
        hidden=np.repeat(np.arange(_MISSA_SHAPE[1]) < 78, _MISSA_SHAPE[2]),
    )


def load_clip(name: str, *, data_home: PathLike | None = None, download: bool = False) -> Video:
    """Load a short clip: ``"ocean"`` (100 x 64 x 64), ``"seawave"`` (250 x 144 x 176), ``"mouse"`` (100 x 203 x 198,
    period 15 frames) or ``"pendulum"`` (102 x 88 x 160, period 26 frames).

    Terms: ``"mouse"`` is from paninski-lab/lightning-pose, MIT licence. The owners of the others state no licence: do
    not redistribute them. None has a pinned URL, so the files have to be copied by hand.

    :param name: name of the clip.
    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: has no effect: the files cannot be downloaded.
    :raises ValueError: if ``name`` is unknown.
    :raises FileNotFoundError: if the file is missing; the message names the file, its source and the folder.

    >>> from pyro_vgpds.datasets import load_clip
    >>> load_clip("mouse").frames.shape  # doctest: +SKIP
    (100, 203, 198)
    """
    check_choice("name", name, list(_CLIPS))
    file, description, terms = _CLIPS[name]
    video = load_video(find_file(file, data_home, download))
    size = " x ".join(str(n) for n in (len(video.t[0]), *video.shape))
    return replace(video, description=f"{description}, {size}", terms=terms)


def _read_arrays(path: Path) -> tuple[np.ndarray, float]:
    fps = float("nan")
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)  # a data file must not be able to run code
            if isinstance(content, np.ndarray):
                frames = content
            elif "frames" not in content:
                raise ValueError(f"it has no 'frames', only {', '.join(content) or 'nothing'}")
            else:
                frames = content["frames"]
                fps = float(content["fps"]) if "fps" in content else fps
    except DAMAGED as error:
        raise ValueError(f"{path} cannot be read as a video: {error}") from error
    if frames.ndim != 3 or frames.dtype.kind not in "fiu":
        raise ValueError(
            f"{path}: the frames must be numbers (T, H, W), but got {frames.dtype} of shape {frames.shape}."
        )
    return frames, fps


def _read_film(path: Path) -> tuple[np.ndarray, float]:
    av = require("av", "video")
    imageio = require("imageio.v3", "video")
    try:
        frames = np.stack(list(imageio.imiter(path, plugin="pyav", format="gray")))
        fps = float(imageio.immeta(path, plugin="pyav").get("fps") or "nan")
        if path.suffix.lower() == ".gif":
            repeats, rate = _gif_repeats(av, path, len(frames))
            frames, fps = frames.repeat(repeats, axis=0), rate or fps
    except (av.FFmpegError, OSError, ValueError, IndexError) as error:
        raise ValueError(f"{path} cannot be read as a video: {error}") from error
    return frames, fps


def _gif_repeats(av: ModuleType, path: Path, count: int) -> tuple[np.ndarray, float | None]:
    """The duration of each gif frame in units of the shortest, and the frame rate of that unit.

    Many programs merge equal consecutive frames into one of longer duration. All are 1 if the durations are not
    multiples of the shortest.
    """
    with av.open(str(path)) as film:
        stream = film.streams.video[0]
        ticks = np.array([packet.duration or 0 for packet in film.demux(stream) if packet.size], dtype=np.int64)
        if len(ticks) != count or ticks.min() < 1 or (ticks % ticks.min()).any():
            return np.ones(count, dtype=np.int64), None
        return ticks // ticks.min(), float(1 / (int(ticks.min()) * stream.time_base))


def _shrink(frames: np.ndarray, factor: int) -> np.ndarray:
    height, width = (size // factor for size in frames.shape[1:])
    cut = frames[:, : height * factor, : width * factor].astype(np.float64)
    return cut if factor == 1 else cut.reshape(len(cut), height, factor, width, factor).mean((2, 4))
