# SPDX-License-Identifier: Apache-2.0
"""A model file on the command line: its sequences by name, its times as text, and data files that fit it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from pyro_vgpds.cli.csv_files import CSV_SUFFIXES
from pyro_vgpds.cli.dates import months_to, parse_range, parse_step, steps_to
from pyro_vgpds.cli.errors import CommandError, UsageError
from pyro_vgpds.cli.layout import InputTable, listed
from pyro_vgpds.data.dates import OutOfRangeError, format_duration, format_times, to_nanoseconds
from pyro_vgpds.data.parts import base_outputs, sequence_names, to_stamps
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.container import FileFormatError
from pyro_vgpds.files.models import load_metadata
from pyro_vgpds.model import VGPDS, Relevance
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.posterior_mixture import PosteriorMixture
from pyro_vgpds.prediction.storage import load_posterior
from pyro_vgpds.selection.report import Report
from pyro_vgpds.training.metadata import Metadata

__all__ = ["NEW", "ModelFile", "relevance_of", "trained_model"]

NEW = "new"  # the name of a sequence that is not a training sequence


@dataclass(frozen=True)
class ModelFile:
    """The content of a model file: a posterior, a mixture or an ensemble of several, and the metadata."""

    path: Path
    posterior: Posterior | PosteriorMixture | Ensemble
    metadata: Metadata

    @classmethod
    def read(cls, path: Path) -> ModelFile:
        """
        :raises CommandError: if the file does not exist, or is a csv file.
        :raises FileFormatError: as :func:`~pyro_vgpds.load_posterior`.
        """
        if not path.is_file():
            raise CommandError(f"model file {path} does not exist.")
        try:
            return cls(path, load_posterior(path), Metadata.unpack(load_metadata(path)))
        except FileFormatError:
            if path.suffix.lower() not in CSV_SUFFIXES:
                raise
            raise CommandError(
                f"{path} is not a model file. `pyro-vgpds fit {path} -o MODEL` trains a model."
            ) from None

    @property
    def members(self) -> dict[str, Posterior]:
        """The models by name: those of a mixture, those of an ensemble with the best first, or the only one."""
        if isinstance(self.posterior, Ensemble):
            return _models(self.posterior)
        several = [self.posterior] if isinstance(self.posterior, Posterior) else self.posterior.posteriors
        return {str(i): one for i, one in enumerate(several)}

    def first(self, what: str) -> Posterior:
        """The only model, the first of a mixture, or the best of an ensemble, or an error if ``what`` finds none."""
        found = next(iter(self.members.values()), None)
        if found is None:
            assert isinstance(self.posterior, Ensemble)
            raise CommandError(
                f"{self.path} has no model, only baselines ({', '.join(self.posterior.names)}), but {what} requires "
                "one. --what fit and --what forecast draw predictions, which need none."
            )
        return found

    @property
    def data(self) -> Sequences:
        """The training data."""
        return self.posterior.data

    @property
    def names(self) -> list[str]:
        """Names of the sequences. Default: their numbers."""
        return sequence_names(self.data)

    def outputs(self, sequence: int | None = None) -> np.ndarray:
        """The outputs (N, D) of a training sequence. Default: of all."""
        rows = slice(None) if sequence is None else self.data.times.slices()[sequence]
        return base_outputs(self.data)[rows].cpu().numpy()

    def times(self, sequence: int) -> np.ndarray:
        """Times of a training sequence: numbers or dates."""
        return to_stamps(self.data.times.t[self.data.times.slices()[sequence]], self.data)

    def sequence(self, text: str | None) -> int | None:
        """The number of the sequence of this name or number; None for ``new``."""
        known = listed(self.names)
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

    def ahead(self, sequence: int | None, args: argparse.Namespace) -> np.ndarray:
        """The times of ``--horizon`` or ``--until``, with ``--step``, or of ``--times``.

        They start after the end of a training sequence; those of a new one start at the start of the first.
        """
        given = [name for name in ("--horizon", "--until", "--times") if getattr(args, name[2:]) is not None]
        if len(given) > 1 or (args.times is not None and args.step is not None):
            raise UsageError(f"{given[0]} cannot be combined with {(*given[1:], '--step')[0]}.")
        if args.times is not None:
            return self._same_kind(parse_range(args.times, "--times"), "--times")
        known = self.data.times.t[self.data.times.slices()[sequence or 0]].cpu().numpy()
        if not given:
            if sequence is not None:
                raise UsageError("--horizon, --until or --times is required.")
            if args.step is not None:
                raise UsageError("--step requires --horizon or --until.")
            return to_stamps(known, self.data)
        if args.step is None and len(known) < 2:
            example = "0.5" if self.data.time_origin is None else "1d"
            raise UsageError(
                f"{given[0]} requires --step, such as {example}, because sequence {self.names[sequence or 0]} has only "
                "one frame, and the default is the median step of the sequence."
            )
        width = float(np.median(np.diff(known))) if args.step is None else parse_step(args.step, "--step")
        monthly = args.step is None and self.data.time_origin is not None
        if args.until is not None:
            return self._until(args.until, known, sequence is None, width, monthly)
        try:
            return self._counted(args.horizon, known, sequence is None, width, monthly)
        except OutOfRangeError as error:
            raise UsageError(f"--horizon {args.horizon}: {error.args[0]}.") from None

    def _counted(self, count: int, known: np.ndarray, new: bool, width: float, monthly: bool) -> np.ndarray:
        """``count`` times, after the ``known`` ones or from their start, ``width`` apart unless they are monthly."""
        start, steps = (float(known[0]), count - 1) if new else (float(known[-1]), count)
        ahead = steps_to(start, start + steps * width, width, "--horizon", include=new)
        if self.data.time_origin is None:
            return ahead
        to_nanoseconds(self.data.time_origin.astype("datetime64[s]") + ahead[-1:].astype("timedelta64[s]"))
        dates = months_to(to_stamps(known, self.data), count, new) if monthly else None
        return to_stamps(ahead, self.data) if dates is None else dates

    def _until(self, until: str, known: np.ndarray, new: bool, width: float, monthly: bool) -> np.ndarray:
        """Times up to ``until``, after the ``known`` ones or from their start."""
        dates = self.data.time_origin is not None
        end = self._same_kind(parse_range(until, "--until"), "--until")
        if len(end) != 1:
            raise UsageError(f"--until must be one time, but got {until!r}.")
        months = months_to(to_stamps(known, self.data), end[0], new) if monthly else None
        if months is not None and len(months):
            return months
        start = float(known[0] if new else known[-1])
        stop = float((end[0] - self.data.time_origin) / np.timedelta64(1, "s")) if dates else float(end[0])
        ahead = steps_to(start, stop, width, "--until", include=new) if stop >= start else np.empty(0)
        if not len(ahead) or months is not None:
            first = format_times(to_stamps(np.array([start]), self.data))[0] if dates else f"{start:.10g}"
            steps = format_duration(width) if dates else f"{width:g}"
            raise UsageError(f"--until {until} gives no times: they start after {first}, in steps of {steps}.")
        return to_stamps(ahead, self.data)

    def _same_kind(self, t: np.ndarray, argument: str) -> np.ndarray:
        dates = self.data.time_origin is not None
        if (t.dtype.kind == "M") != dates:
            raise UsageError(f"{argument} must be {'dates' if dates else 'numbers'}, like the times of {self.path}.")
        return t

    def align(self, table: InputTable) -> list[np.ndarray]:
        """The outputs of a data file in the order of the model's columns, NaN for columns that the file lacks."""
        wanted, count, shape = self.posterior.columns, self.posterior.num_outputs, self.metadata.shape
        dates = self.data.time_origin is not None
        if (table.t[0].dtype.kind == "M") != dates:
            kinds = ("dates", "numbers")
            raise CommandError(
                f"{table.path}: the times are {kinds[dates]}, but those of {self.path} are {kinds[not dates]}."
            )
        if shape is not None and table.shape is not None and table.shape != shape:
            shrunk = f", after --shrink {self.metadata.shrink}" if self.metadata.shrink > 1 else ""
            raise CommandError(
                f"{table.path}: frames are {table.shape}, but those of {self.path} are {shape}{shrunk}. "
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


def _models(ensemble: Ensemble) -> dict[str, Posterior]:
    """The models of an ensemble, those with the smallest held-out error first, or the largest weight if it has none."""
    weights = next(iter(ensemble.combinations.values())).weights.mean(1).tolist()
    rank = {name: -weight for name, weight in zip(ensemble.names, weights, strict=True)}
    if isinstance(ensemble.report, Report):
        rank |= {c.name: c.error for c in ensemble.report.candidates if c.failure is None}
    found = {n: m for n, m in zip(ensemble.names, ensemble.members, strict=True) if isinstance(m, Posterior)}
    return {name: found[name] for name in sorted(found, key=lambda name: rank[name])}


def trained_model(posterior: Posterior) -> VGPDS:
    """The model of a posterior that was read from a file."""
    return cast("VGPDS", posterior.origin.model)


def relevance_of(posterior: Posterior) -> Relevance:
    return trained_model(posterior).relevance(posterior.origin.guide, posterior.data)
