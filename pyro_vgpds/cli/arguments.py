# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands share, and the types of argument values."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = [
    "add_answer", "add_layout", "add_machine", "add_model", "add_when", "count", "given", "positive", "seed", "threads",
    "weight", "whole",
]  # fmt: skip


def add_layout(parser: argparse.ArgumentParser, *also: str, shrink: int | None = 1) -> None:
    """
    :param also: other names of ``--sequence-column``.
    :param shrink: the default of ``--shrink``; None for the value of training.
    """
    group = parser.add_argument_group("the data")
    group.add_argument(
        "--time",
        metavar="NAME",
        help="column of the times. Default: a column called time, t, date, datetime or timestamp, else the first one "
        "with dates, else the first",
    )
    group.add_argument("--no-time", action="store_true", help="the file has no times: number the rows 0, 1, 2, ...")
    group.add_argument(
        "--sequence-column",
        *also,
        dest="sequence_column",
        metavar="NAME",
        help="column with the name of each row's sequence. Default: a column called sequence, if any",
    )
    group.add_argument(
        "--columns", metavar="NAMES", help="outputs, by name or number (3, 10:20). Default: all other columns"
    )
    group.add_argument(
        "--missing",
        metavar="VALUES",
        help="what stands for missing values besides empty cells, NA, NaN, null, - and ?, such as -999 or -999,unknown",
    )
    usual = "as in training, if that gives frames of the model's size" if shrink is None else shrink
    group.add_argument(
        "--shrink",
        type=count,
        default=shrink,
        metavar="N",
        help=f"video: average blocks of N x N pixels to one pixel. Default: {usual}",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="model file, written by fit or from Python")


def add_answer(parser: argparse.ArgumentParser, interval: float | None) -> None:
    """:param interval: the default of ``--interval``; None for no such argument."""
    add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="output file: csv, npz, or for a video gif, mp4, avi, mkv, mov. Default: csv to the standard output",
    )
    parser.add_argument(
        "--no-noise",
        action="store_true",
        help="predict the noise-free function instead of noisy outputs, for counts their rate; of single models only",
    )
    parser.add_argument(
        "--fps", type=positive, metavar="RATE", help="video: frames per second. Default: as in training, else 12"
    )
    if interval is not None:
        parser.add_argument(
            "--interval",
            type=share,
            default=interval,
            metavar="P",
            help=f"probability of the prediction intervals; 0 for no intervals. Default: {interval:g}",
        )


def add_when(parser: argparse.ArgumentParser, sequence: str, default: str | None = None) -> None:
    """
    :param sequence: the help text of ``--sequence``.
    :param default: its default.
    """
    group = parser.add_argument_group("times of the prediction")
    group.add_argument("--horizon", type=count, metavar="N", help="number of frames after the end of the sequence")
    group.add_argument("--until", metavar="TIME", help="instead of --horizon: last time or date")
    group.add_argument(
        "--step",
        metavar="STEP",
        help="with --horizon or --until: time between frames, such as 0.5, or for dates 1d, 2h, 30min. "
        "Default: the median step of the sequence",
    )
    group.add_argument("--times", metavar="TIMES", help="instead of both: 1,2,3.5, or dates, or START:STOP:STEP")
    group.add_argument("--sequence", metavar="NAME", default=default, help=sequence)


def add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the machine")
    group.add_argument(
        "--threads",
        type=threads,
        default=1,
        metavar="N",
        help="number of threads; more than one helps with large data only. Default: 1",
    )
    group.add_argument("--force", action="store_true", help="replace existing files")


def given(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Those of some arguments, by names such as ``--num-inducing``, that the user has given."""
    values = {name: getattr(args, name.removeprefix("--").replace("-", "_"), None) for name in names}
    return [name for name, value in values.items() if value is not None and value is not False]


def threads(text: str) -> int:
    """More than a few for each core are never faster, and many thousands end in a crash."""
    most = max(64, 4 * (os.cpu_count() or 1))
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {most}, but got {text!r}.")
    return int(text)


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


def _number(wanted: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan  # in no range
        if not fits(value):
            raise argparse.ArgumentTypeError(f"must be {wanted}, but got {text!r}.")
        return value

    return read


positive = _number("a positive number", lambda value: 0.0 < value < math.inf)
share = _number("at least 0 and below 1", lambda value: 0.0 <= value < 1.0)
weight = _number("above 0 and at most 1", lambda value: 0.0 < value <= 1.0)
