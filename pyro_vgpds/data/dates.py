# SPDX-License-Identifier: Apache-2.0
"""Dates as seconds since an origin, and back; times as text; and time zones by their names."""

from __future__ import annotations

import datetime
import re
import zoneinfo

import numpy as np

from pyro_vgpds.data.durations import UNITS

__all__ = [
    "common_zone", "format_duration", "format_times", "read_zone", "to_dates", "to_seconds", "with_offsets",
    "zone_name",
]  # fmt: skip

_FIXED = re.compile(r"UTC([+-])(\d\d):(\d\d)")


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
