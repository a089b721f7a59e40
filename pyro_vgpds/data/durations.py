# SPDX-License-Identifier: Apache-2.0
"""Durations, such as ``"24h"``, as seconds: the unit of times that were dates."""

from __future__ import annotations

import datetime
import re
from typing import TypeAlias

import numpy as np

__all__ = ["UNITS", "Duration", "has_unit", "in_seconds", "parse_duration", "read_durations"]

#: seconds in each unit; a year has 365.25 days
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0, "y": 365.25 * 86400.0}
#: ``"24h"``, ``numpy.timedelta64``, ``datetime.timedelta`` or ``pandas.Timedelta``
Duration: TypeAlias = str | np.timedelta64 | datetime.timedelta

_TEXT = re.compile(r"\s*(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-z]*)\s*")
_MONTHS = {"Y": 12, "M": 1}  # units of numpy that have no fixed length


def parse_duration(text: str) -> float:
    """A number with a unit, in seconds.

    The units are s, min, h, d, w (7 d) and y (365.25 d), in upper or lower case.

    :param text: such as ``"24h"``, ``"1.5 d"`` or ``"1y"``.
    :raises ValueError: if it is not such a string.

    >>> from pyro_vgpds.data.durations import parse_duration
    >>> parse_duration("24h"), parse_duration("1w"), parse_duration("1y")
    (86400.0, 604800.0, 31557600.0)
    """
    match = _TEXT.fullmatch(text)
    if match is None or match["unit"].lower() not in UNITS:
        units = ", ".join(UNITS)
        raise ValueError(f"a duration must be a number with one of the units {units}, as in '24h', but got {text!r}.")
    return float(match["number"]) * UNITS[match["unit"].lower()]


def has_unit(value: object) -> bool:
    """Whether ``value`` is a duration, or an array or list with durations, and not only numbers.

    >>> import numpy as np
    >>> from pyro_vgpds.data.durations import has_unit
    >>> has_unit("24h"), has_unit([np.timedelta64(1, "D"), "1w"]), has_unit(24.0)
    (True, True, False)
    """
    if isinstance(value, (str, np.timedelta64, datetime.timedelta)):
        return True
    if isinstance(value, (list, tuple)):
        return any(has_unit(one) for one in value)
    return getattr(getattr(value, "dtype", None), "kind", None) == "m"


def read_durations(value: object) -> float | list[float]:
    """A duration, or an array or list of durations, in seconds.

    :param value: for which :func:`has_unit` is true.
    :raises ValueError: if a string is not a duration, one is not finite, or has no unit.
    :raises TypeError: if a list has numbers as well.

    >>> import datetime
    >>> import numpy as np
    >>> from pyro_vgpds.data.durations import read_durations
    >>> read_durations(np.timedelta64(90, "m")), read_durations(["1h", datetime.timedelta(days=1)])
    (5400.0, [3600.0, 86400.0])
    """
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, np.timedelta64):  # of pandas' Timedelta only the next line
        return _from_numpy(value)
    if isinstance(value, datetime.timedelta):
        return _finite(value.total_seconds(), value)
    if isinstance(value, (list, tuple)):
        if not all(has_unit(one) for one in value):
            raise TypeError(f"a list must have only durations or only numbers, but got {value!r}.")
        return [one for part in value for one in np.ravel(read_durations(part)).tolist()]
    return [_from_numpy(one) for one in np.asarray(value).ravel()]


def in_seconds(name: str, value: object, is_time: bool, wanted: str = "positive number") -> float | list[float]:
    """As :func:`read_durations` for the parameter ``name``; a TypeError says what is ``wanted`` unless it is a time."""
    if not is_time:
        raise TypeError(
            f"{name} must be a {wanted} or tensor, but got {value!r}; it is not a time, so a duration has no meaning "
            "here."
        )
    try:
        return read_durations(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _from_numpy(value: np.timedelta64) -> float:
    unit, count = np.datetime_data(value.dtype)
    if unit == "generic" and not np.isnat(value):
        raise ValueError(f"a duration needs a unit, as in numpy.timedelta64({value.astype(int)}, 'h'), but got none.")
    if unit in _MONTHS:
        months = float(value.astype(np.int64)) * count * _MONTHS[unit] if not np.isnat(value) else np.nan
        return _finite(months * UNITS["y"] / 12.0, value)
    return _finite(float(value / np.timedelta64(1, "s")), value)


def _finite(seconds: float, value: object) -> float:
    if not np.isfinite(seconds):
        raise ValueError(f"a duration must be finite, but got {value!r}.")
    return seconds
