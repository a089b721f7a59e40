# SPDX-License-Identifier: Apache-2.0
"""Dates as seconds since an origin, and back; and times as text."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, cast

import numpy as np

from pyro_vgpds.data.durations import UNITS
from pyro_vgpds.types import ArrayLike

if TYPE_CHECKING:
    import pandas

__all__ = ["format_duration", "format_times", "to_dates", "to_seconds", "to_utc"]


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


def to_utc(times: ArrayLike) -> ArrayLike:
    """Dates of a time zone, and all dates of the module ``datetime``, as an array of dates in UTC; others unchanged."""
    if getattr(times, "tz", getattr(getattr(times, "dtype", None), "tz", None)) is not None:
        zoned = cast("pandas.DatetimeIndex", getattr(times, "dt", times))
        return np.asarray(zoned.tz_convert(None))
    is_list_of_any = isinstance(times, (list, tuple)) or getattr(getattr(times, "dtype", None), "kind", None) == "O"
    dates = [one for one in times if isinstance(one, datetime.date)] if is_list_of_any else []
    if dates and len(dates) == len(times):
        return np.array([_naive(date) for date in dates], "datetime64[us]")
    return times


def _naive(date: datetime.date) -> datetime.date:
    if isinstance(date, datetime.datetime) and date.tzinfo is not None:
        return date.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return date


def format_times(times: np.ndarray) -> list[str]:
    """Numbers with all their reliable digits; dates in the shortest form that keeps all of them."""
    if times.dtype.kind != "M":
        return [f"{t:.15g}" for t in times]
    for unit in ("D", "s", "ms", "ns"):
        if (times.astype(f"datetime64[{unit}]") == times).all():
            break
    return [str(text) for text in np.datetime_as_string(times, unit=unit)]


def format_duration(seconds: float) -> str:
    """``90.0`` as ``1.5 min``: in the largest of the units d, h, min and s that gives at least 1.

    >>> from pyro_vgpds.data.dates import format_duration
    >>> format_duration(90.0), format_duration(0.25), format_duration(6.048e5)
    ('1.5 min', '0.25 s', '7 d')
    """
    rounded = (1.0 + 1e-9) * seconds  # a learned parameter is the exponential of its logarithm
    unit = next((name for name in ("d", "h", "min") if rounded >= UNITS[name]), "s")
    return f"{seconds / UNITS[unit]:.4g} {unit}"
