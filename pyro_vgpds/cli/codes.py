# SPDX-License-Identifier: Apache-2.0
"""Numbers such as -999 that stand for missing values in many files, and would be learned as measurements."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from pyro_vgpds.formatting import counted

__all__ = ["describe_codes"]

_CODE = re.compile(r"-?99+(\.9+)?")
_FAR = 3.0  # distance from all other values of the column, in units of their range
_LEAST, _SHOWN = 3, 3  # other values of the column; columns that are named


def describe_codes(parts: Sequence[np.ndarray], columns: Sequence[str] | None) -> str | None:
    """A sentence about columns of outputs (N, D) in which -999, 9999.9 or the like is far from all other values.

    None if no column is like that.
    """
    y = np.concatenate(parts).astype(np.float64)
    found = []
    for extreme in (np.fmin.reduce(y, axis=0), np.fmax.reduce(y, axis=0)):
        for i in np.flatnonzero(np.abs(extreme) >= 99.0).tolist():
            if _CODE.fullmatch(f"{extreme[i]:.10g}") is None:
                continue
            same = y[:, i] == extreme[i]
            others = y[np.isfinite(y[:, i]) & ~same, i]
            if len(others) >= _LEAST and np.abs(others - extreme[i]).min() > _FAR * np.ptp(others) > 0.0:
                name = f"column {i}" if columns is None else f"column {columns[i]!r}"
                found.append(f"{name} has {extreme[i]:.10g} in {counted(int(same.sum()), 'row')}")
    if not found:
        return None
    more = f", and {len(found) - _SHOWN} further columns are like that" if len(found) > _SHOWN else ""
    return (
        f"{', '.join(found[:_SHOWN])}, far from all other values{more}. If such a number stands for a missing value, "
        "leave the cell empty"
    )
