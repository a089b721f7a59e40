# SPDX-License-Identifier: Apache-2.0
"""An experiment's output folder, whose finished parts the next run reuses, and its tables."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds.files.atomic import atomic_write

__all__ = ["Folder", "compare", "spread", "table"]


class Folder:
    """A folder with an experiment's results, and in ``runs/`` the numbers (JSON) and files of its finished parts.

    :param path: created when something is written.
    :param progress: show progress bars, and print each finished part. Default: bars on a terminal only. False prints
        nothing.
    """

    def __init__(self, path: str | os.PathLike[str], progress: bool | None = None) -> None:
        self.path, self.progress = Path(path), progress

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def once(
        self, key: str, settings: Mapping[str, object], compute: Callable[[Path], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The numbers and arrays that ``compute`` returns, or returned in an earlier run with the same settings.

        ``compute`` gets a folder for its files, which are copied next to the results. ``wall seconds`` are added to
        its result. If it fails or is interrupted, nothing is kept.
        """
        text = json.dumps(settings, sort_keys=True)
        part = self.path / "runs" / f"{key}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        result = _read(part.with_suffix(".json"))
        if result is None:
            result = self._compute(part, compute)
            packed = {name: _pack(value) for name, value in result.items()}
            self.write_json(f"runs/{part.name}.json", {"settings": json.loads(text), "result": packed})
            if self.progress is not False:
                print(f"{key}: {result['wall seconds']:.0f} s", file=sys.stderr)
        for file in sorted(part.iterdir()) if part.is_dir() else ():
            self._show(file)
        return result

    @staticmethod
    def _compute(part: Path, compute: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
        files = part.with_name(part.name + ".partial")
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir(parents=True)
        began = time.perf_counter()
        try:
            result = {**compute(files), "wall seconds": time.perf_counter() - began}
            shutil.rmtree(part, ignore_errors=True)
            if any(files.iterdir()):
                files.replace(part)
        finally:
            shutil.rmtree(files, ignore_errors=True)
        return result

    def _show(self, file: Path) -> None:
        """Put a part's file next to the results, as a hard link if the file system supports it."""
        with atomic_write(self.path / file.name) as part:
            try:
                os.link(file, part)
            except OSError:
                shutil.copyfile(file, part)

    def publish(self, name: str, text: str, numbers: Mapping[str, object]) -> None:
        """Print the text of an experiment's results, and write it and the numbers behind it."""
        print(text)
        self.write_text(f"{name}.md", f"{text}\n")
        self.write_json(f"{name}.json", numbers)

    def write_json(self, name: str, value: object) -> Path:
        return self.write_text(name, json.dumps(value, indent=1))

    def write_text(self, name: str, text: str) -> Path:
        """Write a file; it is never written partially."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as part:
            part.write_text(text)
        return path


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return {name: _unpack(value) for name, value in json.loads(path.read_text())["result"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, truncated or of another kind
        return None


def _pack(value: object) -> object:
    if isinstance(value, np.ndarray):
        return {"array": [None if math.isnan(x) else float(x) for x in value.ravel()], "shape": list(value.shape)}
    return value


def _unpack(value: object) -> object:
    if isinstance(value, dict) and set(value) == {"array", "shape"}:
        return np.array([math.nan if x is None else x for x in value["array"]]).reshape(value["shape"])
    return value


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation (0 for one value)."""
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A markdown table. Cells from :func:`spread` are written with their standard deviation."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(cell: object) -> str:
    if isinstance(cell, Mapping):
        return f"{cell['mean']:.4g}" + (f" ± {cell['sd']:.2g}" if cell["sd"] else "")
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


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
