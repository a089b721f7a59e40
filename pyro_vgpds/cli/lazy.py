# SPDX-License-Identifier: Apache-2.0
"""Commands that import their modules, and with them matplotlib, only when they are run: plot, demo and experiment;
and the page of ``evaluate``.
"""

from __future__ import annotations

import argparse
import importlib
from contextlib import nullcontext
from pathlib import Path

from pyro_vgpds.cli.errors import OK, CommandError, UsageError
from pyro_vgpds.cli.layout import InputTable
from pyro_vgpds.cli.progress import PATIENCE, say, working
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import on_terminal
from pyro_vgpds.selection.report import Report

__all__ = ["FIGURES", "PAGES", "run_demo", "run_experiment", "run_plot", "write_comparison"]

#: choices of ``plot --what``
FIGURES = ("overview", "training", "relevance", "latent", "plane", "fit", "forecast", "raster")
#: suffixes of reports
PAGES = (".html", ".htm")


def run_plot(args: argparse.Namespace) -> int:
    code: int = importlib.import_module("pyro_vgpds.cli.drawing").run_plot(args)
    return code


def write_comparison(path: Path, report: Report, table: InputTable, data: Sequences) -> None:
    """Write the page of a comparison."""
    page = importlib.import_module("pyro_vgpds.selection.page")
    page.write_page(path, report, data, source=table.path.name, names=table.names)


def run_demo(args: argparse.Namespace) -> int:
    _check_folder(args.output)
    demo = importlib.import_module("pyro_vgpds.demo")
    report = demo.run(
        args.output, steps=args.steps, seed=args.seed, say=lambda text: say(args, text),
        progress=False if args.quiet else None,
    )  # fmt: skip
    say(args, f"report: {report} (open it in a browser)")
    return OK


def run_experiment(args: argparse.Namespace) -> int:
    try:
        experiments = importlib.import_module("pyro_vgpds.experiments")
    except ImportError as error:
        raise CommandError(f"cannot import the experiments: {error}. Run pip install 'pyro_vgpds[data]'.") from None
    names = ", ".join(experiments.NAMES)
    if args.name is None:
        print(names)
        return OK
    if args.name not in experiments.NAMES:
        raise UsageError(f"NAME must be one of {names}, but got {args.name!r}.")
    _check_folder(args.output)
    source = {"data_home": args.data_home} if args.data_home else {}
    source |= {"download": True} if args.download else {}
    try:
        # a terminal has bars
        with nullcontext() if on_terminal() else working(args, f"experiment {args.name} ...", PATIENCE):
            experiments.run(
                args.name, args.output, seeds=args.seeds, quick=args.quick, progress=False if args.quiet else None,
                **source,
            )  # fmt: skip
    except FileNotFoundError as error:  # which names the library's arguments; say those of the command line
        words = str(error).replace("Pass download=True", "Pass --download").replace("data_home=", "--data-home")
        raise CommandError(words) from None
    return OK


def _check_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"--output must be a folder, but {path} is a file.")
    if path.suffix.lower() in PAGES:
        raise UsageError(f"--output must be a folder, in which the page is one of several files, but got {path}.")
