# SPDX-License-Identifier: Apache-2.0
"""The automatic choice on the command line: ``evaluate``, and the part of it that ``fit`` uses."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from pyro_vgpds.cli.errors import OK, CommandError, UsageError
from pyro_vgpds.cli.layout import Layout, select
from pyro_vgpds.cli.lazy import PAGES, write_comparison
from pyro_vgpds.cli.options import read_likelihood
from pyro_vgpds.cli.output_files import check_output
from pyro_vgpds.cli.progress import PATIENCE, say, watching, working
from pyro_vgpds.cli.reading import introduce, read_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import default_task, hold_out
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.selection.api import auto
from pyro_vgpds.selection.likelihoods import check_likelihood
from pyro_vgpds.selection.proposals import known_baselines, propose_models
from pyro_vgpds.selection.report import Report

__all__ = ["check_choice", "choose", "report_of", "run_evaluate"]

_NONE = "none"  # instead of names


def run_evaluate(args: argparse.Namespace) -> int:
    target: Path = args.output or args.file.with_name(f"{args.file.stem}_report.html")
    check_output(target, args.force, PAGES, inputs=(args.file,))
    likelihood = None if read_likelihood(args) is None else args.likelihood
    check_choice(args, likelihood)
    torch.set_num_threads(args.threads)
    table, data = read_data(args.file, Layout.of(args))
    introduce(args, table, data)
    report = report_of(choose(args, data, refit=False, likelihood=likelihood))
    with working(args, "drawing the report ...", PATIENCE):
        write_comparison(target, report, table, data)
    print(report)
    say(args, f"report: {target} (open it in a browser)")
    return OK


def check_choice(args: argparse.Namespace, likelihood: str | None = None) -> None:
    """Check what can be checked before the data are read, given the name of the likelihood; None is Gaussian."""
    if args.baselines is not None:
        _named(args.baselines, _known(likelihood), "--baselines")
        if args.baselines.strip() == _NONE and (args.candidates or "").strip() == _NONE:
            raise UsageError("--candidates and --baselines cannot both be none.")
    if args.hidden is not None and args.task not in (None, "reconstruct"):
        raise UsageError(f"--hidden requires --task reconstruct, but got --task {args.task}.")
    if args.horizon is not None and (args.hidden is not None or args.task not in (None, "forecast")):
        other = "--hidden" if args.task is None else f"--task {args.task}"
        raise UsageError(f"--horizon requires --task forecast, but got {other}.")
    if args.folder is not None and args.folder.exists() and not args.folder.is_dir():
        raise UsageError(f"--folder must be a folder, but {args.folder} is a file.")


def choose(args: argparse.Namespace, data: Sequences, refit: bool = True, likelihood: str | None = None) -> Ensemble:
    """Compare models and baselines on held-out data, and train the best of them on all data if ``refit``."""
    hidden = None if args.hidden is None else select(args.hidden, data.base_columns, data.num_base_outputs, "--hidden")
    task = args.task or default_task(data, args.horizon, hidden)
    try:
        hold_out(data, task, horizon=args.horizon, hidden=hidden, seed=args.seed)
    except ValueError as error:
        raise CommandError(f"{error} Without a comparison, `pyro-vgpds fit --quick` trains one model.") from None
    candidates = None
    if args.candidates is not None:
        known = {one.name: one for one in propose_models(data, task, likelihood)}
        candidates = [known[name] for name in _named(args.candidates, list(known), "--candidates")]
    baselines = None if args.baselines is None else _named(args.baselines, _known(likelihood), "--baselines")
    with watching(args) as progress:
        return auto(
            data,
            task,
            likelihood=likelihood,
            candidates=candidates,
            baselines=baselines,
            horizon=args.horizon,
            hidden=hidden,
            seconds=math.inf if args.seconds is None else args.seconds,
            seed=args.seed,
            processes=args.processes,
            folder=args.folder,
            refit=refit,
            progress=progress,
        )


def _known(likelihood: str | None) -> list[str]:
    """The names of baselines."""
    return known_baselines(check_likelihood(likelihood))


def report_of(ensemble: Ensemble) -> Report:
    """The report of an ensemble that :func:`choose` made."""
    assert isinstance(ensemble.report, Report)
    return ensemble.report


def _named(text: str, known: Sequence[str], argument: str) -> list[str]:
    """Known names separated by commas, which may be in names as well; ``none`` for none."""
    if text.strip() == _NONE:
        return []
    found: list[str] = []
    parts = [part.strip() for part in text.split(",")]
    while parts:
        joined = [", ".join(parts[:n]) for n in range(len(parts), 0, -1)]
        name = next((name for name in joined if name in known), None)
        if name is None:
            raise UsageError(f"{argument}: {parts[0]!r} is unknown; known: {'; '.join(known)}; or {_NONE}.")
        found.append(name)
        parts = parts[name.count(",") + 1 :]
    return list(dict.fromkeys(found))
