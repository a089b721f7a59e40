# SPDX-License-Identifier: Apache-2.0
"""Files of data: csv, npz, npy and video, as one or several sequences of times and outputs."""

from __future__ import annotations

import csv
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds.cli.dates import OutOfRangeError, parse_times, to_nanoseconds
from pyro_vgpds.cli.errors import CommandError
from pyro_vgpds.datasets import load_video
from pyro_vgpds.datasets.base import DAMAGED
from pyro_vgpds.files.film import FILM_SUFFIXES

__all__ = ["Layout", "Table", "read_table", "select"]

_MISSING = {"", "nan", "na", "n/a", "null", "none"}
_TIME_NAMES = ("time", "t", "date", "datetime", "timestamp")
_TABLES = (".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class Layout:
    """Which columns of a file mean what; None is "find out"."""

    time: str | None = None  #: name of the column of times
    sequence: str | None = None  #: name of the column that says which sequence a row is of
    columns: str | None = None  #: names or numbers of the outputs, with commas
    no_time: bool = False  #: there is no column of times: rows are numbered
    shrink: int = 1  #: of videos


@dataclass(frozen=True)
class Table:
    """What a file holds."""

    path: Path
    t: list[np.ndarray]  #: times of each sequence, numbers or datetime64[ns]
    y: list[np.ndarray]  #: outputs (N_s, D), NaN where missing
    columns: list[str] | None = None
    names: list[str] | None = None  #: of the sequences, where the file tells them apart
    shape: tuple[int, int] | None = None  #: (H, W) of the frames of a video
    fps: float | None = None


def read_table(path: Path, layout: Layout) -> Table:
    """Read a file by its suffix.

    :raises CommandError: which names the file, and the line and the column where there is one, and what is wanted.
    """
    if not path.is_file():
        raise CommandError(f"there is no file {path}.")
    suffix = path.suffix.lower()
    try:
        if suffix in _TABLES:
            table = _read_csv(path, layout)
        elif suffix in (".npz", ".npy"):
            table = _read_arrays(path, layout)
        elif suffix in (*FILM_SUFFIXES, ".webm"):
            table = _read_video(path, layout)
        else:
            known = ", ".join((*_TABLES, ".npz", ".npy", *FILM_SUFFIXES))
            raise CommandError(f"{path}: a file of data ends in one of {known}.")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{path} cannot be read: {error}.") from None
    if layout.columns is not None and suffix not in _TABLES:  # of a table they were chosen before cells were read
        chosen = select(layout.columns, table.columns, table.y[0].shape[1], f"{path}: --columns")
        names = None if table.columns is None else [table.columns[i] for i in chosen]
        table = Table(path, table.t, [part[:, chosen] for part in table.y], names, table.names)
    _check_times(table)
    return table


def select(text: str, names: list[str] | None, count: int, argument: str) -> list[int]:
    """Numbers of columns from names, numbers (from 0) and ranges of numbers ``first:after``, with commas.

    :raises CommandError: where one is unknown or stands twice.
    """
    chosen: list[int] = []
    for part in (part.strip() for part in text.split(",")):
        first, colon, after = part.partition(":")
        if names and part in names:
            chosen.append(names.index(part))
        elif first.isdigit() and (after.isdigit() if colon else True):
            chosen += range(int(first), int(after) if colon else int(first) + 1)
        else:
            known = ", ".join((names or [])[:20]) + (", …" if names and len(names) > 20 else "")
            raise CommandError(f"{argument}: there is no column {part!r}; " + (
                f"the columns are {known}." if names else f"they have numbers, 0 to {count - 1}."))  # fmt: skip
    odd = [i for i in chosen if i >= count]
    if odd or not chosen or len(set(chosen)) < len(chosen):
        fault = f"{odd[0]} is none of them" if odd else "one stands twice" if chosen else f"{text!r} names none"
        raise CommandError(f"{argument}: the columns have numbers 0 to {count - 1}, but {fault}.")
    return chosen


def _check_times(table: Table) -> None:
    """Times must increase: said here in the words of a file, not of arrays."""
    for s, t in enumerate(table.t):
        number = t if t.dtype.kind == "f" else t.astype(np.int64)
        back = np.flatnonzero(np.diff(number) <= 0)
        if len(back):
            of = "" if table.names is None else f" of sequence {table.names[s]!r}"
            i = int(back[0])
            raise CommandError(
                f"{table.path}: the times{of} must increase, but {t[i + 1]} comes after {t[i]} (row {i + 2}{of}). Sort "
                "the rows; or name the column that says which sequence a row is of by --sequence-column; or, where "
                "there are no times, say --no-time."
            )


# csv


def _read_csv(path: Path, layout: Layout) -> Table:
    header, rows, lines = _read_rows(path)
    sequence = _find(header, layout.sequence, ("sequence",), "--sequence-column", path)
    time = None if layout.no_time else _find(header, layout.time, _TIME_NAMES, "--time", path)
    if time is None and not layout.no_time:
        time = 1 if sequence == 0 and len(header) > 1 else 0  # the first that is not taken
    outputs = [i for i in range(len(header)) if i not in (time, sequence)]
    if not outputs:
        raise CommandError(f"{path} has no column of outputs beside time and sequence; its columns are {header}.")
    if layout.columns is not None:
        among = [header[i] for i in outputs]
        outputs = [outputs[i] for i in select(layout.columns, among, len(among), f"{path}: --columns")]
    columns = list(zip(*rows, strict=True))
    # times first: where the wrong column is taken for them, that is what to say
    t = np.arange(len(rows), dtype=float) if time is None else _times(columns[time], header[time], path, lines)
    y = np.stack([_numbers(columns[i], header[i], path, lines) for i in outputs], 1)
    names = [header[i] for i in outputs]
    if sequence is None:
        return Table(path, [t], [y], names)
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(columns[sequence]):
        if not name:
            raise CommandError(f"{path}, line {lines[row]}: column {header[sequence]!r} is empty; name a sequence.")
        groups.setdefault(name, []).append(row)
    if time is None:
        t = np.concatenate([np.arange(len(part), dtype=float) for part in groups.values()])
        t = t[np.argsort(np.concatenate(list(groups.values())))]
    return Table(path, [t[part] for part in groups.values()], [y[part] for part in groups.values()], names,
                 list(groups))  # fmt: skip


# as spreadsheets write numbers where the comma is the decimal mark, and cells are set apart by semicolons
_COMMA = re.compile(r"^([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)$")
_POINT = re.compile(r"[+-]?[\d,]*\.\d+(?:[eE][+-]?\d+)?")


def _read_rows(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """The header (made up where there is none), the rows, and the line of each in the file."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        head = list(itertools.islice(file, 1))
        file.seek(0)
        delimiter = max(",;\t", key=lambda mark: head[0].count(mark)) if head else ","
        reader = csv.reader(file, delimiter=delimiter)
        rows, lines = [], []
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append([cell.strip() for cell in row])
                lines.append(reader.line_num)
    if not rows:
        raise CommandError(f"{path} is empty.")
    if delimiter == ";" and not any(_POINT.fullmatch(cell) for row in rows for cell in row):
        rows = [[_COMMA.sub(r"\1.\2", cell) for cell in row] for row in rows]
    header = rows[0]
    if header[0] and all(_is_value(cell) for cell in header):
        header = [f"y{i}" for i in range(len(header))]
    else:
        rows, lines = rows[1:], lines[1:]
    if not rows:
        raise CommandError(f"{path} has a header, but no rows.")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise CommandError(f"{path}, line {line}: {len(row)} cells, but there are {len(header)} columns.")
    if not header[0] and "time" not in header:
        header[0] = "time"  # as pandas writes an index that has no name
    for i, name in enumerate(header):
        if not name or name in header[:i]:
            fault = f"the name {name!r} again" if name else "no name"
            raise CommandError(f"{path}: column {i + 1} has {fault}.")
    return header, rows, lines


def _is_value(cell: str) -> bool:
    """A cell that is data and not a name."""
    if cell.lower() in _MISSING:
        return True
    try:
        parse_times([cell])
    except OutOfRangeError:
        return True
    except ValueError:
        return False
    return True


def _find(header: list[str], wanted: str | None, usual: tuple[str, ...], argument: str, path: Path) -> int | None:
    if wanted is not None:
        if wanted not in header:
            raise CommandError(f"{path}: {argument} {wanted!r} is not a column; the columns are {', '.join(header)}.")
        return header.index(wanted)
    lower = [name.lower() for name in header]
    return next((lower.index(name) for name in usual if name in lower), None)


def _numbers(cells: tuple[str, ...], name: str, path: Path, lines: list[int]) -> np.ndarray:
    values = np.empty(len(cells))
    for i, cell in enumerate(cells):
        try:
            values[i] = np.nan if cell.lower() in _MISSING else float(cell)
        except ValueError:
            raise CommandError(
                f"{path}, line {lines[i]}, column {name!r}: {cell!r} is not a number. Leave a cell empty where nothing "
                "was observed, or leave the column out by naming the others: --columns."
            ) from None
        if np.isinf(values[i]):
            raise CommandError(f"{path}, line {lines[i]}, column {name!r}: {cell!r} is infinite; leave the cell empty.")
    return values


def _times(cells: tuple[str, ...], name: str, path: Path, lines: list[int]) -> np.ndarray:
    try:
        times = parse_times(cells)
    except OutOfRangeError as error:
        message, i = error.args
        raise CommandError(f"{path}, line {lines[i]}, column {name!r}: {message}.") from None
    except ValueError as error:
        message, i = error.args
        raise CommandError(
            f"{path}, line {lines[i]}, column {name!r}: {message}. It is taken for the times: name another column by "
            "--time, or say --no-time where the file has no times. The column that says which sequence a row is of is "
            "named by --sequence-column."
        ) from None
    if times.dtype.kind == "f" and not np.isfinite(times).all():
        line = lines[int(np.flatnonzero(~np.isfinite(times))[0])]
        raise CommandError(f"{path}, line {line}, column {name!r}: every row needs a finite time.")
    return times


# arrays and videos


def _read_arrays(path: Path, layout: Layout) -> Table:
    try:
        with path.open("rb") as file:
            content: Any = np.load(file, allow_pickle=False)  # a data file must not be able to run code
            alone = isinstance(content, np.ndarray)
            arrays = {"y": content} if alone else {name: content[name] for name in content.files}
    except DAMAGED as error:
        raise CommandError(f"{path} cannot be read as arrays of numbers: {error}.") from None
    if "frames" in arrays or (alone and arrays["y"].ndim == 3):
        return _read_video(path, layout, arrays.get("t"))
    y = arrays.get("y")
    if y is None:
        flat = [a for a in arrays.values() if a.ndim == 2 and a.dtype.kind in "fiu"]
        held = ", ".join(f"{name} {a.shape}" for name, a in arrays.items()) or "nothing"
        if len(flat) != 1:
            raise CommandError(f"{path} must hold y (N, D), or frames (T, H, W) of a video, but it holds {held}.")
        y = flat[0]
    y = y[:, None] if y.ndim == 1 else y
    if y.ndim != 2 or 0 in y.shape or y.dtype.kind not in "fiub":
        raise CommandError(f"{path}: y must be numbers (N, D), but is {y.dtype} of shape {y.shape}.")
    y = y.astype(np.float64)
    if np.isinf(y).any():
        raise CommandError(f"{path}: y must be finite, or NaN where nothing was observed.")
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
            raise CommandError(f"{path}: every row needs a finite time, but t has one that is not.")
        parts = [t[rows] for rows in groups.values()]
    names = arrays.get("columns")
    columns = None if names is None else [str(n) for n in _rows(names, y.shape[1], "columns", "U", path)]
    return Table(
        path, parts, [y[rows] for rows in groups.values()], columns, list(groups) if sequence is not None else None
    )


def _rows(value: np.ndarray, count: int, name: str, kinds: str, path: Path) -> np.ndarray:
    if value.shape != (count,) or value.dtype.kind not in kinds:
        what = {"t": "numbers or dates", "sequence": "numbers or texts"}.get(name, "texts")
        raise CommandError(f"{path}: {name} must be {what} ({count},), but is {value.dtype} of shape {value.shape}.")
    return value


def _read_video(path: Path, layout: Layout, t: np.ndarray | None = None) -> Table:
    try:
        video = load_video(path, factor=layout.shrink)
    except ValueError as error:
        raise CommandError(str(error)) from None
    times = video.t[0] if t is None else _rows(t, len(video.t[0]), "t", "fiu", path).astype(np.float64)
    return Table(path, [times], video.y, None, None, video.shape, video.fps if np.isfinite(video.fps) else None)
