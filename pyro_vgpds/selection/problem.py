# SPDX-License-Identifier: Apache-2.0
"""What a comparison is about, and which parts of the data it holds out."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyro_vgpds.checks import check_count, check_horizon, check_seed
from pyro_vgpds.data.parts import base_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import Split, check_hidden, check_task, count_gaps, hold_out
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.files.data import build_data, describe_data
from pyro_vgpds.files.models import reading
from pyro_vgpds.formatting import counted
from pyro_vgpds.inference.data_checks import user_stacklevel
from pyro_vgpds.selection.likelihoods import LikelihoodLike, pack_outputs, unpack_outputs
from pyro_vgpds.version import __version__

__all__ = ["Problem", "tested_horizon"]

_ORIGINS = 4  # of forecasts
_SHARE = 0.25  # of the frames that all origins together may remove from the training data
_PARTS = 4  # held-out parts of other tasks, at the most
_TRAINED = 3  # training frames that hold_out needs
_LEAST = 3  # observed entries that each column needs before the origin of a forecast
_GAPS = 16.0  # that all parts together should have: the entries of one gap have similar errors
_OUTPUTS = 50.0  # further outputs with whose errors a gap of missing entries counts as one more
_ENTRIES = 400.0  # that all parts together should have, for missing entries
# Of the way candidates are trained and tried. Increase it with each change after which kept results would be others.
_PROCEDURE = 10


def _few_observed(split: Split) -> list[int]:
    """The columns that have too few observations in the training data."""
    return (split.train.output_counts[: split.train.num_base_outputs] < _LEAST).nonzero().flatten().tolist()


@dataclass(frozen=True)
class Problem:
    """What a comparison is about."""

    data: Sequences
    task: str
    horizon: int | None
    seed: int
    origins: int = _ORIGINS  #: of forecasts, at the most
    likelihood: LikelihoodLike = None  #: of the outputs. Default: Gaussian outputs
    hidden: list[int] | None = None  #: columns to hide in frames to reconstruct. Default: half of them

    @cached_property
    def splits(self) -> list[Split]:
        """Held-out parts. Candidates are trained without the first, which is the earliest origin of a forecast.

        Forecasts have up to four origins, or as many as cover a cycle of counts. Their frames overlap if the data are
        too short for others: a single origin may be a quiet or a stormy time. Columns that begin late limit them.
        """
        self._check_observed()
        first = self._part(0)
        if self.task != "forecast":
            return self._parts(first)
        self._check_columns(first)
        width, length = max(len(t) for t in first.t), sorted(self.data.lengths)[self.data.num_sequences // 2]
        most = max(2, min(self.origins, int(_SHARE * length / width)))
        for apart in range(most, 1, -1):  # origins whose held-out frames have none in common
            earliest = width * (apart - 1)
            skips = {round(earliest * k / (self.origins - 1)) for k in range(1, self.origins)} - {0}
            try:
                earlier = [hold_out(self.data, self.task, horizon=width, skip=skip) for skip in sorted(skips)[::-1]]
            except ValueError:  # too short for an earlier origin
                continue
            return [*(part for part in earlier if not _few_observed(part)), first]
        return [first]

    def _check_observed(self) -> None:
        """:raises ValueError: if a column was never observed."""
        unseen = (self.data.output_counts[: self.data.num_base_outputs] == 0).nonzero().flatten().tolist()
        if unseen:
            raise ValueError(f"{self._named(unseen[0])} was never observed. Drop the column.")

    def _check_columns(self, last: Split) -> None:
        """:raises ValueError: if a column has too few observations before the last origin of a forecast."""
        if few := _few_observed(last):
            width = max(len(t) for t in last.t)
            todo = "Pass a shorter horizon, or drop the column." if width > 1 else "Drop the column."
            raise ValueError(
                f"{self._named(few[0])} has fewer than {_LEAST} observed entries before the last "
                f"{counted(width, 'frame')}, held out to compare forecasts. {todo}"
            )

    def _named(self, column: int) -> str:
        names = self.data.base_columns
        return f"column {column if names is None else repr(names[column])} of data"

    def _parts(self, first: Split) -> list[Split]:
        """Held-out parts with enough gaps and entries; those of whole sequences differ in these sequences."""
        gaps, found = count_gaps(first), [first]
        count = math.ceil(_GAPS / gaps)
        if self.task == "impute":  # a further part costs more than a few gaps or entries less than wanted
            count = round(_GAPS / (gaps * (1.0 + self.data.num_base_outputs / _OUTPUTS)))
            count = max(count, int(_ENTRIES / sum(int(part.isfinite().sum()) for part in first.truth)))
        count = min(_PARTS, count)
        for number in range(1, 10 * _PARTS):
            part = self._part(number) if len(found) < count else first
            whole = len(part.kept) < self.data.num_sequences
            if part is not first and not (whole and any(part.kept == other.kept for other in found)):
                found.append(part)
        return found

    def _part(self, number: int) -> Split:
        seed = self.seed + 1000 * number
        return hold_out(self.data, self.task, horizon=self.horizon, share=self.share, hidden=self.hidden, seed=seed)

    @property
    def share(self) -> float:
        """The share of the data to hold out: as little as distinguishes candidates, since they train on the rest."""
        if self.task != "impute":
            return 0.1
        return min(0.1, max(0.05, 2000.0 / self.data.num_observed))

    @cached_property
    def digest(self) -> str:
        """A digest of the data, the settings and the procedure."""
        header, tensors = describe_data(self.data)
        about = [header, self._about(), __version__, _PROCEDURE, _PARTS, _ENTRIES]
        total = hashlib.sha256(json.dumps(about).encode())
        for tensor in tensors.values():
            total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return total.hexdigest()

    def _about(self) -> dict[str, object]:
        """All except the data, as JSON."""
        plain = {name: getattr(self, name) for name in ("task", "horizon", "seed", "origins", "hidden")}
        return {**plain, "likelihood": pack_outputs(self.likelihood)}

    def write(self, path: Path) -> None:
        """Write the problem for workers."""
        header, tensors = describe_data(self.data)
        write_file(path, "comparison", {**header, "comparison": self._about()}, tensors)

    @classmethod
    def read(cls, path: Path) -> Problem:
        """The problem that :meth:`write` wrote.

        :raises FileFormatError: if the file is damaged or has unexpected content.
        """
        header, tensors = read_file(path, "comparison")
        with reading(path, "a comparison"):
            task, horizon, seed, origins, hidden, outputs = (
                header["comparison"][name] for name in ("task", "horizon", "seed", "origins", "hidden", "likelihood")
            )
            check_task(task)
            if horizon is not None:
                check_horizon(horizon)
            check_seed(seed)
            check_count("origins", origins)
            data = build_data(header, tensors)
            hidden = check_hidden(hidden, data, task)
            return cls(data, task, horizon, seed, origins, unpack_outputs(outputs), hidden)


def tested_horizon(data: Sequences, horizon: int) -> int:
    """``horizon``, but at most half of the longest sequence, to its last observed frame, with a warning.

    Candidates that are trained on less than they predict say little about those that are trained on all frames. A
    horizon that leaves no training frames at all stays, and is an error of
    :func:`~pyro_vgpds.evaluation.hold_out`.
    """
    seen = base_outputs(data).isfinite().any(1).split(data.lengths)
    frames = max(int(part.nonzero()[-1:].sum()) + 1 for part in seen)
    most = frames // 2
    if horizon <= most or horizon > frames - _TRAINED:
        return horizon
    warnings.warn(
        f"horizon={horizon} leaves {frames - horizon} of the {frames} frames of the longest sequence to train the "
        f"candidates that are compared, fewer than they predict. They are compared with horizon={most} instead, which "
        "is the most that these data allow. The result is trained on all frames and forecasts as far as you ask, but "
        f"its errors and intervals more than {most} frames ahead were not tested.",
        UserWarning,
        stacklevel=user_stacklevel(),
    )
    return most
