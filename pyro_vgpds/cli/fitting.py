# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds fit``: the automatic choice of models for a data file, or with ``--quick`` one model."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyro
import torch

from pyro_vgpds.cli import lazy
from pyro_vgpds.cli.arguments import given
from pyro_vgpds.cli.choosing import check_choice, choose, report_of
from pyro_vgpds.cli.errors import INTERRUPTED, OK, CommandError, UsageError
from pyro_vgpds.cli.layout import InputTable, Layout
from pyro_vgpds.cli.options import likelihood_text, read_kernel, read_likelihood, with_posterior_options
from pyro_vgpds.cli.output_files import check_output
from pyro_vgpds.cli.progress import PATIENCE, say, working
from pyro_vgpds.cli.reading import introduce, read_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.models import save
from pyro_vgpds.formatting import counted, on_terminal
from pyro_vgpds.inference.data_checks import check_dated
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import Kernel, parse_mapping
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.model import VGPDS, Relevance
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.storage import save_posterior
from pyro_vgpds.training.api import fit
from pyro_vgpds.training.metadata import Metadata
from pyro_vgpds.training.result import FitResult, Record

__all__ = ["run_fit"]

_STEPS, _METHOD = 60, "natural"  # as in fit
_SINGLE = (
    "--latent-dim", "--num-inducing", "--temporal", "--mapping", "--static-dim", "--hold", "--no-scale", "--one-noise",
    "--steps", "--method", "--restarts", "--checkpoint", "--resume", "--calibrate", "--noise-factor", "--residual",
)  # fmt: skip
_CHOICE = (
    "--task", "--horizon", "--hidden", "--seconds", "--candidates", "--baselines", "--processes", "--folder",
    "--report",
)  # fmt: skip


def run_fit(args: argparse.Namespace) -> int:
    check_output(args.output, args.force, inputs=(args.file,), is_model=True)
    likelihood = read_likelihood(args)
    single, choice = given(args, _SINGLE), given(args, _CHOICE)
    if args.calibrate == "forecast" and "--horizon" in choice:  # of the calibration
        choice.remove("--horizon")
    if choice and (args.quick or single):
        raise UsageError(
            f"{choice[0]} cannot be combined with {'--quick' if args.quick else single[0]}, which trains a single "
            "model without a comparison."
        )
    if args.quick or single:
        if not args.quick:
            words = "belongs" if len(single) == 1 else "belong"
            say(args, f"{', '.join(single)} {words} to a single model, so one is trained, as with --quick")
        return _fit_one(args, likelihood)
    return _fit_best(args, None if likelihood is None else args.likelihood)


def _about(args: argparse.Namespace, table: InputTable) -> Metadata:
    return Metadata(
        args.file.name, table.names, table.shape, table.fps, args.shrink, seed=args.seed, time=table.time,
        sequence=table.sequence,
    )  # fmt: skip


def _fit_best(args: argparse.Namespace, likelihood: str | None) -> int:
    check_output(args.report, args.force, lazy.PAGES, "--report", inputs=(args.file, args.output))
    check_choice(args, likelihood)
    torch.set_num_threads(args.threads)
    table, data = read_data(args.file, Layout.of(args))
    introduce(args, table, data)
    ensemble = choose(args, data, likelihood=likelihood)
    save_posterior(args.output, ensemble, _about(args, table).pack())
    report = report_of(ensemble)
    if args.report is not None:
        lazy.write_comparison(args.report, report, table, data)
    if not args.quiet:
        print(report)
    say(args, f"model: {args.output}" + (f"\nreport: {args.report}" if args.report is not None else ""))
    return OK


def _fit_one(args: argparse.Namespace, likelihood: Likelihood | None) -> int:
    if args.resume and args.checkpoint is None:
        raise UsageError("--resume requires --checkpoint FILE, the file to continue from.")
    if args.checkpoint is not None and args.checkpoint.resolve() == args.output.resolve():
        raise UsageError(f"--checkpoint and -o/--output must be different files, but both are {args.output}.")
    check_output(
        args.checkpoint, args.force or args.resume, argument="--checkpoint", inputs=(args.file,), is_model=True,
        instead="Choose another name, or pass --resume to continue from it or --force to replace it.",
    )  # fmt: skip
    kernel, mapping = read_kernel(args.temporal, "--temporal"), read_kernel(args.mapping, "--mapping", parse_mapping)
    read_kernel(args.residual, "--residual")
    if mapping is not None and not any("weight" in leaf.parameter_names for leaf in mapping.leaves()):
        raise UsageError(f"--mapping must have rbf or linear, but got {args.mapping!r}.")
    if args.calibrate is not None and (chosen := given(args, ("--noise-factor", "--residual"))):
        raise UsageError(f"{chosen[0]} cannot be combined with --calibrate, which chooses it.")
    torch.set_num_threads(args.threads)
    table, data = read_data(args.file, Layout.of(args))
    if kernel is not None:
        _check_dated(kernel, data)
    introduce(args, table, data)
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    try:
        with working(args, "choosing initial values ...", PATIENCE):
            model = VGPDS.from_data(
                data, args.latent_dim, args.num_inducing, kernel, mapping, likelihood=likelihood,
                static_dim=args.static_dim,
                noise_per_output=not args.one_noise, scale_outputs=not args.no_scale,
            )  # fmt: skip
    except ValueError as error:
        raise CommandError(f"{args.file}: {_in_arguments(str(error))}") from None
    _hold(model, args.hold)
    guide = AutoOpperArchambeau(model)
    before = model.relevance(guide, data).value
    with _training(args) as watch:
        result = fit(
            model, guide, data, args.steps or _STEPS, args.method or _METHOD, num_restarts=args.restarts or 0,
            progress=False if args.quiet else None, callback=watch, checkpoint=args.checkpoint, resume=_resume(args),
        )  # fmt: skip
    about = replace(_about(args, table), relevance_before=before.tolist(), training=result)
    if result.stopped == "interrupted":
        save(args.output, model, guide, data, about.pack())
    else:
        _save_one(args, model, guide, data, about)
    summary = f"{_summary(model, model.relevance(guide, data), result)}\nmodel: {args.output}"
    if result.stopped == "interrupted":  # printed even with --quiet; the exit code stops `fit && forecast`
        print(summary, file=sys.stderr, flush=True)
        return INTERRUPTED
    say(args, summary)
    return OK


def _in_arguments(text: str) -> str:
    """A message of :meth:`VGPDS.from_data <pyro_vgpds.VGPDS.from_data>` with the names of the command line."""
    for name in ("latent_dim", "num_inducing", "static_dim"):
        text = re.sub(rf"\b{name}\b", f"--{name.replace('_', '-')}", text)
    return text


@contextmanager
def _training(args: argparse.Namespace) -> Iterator[Callable[[Record], None] | None]:
    """The callback of training. Off a terminal it prints a line now and then; a terminal has a bar."""
    if args.quiet or on_terminal():
        yield None
        return
    steps, runs, first, before = args.steps or _STEPS, (args.restarts or 0) + 1, -1, 0

    def watch(record: Record) -> None:
        nonlocal first, before
        if record.step == 0:  # of another run
            before += steps * (first >= 0)
        first = record.step if first < 0 else first  # not 0 if training is resumed
        done = min(before + record.step, runs * steps) - first
        count(done, runs * steps - first, f"bound {record.bound:,.6g}, ")

    with working(args, "training ...", PATIENCE) as count:
        yield watch


def _save_one(
    args: argparse.Namespace, model: VGPDS, guide: AutoOpperArchambeau, data: Sequences, about: Metadata
) -> None:
    """Write the model with the options of its predictions."""
    if args.calibrate is not None:
        try:
            with working(args, "calibrating ...", PATIENCE):
                found = Posterior(model, guide, data).calibrate(args.calibrate, horizon=args.horizon, seed=args.seed)
        except ValueError as error:
            raise CommandError(f"--calibrate {args.calibrate}: {error}") from None
        save_posterior(args.output, found, about.pack())
        say(args, _calibration(found, args.calibrate))
    else:
        white: dict[str, None] = {} if args.residual is None else {"residual": None}  # no choice of a kernel
        save_posterior(args.output, with_posterior_options(args, Posterior(model, guide, data, **white)), about.pack())


def _calibration(found: Ensemble, task: str) -> str:
    """What the calibration has chosen."""
    member = found.members[0]
    assert isinstance(member, Posterior)
    noise, residual = member.origin.noise_variance, member.origin.residual
    factor = found.combination(task).calibration.factor
    return (
        f"calibrated to {task}: noise sd "
        + ("as trained" if noise is None else f"{float(noise.sqrt().mean()):.4g}")
        + f", residuals {'white' if residual is None else residual}, standard deviations of predictions times "
        + f"{float(factor.median()):.3g}"
        + (f" ({float(factor.min()):.3g} to {float(factor.max()):.3g})" if len(factor) > 1 else "")
    )


def _check_dated(kernel: Kernel, data: Sequences) -> None:
    try:
        check_dated(kernel, data)
    except ValueError as error:
        raise UsageError(f"--temporal: {error}") from None


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
    if model.output_likelihood is not None:
        outputs = likelihood_text(model.output_likelihood())
    else:
        of = " of each output's standard deviation" if bool((model.output_scale != 1.0).any()) else ""
        outputs = f"noise sd {float(model.noise.detach().sqrt().mean()):.4g}{of}"
    more = "\nall latent dimensions are active: a larger --latent-dim may give a better model"
    return (
        f"bound {result.bound:,.6g} after {counted(result.num_steps, 'step')} in {result.seconds:.1f} s; {stopped}\n"
        f"{active} of {latent} latent dimensions are active; {outputs}"
        f"{more if active == latent < model.num_outputs else ''}"
    )
