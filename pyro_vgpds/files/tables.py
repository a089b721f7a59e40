# SPDX-License-Identifier: Apache-2.0
"""Outputs over time as files: csv, npz or video, by suffix. A file is written completely or not at all."""

from __future__ import annotations

import csv
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from pyro_vgpds.checks import check_kind, check_list, check_number, check_path, check_texts, is_whole
from pyro_vgpds.data.dates import format_times
from pyro_vgpds.files.atomic import atomic_write
from pyro_vgpds.files.film import FILM_SUFFIXES, write_film
from pyro_vgpds.types import PathLike

__all__ = ["table_suffixes", "write_arrays", "write_table"]

DEFAULT_FPS = 12.0
_ALIKE = 1e5  # size of numbers relative to their differences above which ten digits are too few


def table_suffixes(frame_shape: tuple[int, int] | None = None) -> tuple[str, ...]:
    """Suffixes of files that :func:`write_table` can write; videos need the shape of the frames."""
    return (".csv", ".npz", *(FILM_SUFFIXES if frame_shape is not None else ()))


def write_table(
    path: PathLike | TextIO,
    t: np.ndarray,
    y: np.ndarray,
    *,
    stddev: np.ndarray | None = None,
    interval: tuple[np.ndarray, np.ndarray] | None = None,
    columns: Sequence[str] | None = None,
    sequence: Sequence[str] | None = None,
    frame_shape: tuple[int, int] | None = None,
    fps: float | None = None,
    zone: str | None = None,
) -> None:
    """Write outputs (N, D) at times (N,), the rows of several sequences one after the other.

    :param path: the file name, or a text stream for csv.
    :param t: numbers or datetime64[ns], of UTC if there is a ``zone``.
    :param y: means or draws.
    :param stddev: (N, D), for npz.
    :param interval: lower and upper ends, (N, D) each.
    :param columns: names of the outputs. Default: y0, y1, ...
    :param sequence: name of the sequence of each row, (N,).
    :param frame_shape: (H, W) of video frames.
    :param fps: frames per second of a video. Default: 12.
    :param zone: name of the time zone of the dates of a csv file, which then have an offset, such as ``+01:00``.
    :raises ValueError: if the suffix is unknown, or names a video and ``frame_shape`` is not given.

    >>> import sys
    >>> import numpy as np
    >>> from pyro_vgpds.files import write_table
    >>> write_table(sys.stdout, np.array([0.0, 0.5]), np.array([[1.0, 2.0], [3.0, 4.0]]), columns=["hip", "knee"])
    time,hip,knee
    0,1,2
    0.5,3,4
    """
    _check(t, y, stddev, interval, columns, sequence, frame_shape)
    if fps is not None:
        check_number("fps", fps, "positive", lambda value: value > 0.0, "None")
    check_kind("zone", zone, str, "the name of a time zone", optional=True)
    names = list(columns) if columns is not None else [f"y{i}" for i in range(y.shape[1])]
    frames = None if frame_shape is None else y.reshape(len(y), *frame_shape)
    if not hasattr(path, "write") or isinstance(path, type):
        check_path("path", path)
    if not isinstance(path, (str, os.PathLike)):
        _write_csv(path, format_times(t, zone), y, interval, names, sequence)
        return
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in table_suffixes(frame_shape):
        hint = " Videos need frame_shape." if suffix in FILM_SUFFIXES else ""
        raise ValueError(f"path must end in one of {', '.join(table_suffixes(frame_shape))}, but got {path}.{hint}")
    if suffix in FILM_SUFFIXES and frames is not None:
        write_film(path, frames, fps or DEFAULT_FPS)
        return
    with atomic_write(path) as part:
        if suffix == ".csv":
            with part.open("w", encoding="utf-8", newline="") as file:
                _write_csv(file, format_times(t, zone), y, interval, names, sequence)
        else:
            lower, upper = (None, None) if interval is None else interval
            arrays: dict[str, Any] = {
                "t": t,
                "y": y,
                "columns": np.array(names),
                "stddev": stddev,
                "lower": lower,
                "upper": upper,
                "sequence": None if sequence is None else np.array(sequence),
                "frames": frames,
                "fps": None if frames is None or fps is None else np.array(fps),
            }
            write_arrays(part, {name: value for name, value in arrays.items() if value is not None})


def write_arrays(path: PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz file as ``numpy.savez_compressed`` does.

    On a full disk, that of older numpy leaves an archive open, which fails again when it is deleted.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, value, allow_pickle=False)


def _check(
    t: np.ndarray,
    y: np.ndarray,
    stddev: np.ndarray | None,
    interval: tuple[np.ndarray, np.ndarray] | None,
    columns: Sequence[str] | None,
    sequence: Sequence[str] | None,
    frame_shape: tuple[int, int] | None,
) -> None:
    """Raise an error that names the first argument of :func:`write_table` that does not fit."""
    check_kind("t", t, np.ndarray, "an array (N,)")
    check_kind("y", y, np.ndarray, "an array (N, D)")
    if y.ndim != 2 or y.dtype.kind not in "fiub":
        raise ValueError(f"y must be numbers (N, D), but it is {y.dtype} of the shape {y.shape}.")
    if t.shape != y.shape[:1] or t.dtype.kind not in "fiuM":
        raise ValueError(f"t must be numbers or dates ({len(y)},) as y, but it is {t.dtype} of the shape {t.shape}.")
    if interval is not None:
        check_list("interval", interval, "the lower and upper ends")
        if len(interval) != 2:
            raise ValueError(f"interval must be the lower and upper ends, but got {interval!r:.80}.")
    ends = () if interval is None else (("interval", interval[0]), ("interval", interval[1]))
    for name, value in (("stddev", stddev), *ends):
        check_kind(name, value, np.ndarray, "arrays (N, D)", optional=name == "stddev")
        if value is not None and (value.shape != y.shape or value.dtype.kind not in "fiub"):
            raise ValueError(
                f"{name} must be numbers {y.shape} as y, but got {value.dtype} of the shape {value.shape}."
            )
    for name, texts, count in (("columns", columns, y.shape[1]), ("sequence", sequence, len(y))):
        check_texts(name, texts, optional=True)
        if texts is not None and len(texts) != count:
            raise ValueError(f"{name} must be {count} names for y of the shape {y.shape}, but got {len(texts)}.")
    if frame_shape is not None:
        check_list("frame_shape", frame_shape, "(H, W)")
        if not all(is_whole(side) and side > 0 for side in frame_shape) or math.prod(frame_shape) != y.shape[1]:
            raise ValueError(f"frame_shape must be (H, W) with H W = {y.shape[1]}, but got {frame_shape!r:.80}.")


def _write_csv(
    file: TextIO,
    t: list[str],
    y: np.ndarray,
    interval: tuple[np.ndarray, np.ndarray] | None,
    names: list[str],
    sequence: Sequence[str] | None,
) -> None:
    header, blocks = names, [y]
    if interval is not None:
        blocks += interval
        header = [f"{name}{end}" for name in names for end in ("", " lower", " upper")]
    table = np.stack(blocks, -1)  # each output followed by its own interval
    first = ["time"] if sequence is None else ["sequence", "time"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*first, *header])
    writers = [_exact if exact else _short for exact in _are_alike(table) for _ in blocks]
    for row, time in enumerate(t):
        start = [time] if sequence is None else [sequence[row], time]
        numbers = table[row].ravel().tolist()
        writer.writerow([*start, *(write(value) for write, value in zip(writers, numbers, strict=True))])


def _are_alike(table: np.ndarray) -> list[bool]:
    """Whether ten digits would not tell the numbers of an output (N, D, K) apart, for each of D."""
    if table.dtype != np.float64:  # float32 has fewer digits
        return [False] * table.shape[1]
    most, least = (np.asarray(extreme.reduce(table, axis=(0, 2), initial=np.nan)) for extreme in (np.fmax, np.fmin))
    alike: list[bool] = (np.maximum(most, -least) > _ALIKE * (most - least)).tolist()
    return alike


def _short(value: float) -> str:
    return f"{value:.10g}"


def _exact(value: float) -> str:
    short = _short(value)
    return short if float(short) == value else repr(value)
