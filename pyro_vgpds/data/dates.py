# SPDX-License-Identifier: Apache-2.0
"""Dates as seconds since an origin, and back; and times as text."""

from __future__ import annotations

import numpy as np

from pyro_vgpds.data.durations import UNITS
from pyro_vgpds.data.zones import with_offsets

__all__ = ["format_duration", "format_times", "to_dates", "to_seconds"]


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
