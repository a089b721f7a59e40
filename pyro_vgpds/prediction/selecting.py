# SPDX-License-Identifier: Apache-2.0
"""Checks of which outputs and which frames of a prediction are asked for."""

from __future__ import annotations

from pyro_vgpds.checks import is_whole
from pyro_vgpds.kinds import check_kind

__all__ = ["check_output", "check_rows"]


def check_output(output: object, count: int) -> None:
    """Raise a ValueError if ``output`` is not the index of one of ``count`` outputs."""
    if not is_whole(output) or not -count <= output < count:
        raise ValueError(f"output must be a whole number from 0 to {count - 1}, but got {output!r:.80}.")


def check_rows(rows: slice, count: int) -> None:
    """Raise an error if ``rows`` is not a slice that selects some of ``count`` frames."""
    check_kind("rows", rows, slice, "a slice of frames")
    if any(end is not None and not is_whole(end) for end in (rows.start, rows.stop, rows.step)) or rows.step == 0:
        raise TypeError(f"rows must be a slice of whole numbers, but got {rows}.")
    if not len(range(count)[rows]):
        raise ValueError(f"rows must select at least one of the {count} times, but got {rows}.")
