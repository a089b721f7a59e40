# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds fit``: train a model on a data file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyro
import torch

from pyro_vgpds.cli.errors import INTERRUPTED, OK, CommandError, UsageError
from pyro_vgpds.cli.layout import InputTable, Layout
from pyro_vgpds.cli.outputs import check_output
from pyro_vgpds.cli.progress import say
from pyro_vgpds.cli.reading import read_table
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.models import save
from pyro_vgpds.formatting import counted
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import Kernel, parse_kernel
from pyro_vgpds.model import VGPDS, Relevance
from pyro_vgpds.training.api import fit
from pyro_vgpds.training.metadata import Metadata
from pyro_vgpds.training.result import FitResult

__all__ = ["run_fit"]

_LATENT = 9  # initial dimensions, if there are as many outputs


def run_fit(args: argparse.Namespace) -> int:
    check_output(args.output, args.force, inputs=(args.file,))
    if args.resume and args.checkpoint is None:
        raise UsageError("--resume requires --checkpoint FILE, the file to continue from.")
    if args.checkpoint is not None and args.checkpoint.resolve() == args.output.resolve():
        raise UsageError(f"--checkpoint and -o/--output must be different files, but both are {args.output}.")
    check_output(
        args.checkpoint, args.force or args.resume, argument="--checkpoint", inputs=(args.file,),
        instead="Choose another name, or pass --resume to continue from it or --force to replace it.",
    )  # fmt: skip
    kernel = _temporal(args.temporal)
    torch.set_num_threads(args.threads)
    table = read_table(args.file, Layout.of(args))
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
    about = Metadata(
        args.file.name, table.names, table.shape, table.fps, args.shrink, before.tolist(), result, args.seed
    )
    save(args.output, model, guide, data, about.pack())
    summary = f"{_summary(model, model.relevance(guide, data), result)}\nmodel: {args.output}"
    if result.stopped == "interrupted":  # printed even with --quiet; the exit code stops `fit && forecast`
        print(summary, file=sys.stderr, flush=True)
        return INTERRUPTED
    say(args, summary)
    return OK


def _temporal(text: str) -> Kernel:
    try:
        return parse_kernel(text)
    except ValueError as error:
        raise UsageError(f"--temporal: {error}") from None


def _data(table: InputTable) -> Sequences:
    try:
        return Sequences(table.t, table.y, columns=table.columns)
    except (ValueError, TypeError) as error:
        raise CommandError(f"{table.path}: {error}") from None


def _hold(model: VGPDS, names: str | None) -> None:
    """Fix parameters of the temporal kernel at their initial values."""
    for name in (names or "").split(","):
        leaves = [leaf for leaf in model.temporal.leaves() if name.strip() in leaf.parameter_names]
        if names and not leaves:
            known = sorted({own for leaf in model.temporal.leaves() for own in leaf.parameter_names})
            raise UsageError(
                f"--hold: no kernel of --temporal has a parameter {name.strip()!r}; known: {', '.join(known)}."
            )
        for leaf in leaves:
            leaf.fix(name.strip())


def _resume(args: argparse.Namespace) -> Path | None:
    if not args.resume:
        return None
    path: Path = args.checkpoint
    if not path.is_file():
        say(args, f"checkpoint {path} does not exist yet: training starts from the beginning.")
        return None
    return path


def _summary(model: VGPDS, relevance: Relevance, result: FitResult) -> str:
    stopped = {
        "steps": "all steps done; more --steps may raise the bound further",
        "converged": "converged: the bound no longer changed",
        "interrupted": "interrupted by Ctrl-C; the best model so far was saved",
        "stuck": "no further step raised the bound",
    }[result.stopped]
    active, latent = int(relevance.active.sum()), model.latent_dim
    noise = float(model.noise.detach().sqrt().mean())
    of = " of each output's standard deviation" if bool((model.output_scale != 1.0).any()) else ""
    more = "\nall latent dimensions are active: a larger --latent-dim may give a better model"
    return (
        f"bound {result.bound:,.6g} after {counted(result.num_steps, 'step')} in {result.seconds:.1f} s; {stopped}\n"
        f"{active} of {latent} latent dimensions are active; noise sd {noise:.4g}{of}"
        f"{more if active == latent < model.num_outputs else ''}"
    )
