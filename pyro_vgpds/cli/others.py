# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds demo`` and ``experiment``, which are modules of their own and are imported when they are asked for."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from pyro_vgpds.cli.errors import OK, CommandError, UsageError
from pyro_vgpds.cli.fitting import say

__all__ = ["run_demo", "run_experiment"]


def run_demo(args: argparse.Namespace) -> int:
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"--output must be a folder, but {args.output} is a file.")
    demo: Any = importlib.import_module("pyro_vgpds.demo")
    report = demo.run(
        args.output, steps=args.steps, seed=args.seed, say=lambda text: say(args, text),
        progress=False if args.quiet else None,
    )  # fmt: skip
    say(args, f"report: {report} (open it in a browser)")
    return OK


def run_experiment(args: argparse.Namespace) -> int:
    try:
        experiments: Any = importlib.import_module("pyro_vgpds.experiments")
    except ImportError as error:
        raise CommandError(f"the experiments cannot be imported: {error}. pip install 'pyro_vgpds[data]'.") from None
    names = ", ".join(experiments.NAMES)
    if args.name is None:
        print(names)
        return OK
    if args.name not in experiments.NAMES:
        raise UsageError(f"NAME must be one of {names}, but got {args.name!r}.")
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"--output must be a folder, but {args.output} is a file.")
    source: dict[str, Any] = {"data_home": args.data_home} if args.data_home else {}
    source |= {"download": True} if args.download else {}
    try:
        experiments.run(
            args.name, args.output, seeds=args.seeds, quick=args.quick, progress=False if args.quiet else None, **source
        )
    except FileNotFoundError as error:  # the words of the library's arguments, as they are called here
        words = str(error).replace("Pass download=True", "Pass --download").replace("data_home=", "--data-home")
        raise CommandError(words) from None
    return OK
