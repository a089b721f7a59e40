# SPDX-License-Identifier: Apache-2.0
"""Columns that count the rows, such as identifiers, and would be learned as measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["describe_counters"]

_LEAST = 10  # rows: a few equal steps may be measured ones


def describe_counters(parts: Sequence[np.ndarray], columns: Sequence[str] | None) -> str | None:
    """A sentence about the first column of outputs (N, D) that increases by the same whole number in each row.

    None if no column is like that, or all are.
    """
    y = np.concatenate(parts).astype(np.float64)
    if len(y) < _LEAST:
        return None
    step = y[1] - y[0]
    counts = (np.diff(y, axis=0) == step).all(0) & (step > 0.0) & (step == np.round(step))
    if not counts.any() or counts.all():
        return None
    first = int(np.flatnonzero(counts)[0])
    name = f"column {first}" if columns is None else f"column {columns[first]!r}"
    return (
        f"{name} increases by {step[first]:.10g} in each row. If it counts the rows and was not measured, leave it out "
        "with --columns"
    )
