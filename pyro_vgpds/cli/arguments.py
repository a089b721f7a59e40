# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands have, and the kinds of values that arguments take."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

__all__ = ["add_answer", "add_layout", "add_machine", "add_when", "count", "seed", "whole"]


def add_layout(parser: Any, *also: str, shrink: int | None = 1) -> None:
    """
    :param also: other names of ``--sequence-column``.
    :param shrink: where it is left out; None for what the model was trained with.
    """
    group = parser.add_argument_group("the data")
    group.add_argument(
        "--time",
        metavar="NAME",
        help="the column of times; left out, one called time, t, date, datetime or timestamp, or the first",
    )
    group.add_argument("--no-time", action="store_true", help="there are no times: number the rows")
    group.add_argument(
        "--sequence-column",
        *also,
        dest="sequence_column",
        metavar="NAME",
        help="the column that says which sequence a row is of; left out, one called sequence, if any",
    )
    group.add_argument(
        "--columns", metavar="NAMES", help="the outputs, by name or number (3, 10:20); left out, the rest"
    )
    usual = "as in training, where the frames are of that size" if shrink is None else shrink
    group.add_argument(
        "--shrink", type=count, default=shrink, metavar="N", help=f"of videos: one pixel from N x N ({usual})"
    )


def add_answer(parser: Any, interval: float | None) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="a file that fit wrote")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="csv, npz, or of a video gif, mp4, avi, mkv, mov"
    )
    parser.add_argument("--no-noise", action="store_true", help="of the function, without the outputs' noise")
    parser.add_argument("--fps", type=positive, metavar="RATE", help="frames a second of a film")
    if interval is not None:
        parser.add_argument(
            "--interval",
            type=share,
            default=interval,
            metavar="P",
            help=f"probability of the intervals beside the means; 0 for none ({interval:g})",
        )


def add_when(parser: Any, sequence: str, default: str | None = None) -> None:
    group = parser.add_argument_group("when")
    group.add_argument("--until", metavar="TIME", help="up to this time or date, from the end of the sequence")
    group.add_argument(
        "--step",
        metavar="STEP",
        help="with --until: time between frames, as 0.5 or for dates 1d, 2h, "
        "30min; left out, the usual one of the sequence",
    )
    group.add_argument("--times", metavar="TIMES", help="instead: 1,2,3.5, or dates, or START:STOP:STEP")
    group.add_argument("--sequence", metavar="NAME", default=default, help=sequence)


def add_machine(parser: Any) -> None:
    group = parser.add_argument_group("the machine")
    group.add_argument(
        "--threads", type=count, default=1, metavar="N", help="threads; more than one helps with large data only (1)"
    )
    group.add_argument("--force", action="store_true", help="replace files that are there already")


def whole(text: str, least: int = 0) -> int:
    if not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, but got {text!r}.")
    return int(text)


def count(text: str) -> int:
    return whole(text, 1)


def seed(text: str) -> int:
    number = whole(text)
    if number >= 2**32:
        raise argparse.ArgumentTypeError(f"must be below 2**32, but got {text!r}.")
    return number


def _number(text: str) -> float:
    """The number that is written there; NaN, which is in no range, where there is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def positive(text: str) -> float:
    value = _number(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, but got {text!r}.")
    return value


def share(text: str) -> float:
    value = _number(text)
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to below 1, but got {text!r}.")
    return value
