# SPDX-License-Identifier: Apache-2.0
"""The content of a data file: which columns mean what, and the sequences that were read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyro_vgpds.cli.errors import CommandError

__all__ = ["InputTable", "Layout", "listed", "select", "selecting"]


_LISTED = 20  # names in an error message


@dataclass(frozen=True)
class Layout:
    """Which columns of a file mean what. None: look for the usual names."""

    time: str | None = None  #: name of the times' column
    sequence: str | None = None  #: name of the column with each row's sequence
    columns: str | None = None  #: names or numbers of the outputs, separated by commas
    no_time: bool = False  #: the file has no times: number the rows
    shrink: int = 1  #: of videos: N x N pixels become one
    missing: tuple[str, ...] = ()  #: further cells that stand for missing values
    usual: tuple[str | None, str | None] = (None, None)  #: columns of times and sequences that training had
    known: tuple[str, ...] | None = None  #: the outputs of a model: other columns may have text, which is ignored

    @classmethod
    def of(cls, args: argparse.Namespace) -> Layout:
        missing = tuple(part.strip() for part in (args.missing or "").split(",") if part.strip())
        return cls(args.time, args.sequence_column, args.columns, args.no_time, args.shrink or 1, missing)


@dataclass(frozen=True)
class InputTable:
    """The sequences of a data file."""

    path: Path
    t: list[np.ndarray]  #: times of each sequence, numbers or datetime64[ns]
    y: list[np.ndarray]  #: outputs (N_s, D), NaN where missing
    columns: list[str] | None = None
    names: list[str] | None = None  #: of the sequences, if the file names them
    shape: tuple[int, int] | None = None  #: (H, W) of the frames of a video
    fps: float | None = None
    zoned: bool = False  #: whether the dates of the file have a time zone and were converted to UTC
    ignored: tuple[str, ...] = ()  #: columns of text
    time: str | None = None  #: name of the times' column
    sequence: str | None = None  #: name of the column with each row's sequence
    reversed: bool = False  #: whether the file begins with the latest times


def listed(names: Sequence[str]) -> str:
    """Names as text; of many only the first."""
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")


def selecting(names: Sequence[str]) -> str:
    """A sentence with the argument that selects these columns; none if they are too many, or it cannot name them."""
    if not 0 < len(names) <= _LISTED or any(mark in name for name in names for mark in ",:\"'$`!\\"):
        return ""
    return f' All columns of numbers are selected by --columns "{",".join(names)}".'


def select(text: str, names: list[str] | None, count: int, argument: str) -> list[int]:
    """Column numbers from names, numbers (from 0) and ranges ``first:after``, separated by commas."""
    chosen: list[int] = []
    places = {name: i for i, name in reversed(list(enumerate(names or [])))}
    for part in (part.strip() for part in text.split(",")):
        first, colon, after = part.partition(":")
        if part in places:
            chosen.append(places[part])
        elif first.isdigit() and (after.isdigit() if colon else True):
            chosen += range(int(first), int(after) if colon else int(first) + 1)
        else:
            raise CommandError(f"{argument}: unknown column {part!r}; " + (
                f"the columns are {listed(names)}." if names else f"their numbers are 0 to {count - 1}."))  # fmt: skip
    odd = [i for i in chosen if i >= count]
    if odd or not chosen or len(set(chosen)) < len(chosen):
        fault = f"got {odd[0]}" if odd else "one is repeated" if chosen else f"{text!r} selects none"
        raise CommandError(f"{argument} must select different columns of 0 to {count - 1}, but {fault}.")
    return chosen
