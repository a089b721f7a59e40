# SPDX-License-Identifier: Apache-2.0
"""Time zones as text, such as ``Europe/Berlin``, ``UTC`` or ``UTC+01:00``: files keep them, predictions have them."""

from __future__ import annotations

import datetime
import re
import zoneinfo

import numpy as np

__all__ = ["common_zone", "read_zone", "with_offsets", "zone_name"]

_FIXED = re.compile(r"UTC([+-])(\d\d):(\d\d)")


def zone_name(zone: datetime.tzinfo) -> str:
    """The name of a time zone of zoneinfo, pytz or datetime; ``UTC`` for those without a name or a fixed offset.

    >>> import datetime
    >>> from pyro_vgpds.data.zones import zone_name
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
