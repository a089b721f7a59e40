# SPDX-License-Identifier: Apache-2.0
"""All kinds of dates as one: datetime64[ns] of UTC, and the name of their time zone.

pandas' dates are known by their attributes, as pandas is not required.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyro_vgpds.data.dates import common_zone, zone_name

__all__ = ["OutOfRangeError", "has_dates", "read_dates", "to_nanoseconds"]

_YEARS = 1678, 2261  # that datetime64[ns] covers completely


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
