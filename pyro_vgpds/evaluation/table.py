# SPDX-License-Identifier: Apache-2.0
"""A small tidy table: rows of named values, as text or as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyro_vgpds.checks import check_kind, check_list

if TYPE_CHECKING:
    import pandas

__all__ = ["Table", "Value", "format_value"]

Value = str | int | float | None


class Table:
    """Rows of named values.

    :param rows: dictionaries with the same keys.

    >>> from pyro_vgpds.evaluation import Table
    >>> scores = Table([{"model": "a", "rmse": 0.25}, {"model": "b", "rmse": 0.5}])
    >>> scores
    model    rmse
    a      0.2500
    b      0.5000
    >>> scores["rmse"]
    [0.25, 0.5]
    >>> scores.to_pandas().rmse.tolist()
    [0.25, 0.5]
    """

    def __init__(self, rows: Sequence[dict[str, Value]]) -> None:
        check_list("rows", rows, "a list of dictionaries")
        for row in rows:
            check_kind("rows", row, dict, "a list of dictionaries")
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> list[Value]:
        return [row[name] for row in self.rows]

    @property
    def columns(self) -> list[str]:
        """The names of the values."""
        return list(self.rows[0]) if self.rows else []

    def __repr__(self) -> str:
        cells = [self.columns, *([format_value(value) for value in row.values()] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        text = [isinstance(value, str) for value in (self.rows[0].values() if self.rows else ())]
        lines = [
            "  ".join(c.ljust(w) if left else c.rjust(w) for c, w, left in zip(line, widths, text, strict=True))
            for line in cells
        ]
        return "\n".join(line.rstrip() for line in lines)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame.

        :raises ImportError: if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pyro_vgpds[data].") from None
        return pandas.DataFrame(self.rows, columns=self.columns)


def format_value(value: Value) -> str:
    """Numbers with four significant digits."""
    if value is None:
        return "-"
    return f"{value:#.4g}" if isinstance(value, float) else str(value)
