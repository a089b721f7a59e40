# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds forecast``, ``reconstruct`` and ``generate``: predictions of a trained model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyro
import torch

from pyro_vgpds.cli.errors import OK, CommandError, UsageError
from pyro_vgpds.cli.layout import InputTable, Layout, select
from pyro_vgpds.cli.model_file import NEW, ModelFile
from pyro_vgpds.cli.options import single_only, with_options
from pyro_vgpds.cli.output_files import check_output
from pyro_vgpds.cli.progress import PATIENCE, say, working
from pyro_vgpds.cli.reading import read_table
from pyro_vgpds.files.tables import table_suffixes, write_table
from pyro_vgpds.formatting import counted
from pyro_vgpds.metrics import mae, mse
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.solver import Solver

__all__ = ["run_forecast", "run_generate", "run_reconstruct"]

_WIDEST = 1000  # outputs that are printed to the standard output


def run_forecast(args: argparse.Namespace) -> int:
    trained = _open(args)
    each = args.sequence is None and args.horizon is not None
    chosen = list(range(trained.data.num_sequences)) if each else [trained.sequence(args.sequence)]
    times = [trained.ahead(sequence, args) for sequence in chosen]
    _say_task(args, trained, "forecast")
    names = [NEW if sequence is None else trained.names[sequence] for sequence in chosen]
    labels = [name for name, t in zip(names, times, strict=True) for _ in t]
    with _busy(args, "forecasting ..."):
        options = _noise(args, trained)
        found = [trained.posterior.forecast(t, s, **options) for t, s in zip(times, chosen, strict=True)]
        _write_forecasts(args, trained, np.concatenate(times), found, labels)
    _report(args, len(labels), trained.posterior.num_outputs)
    return OK


def run_generate(args: argparse.Namespace) -> int:
    trained = _open(args)
    sequence = trained.sequence(args.sequence)
    times = trained.ahead(sequence, args)
    pyro.set_rng_seed(args.seed)
    with _busy(args, "generating ..."):
        draws = trained.posterior.generate(times, args.samples, sequence, **_noise(args, trained))
    y = draws.flatten(0, 1).cpu().numpy()
    write_table(
        args.output or sys.stdout,
        np.tile(times, args.samples),
        y,
        columns=trained.posterior.columns,
        sequence=[str(i) for i in range(args.samples) for _ in times],
        frame_shape=trained.metadata.shape,
        fps=args.fps or trained.metadata.fps,
    )
    _report(args, *y.shape)
    return OK


def run_reconstruct(args: argparse.Namespace) -> int:
    trained = _open(args)
    pyro.set_rng_seed(args.seed)
    if args.file is None:
        for name, value, why in (("--hide", args.hide, "whose columns to hide"), ("--trust", args.trust, "to weigh")):
            if value is not None:
                raise UsageError(f"{name} requires FILE, the data {why}.")
        _say_task(args, trained, "impute")
        labels = [name for name, n in zip(trained.names, trained.data.lengths, strict=True) for _ in range(n)]
        with _busy(args, "filling in missing values ..."):
            filled = trained.posterior.impute(fill=not args.smooth, **_noise(args, trained))
            _write(args, trained, filled, labels if trained.data.num_sequences > 1 else None)
        _report(args, *filled.shape)
        return OK
    options = {**_noise(args, trained), **_solver(args, trained)}
    table = _read(args, trained)
    truth = np.concatenate(trained.align(table))
    seen = truth.copy()
    if args.hide:
        seen[:, select(args.hide, trained.posterior.columns, trained.posterior.num_outputs, "--hide")] = np.nan
    parts = np.split(seen, np.cumsum([len(t) for t in table.t])[:-1])
    _say_task(args, trained, "reconstruct")
    note = f"{args.file}: {int(np.isnan(seen).sum())} of {seen.size} values are missing; reconstructing ..."
    try:
        with working(args, note) as count:
            found = trained.posterior.reconstruct(
                table.t,
                parts,
                None if args.sequence is None else trained.sequence(args.sequence),
                fill=not args.smooth,
                progress=count,
                **options,
            )
    except ValueError as error:
        raise CommandError(f"{args.file}: {error}") from None
    names = None if table.names is None else [n for n, t in zip(table.names, table.t, strict=True) for _ in t]
    if args.hide:
        _score(args, np.where(np.isnan(seen), truth, np.nan), found.mean.cpu().numpy())
    with _busy(args, "writing ..."):
        _write(args, trained, found, names)
    _report(args, *found.shape)
    return OK


def _noise(args: argparse.Namespace, trained: ModelFile) -> dict[str, Any]:
    """The options of ``--no-noise``."""
    single_only(args, trained, "--no-noise")
    return {} if isinstance(trained.posterior, Ensemble) else {"include_noise": not args.no_noise}


def _solver(args: argparse.Namespace, trained: ModelFile) -> dict[str, Any]:
    """The options of ``--trust``, ``--factorised``, ``--starts`` and ``--steps``."""
    single_only(args, trained, "--trust", "--factorised", "--starts", "--steps")
    if isinstance(trained.posterior, Ensemble):
        return {}
    solver = Solver(args.starts or 3, args.steps or 200)
    return {"trust": args.trust or 1.0, "factorised": args.factorised, "solver": solver}


@contextmanager
def _busy(args: argparse.Namespace, text: str) -> Iterator[None]:
    """Say so if it takes long, unless results are printed on the same terminal."""
    if args.output is None and sys.stdout.isatty():
        yield
        return
    with working(args, text, PATIENCE):
        yield


def _say_task(args: argparse.Namespace, trained: ModelFile, task: str) -> None:
    """Say so if an ensemble was made for another task."""
    if isinstance(trained.posterior, Ensemble) and task not in trained.posterior.combinations:
        known = ", ".join(trained.posterior.combinations)
        say(
            args,
            f"note: weights and intervals of {trained.path} were chosen for the task {known}; fit --task {task} "
            "chooses them for this one",
        )


def _read(args: argparse.Namespace, trained: ModelFile) -> InputTable:
    """The data file. By default frames are shrunk as in training, if that gives frames of the model's size."""
    layout, about = Layout.of(args), trained.metadata
    layout = replace(
        layout,
        usual=(about.time, about.sequence),
        known=None if trained.posterior.columns is None else tuple(trained.posterior.columns),
    )
    table = read_table(args.file, layout)
    if table.ignored:
        names = ", ".join(map(repr, table.ignored))
        what = (
            "is ignored: it has text and is no output"
            if len(table.ignored) == 1
            else ("are ignored: they have text and are no outputs")
        )
        say(args, f"note: {args.file}: column{'s' * (len(table.ignored) > 1)} {names} {what} of {args.model}")
    if args.shrink is not None or table.shape is None or table.shape == about.shape:
        return table
    shrunk = tuple(size // about.shrink for size in table.shape)
    return read_table(args.file, replace(layout, shrink=about.shrink)) if shrunk == about.shape else table


def _score(args: argparse.Namespace, hidden: np.ndarray, mean: np.ndarray) -> None:
    """Print the error on the values that --hide removed."""
    if np.isfinite(hidden).any():
        root, absolute = np.sqrt(mse(hidden, mean)), mae(hidden, mean)
        say(args, f"error on the hidden values: root mean square {root:.6g}, mean absolute {absolute:.6g}")


def _open(args: argparse.Namespace) -> ModelFile:
    torch.set_num_threads(args.threads)
    check_output(args.output, args.force, inputs=(args.model, getattr(args, "file", None)))
    with working(args, f"reading {args.model} ...", PATIENCE):
        trained = with_options(args, ModelFile.read(args.model))
    check_output(args.output, True, table_suffixes(trained.metadata.shape))
    if args.output is None and trained.posterior.num_outputs > _WIDEST:
        raise UsageError(f"-o/--output is required: {trained.posterior.num_outputs} outputs are too many to print.")
    return trained


def _write(args: argparse.Namespace, trained: ModelFile, result: Outputs, sequence: list[str] | None) -> None:
    shape, fps = trained.metadata.shape, args.fps or trained.metadata.fps
    result.to_file(args.output or sys.stdout, args.interval, sequence=sequence, frame_shape=shape, fps=fps)


def _write_forecasts(
    args: argparse.Namespace, trained: ModelFile, t: np.ndarray, found: Sequence[Outputs], labels: list[str]
) -> None:
    """Write the forecasts of one or several sequences, one after the other."""
    mean = np.concatenate([one.mean.cpu().numpy() for one in found])
    stddev = np.concatenate([one.stddev.cpu().numpy() for one in found])
    interval = None
    if args.interval:
        ends = [one.interval(args.interval) for one in found]
        lower, upper = (np.concatenate([pair[side].cpu().numpy() for pair in ends]) for side in (0, 1))
        interval = lower, upper
    write_table(
        args.output or sys.stdout,
        t,
        mean,
        stddev=stddev,
        interval=interval,
        columns=trained.posterior.columns,
        sequence=labels if trained.data.num_sequences > 1 else None,
        frame_shape=trained.metadata.shape,
        fps=args.fps or trained.metadata.fps,
        zone=trained.data.time_zone,
    )


def _report(args: argparse.Namespace, times: int, outputs: int) -> None:
    if args.output is not None:
        say(args, f"{counted(times, 'time')}, {counted(outputs, 'output')}: {args.output}")
