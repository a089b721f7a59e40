# SPDX-License-Identifier: Apache-2.0
"""Scores of held-out predictions, and small tidy tables of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_vgpds.checks import check_kind, check_list, check_tensor
from pyro_vgpds.evaluation.splits import HeldOut, Predicted, Predictor, Split

if TYPE_CHECKING:
    import pandas

__all__ = ["Table", "Value", "format_value", "inside_intervals", "relative_error", "score", "score_predictor"]

_LEVELS = (0.80, 0.95)
Value = str | int | float | None


def relative_error(held_out: HeldOut, scale: Tensor) -> float:
    """Root mean squared error in units of each output's scale (D,)."""
    return float(((held_out.mean - held_out.truth) / scale.to(held_out.mean)[held_out.output]).square().mean().sqrt())


def score(held_out: HeldOut, scale: Tensor) -> dict[str, Value]:
    """Errors, the mean negative log-density, and the percentages inside central intervals.

    Log-densities are those of the predictions if they have their own, as counts have, else those of Gaussians.
    Intervals are those of Gaussians; :func:`score_predictor` has the predictions' own.

    :param held_out: hidden numbers and their predictions.
    :param scale: standard deviations of the outputs, (D,), the units of ``nrmse``.

    >>> from pyro_vgpds.evaluation import hold_out, score
    >>> split = hold_out(data, "forecast", horizon=2)
    >>> sorted(score(split.predict(post.condition(split.train)), data.output_scales))
    ['in 80 %', 'in 95 %', 'mae', 'nlpd', 'nrmse', 'rmse']
    """
    check_kind("held_out", held_out, HeldOut, "a HeldOut")
    check_tensor("scale", scale, 1)
    if scale.dim() != 1 or (len(held_out.output) and int(held_out.output.max()) >= len(scale)):
        raise ValueError(f"scale must be (D,), one for each output, but its shape is {tuple(scale.shape)}.")
    error = held_out.mean - held_out.truth
    z = error.abs() / held_out.variance.sqrt()
    density = 0.5 * (z.square() + held_out.variance.log() + math.log(2.0 * math.pi))
    density = density if held_out.log_density is None else -held_out.log_density
    inside = {
        f"in {100 * level:.0f} %": 100.0 * float((torch.special.erf(z / math.sqrt(2.0)) <= level).double().mean())
        for level in _LEVELS
    }
    return {
        "rmse": float(error.square().mean().sqrt()),
        "nrmse": relative_error(held_out, scale),
        "mae": float(error.abs().mean()),
        "nlpd": float(density.mean()),
        **inside,
    }


def score_predictor(predictor: Predictor, split: Split, scale: Tensor) -> dict[str, Value]:
    """The scores of a predictor, with its own intervals.

    :param predictor: a model of the split's training data.
    :param split: what is held out.
    :param scale: as in :func:`score`.

    >>> from pyro_vgpds.evaluation import hold_out, score_predictor
    >>> split = hold_out(data, "forecast", horizon=2)
    >>> score_predictor(post.condition(split.train), split, data.output_scales)["in 95 %"] > 50.0
    True
    """
    check_kind("split", split, Split, "a Split, such as hold_out() makes")
    check_tensor("scale", scale, 1)
    found = split.outputs(predictor)
    scores = score(split.held_out(found), scale)
    for name, hit in inside_intervals(found, split).items():
        scores[name] = 100.0 * float(hit.double().mean())
    return scores


def inside_intervals(found: Sequence[Predicted], split: Split) -> dict[str, Tensor]:
    """Whether the hidden numbers are inside the predictions' own central intervals, (n,) for each column of a table.

    :param found: predictions of all frames of the split.
    :param split: what is held out.
    """
    truth = torch.cat(split.truth)
    result = {}
    for level in _LEVELS:
        ends = [part.interval(level) for part in found]
        lower, upper = (torch.cat([end[side] for end in ends]) for side in (0, 1))
        result[f"in {100 * level:.0f} %"] = ((lower <= truth) & (truth <= upper))[truth.isfinite()]
    return result


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
