# SPDX-License-Identifier: Apache-2.0
"""Notes about data that may not be what they are taken for: identifiers, codes for missing values, and counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from pyro_vgpds.formatting import counted

__all__ = ["find_notes"]

_ROWS = 10  # of a column that counts them, and of counts: a few numbers may be whole by chance
_CODE = re.compile(r"-?99+(\.9+)?")
_FAR = 3.0  # distance from all other values of the column, in units of their range
_LEAST, _SHOWN = 3, 3  # other values of the column; columns that are named
_NEAR = 4.0  # standard deviations of a column from zero to its mean, of counts


def find_notes(
    parts: Sequence[np.ndarray], columns: Sequence[str] | None, *, may_be_counts: bool = True
) -> Iterator[str]:
    """Sentences about outputs (N, D) that may be no measurements, or not Gaussian.

    They are about the first column that increases by the same whole number in each row, unless all do; about columns in
    which -999, 9999.9 or the like is far from all other values; and about outputs that are all whole numbers.
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
    found, codes = [], []
    for extreme in (np.fmin.reduce(y, axis=0), np.fmax.reduce(y, axis=0)):
        for i in np.flatnonzero(np.abs(extreme) >= 99.0).tolist():
            same = y[:, i] == extreme[i]
            others = y[np.isfinite(y[:, i]) & ~same, i]
            is_far = len(others) >= _LEAST and np.abs(others - extreme[i]).min() > _FAR * np.ptp(others) > 0.0
            if is_far and _CODE.fullmatch(f"{extreme[i]:.10g}"):
                found.append(f"{names[i]} has {extreme[i]:.10g} in {counted(int(same.sum()), 'row')}")
                codes.append(f"{extreme[i]:.10g}")
    if found:
        more = f", and {len(found) - _SHOWN} further columns are like that" if len(found) > _SHOWN else ""
        yield (
            f"{', '.join(found[:_SHOWN])}, far from all other values{more}. If such a number stands for a missing "
            f"value, pass --missing {','.join(dict.fromkeys(codes))}"
        )
    seen = y[np.isfinite(y)]
    is_count = len(y) >= _ROWS and (seen >= 0.0).all() and (seen == seen.round()).all()
    if may_be_counts and is_count and (np.nanmean(y, axis=0) < _NEAR * np.nanstd(y, axis=0)).any():
        kind, name = "whole numbers of 0 or more", "negative-binomial"
        if seen.max() <= 1.0:
            kind, name = "0 or 1", "bernoulli"
        yield f"all outputs are {kind}. With --likelihood {name}, intervals have only such numbers"
