# SPDX-License-Identifier: Apache-2.0
"""Times written as text: numbers, dates, ranges and steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

import numpy as np

from pyro_vgpds.cli.errors import UsageError
from pyro_vgpds.data.dates import OutOfRangeError, to_nanoseconds
from pyro_vgpds.data.durations import UNITS, parse_duration
from pyro_vgpds.formatting import is_number, to_number

__all__ = [
    "has_zone", "is_like_date", "months_to", "parse_date", "parse_range", "parse_step", "parse_times", "steps_to",
    "with_hyphens",
]  # fmt: skip

_DATE = re.compile(
    r"(?:(?P<day>\d{4}-\d\d(?:-\d\d)?)|(?P<dotted>\d\d?\.\d\d?\.\d{4}))"
    r"(?:[T ](?P<clock>\d\d?:\d\d(?::\d\d(?:\.\d{1,9})?)?)(?: ?(?P<half>[AaPp])[Mm])?(?P<zone>Z|[+-]\d\d:?\d\d)?)?"
)
# other ways in which the order of year, month and day cannot be mistaken
_OTHER = [
    re.compile(pattern)
    for pattern in (
        r"(?P<year>\d{4})/(?P<number>\d\d?)/(?P<day>\d\d?)",  # 2024/1/31
        r"(?P<year>\d{4})[ -]?Q(?P<quarter>[1-4])",  # 2024Q1
        r"Q(?P<quarter>[1-4])[ -](?P<year>\d{4})",
        r"(?P<year>\d{4})-?W(?P<week>\d\d)(?:-?(?P<weekday>[1-7]))?",  # 2024-W05, its Monday
        r"(?P<month>[A-Za-z]{3,9})\.?[ -](?:(?P<day>\d\d?),?[ -])?(?P<year>\d{4})",  # Jan 31, 2024; Jan 2024
        r"(?P<day>\d\d?)[ -](?P<month>[A-Za-z]{3,9})\.?[ -](?P<year>\d{4})",  # 31-Jan-2024
        r"(?P<year>\d{4})[ -](?P<month>[A-Za-z]{3,9})",  # 2024 Jan
    )
]
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
# dates that only their whole column can tell from numbers, or from dates in another order
_IN_COLUMNS = [
    re.compile(pattern)
    for pattern in (
        r"(?P<year>(?:19|20)\d\d)(?P<month>[01]\d)(?P<day>[0-3]\d)(?P<clock>)",  # 20240131
        r"(?P<day>\d\d?)/(?P<month>\d\d?)/(?P<year>\d{4})(?P<clock>(?:[T ].+)?)",  # 31/01/2024 12:00
        r"(?P<month>\d\d?)/(?P<day>\d\d?)/(?P<year>\d{4})(?P<clock>(?:[T ].+)?)",  # 1/31/2024 12:00
    )
]
_SLASHES = _IN_COLUMNS[1]
_CLOCK = re.compile(r"\d\d?:\d\d(:\d\d(\.\d+)?)?( ?[AaPp][Mm])?")
_SHORT_YEAR = re.compile(r"\d\d?(?P<mark>[-./ ])(\d\d?|[A-Za-z]{3,9})(?P=mark)\d\d([T ].*)?")  # 31-Jan-24
_MOST = 10_000_000  # times in a range; more is a typing error


def _match(text: str) -> re.Match[str] | None:
    """The parts of a date, after other ways to write it have become 2024-01-31 or 2024-01."""
    text = text.strip()
    if (found := _DATE.fullmatch(text)) is not None:
        return found
    for pattern in _OTHER:
        if (other := pattern.match(text)) is not None:
            parts = other.groupdict()
            if parts.get("week"):
                return _match_week(
                    int(parts["year"]), int(parts["week"]), int(parts["weekday"] or 1), text[other.end() :]
                )
            number, month, quarter = (parts.get(name) for name in ("number", "month", "quarter"))
            if quarter:
                number = 3 * int(quarter) - 2
            elif month:
                number = next((i for i, name in enumerate(_MONTHS, 1) if name.startswith(month.lower())), 0)
            day = f"-{parts['day']:0>2}" if parts.get("day") else ""
            return _DATE.fullmatch(f"{parts['year']}-{number:0>2}{day}{text[other.end() :]}") if number else None
    return None


def _match_week(year: int, week: int, weekday: int, rest: str) -> re.Match[str] | None:
    """The parts of a day of an ISO week, followed by a time of day."""
    try:
        return _DATE.fullmatch(f"{date.fromisocalendar(year, week, weekday)}{rest}")
    except ValueError:  # there is no such week
        return None


def _advice(text: str) -> str:
    """What to do about a cell that is nearly a date."""
    if is_like_date(text):
        return " (with slashes, the first number could be the day or the month)"
    if _CLOCK.fullmatch(text.strip()):
        return " (it is a time of day without a date: write both in one column)"
    if _SHORT_YEAR.fullmatch(text.strip()):
        return " (write years with four digits)"
    return ""


def parse_date(text: str) -> np.datetime64:
    """A date such as 2024-01, 2024-01-31, 31.01.2024, 2024-01-31 12:00 or 2024-01-31T12:00:00.5+01:00 (becomes UTC).

    Other ways to write it are 2024/1/31, Jan 31, 2024, 31-Jan-2024, Jan 2024 and 2024Q1, the first month of a quarter,
    2024-W05, the Monday of an ISO week, and of 15:30 it is 3:30 PM.

    :raises ValueError: if it is not a date, or one with slashes, whose month may be its first or its second number.
    :raises OutOfRangeError: if it is not in the years 1678 to 2261.
    """
    match = _match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date such as 2024-01-31 or 2024-01-31T12:00:00")
    day = match["day"]
    if match["dotted"]:
        day, month, year = match["dotted"].split(".")
        day = f"{year}-{month:0>2}-{day:0>2}"
    clock = match["clock"]
    if match["half"]:
        hour, minutes = clock.split(":", 1)
        if not 1 <= int(hour) <= 12:
            raise ValueError(f"{text!r} is not a date: with AM or PM, the hour must be 1 to 12")
        clock = f"{int(hour) % 12 + 12 * (match['half'] in 'Pp'):02}:{minutes}"
    written = f"{day}T{'0' * (clock[1] == ':')}{clock}" if clock else day
    moment = to_nanoseconds(np.array([written], "datetime64"))[0]
    zone = match["zone"] or "Z"
    if zone != "Z":
        minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        moment = moment - np.timedelta64(minutes if zone[0] == "+" else -minutes, "m")
    return np.datetime64(moment, "ns")


def _is_date(text: str) -> bool:
    """Whether :func:`parse_date` recognises a date, perhaps one out of range."""
    try:
        parse_date(text)
    except OutOfRangeError:
        return True
    except ValueError:
        return False
    return True


def is_like_date(text: str) -> bool:
    """Whether it is a date, or may be one in a column of such dates, as 31/01/2024."""
    return _is_date(text) or _SLASHES.fullmatch(text.strip()) is not None


def with_hyphens(cells: Sequence[str]) -> Sequence[str]:
    """Dates such as 20240131, 31/01/2024 and 1/31/2024 in all cells as 2024-01-31.

    As numbers, the day after 20240131 would be 20240132, and a month would be as long as 70 days. Whether 1/2/2024 is
    in January or in February is clear if another cell has a day after the twelfth.

    :returns: the cells as they are if one of them is something else, or the order of day and month is not clear.
    """
    readings = []
    for pattern in _IN_COLUMNS:
        found = [pattern.fullmatch(cell) for cell in cells]
        if all(found):
            dates = [f"{m['year']}-{m['month']:0>2}-{m['day']:0>2}{m['clock']}" for m in found if m is not None]
            readings += [dates] if all(map(_is_date, dates)) else []
    return readings[0] if len(readings) == 1 else cells


def has_zone(text: str) -> bool:
    """Whether a date has an offset from UTC other than zero, so that :func:`parse_date` changes the clock."""
    match = _match(text)
    return match is not None and bool(match["zone"]) and match["zone"].strip("Z+-0:") != ""


def parse_times(cells: Sequence[str]) -> np.ndarray:
    """Numbers, or dates if the first is not a number, as (N,) of float64 or datetime64[ns].

    :raises ValueError: if one is neither, or is out of range, or only some have a time zone; the error's second
        argument is the index.
    """
    kind = "number" if is_number(cells[0]) else "date"
    times: list[float | np.datetime64] = []
    for i, cell in enumerate(cells):
        try:
            times.append(to_number(cell) if kind == "number" else parse_date(cell))
        except OutOfRangeError as error:
            raise OutOfRangeError(error.args[0], i) from None
        except ValueError:
            wanted = "a number like the first" if kind == "number" else "a number or a date such as 2024-01-31T12:00:00"
            raise ValueError(f"{cell!r} is not {wanted}{_advice(cell)}", i) from None
    zones = [kind == "date" and bool(_match(cell)["zone"]) for cell in cells]  # type: ignore[index]
    if any(zones) and not all(zones):
        i = zones.index(not zones[0])
        raise ValueError(f"{cells[i]!r} has {'a' if zones[i] else 'no'} time zone, unlike the first, {cells[0]!r}", i)
    return np.array(times, dtype=np.float64 if kind == "number" else "datetime64[ns]")


def parse_range(text: str, argument: str) -> np.ndarray:
    """``1,2,3.5``, ``0:10:0.5`` (including 10), or dates separated by commas."""
    parts = [part.strip() for part in text.split(":")]
    if len(parts) == 3 and all(map(is_number, parts)):
        start, stop, step = map(float, parts)
        if not step > 0 or not stop >= start or not np.isfinite([start, stop, step]).all():
            raise UsageError(f"{argument} must be START:STOP:STEP with START <= STOP and STEP > 0, but got {text!r}.")
        return steps_to(start, stop, step, argument, include=True)
    try:
        times = parse_times([part.strip() for part in text.split(",")])
    except ValueError as error:
        how = "times separated by commas (1,2,3.5 or dates) or START:STOP:STEP"
        if argument == "--until":
            how = "the last time; --horizon takes the number of frames"
        raise UsageError(f"{argument}: {error.args[0]}. Give {how}.") from None
    if times.dtype.kind == "f" and not np.isfinite(times).all():
        raise UsageError(f"{argument} must be finite, but got {text!r}.")
    return times


def steps_to(start: float, stop: float, step: float, argument: str, include: bool = False) -> np.ndarray:
    """Times after ``start`` (or from it) up to ``stop``."""
    count = int(np.floor((stop - start) / step + 1e-9))
    if count > _MOST:
        raise UsageError(f"{argument} gives {count} times, but the maximum is {_MOST}. Use a longer step.")
    times: np.ndarray = start + step * np.arange(0 if include else 1, count + 1)
    return times


def months_to(dates: np.ndarray, stop: np.datetime64 | int, include: bool = False) -> np.ndarray | None:
    """Continue monthly ``dates`` up to ``stop``; None if they are not on one day, or the last day, of each month.

    Months, quarters and years have no fixed length in seconds. The step is the median number of months.

    :param stop: the last date, or the number of dates.
    :param include: start at the first date instead of after the last one.
    :raises OutOfRangeError: if a number of dates reaches beyond the year 2261.
    """
    if len(dates) < 2:
        return None
    for shift in (np.timedelta64(0, "D"), np.timedelta64(1, "D")):  # the day after the last of a month is a first
        months = (dates + shift).astype("datetime64[M]")
        into = (dates + shift) - months
        if (into == into[0]).all() and into[0] < np.timedelta64(28 if shift == np.timedelta64(0, "D") else 1, "D"):
            step = int(np.median(np.diff(months).astype(int)))
            start, first = (months[0], 0) if include else (months[-1], 1)
            if isinstance(stop, int):
                counted = start + step * np.arange(first, first + stop)
                found: np.ndarray = to_nanoseconds(counted.astype("datetime64[D]") - shift) + into[0]
                return found
            count = max(0, int((stop.astype("datetime64[M]") - months[0]).astype(int)) // step + 2)
            ahead = start + step * np.arange(first, count + 1)
            ahead = ahead[ahead <= (stop + shift).astype("datetime64[M]")]  # later ones may be out of range
            ahead = ahead.astype(dates.dtype) + into[0] - shift
            kept: np.ndarray = ahead[ahead <= stop]
            return kept
    return None


def parse_step(text: str, argument: str) -> float:
    """A positive number, in seconds if it has a unit s, min, h, d, w or y."""
    try:
        step = float(text) if is_number(text) else parse_duration(text)
    except ValueError:
        step = 0.0
    if 0.0 < step < float("inf"):
        return step
    raise UsageError(
        f"{argument} must be a positive number, for dates with one of the units {', '.join(UNITS)}, but got {text!r}."
    )
