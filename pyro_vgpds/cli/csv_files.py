# SPDX-License-Identifier: Apache-2.0
"""Read csv, tsv and txt files."""

from __future__ import annotations

import csv
import itertools
import math
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pyro_vgpds.cli.dates import has_zone, is_like_date, parse_times, with_hyphens
from pyro_vgpds.cli.errors import CommandError
from pyro_vgpds.cli.layout import InputTable, Layout, listed, select, selecting
from pyro_vgpds.data.dates import OutOfRangeError
from pyro_vgpds.formatting import counted, is_number, to_number

__all__ = ["CSV_SUFFIXES", "read_csv"]

CSV_SUFFIXES = (".csv", ".tsv", ".txt")
_MISSING = {"", "nan", "na", "n/a", "#n/a", "<na>", "null", "none", "-", "?", "."}
_LOGICAL = {"true": 1.0, "false": 0.0}
_TIME_NAMES = ("time", "t", "date", "datetime", "timestamp")


def read_csv(path: Path, layout: Layout) -> InputTable:
    """:raises CommandError: that names the file, the line and the column."""
    header, rows, lines = _read_rows(path)
    times, sequences = (() if name is None else (name.lower(),) for name in layout.usual)
    sequence = _find(header, layout.sequence, (*sequences, "sequence"), "--sequence-column", path)
    usual = (*times, *_TIME_NAMES)
    time = None if layout.no_time else _find_time(header, rows[0], layout.time, usual, sequence, path)
    outputs = [i for i in range(len(header)) if i not in (time, sequence)]
    if not header[0]:  # an index without a name, written by pandas: the times, or row numbers
        if time == 0:
            header[0] = "time"
        elif all(row[0] == str(i) for i, row in enumerate(rows)):
            outputs.remove(0)
        else:
            raise CommandError(f"{path}: column 1 has no name; name it, or delete it.")
    if not outputs:
        raise CommandError(
            f"{path} has no column of outputs besides time and sequence; its columns are {listed(header)}. Cells are "
            "separated by commas, semicolons or tabs. If the file has no times, pass --no-time."
        )
    if layout.columns is not None:
        others = [header[i] for i in outputs]
        outputs = [outputs[i] for i in select(layout.columns, others, len(others), f"{path}: --columns")]
    columns: list[Sequence[str]] = list(zip(*rows, strict=True))
    for i in outputs if layout.missing else ():
        columns[i] = ["" if cell in layout.missing else cell for cell in columns[i]]
    if time is not None:
        columns[time] = with_hyphens(columns[time])
    ignored: tuple[str, ...] = ()
    if layout.columns is None and layout.known is not None:
        text = [i for i in outputs if header[i] not in layout.known and not all(map(_is_number, columns[i]))]
        outputs, ignored = [i for i in outputs if i not in text] or outputs, tuple(header[i] for i in text)
    # times first: if the wrong column was taken for them, its error is the helpful one
    t = np.arange(len(rows), dtype=float) if time is None else _times(columns[time], header[time], path, lines)
    among = {header[i]: columns[i] for i in outputs}
    y = np.stack([_numbers(among, header[i], path, lines) for i in outputs], 1)
    names = [header[i] for i in outputs]
    zoned = time is not None and any(map(has_zone, columns[time]))
    of_times = None if time is None else header[time]
    if sequence is None:
        return InputTable(path, [t], [y], names, zoned=zoned, ignored=ignored, time=of_times)
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(columns[sequence]):
        if not name:
            raise CommandError(
                f"{path}, line {lines[row]}: column {header[sequence]!r} is empty; give the name of a sequence."
            )
        groups.setdefault(name, []).append(row)
    if time is None:
        t = np.concatenate([np.arange(len(part), dtype=float) for part in groups.values()])
        t = t[np.argsort(np.concatenate(list(groups.values())))]
    parts = groups.values()
    return InputTable(
        path, [t[part] for part in parts], [y[part] for part in parts], names, list(groups), zoned=zoned,
        ignored=ignored, time=of_times, sequence=header[sequence],
    )  # fmt: skip


# spreadsheets in some languages write decimal commas and separate cells by semicolons
_COMMA = re.compile(r"^([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)$")
_WITH_MORE = re.compile(r"[<>~]?\W?[\d., ']*\d\W?\D{,5}")  # 12.3 C, 1,234.5, <0.5, 60%
_POINT = re.compile(r"[+-]?[\d,]*\.\d+(?:[eE][+-]?\d+)?")


def _read_rows(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """The header (y0, y1, ... if the file has none), the rows, and each row's line number."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        head = list(itertools.islice(file, 1))
        file.seek(0)
        delimiter = max(",;\t", key=lambda mark: head[0].count(mark)) if head else ","
        reader = csv.reader(file, delimiter=delimiter)
        rows, lines, line = list[list[str]](), list[int](), 1
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append([cell.strip() for cell in row])
                lines.append(line)
            line = reader.line_num + 1  # a cell may have several lines
    if not rows:
        raise CommandError(f"{path} is empty.")
    if delimiter == ";" and not any(_POINT.fullmatch(cell) for row in rows for cell in row):
        rows = [[_COMMA.sub(r"\1.\2", cell) for cell in row] for row in rows]
    if len(rows) > 1 and all(len(row) == len(rows[0]) and not row[-1] for row in rows):
        rows = [row[:-1] for row in rows]  # lines that end with a separator
    header = rows[0]
    if header[0] and all(_is_number(cell) or is_like_date(cell) for cell in header):
        if len(header) > 2 and header == [str(i) for i in range(len(header))] and _has_fractions(rows[1:]):
            raise CommandError(
                f"{path}, line {lines[0]}: 0, 1, 2, … are the numbers of columns, or the first row of a file without "
                "names. Write names in their place, or a line of names before it."
            )
        header = [f"y{i}" for i in range(len(header))]
    else:
        rows, lines = rows[1:], lines[1:]
    if not rows:
        raise CommandError(f"{path} has a header but no rows.")
    widths = [len(row) for row in rows]
    usual = statistics.mode(widths)
    if usual != len(header) and len(rows) > 2 and 2 * widths.count(usual) > len(rows):
        raise CommandError(
            f"{path}: the first line has {counted(len(header), 'cell')}, but most others have {usual}. The first line "
            "must be the names of the columns: delete lines before it."
        )
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            columns = counted(len(header), "column")
            raise CommandError(f"{path}, line {line}: {counted(len(row), 'cell')}, but the header has {columns}.")
    seen: set[str] = set()
    for i, name in enumerate(header):
        if (not name and i > 0) or name in seen:
            fault = f"the same name as another, {name!r}; rename" if name else "no name; name"
            raise CommandError(f"{path}: column {i + 1} has {fault} it, or delete it.")
        seen.add(name)
    return header, rows, lines


def _has_fractions(rows: list[list[str]]) -> bool:
    """Whether every column has a number that is not written as an integer."""
    return bool(rows) and all(any("." in cell for cell in column) for column in zip(*rows, strict=False))


def _find(header: list[str], wanted: str | None, usual: tuple[str, ...], argument: str, path: Path) -> int | None:
    if wanted is not None:
        if wanted not in header:
            raise CommandError(f"{path}: {argument} {wanted!r} is not a column; the columns are {listed(header)}.")
        return header.index(wanted)
    lower = [name.lower() for name in header]
    return next((lower.index(name) for name in usual if name in lower), None)


def _find_time(
    header: list[str], first: list[str], wanted: str | None, usual: tuple[str, ...], sequence: int | None, path: Path
) -> int:
    """The column of this name, of a usual name, with a date in the ``first`` row, or the first one."""
    found = _find(header, wanted, usual, "--time", path)
    others = [i for i in range(len(header)) if i != sequence] or [0]
    return next((i for i in others if is_like_date(first[i])), others[0]) if found is None else found


def _shown(cell: str) -> str:
    """The beginning of a cell. A cell of several lines is that of a quotation mark without its partner."""
    lines = " (a cell of several lines: is a quotation mark missing?)" if "\n" in cell else ""
    return repr(cell if len(cell) <= 40 else f"{cell[:40]}…") + lines


def _to_output(cell: str) -> float:
    """A number, NaN if it is missing, or 1 and 0 for true and false; a ValueError for other text."""
    word = cell.lower()
    return math.nan if word in _MISSING else _LOGICAL[word] if word in _LOGICAL else to_number(cell)


def _is_number(cell: str) -> bool:
    try:
        _to_output(cell)
    except ValueError:
        return False
    return True


def _are_mostly_numbers(cells: Sequence[str]) -> bool:
    """Whether more than half of the cells that are not missing are numbers."""
    known = [_is_number(cell) for cell in cells if cell.lower() not in _MISSING]
    return 2 * sum(known) > len(known)


def _numbers(columns: Mapping[str, Sequence[str]], name: str, path: Path, lines: list[int]) -> np.ndarray:
    """The numbers of a column; if some are text, the error has the argument that selects all other columns."""
    values: list[float] = []
    for i, cell in enumerate(columns[name]):
        try:
            values.append(_to_output(cell))
        except ValueError:
            how = (
                "Leave missing values empty, select the columns of numbers with --columns, or name the column of the "
                "times with --time and that of the sequences' names with --sequence-column."
            )
            if _WITH_MORE.fullmatch(cell):
                how = "Write numbers without units and thousands separators, and leave missing values empty."
            elif _are_mostly_numbers(columns[name]):
                how = f"If it stands for a missing value, pass --missing {shlex.quote(cell)}. Otherwise: {how}"
            raise CommandError(
                f"{path}, line {lines[i]}, column {name!r}: {_shown(cell)} is not a number. {how}"
                f"{_selecting_numbers(columns)}"
            ) from None
        if math.isinf(values[i]):
            raise CommandError(
                f"{path}, line {lines[i]}, column {name!r}: {cell!r} is infinite. Leave missing values empty."
            )
    return np.array(values, dtype=float)


def _selecting_numbers(columns: Mapping[str, Sequence[str]]) -> str:
    """A sentence with the argument that selects the columns of numbers, and one that names those with some text."""
    mixed, pure = list[str](), list[str]()
    for name, cells in columns.items():
        if all(map(_is_number, cells)):
            pure.append(name)
        elif _are_mostly_numbers(cells):
            mixed.append(name)
    also = f" These columns have numbers and text: {listed(mixed)}." if mixed else ""
    return f"{selecting(pure)}{also}"


def _times(cells: Sequence[str], name: str, path: Path, lines: list[int]) -> np.ndarray:
    try:
        times = parse_times(cells)
    except OutOfRangeError as error:
        message, i = error.args
        raise CommandError(f"{path}, line {lines[i]}, column {name!r}: {message}.") from None
    except ValueError as error:
        message, i = error.args
        names = (
            f" If it has the names of sequences, pass --sequence-column {name!r}." if len({*cells}) < len(cells) else ""
        )
        if i == 0 and len(cells) > 1 and (is_number(cells[1]) or is_like_date(cells[1])):
            names += f" If line {lines[0]} has units or descriptions, delete it."
        raise CommandError(
            f"{path}, line {lines[i]}, column {name!r}: {message}. This column was taken for the times.{names} Name "
            "the times' column with --time and the sequences' column with --sequence-column, or pass --no-time if the "
            "file has no times."
        ) from None
    if times.dtype.kind == "f" and not np.isfinite(times).all():
        line = lines[int(np.flatnonzero(~np.isfinite(times))[0])]
        raise CommandError(f"{path}, line {line}, column {name!r}: times must be finite.")
    return times
