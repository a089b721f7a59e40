# SPDX-License-Identifier: Apache-2.0
"""Where an experiment leaves its results. What a finished run left there is used again by the next one."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Folder", "spread", "table"]


class Folder:
    """A folder with ``runs/`` (one JSON file for each finished part) and the results.

    :raises OSError: where it cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        (self.path / "runs").mkdir(parents=True, exist_ok=True)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def once(self, key: str, settings: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The result of ``compute``, numbers and arrays, from an earlier run where one with these settings is there."""
        path = self.path / "runs" / f"{key}.json"
        wanted = json.loads(json.dumps(settings))
        if path.exists():
            try:
                kept = json.loads(path.read_text())
                if kept["settings"] == wanted:
                    return {name: _unpack(value) for name, value in kept["result"].items()}
            except (ValueError, KeyError, TypeError):  # cut short or of another kind: made again
                pass
        result = dict(compute())
        self.write_json(f"runs/{key}.json", {"settings": wanted, "result": {k: _pack(v) for k, v in result.items()}})
        return result

    def write_json(self, name: str, value: Any) -> Path:
        return self.write_text(name, json.dumps(value, indent=1))

    def write_text(self, name: str, text: str) -> Path:
        """Write a file whole or not at all."""
        path = self.path / name
        partial = path.with_name(path.name + ".partial")
        partial.write_text(text)
        partial.replace(path)
        return path


def _pack(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": [None if math.isnan(x) else float(x) for x in value.ravel()], "shape": list(value.shape)}
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"array", "shape"}:
        return np.array([math.nan if x is None else x for x in value["array"]]).reshape(value["shape"])
    return value


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation (0 for one value)."""
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A markdown table; a cell that is ``spread`` is written with its deviation."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(cell: Any) -> str:
    if isinstance(cell, Mapping):
        return f"{cell['mean']:.4g}" + (f" ± {cell['sd']:.2g}" if cell["sd"] else "")
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
