# SPDX-License-Identifier: Apache-2.0
"""A model file with its metadata: names of the sequences, and the record of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds.cli.dates import format_duration, months_to, parse_range, parse_step, steps_to
from pyro_vgpds.cli.errors import CommandError, UsageError
from pyro_vgpds.cli.layout import InputTable
from pyro_vgpds.data.dates import format_times, to_dates
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.models import load, load_metadata, save
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.storage import load_posterior
from pyro_vgpds.training.api import FitResult
from pyro_vgpds.training.metadata import read_result

__all__ = ["NEW", "ModelFile"]

NEW = "new"  # the name of a sequence that is not a training sequence


@dataclass
class ModelFile:
    """The content of a model file."""

    path: Path
    model: VGPDS
    guide: AutoOpperArchambeau
    data: Sequences
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> ModelFile:
        """
        :raises CommandError: if the file does not exist.
        :raises FileFormatError: as :func:`~pyro_vgpds.load`.
        """
        if not path.is_file():
            raise CommandError(f"model file {path} does not exist.")
        return cls(path, *load(path), load_metadata(path))

    def write(self) -> None:
        save(self.path, self.model, self.guide, self.data, self.metadata)

    @cached_property
    def posterior(self) -> Posterior:
        found = load_posterior(self.path)  # with the noise and residuals that it was saved with
        assert isinstance(found, Posterior)
        return found

    # units and names

    @property
    def scale(self) -> np.ndarray | float:
        """By which the model divides the outputs, (D,), or 1."""
        scale = self.model.output_scale.cpu().numpy()
        return 1.0 if (scale == 1.0).all() else np.asarray(scale, dtype=np.float64)

    @property
    def shape(self) -> tuple[int, int] | None:
        """(H, W) of the frames, if the data are a video."""
        held = self.metadata.get("shape")
        return None if held is None else (int(held[0]), int(held[1]))

    @property
    def fps(self) -> float | None:
        return self.metadata.get("fps")

    @property
    def shrink(self) -> int:
        """``--shrink`` of training."""
        return int(self.metadata.get("shrink") or 1)

    @property
    def names(self) -> list[str]:
        """Of the sequences."""
        return self.metadata.get("names") or [str(s) for s in range(self.data.num_sequences)]

    @property
    def result(self) -> FitResult | None:
        """The record of training, if the file has one."""
        return read_result(self.metadata)

    def outputs(self) -> np.ndarray:
        """The training outputs (N, D)."""
        return self.data.read(0, self.data.num_base_outputs).cpu().numpy()

    def times(self, sequence: int) -> np.ndarray:
        """Times of a training sequence: numbers or dates."""
        return self.dated(self.data.times.t[self.data.times.slices()[sequence]].cpu().numpy())

    def dated(self, t: np.ndarray) -> np.ndarray:
        """Numbers as dates, where the data have dates."""
        return t if self.data.time_origin is None else to_dates(t, self.data.time_origin)

    def sequence(self, text: str | None) -> int | None:
        """The number of the sequence of this name or number; None for ``new``.

        :raises UsageError: if it is unknown, or None although there are several sequences.
        """
        known = ", ".join(self.names[:20]) + (", …" if len(self.names) > 20 else "")
        if text is None:
            if len(self.names) > 1:
                raise UsageError(f"--sequence is required: one of {known}, or {NEW} for a new sequence.")
            return 0
        if text in self.names:
            return self.names.index(text)
        if text == NEW:
            return None
        if text.isdigit() and int(text) < len(self.names):
            return int(text)
        raise UsageError(f"--sequence must be one of {known}, or {NEW} for a new sequence, but got {text!r}.")

    def horizon(self, sequence: int | None, times: str | None, until: str | None, step: str | None) -> np.ndarray:
        """The times of ``--times``, or of ``--until`` and ``--step``. A new sequence starts at the first one's start.

        :raises UsageError: if they cannot be read, do not fit the model's times, or are empty.
        """
        dates = self.data.time_origin is not None
        if times is not None:
            if until is not None or step is not None:
                raise UsageError("--times cannot be combined with --until or --step.")
            return self._same_kind(parse_range(times, "--times"), "--times")
        known = self.data.times.t[self.data.times.slices()[sequence or 0]].cpu().numpy()
        if until is None:
            if sequence is not None:
                raise UsageError("--until or --times is required.")
            if step is not None:
                raise UsageError("--step requires --until.")
            return self.dated(known)
        end = self._same_kind(parse_range(until, "--until"), "--until")
        if len(end) != 1:
            raise UsageError(f"--until must be one time, but got {until!r}.")
        if step is None and len(known) < 2:
            raise UsageError("--step is required because the sequence has only one frame.")
        monthly = months_to(self.dated(known), end[0], sequence is None) if step is None and dates else None
        if monthly is not None and len(monthly):
            return monthly
        width = float(np.median(np.diff(known))) if step is None else parse_step(step, "--step")
        start = float(known[0] if sequence is None else known[-1])
        stop = float((end[0] - self.data.time_origin) / np.timedelta64(1, "s")) if dates else float(end[0])
        ahead = steps_to(start, stop, width, "--until", include=sequence is None) if stop >= start else np.empty(0)
        if not len(ahead) or monthly is not None:
            first = format_times(self.dated(np.array([start])))[0] if dates else start
            steps = format_duration(width) if dates else f"{width:g}"
            raise UsageError(f"--until {until} gives no times: they start after {first}, in steps of {steps}.")
        return self.dated(ahead)

    def _same_kind(self, t: np.ndarray, argument: str) -> np.ndarray:
        dates = self.data.time_origin is not None
        if (t.dtype.kind == "M") != dates:
            raise UsageError(f"{argument} must be {'dates' if dates else 'numbers'}, like the times of {self.path}.")
        return t

    def fitting(self, table: InputTable) -> list[np.ndarray]:
        """The outputs of a data file in the order of the model's columns, NaN for columns that the file lacks.

        :raises CommandError: if the file does not fit the model's columns, frame size or kind of times.
        """
        wanted, count = self.posterior.columns, self.posterior.num_outputs
        dates = self.data.time_origin is not None
        if (table.t[0].dtype.kind == "M") != dates:
            kinds = ("dates", "numbers")
            raise CommandError(
                f"{table.path}: the times are {kinds[dates]}, but those of {self.path} are {kinds[not dates]}."
            )
        if self.shape is not None and table.shape is not None and table.shape != self.shape:
            trained = f", after --shrink {self.shrink}" if self.shrink > 1 else ""
            raise CommandError(
                f"{table.path}: frames are {table.shape}, but those of {self.path} are {self.shape}{trained}. "
                "--shrink N averages N x N pixels to one."
            )
        if wanted and table.columns:
            odd = [name for name in table.columns if name not in wanted]
            if odd:
                raise CommandError(
                    f"{table.path}: column {odd[0]!r} is not an output of {self.path}, whose outputs are "
                    f"{', '.join(wanted)}. Select columns with --columns."
                )
            at = [wanted.index(name) for name in table.columns]
            full = [np.full((len(part), count), np.nan) for part in table.y]
            for part, given in zip(full, table.y, strict=True):
                part[:, at] = given
            return full
        if table.y[0].shape[1] != count:
            raise CommandError(f"{table.path} has {table.y[0].shape[1]} outputs, but {self.path} has {count}.")
        return table.y
