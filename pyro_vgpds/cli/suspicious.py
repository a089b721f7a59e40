# SPDX-License-Identifier: Apache-2.0
"""Numbers that would be learned as measurements and may be none: identifiers, and codes for missing values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from pyro_vgpds.formatting import counted

__all__ = ["suspicions"]

_ROWS = 10  # of a column that counts them: a few equal steps may be measured ones
_CODE = re.compile(r"-?99+(\.9+)?")
_FAR = 3.0  # distance from all other values of the column, in units of their range
_LEAST, _SHOWN = 3, 3  # other values of the column; columns that are named


def suspicions(parts: Sequence[np.ndarray], columns: Sequence[str] | None) -> Iterator[str]:
    """Sentences about the first column of outputs (N, D) that increases by the same whole number in each row, unless
    all do, and about columns in which -999, 9999.9 or the like is far from all other values.
    """
    y = np.concatenate(parts).astype(np.float64)
    names = [f"column {i if columns is None else repr(columns[i])}" for i in range(y.shape[1])]
    if len(y) >= _ROWS:
        step = y[1] - y[0]
        counts = (np.diff(y, axis=0) == step).all(0) & (step > 0.0) & (step == np.round(step))
        if counts.any() and not counts.all():
            first = int(np.flatnonzero(counts)[0])
            yield (
                f"{names[first]} increases by {step[first]:.10g} in each row. If it counts the rows and was not "
                "measured, leave it out with --columns"
            )
    found = []
    for extreme in (np.fmin.reduce(y, axis=0), np.fmax.reduce(y, axis=0)):
        for i in np.flatnonzero(np.abs(extreme) >= 99.0).tolist():
            same = y[:, i] == extreme[i]
            others = y[np.isfinite(y[:, i]) & ~same, i]
            is_far = len(others) >= _LEAST and np.abs(others - extreme[i]).min() > _FAR * np.ptp(others) > 0.0
            if is_far and _CODE.fullmatch(f"{extreme[i]:.10g}"):
                found.append(f"{names[i]} has {extreme[i]:.10g} in {counted(int(same.sum()), 'row')}")
    if found:
        more = f", and {len(found) - _SHOWN} further columns are like that" if len(found) > _SHOWN else ""
        yield (
            f"{', '.join(found[:_SHOWN])}, far from all other values{more}. If such a number stands for a missing "
            "value, leave the cell empty"
        )
