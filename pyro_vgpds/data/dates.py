# SPDX-License-Identifier: Apache-2.0
"""Dates of all kinds as datetime64[ns] of UTC and the name of their time zone, as seconds since an origin, and as text.

pandas' dates are known by their attributes, as pandas is not required.
"""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyro_vgpds.data.durations import UNITS

__all__ = [
    "OutOfRangeError", "common_zone", "format_duration", "format_times", "has_dates", "read_dates", "read_zone",
    "to_dates", "to_nanoseconds", "to_seconds", "with_offsets", "zone_name",
]  # fmt: skip

_FIXED = re.compile(r"UTC([+-])(\d\d):(\d\d)")
_YEARS = 1678, 2261  # that datetime64[ns] covers completely


def to_dates(seconds: np.ndarray, origin: np.datetime64) -> np.ndarray:
    """Seconds since ``origin`` as datetime64[ns].

    >>> import numpy as np
    >>> from pyro_vgpds.data.dates import to_dates
    >>> to_dates(np.array([0.0, 86400.0]), np.datetime64("2024-01-31")).astype("datetime64[D]").tolist()
    [datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)]
    """
    dates: np.ndarray = origin.astype("datetime64[ns]") + np.round(np.asarray(seconds) * 1e9).astype("timedelta64[ns]")
    return dates


def to_seconds(dates: np.ndarray, origin: np.datetime64) -> np.ndarray:
    """The inverse of :func:`to_dates`; NaN for dates that are missing (NaT)."""
    seconds: np.ndarray = np.where(np.isnat(dates), np.nan, (dates - origin) / np.timedelta64(1, "s"))
    return seconds


def format_times(times: np.ndarray, zone: str | None = None) -> list[str]:
    """Numbers with all their reliable digits; dates in the shortest form that keeps all of them.

    :param zone: name of the time zone that dates, which are of UTC, are shown in with their offset.

    >>> import numpy as np
    >>> from pyro_vgpds.data.dates import format_times
    >>> format_times(np.array(["2024-06-01"], "datetime64[ns]"), "Europe/Berlin")
    ['2024-06-01T02:00:00+02:00']
    """
    if zone is not None and times.dtype.kind == "M":
        clocks, offsets = with_offsets(times, zone)
        written = np.datetime_as_string(clocks, unit="s" if _fits(clocks, "s") else "ns")
        return [f"{clock}{offset}" for clock, offset in zip(written, offsets, strict=True)]
    if times.dtype.kind != "M":
        return [f"{t:.15g}" for t in times]
    for unit in ("D", "s", "ms", "ns"):
        if _fits(times, unit):
            break
    return [str(text) for text in np.datetime_as_string(times, unit=unit)]


def _fits(dates: np.ndarray, unit: str) -> bool:
    return bool((dates.astype(f"datetime64[{unit}]") == dates).all())


def format_duration(seconds: float) -> str:
    """``90.0`` as ``1.5 min``: in the largest of the units d, h, min and s that gives at least 1.

    >>> from pyro_vgpds.data.dates import format_duration
    >>> format_duration(90.0), format_duration(0.25), format_duration(6.048e5)
    ('1.5 min', '0.25 s', '7 d')
    """
    rounded = (1.0 + 1e-9) * seconds  # a learned parameter is the exponential of its logarithm
    unit = next((name for name in ("d", "h", "min") if rounded >= UNITS[name]), "s")
    return f"{seconds / UNITS[unit]:.4g} {unit}"


def zone_name(zone: datetime.tzinfo) -> str:
    """The name of a time zone of zoneinfo, pytz or datetime; ``UTC`` for those without a name or a fixed offset.

    >>> import datetime
    >>> from pyro_vgpds.data.dates import zone_name
    >>> zone_name(datetime.timezone(datetime.timedelta(hours=-3))), zone_name(datetime.timezone.utc)
    ('UTC-03:00', 'UTC')
    """
    for name in (getattr(zone, "key", None), getattr(zone, "zone", None)):  # of zoneinfo and of pytz
        if isinstance(name, str):
            return name
    offset = zone.utcoffset(None)
    minutes = 0 if offset is None else round(offset.total_seconds() / 60)
    if not minutes:
        return "UTC"
    return f"UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def common_zone(zones: set[str]) -> str | None:
    """The zone of dates of several zones, ``UTC`` if they differ; None for an empty set."""
    return next(iter(zones)) if len(zones) == 1 else "UTC" if zones else None


def read_zone(name: str) -> datetime.tzinfo:
    """The time zone of a name that :func:`zone_name` gave; a ValueError if this machine does not have it."""
    if name == "UTC":
        return datetime.timezone.utc
    if (match := _FIXED.fullmatch(name)) is not None:
        offset = datetime.timedelta(hours=int(match[2]), minutes=int(match[3]))
        return datetime.timezone(offset if match[1] == "+" else -offset)
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError(
            f"time zone {name!r} is not known on this machine. If it is a right one, install the time zones: "
            "pip install tzdata."
        ) from None


def with_offsets(dates: np.ndarray, zone: str) -> tuple[np.ndarray, list[str]]:
    """Dates (N,) of UTC on the clocks of a time zone, and the offset of each as text, such as ``+01:00``."""
    found = read_zone(zone)
    seconds = dates.astype("datetime64[s]").astype(np.int64)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    moments = [(epoch + datetime.timedelta(seconds=int(second))).astimezone(found) for second in seconds]
    shifts = [int((moment.utcoffset() or datetime.timedelta()).total_seconds()) for moment in moments]
    return dates + np.array(shifts, "timedelta64[s]"), [moment.isoformat()[19:] for moment in moments]


class OutOfRangeError(ValueError):
    """A date outside the range of datetime64[ns]."""


def to_nanoseconds(dates: np.ndarray) -> np.ndarray:
    """Dates (N,) of any unit as datetime64[ns]. numpy does not check their range.

    :raises OutOfRangeError: if one is out of range; the error's second argument is the index.
    """
    years = dates.astype("datetime64[Y]").astype(np.int64) + 1970
    odd = np.flatnonzero(((years < _YEARS[0]) | (years > _YEARS[1])) & ~np.isnat(dates))
    if len(odd):
        raise OutOfRangeError(
            f"dates must be in the years {_YEARS[0]} to {_YEARS[1]}, but got {dates[odd[0]]}", int(odd[0])
        )
    return dates.astype("datetime64[ns]")


def read_dates(value: Any, name: str) -> tuple[np.ndarray, str | None] | None:
    """Dates as datetime64[ns] of UTC with their time zone, which is None for dates without one.

    :param value: datetime64 of any unit, pandas' dates and periods (of which the start counts), or a list of
        ``datetime``, ``date``, ``Timestamp``, ``Period`` or ``datetime64``.
    :returns: None if they are no dates.
    :raises ValueError: if one is missing, or out of the range of datetime64[ns].
    :raises TypeError: if some have a time zone and others have none, or some are no dates.
    """
    found = _dates_and_zone(value, name)
    if found is None:
        return None
    dates, zone = found
    if dates.ndim == 1:
        if (missing := np.flatnonzero(np.isnat(dates))).size:
            raise ValueError(f"{name} must be finite, but {name}[{missing[0]}] is NaT, a missing date.")
        try:
            dates = to_nanoseconds(dates)
        except OutOfRangeError as error:
            raise _out_of_range(name, *error.args) from None
    return dates, zone


def _out_of_range(name: str, fault: str, index: int) -> ValueError:
    return ValueError(f"{name}: {fault} at index {index}.")


def _dates_and_zone(value: Any, name: str) -> tuple[np.ndarray, str | None] | None:
    dtype = getattr(value, "dtype", None)
    if (zone := getattr(dtype, "tz", None)) is not None:
        return np.asarray(getattr(value, "dt", value).tz_convert(None)), zone_name(zone)
    if getattr(dtype, "kind", None) == "M":
        return np.asarray(value), None
    if hasattr(dtype, "freq"):  # of pandas' periods
        return np.asarray(getattr(value, "dt", value).to_timestamp()), None
    is_list = isinstance(value, (list, tuple)) or getattr(dtype, "kind", None) == "O"
    if not is_list or not any(_is_date(one) for one in value):
        return None
    return _from_list(list(value), name)


def _is_date(one: object) -> bool:
    return isinstance(one, (datetime.date, np.datetime64)) or hasattr(one, "to_timestamp")


def has_dates(column: Any) -> bool:
    """Whether a column of a pandas DataFrame has dates or durations."""
    if column.dtype.kind in "mM" or hasattr(column.dtype, "tz") or hasattr(column.dtype, "freq"):
        return True
    return column.dtype.kind == "O" and any(_is_date(one) or isinstance(one, datetime.timedelta) for one in column)


def _from_list(values: Sequence[Any], name: str) -> tuple[np.ndarray, str | None]:
    dates, zones = np.full(len(values), "NaT", "datetime64[ns]"), set()
    plain = False
    for i, one in enumerate(values):
        one = one.to_timestamp() if hasattr(one, "to_timestamp") else one  # a period
        if one is None or one != one:  # NaT or NaN
            continue
        if not _is_date(one):
            raise TypeError(f"{name} must be all dates or all numbers, but {name}[{i}] is {one!r:.80}.")
        zone = getattr(one, "tzinfo", None)
        plain = plain or zone is None
        if zone is not None:
            zones.add(zone_name(zone))
        try:
            dates[i] = to_nanoseconds(np.array([_plain(one)]))[0]
        except OutOfRangeError as error:
            raise _out_of_range(name, error.args[0], i) from None
    if zones and plain:
        raise TypeError(f"{name} has dates with a time zone and dates without one; use one kind for all.")
    return dates, common_zone(zones)


def _plain(date: Any) -> np.datetime64:
    """A date as UTC, without a time zone."""
    if getattr(date, "tzinfo", None) is not None:
        date = date.astimezone(datetime.timezone.utc)
        date = date.tz_localize(None) if hasattr(date, "tz_localize") else date.replace(tzinfo=None)
    if hasattr(date, "to_datetime64"):  # of pandas, which has nanoseconds
        return np.datetime64(date.to_datetime64())
    return np.datetime64(date)
