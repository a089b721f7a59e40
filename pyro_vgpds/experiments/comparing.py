# SPDX-License-Identifier: Apache-2.0
"""A table of methods, each measured on the same cases (seeds, folds or origins)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyro_vgpds.experiments.record import Folder, spread, table

__all__ = ["compare"]


def compare(
    folder: Folder,
    title: str,
    methods: Mapping[str, Callable[[int], Mapping[str, float]]],
    cases: Sequence[int],
    settings: Mapping[str, object],
) -> tuple[str, dict[str, dict[str, dict[str, float]]]]:
    """The table, and for each method and column the mean and the standard deviation over the cases.

    Finished cases with the same settings are read from the folder.

    :param title: head of the first column, and part of the names of files.
    :param methods: functions of the case that return the columns; a method may have fewer columns than others.
    """
    rows = {}
    for label, measure in methods.items():
        runs = []
        for case in cases:
            key = re.sub(r"[^A-Za-z0-9.]+", "-", f"{title}-{label}-{case}")
            runs.append(folder.once(key, {**settings, "label": label, "case": case}, _without_files(measure, case)))
        rows[label] = {column: spread([r[column] for r in runs]) for column in runs[0] if column != "wall seconds"}
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    cells = [[label, *(row.get(column, "") for column in columns)] for label, row in rows.items()]
    return table([title, *columns], cells), rows


def _without_files(measure: Callable[[int], Mapping[str, float]], case: int) -> Callable[[Path], Mapping[str, Any]]:
    """A part of an experiment that writes no files."""
    return lambda _: measure(case)
