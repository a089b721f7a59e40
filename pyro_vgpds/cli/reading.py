# SPDX-License-Identifier: Apache-2.0
"""Read data files, csv, npz, npy, bvh and video, as sequences of times and outputs."""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from pyro_vgpds.cli.csv_files import CSV_SUFFIXES, read_csv
from pyro_vgpds.cli.errors import CommandError
from pyro_vgpds.cli.layout import InputTable, Layout, listed, select, selecting
from pyro_vgpds.cli.notes import find_notes
from pyro_vgpds.cli.progress import say
from pyro_vgpds.data.dates import OutOfRangeError, format_times, to_nanoseconds
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.datasets import load_bvh, load_video
from pyro_vgpds.datasets.base import DAMAGED
from pyro_vgpds.files.film import FILM_SUFFIXES
from pyro_vgpds.formatting import is_number
from pyro_vgpds.inference.start import Sizes, check_start

__all__ = ["introduce", "read_data", "read_table"]


def read_data(path: Path, layout: Layout) -> tuple[InputTable, Sequences]:
    """A file to train on: in addition to :func:`read_table`, every output was observed, and something varies."""
    table = read_table(path, layout)
    _check_observed(table)
    try:
        data = Sequences(table.t, table.y, columns=table.columns, names=table.names)
        check_start(data, Sizes(None, None, None))
    except (ValueError, TypeError) as error:
        raise CommandError(f"{path}: {error}") from None
    return table, data


def _check_observed(table: InputTable) -> None:
    """Check that columns are not empty here, where the error can name the argument that selects the others."""
    if table.columns is None:
        return
    seen = np.any([np.isfinite(part).any(0) for part in table.y], 0)
    empty = [name for name, known in zip(table.columns, seen, strict=True) if not known]
    if empty:
        others = [name for name in table.columns if name not in empty]
        which = f"column {empty[0]!r} has" if len(empty) == 1 else f"the columns {listed(empty)} have"
        raise CommandError(f"{table.path}: {which} no numbers.{selecting(others)}")


def introduce(args: argparse.Namespace, table: InputTable, data: Sequences) -> None:
    """Print what was read, unless ``--quiet`` is given."""
    say(args, f"{table.path}: {data}")
    if table.zoned:
        say(args, "the dates have a time zone and become UTC: dates of predictions, --until and --times are UTC")
    if table.reversed:
        say(args, "the rows begin with the latest time: they are read in reverse order")
    for text in find_notes(table.y, table.columns, may_be_counts=table.shape is None and args.likelihood is None):
        say(args, f"note: {text}")


def read_table(path: Path, layout: Layout) -> InputTable:
    """Read a file by its suffix. Errors name the file, and the line and the column if there is one."""
    if not path.is_file():
        raise CommandError(f"file {path} does not exist.")
    suffix = path.suffix.lower()
    try:
        if suffix in CSV_SUFFIXES:
            table = read_csv(path, layout)
        elif suffix in (".npz", ".npy"):
            table = _read_arrays(path, layout)
        elif suffix == ".bvh":
            table = _read_motion(path, layout)
        elif suffix in (*FILM_SUFFIXES, ".webm"):
            table = _read_video(path, layout)
        else:
            known = ", ".join((*CSV_SUFFIXES, ".npz", ".npy", ".bvh", *FILM_SUFFIXES))
            raise CommandError(f"{path}: the suffix of a data file must be one of {known}.")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise CommandError(f"cannot read {path}: it is not UTF-8 text ({byte}). Save it with encoding UTF-8.") from None
    except (OSError, csv.Error) as error:
        raise CommandError(f"cannot read {path}: {error}.") from None
    if layout.columns is not None and suffix not in CSV_SUFFIXES:  # read_csv reads the selected columns only
        chosen = select(layout.columns, table.columns, table.y[0].shape[1], f"{path}: --columns")
        names = None if table.columns is None else [table.columns[i] for i in chosen]
        table = InputTable(path, table.t, [part[:, chosen] for part in table.y], names, table.names)
    if layout.missing:
        codes = [float(code) for code in layout.missing if is_number(code)]
        table = replace(table, y=[np.where(np.isin(part, codes), np.nan, part) for part in table.y])
    table = _from_the_earliest(table)
    _check_times(table)
    return table


def _from_the_earliest(table: InputTable) -> InputTable:
    """Reverse the rows of each sequence if the times of all decrease, as in many downloads of prices."""
    steps = np.concatenate([np.diff(t if t.dtype.kind == "f" else t.astype(np.int64)) for t in table.t])
    if not len(steps) or (steps >= 0).any():
        return table
    return replace(table, t=[t[::-1] for t in table.t], y=[y[::-1] for y in table.y], reversed=True)


def _check_times(table: InputTable) -> None:
    """Check that the times increase here, where the error can name rows and arguments of the command line."""
    for s, t in enumerate(table.t):
        number = t if t.dtype.kind == "f" else t.astype(np.int64)
        back = np.flatnonzero(np.diff(number) <= 0)
        if len(back):
            of = "" if table.names is None else f" of sequence {table.names[s]!r}"
            column = "" if table.time is None else f" (column {table.time!r})"
            i = int(back[0])
            before, after = format_times(t[i : i + 2])
            fault = f"{after} is repeated" if before == after else f"{after} comes after {before}"
            raise CommandError(
                f"{table.path}: the times{of}{column} must increase, but {fault} (row {i + 2}{of}). Sort the rows and "
                "merge those of the same time, or name the sequences' column with --sequence-column, or pass --no-time "
                "if the file has no times."
            )


def _read_arrays(path: Path, layout: Layout) -> InputTable:
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)  # a pickle could run code
            alone = isinstance(content, np.ndarray)
            arrays = {"y": content} if alone else {name: content[name] for name in content.files}
    except DAMAGED as error:
        raise CommandError(f"cannot read {path} as arrays of numbers: {error}.") from None
    if "frames" in arrays or (alone and arrays["y"].ndim == 3):
        return _read_video(path, layout, arrays.get("t"))
    y = arrays.get("y")
    if y is None:
        flat = [a for a in arrays.values() if a.ndim == 2 and a.dtype.kind in "fiu"]
        found = ", ".join(f"{name} {a.shape}" for name, a in arrays.items()) or "nothing"
        if len(flat) != 1:
            raise CommandError(
                f"{path} must contain y (N, D), or frames (T, H, W) of a video, but it contains {found}."
            )
        y = flat[0]
    y = y[:, None] if y.ndim == 1 else y
    if y.ndim != 2 or 0 in y.shape or y.dtype.kind not in "fiub":
        raise CommandError(f"{path}: y must be numbers of shape (N, D), but is {y.dtype} of shape {y.shape}.")
    y = y.astype(np.float64)
    if np.isinf(y).any():
        raise CommandError(f"{path}: y must be finite, or NaN for missing values.")
    groups = {"": np.arange(len(y))}
    if (sequence := arrays.get("sequence")) is not None:
        labels = [str(name) for name in _rows(sequence, len(y), "sequence", "iuU", path)]
        groups = {name: np.flatnonzero(np.array(labels) == name) for name in dict.fromkeys(labels)}
    given = None if layout.no_time else next((arrays[n] for n in ("t", "time", "times") if n in arrays), None)
    parts = [np.arange(len(rows), dtype=float) for rows in groups.values()]
    if given is not None:
        t = _rows(given, len(y), "t", "fiuM", path)
        try:
            t = to_nanoseconds(t) if t.dtype.kind == "M" else t.astype(np.float64)
        except OutOfRangeError as error:
            raise CommandError(f"{path}: t: {error.args[0]}.") from None
        if not (np.isfinite(t) if t.dtype.kind == "f" else ~np.isnat(t)).all():
            raise CommandError(f"{path}: times must be finite.")
        parts = [t[rows] for rows in groups.values()]
    names = arrays.get("columns")
    columns = None if names is None else [str(n) for n in _rows(names, y.shape[1], "columns", "U", path)]
    return InputTable(
        path, parts, [y[rows] for rows in groups.values()], columns, list(groups) if sequence is not None else None
    )


def _rows(value: np.ndarray, count: int, name: str, kinds: str, path: Path) -> np.ndarray:
    if value.shape != (count,) or value.dtype.kind not in kinds:
        what = {"t": "numbers or dates", "sequence": "integers or strings"}.get(name, "strings")
        raise CommandError(
            f"{path}: {name} must be {what} of shape ({count},), but is {value.dtype} of shape {value.shape}."
        )
    return value


def _read_motion(path: Path, layout: Layout) -> InputTable:
    try:
        motion = load_bvh(path)
    except ValueError as error:
        raise CommandError(str(error)) from None
    times = np.arange(len(motion.t[0]), dtype=float) if layout.no_time else motion.t[0]
    return InputTable(path, [times], motion.y, motion.columns)


def _read_video(path: Path, layout: Layout, t: np.ndarray | None = None) -> InputTable:
    try:
        video = load_video(path, factor=layout.shrink)
    except ValueError as error:
        raise CommandError(str(error)) from None
    times = video.t[0] if t is None else _rows(t, len(video.t[0]), "t", "fiu", path).astype(np.float64)
    return InputTable(path, [times], video.y, None, None, video.shape, video.fps if np.isfinite(video.fps) else None)
