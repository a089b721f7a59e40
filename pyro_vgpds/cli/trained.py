# SPDX-License-Identifier: Apache-2.0
"""A trained model with the names of its sequences and the record of its training."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_vgpds.cli.dates import format_duration, months_to, parse_range, parse_step, steps_to
from pyro_vgpds.cli.errors import CommandError, UsageError
from pyro_vgpds.cli.reading import Table
from pyro_vgpds.data.dates import format_times, to_dates
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.models import load, load_metadata, save
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.storage import load_posterior
from pyro_vgpds.training.api import FitResult, Record

__all__ = ["NEW", "Trained", "describe"]

NEW = "new"  # the name of a sequence that is none of training
_HISTORY = 2000  # records that are kept for the plot of training


@dataclass
class Trained:
    """Model, guide, data, and the rest of the file."""

    path: Path
    model: VGPDS
    guide: AutoOpperArchambeau
    data: Sequences
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Trained:
        """Raises a FileFormatError or FileNotFoundError as :func:`~pyro_vgpds.load`."""
        if not path.is_file():
            raise CommandError(f"there is no model {path}.")
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
        """(H, W) of the frames, where the data are a video."""
        held = self.metadata.get("shape")
        return None if held is None else (int(held[0]), int(held[1]))

    @property
    def fps(self) -> float | None:
        return self.metadata.get("fps")

    @property
    def shrink(self) -> int:
        """Pixels of the file, along a side, that were made one for training."""
        return int(self.metadata.get("shrink") or 1)

    @property
    def names(self) -> list[str]:
        """Of the sequences."""
        return self.metadata.get("names") or [str(s) for s in range(self.data.num_sequences)]

    @property
    def result(self) -> FitResult | None:
        """How training went, where the file says so."""
        about = self.metadata.get("training")
        if not about:
            return None
        history = [Record(int(step), seconds, bound) for step, seconds, bound in about["history"]]
        return FitResult(about["bound"], history, about["stopped"], about["num_undone"], about["method"])

    def outputs(self) -> np.ndarray:
        """The training outputs (N, D)."""
        return self.data.read(0, self.data.num_base_outputs).cpu().numpy()

    def times(self, sequence: int) -> np.ndarray:
        """Of a training sequence: numbers or dates."""
        return self.dated(self.data.times.t[self.data.times.slices()[sequence]].cpu().numpy())

    def dated(self, t: np.ndarray) -> np.ndarray:
        """Numbers as dates, where the data have dates."""
        return t if self.data.time_origin is None else to_dates(t, self.data.time_origin)

    def sequence(self, text: str | None) -> int | None:
        """The number of the sequence of this name or number; None for ``new``.

        :raises UsageError: where it is unknown, or left out though there are several.
        """
        known = ", ".join(self.names[:20]) + (", …" if len(self.names) > 20 else "")
        if text is None:
            if len(self.names) > 1:
                raise UsageError(f"--sequence must be said: one of {known}, or {NEW} for a new sequence.")
            return 0
        if text in self.names:
            return self.names.index(text)
        if text == NEW:
            return None
        if text.isdigit() and int(text) < len(self.names):
            return int(text)
        raise UsageError(f"--sequence must be one of {known}, or {NEW} for a new sequence, but got {text!r}.")

    def horizon(self, sequence: int | None, times: str | None, until: str | None, step: str | None) -> np.ndarray:
        """The times that ``--times``, or ``--until`` and ``--step``, ask for; a new sequence starts as the first did.

        :raises UsageError: where they cannot be read, do not fit the model's times, or are none.
        """
        dates = self.data.time_origin is not None
        if times is not None:
            if until is not None or step is not None:
                raise UsageError("--times says all; leave out --until and --step.")
            return self._same_kind(parse_range(times, "--times"), "--times")
        known = self.data.times.t[self.data.times.slices()[sequence or 0]].cpu().numpy()
        if until is None:
            if sequence is not None:
                raise UsageError("one of --until and --times is needed.")
            if step is not None:
                raise UsageError("--step goes with --until.")
            return self.dated(known)
        end = self._same_kind(parse_range(until, "--until"), "--until")
        if len(end) != 1:
            raise UsageError(f"--until must be one time, but got {until!r}.")
        if step is None and len(known) < 2:
            raise UsageError("--step is needed, as the sequence has one frame only.")
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
            raise UsageError(f"--until {until} leaves nothing to do: times begin after {first}, in steps of {steps}.")
        return self.dated(ahead)

    def _same_kind(self, t: np.ndarray, argument: str) -> np.ndarray:
        dates = self.data.time_origin is not None
        if (t.dtype.kind == "M") != dates:
            raise UsageError(f"{argument} must be {'dates' if dates else 'numbers'}, as the times of {self.path} are.")
        return t

    def fitting(self, table: Table) -> list[np.ndarray]:
        """The outputs of a file as the model wants them: columns in its order, those that are not there hidden.

        :raises CommandError: where the file has other columns, sizes or times than the model.
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
                "--shrink N makes one pixel from N x N."
            )
        if wanted and table.columns:
            odd = [name for name in table.columns if name not in wanted]
            if odd:
                raise CommandError(
                    f"{table.path}: column {odd[0]!r} is not one of {self.path}; its columns are {', '.join(wanted)}. "
                    "Name the columns to take by --columns."
                )
            at = [wanted.index(name) for name in table.columns]
            full = [np.full((len(part), count), np.nan) for part in table.y]
            for part, given in zip(full, table.y, strict=True):
                part[:, at] = given
            return full
        if table.y[0].shape[1] != count:
            raise CommandError(f"{table.path} has {table.y[0].shape[1]} outputs, but {self.path} has {count}.")
        return table.y


def describe(
    result: FitResult,
    before: torch.Tensor,
    *,
    source: str,
    names: list[str] | None = None,
    shape: tuple[int, int] | None = None,
    fps: float | None = None,
    seed: int = 0,
    shrink: int = 1,
) -> dict[str, Any]:
    """The metadata of a model file.

    :param before: relevance of the latent dimensions before training, (Q,).
    :param shrink: of the frames of a video, as ``--shrink``.
    """
    every = -(-len(result.history) // _HISTORY)
    return {
        "source": source,
        "names": names,
        "shape": shape,
        "fps": fps,
        "shrink": shrink,
        "relevance_before": before.tolist(),
        "training": {
            "history": [[record.step, record.seconds, record.bound] for record in result.history[::every]],
            "bound": result.bound,
            "stopped": result.stopped,
            "num_undone": result.num_undone,
            "method": result.method,
            "seed": seed,
        },
    }
