# SPDX-License-Identifier: Apache-2.0
"""Answers as files: csv, npz or video by suffix. A file is complete or not there, and is not replaced unasked."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds.cli.dates import format_times
from pyro_vgpds.cli.errors import CommandError, UsageError
from pyro_vgpds.files.container import beside, placed
from pyro_vgpds.files.film import FILM_SUFFIXES, write_film

__all__ = ["Answer", "check_output", "write_answer"]

DEFAULT_FPS = 12.0


@dataclass(frozen=True)
class Answer:
    """What was predicted, in the units of the data: rows of one or several sequences, one after the other."""

    t: np.ndarray  #: (N,) numbers or datetime64[ns]
    mean: np.ndarray  #: (N, D), or draws
    stddev: np.ndarray | None = None  #: (N, D)
    columns: list[str] | None = None
    sequence: list[str] | None = None  #: (N,) which sequence each row is of
    interval: tuple[np.ndarray, np.ndarray] | None = None  #: (N, D) each, lower and upper ends
    shape: tuple[int, int] | None = None  #: (H, W) of the frames of a video
    fps: float | None = None


def check_output(
    path: Path | None,
    force: bool,
    suffixes: Sequence[str],
    argument: str = "-o/--output",
    inputs: Sequence[Path | None] = (),
    instead: str = "Give another name, or --force to replace it.",
) -> None:
    """Refuse, before any work is done, what could not be written at the end.

    :param inputs: files that are read, which are not replaced whatever ``force`` says.
    :param instead: what to do where the file is there already.
    :raises UsageError: where the suffix is unknown, or the file is there already and ``force`` is not given.
    :raises CommandError: where there is no folder for it, or the folder takes no files.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise UsageError(f"{argument} must end in one of {', '.join(suffixes)}, but got {path}.")
    if path.is_dir():
        raise UsageError(f"{argument} must be a file, but {path} is a folder.")
    if any(other is not None and other.resolve() == path.resolve() for other in inputs):
        raise UsageError(f"{argument}: {path} is what is to be read; give another name.")
    if path.exists() and not force:
        raise UsageError(f"{argument}: {path} is there already. {instead}")
    if not path.absolute().parent.is_dir():
        raise CommandError(f"{argument}: there is no folder {path.absolute().parent}.")
    try:  # modes of the folder do not tell: of root, of file systems that are read only, of names that are too long
        part = beside(path)
        part.touch(exist_ok=False)
        part.unlink()
    except OSError as error:
        raise CommandError(f"{argument}: {path} cannot be written: {error.strerror}.") from None


def write_answer(answer: Answer, path: Path | None) -> None:
    """To a csv, npz or film by suffix, or where ``path`` is None as csv to the standard output."""
    if path is None:
        _write_csv(answer, sys.stdout)
        return
    with placed(path) as part:
        if path.suffix.lower() == ".csv":
            with part.open("w", encoding="utf-8", newline="") as file:
                _write_csv(answer, file)
        elif path.suffix.lower() == ".npz":
            with part.open("wb") as file:
                np.savez_compressed(file, **_arrays(answer))
        else:
            write_film(part, _frames(answer), answer.fps or DEFAULT_FPS)


def film_suffixes(shape: Any) -> tuple[str, ...]:
    """Suffixes that an answer can have: films are of videos only."""
    return (".csv", ".npz", *(FILM_SUFFIXES if shape is not None else ()))


def _names(answer: Answer) -> list[str]:
    return answer.columns or [f"y{i}" for i in range(answer.mean.shape[1])]


def _write_csv(answer: Answer, file: Any) -> None:
    names, blocks = _names(answer), [answer.mean]
    header = list(names)
    if answer.interval is not None:
        blocks += answer.interval
        header = [f"{name}{end}" for name in names for end in ("", " lower", " upper")]
    table = np.stack(blocks, -1).reshape(len(answer.mean), -1)  # each output with its own interval beside it
    first = ["time"] if answer.sequence is None else ["sequence", "time"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*first, *header])
    for row, time in enumerate(format_times(answer.t)):
        start = [time] if answer.sequence is None else [answer.sequence[row], time]
        writer.writerow([*start, *(f"{value:.10g}" for value in table[row])])


def _arrays(answer: Answer) -> dict[str, Any]:
    arrays: dict[str, Any] = {"t": answer.t, "y": answer.mean, "columns": np.array(_names(answer))}
    if answer.stddev is not None:
        arrays["stddev"] = answer.stddev
    if answer.interval is not None:
        arrays["lower"], arrays["upper"] = answer.interval
    if answer.sequence is not None:
        arrays["sequence"] = np.array(answer.sequence)
    if answer.shape is not None:
        arrays["frames"] = _frames(answer)
        if answer.fps is not None:
            arrays["fps"] = np.array(answer.fps)
    return arrays


def _frames(answer: Answer) -> np.ndarray:
    assert answer.shape is not None
    return answer.mean.reshape(len(answer.mean), *answer.shape)
