# SPDX-License-Identifier: Apache-2.0
"""Sequences in a pandas DataFrame: a column or the index has the times, and a column may name the sequences."""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from pyro_vgpds.checks import check_parts
from pyro_vgpds.formatting import is_number

if TYPE_CHECKING:
    import pandas

__all__ = ["split_frame"]

_WITH_UNIT = re.compile(r"\W?\d[\d., ']*\W?\D{,5}")  # 60%, 12.3 C, 1,234.5
_TIME_NAMES = ("time", "t", "date", "datetime", "timestamp", "year")


def split_frame(
    frame: pandas.DataFrame, time: str | None, sequence: str | None
) -> tuple[list[pandas.Series | pandas.Index], list[pandas.DataFrame], list[str] | None]:
    """Times and outputs of each sequence, and the names of the sequences.

    :param frame: in which every other column is an output.
    :param time: the column of times. None: the index.
    :param sequence: the column that names the sequence of each row. None: one sequence without a name.
    :raises ValueError: if a column does not exist or two have the same name, or a row names no sequence.
    :raises TypeError: if the times are text or an index of several levels, or another column is not numbers.
    """
    if hasattr(frame, "to_frame") and hasattr(frame, "iloc"):
        raise TypeError("frame must be a DataFrame of pandas, but got a Series. Give series.to_frame().")
    check_parts("frame", frame, "a DataFrame of pandas", "columns", "iloc", "groupby")
    for name, value in (("time", time), ("sequence", sequence)):
        is_name = isinstance(value, Hashable)
        if value is not None and not (is_name and value in frame.columns):
            index = (
                " The index has this name: pass frame.reset_index()." if is_name and value in frame.index.names else ""
            )
            raise ValueError(
                f"{name}={value!r} is not a column of frame; the columns are {list(frame.columns)}.{index}"
            )
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(f"the names of the columns of frame must differ, but {twice[0]!r} occurs twice; rename one.")
    if time is not None and time == sequence:
        raise ValueError(f"sequence must be another column than time, but both are {time!r}.")
    if sequence is not None and bool(frame[sequence].isna().any()):
        raise ValueError(f"sequence={sequence!r} is missing in some rows; fill or drop them.")
    _check_times(frame, time)
    _check_numbers(frame, (time, sequence))
    if time is None and type(frame.index).__name__ == "RangeIndex":
        _warn_of_times(frame)
    if any(_is_index(frame, name) for name in frame.columns if name not in (time, sequence)):
        warnings.warn(
            "column 'Unnamed: 0' of frame has the row numbers that pandas wrote, and is an output. Drop it: "
            "frame.drop(columns=['Unnamed: 0']), or read the file with pandas.read_csv(..., index_col=0).",
            stacklevel=3,
        )
    groups = (
        [("", frame)] if sequence is None else [(str(name), part) for name, part in frame.groupby(sequence, sort=False)]
    )
    t = [part.index if time is None else part[time] for _, part in groups]
    y = [part.drop(columns=[name for name in (time, sequence) if name is not None]) for _, part in groups]
    return t, y, None if sequence is None else [name for name, _ in groups]


def _check_times(frame: pandas.DataFrame, time: str | None) -> None:
    """Raise a TypeError if the times are text, which says how to convert them."""
    times = frame.index if time is None else frame[time]
    if times is frame.index and frame.index.nlevels > 1:
        raise TypeError(
            f"the index of frame has {frame.index.nlevels} levels, but must be the times: make columns of the levels "
            "with frame.reset_index(), and name them with time= and sequence=."
        )
    first = next(iter(times), None)
    if not isinstance(first, str):
        return
    what, place, option = "the index", "frame.index", "parse_dates=True"
    if time is not None:
        what, place, option = f"time={time!r}", f"frame[{time!r}]", f"parse_dates=[{time!r}]"
    if is_number(first):
        how = f"Convert them: {place} = pandas.to_numeric({place})."
    elif re.search(r"\d[+-]\d\d:?\d\d$", first):  # read_csv leaves them as text if summer and winter time occur
        how = f"Convert dates of a time zone: {place} = pandas.to_datetime({place}, utc=True)."
    else:
        day = ", dayfirst=True" if re.match(r"\d\d?\.\d", first) else ""  # 31.01.2024
        how = (
            f"Read dates with pandas.read_csv(..., {option}{day}), or convert them: "
            f"{place} = pandas.to_datetime({place}{day})."
        )
    raise TypeError(f"{what} is text such as {first!r}, but must be numbers or dates. {how}")


def _warn_of_times(frame: pandas.DataFrame) -> None:
    """Warn if a column looks like the times, although the row numbers are taken for them."""
    for name in frame.columns:
        if str(name).lower() in _TIME_NAMES and len(frame) > 1 and frame[name].is_monotonic_increasing:
            warnings.warn(
                f"column {name!r} of frame is an output, and the row numbers are the times. If the column has the "
                f"times, pass time={name!r}.",
                stacklevel=4,
            )


def _is_index(frame: pandas.DataFrame, name: Hashable) -> bool:
    """Whether a column is an index without a name, which ``to_csv`` wrote and ``read_csv`` took for a column."""
    return name == "Unnamed: 0" and frame[name].tolist() == list(range(len(frame)))


def _check_numbers(frame: pandas.DataFrame, others: tuple[str | None, str | None]) -> None:
    """Raise a TypeError that names the first output that is not numbers."""
    for i, name in enumerate(frame.columns):
        column = frame.iloc[:, i]
        if name in others or column.dtype.kind not in "OMm":
            continue
        try:  # numbers as objects or text
            if column.dtype.kind == "O":
                column.to_numpy(dtype=np.float64, na_value=np.nan)
                if not any(isinstance(value, str) and not is_number(value) for value in column):
                    continue
        except (TypeError, ValueError):
            pass
        text = next((value for value in column if isinstance(value, str) and not is_number(value)), None)
        held = f"{column.dtype}" if text is None else f"text such as {text!r}"
        if text is not None and is_number(text.replace(",", ".", 1)):
            how = 'Read decimal commas with pandas.read_csv(..., decimal=",").'
        elif text is not None and _WITH_UNIT.fullmatch(text):
            how = (
                "Remove units and thousands separators: pandas.read_csv(..., thousands=...), or for example "
                f"frame[{name!r}] = frame[{name!r}].str.rstrip('%').astype(float)."
            )
        elif text is not None and 2 * sum(is_number(str(value)) for value in column.dropna()) > column.count():
            place = f"frame[{name!r}]"
            how = f"{place} = pandas.to_numeric({place}, errors='coerce') makes text missing."
        else:
            how = (
                f"Drop it, as in frame.drop(columns=[{name!r}]), or name it with time= or sequence=, if it has the "
                "times or the names of the sequences."
            )
        raise TypeError(f"column {name!r} must be numbers, but has {held}. {how}")
