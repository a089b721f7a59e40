# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds fit``: from a file of data to a file of a trained model."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyro
import torch

from pyro_vgpds.cli.errors import INTERRUPTED, OK, CommandError, UsageError
from pyro_vgpds.cli.reading import Layout, Table, read_table
from pyro_vgpds.cli.trained import Trained, describe
from pyro_vgpds.cli.writing import check_output
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import Kernel, parse_kernel
from pyro_vgpds.model import VGPDS
from pyro_vgpds.training.api import FitResult, fit

__all__ = ["layout_of", "run_fit", "say", "working"]

_LATENT = 9  # dimensions to begin with, where the data have as many


def say(args: argparse.Namespace, text: str) -> None:
    """To the standard error, which leaves the standard output to the answer."""
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def working(args: argparse.Namespace, text: str) -> Iterator[None]:
    """Say what is being done; on a terminal, the seconds that it takes are counted."""
    if args.quiet or not sys.stderr.isatty():
        say(args, text)
        yield
        return
    done, start = threading.Event(), time.monotonic()

    def count() -> None:
        while not done.wait(0.5):
            print(f"\r{text} {time.monotonic() - start:.0f} s ", end="", file=sys.stderr, flush=True)

    print(text, end="", file=sys.stderr, flush=True)
    ticker = threading.Thread(target=count, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        print(f"\r{text} {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


def layout_of(args: argparse.Namespace) -> Layout:
    return Layout(args.time, args.sequence_column, args.columns, args.no_time, args.shrink or 1)


def run_fit(args: argparse.Namespace) -> int:
    check_output(args.output, args.force, (), inputs=(args.file,))
    if args.resume and args.checkpoint is None:
        raise UsageError("--resume needs --checkpoint FILE, the file to go on from.")
    if args.checkpoint is not None and args.checkpoint.resolve() == args.output.resolve():
        raise UsageError(f"--checkpoint must be another file than -o/--output, but both are {args.output}.")
    check_output(
        args.checkpoint, args.force or args.resume, (), "--checkpoint", inputs=(args.file,),
        instead="Give another name, --resume to go on from it, or --force to replace it.",
    )  # fmt: skip
    kernel = _temporal(args.temporal)
    torch.set_num_threads(args.threads)
    table = read_table(args.file, layout_of(args))
    data = _data(table)
    say(args, f"{args.file}: {data}")
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    latent = min(_LATENT, data.num_outputs) if args.latent_dim is None else args.latent_dim
    model = VGPDS.from_data(
        data, latent, args.num_inducing, kernel, noise_per_output=args.noise_per_output, scale_outputs=args.scale
    )
    _hold(model, args.hold)
    guide = AutoOpperArchambeau(model)
    before = model.relevance(guide, data).value
    result = fit(
        model, guide, data, args.steps, args.method, num_restarts=args.restarts,
        progress=False if args.quiet else None, checkpoint=args.checkpoint, resume=_resume(args),
    )  # fmt: skip
    about = describe(
        result, before, source=args.file.name, names=table.names, shape=table.shape, fps=table.fps,
        seed=args.seed, shrink=args.shrink,
    )  # fmt: skip
    trained = Trained(args.output, model, guide, data, about)
    trained.write()
    if result.stopped == "interrupted":  # not done, so it is said with --quiet too, and `fit && forecast` stops
        print(_summary(trained, result), file=sys.stderr, flush=True)
        return INTERRUPTED
    say(args, _summary(trained, result))
    return OK


def _temporal(text: str) -> Kernel:
    try:
        return parse_kernel(text)
    except ValueError as error:
        raise UsageError(f"--temporal: {error}") from None


def _data(table: Table) -> Sequences:
    try:
        return Sequences(table.t, table.y, columns=table.columns)
    except (ValueError, TypeError) as error:
        raise CommandError(f"{table.path}: {error}") from None


def _hold(model: VGPDS, names: str | None) -> None:
    """Keep parameters of the temporal kernel where the data have put them."""
    for name in (names or "").split(","):
        leaves = [leaf for leaf in model.temporal.leaves() if name.strip() in leaf._names]
        if names and not leaves:
            known = sorted({own for leaf in model.temporal.leaves() for own in leaf._names})
            raise UsageError(f"--hold: no kernel of --temporal has {name.strip()!r}; they have {', '.join(known)}.")
        for leaf in leaves:
            leaf.fix(name.strip())


def _resume(args: argparse.Namespace) -> Any:
    if not args.resume:
        return None
    if not args.checkpoint.is_file():
        say(args, f"there is no checkpoint {args.checkpoint} yet: training begins at the start.")
        return None
    return args.checkpoint


def _summary(trained: Trained, result: FitResult) -> str:
    active = int(trained.model.relevance(trained.guide, trained.data).active.sum())
    stopped = {
        "steps": "after all steps; the bound may still rise with more --steps",
        "converged": "as the bound no longer changed",
        "interrupted": "by Ctrl-C; the model of the best step so far was saved",
        "stuck": "as no step raised the bound any more",
    }[result.stopped]
    noise = np.sqrt(trained.model.noise.detach().numpy()).mean()
    of = " of each output's standard deviation" if isinstance(trained.scale, np.ndarray) else ""
    steps = counted(result.num_steps, "step")
    latent, outputs = trained.model.latent_dim, trained.model.num_outputs
    more = "all latent dimensions are on: with a greater --latent-dim the model may do better\n"
    return (
        f"bound {result.bound:,.6g} after {steps} in {result.seconds:.1f} s; ended {stopped}\n"
        f"{active} of {latent} latent dimensions are on; noise sd {noise:.4g}{of}\n"
        f"{more if active == latent < outputs else ''}"
        f"model: {trained.path}"
    )
