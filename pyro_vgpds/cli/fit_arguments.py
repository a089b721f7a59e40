# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``fit`` and ``evaluate``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyro_vgpds.cli.arguments import add_layout, add_machine, count, positive, seed, whole
from pyro_vgpds.cli.options import add_options
from pyro_vgpds.evaluation.splits import TASKS
from pyro_vgpds.likelihoods.names import TEXTS
from pyro_vgpds.training.settings import METHODS

__all__ = ["add_evaluate", "add_fit"]


def add_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="data file: csv, npz, npy, bvh or video")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="MODEL", help="model file, .safetensors")
    add_layout(parser, "--sequence")
    _add_likelihood(parser)
    _add_choice(parser, page=True)
    model = parser.add_argument_group("a single model instead", "Each of these arguments implies --quick.")
    model.add_argument("--quick", action="store_true", help="train one model, without a comparison on held-out data")
    model.add_argument(
        "--latent-dim",
        type=count,
        metavar="Q",
        help="initial number of latent dimensions; training switches off those it does not need. "
        "Default: 40, or less for few outputs or frames",
    )
    model.add_argument(
        "--num-inducing",
        type=count,
        metavar="M",
        help="number of inducing points. Default: 50, up to 100 for many frames, or the number of frames if that is "
        "smaller",
    )
    model.add_argument(
        "--temporal",
        metavar="KERNEL",
        help="temporal kernel: rbf, markovrbf, matern12, matern32, matern52, periodic, cosine, linear, white, bias, "
        'combined with + and *, brackets and parameters, as in "periodic(period=24h fixed)*rbf+white". '
        "If the file has dates, times have a unit: s, min, h, d, w or y. "
        "Default: chosen from the data, with parameters for each latent dimension; info shows it",
    )
    model.add_argument(
        "--mapping",
        metavar="KERNEL",
        help="kernel of the mapping from latent points to outputs: rbf, linear, sums with white and bias. Default: rbf",
    )
    model.add_argument(
        "--static-dim",
        type=whole,
        metavar="N",
        help="number of latent dimensions that start as one constant for each sequence, such as the style of a walk. "
        "Default: a fifth of --latent-dim, less for few sequences, 0 for up to three",
    )
    model.add_argument(
        "--hold",
        metavar="NAMES",
        help="parameters of the temporal kernel, such as period, that stay fixed at their initial values",
    )
    model.add_argument(
        "--no-scale", action="store_true", help="do not divide each output by its standard deviation in the model"
    )
    model.add_argument("--one-noise", action="store_true", help="one noise variance for all outputs, not one for each")
    for old in ("--scale", "--noise-per-output"):  # accepted without effect: both are the default
        model.add_argument(old, action="store_true", help=argparse.SUPPRESS)
    model.add_argument("--steps", type=count, metavar="N", help="maximum number of steps. Default: 60")
    model.add_argument("--method", choices=METHODS, help="optimiser. Default: natural")
    model.add_argument("--restarts", type=whole, metavar="N", help="further runs; the best run is kept. Default: 0")
    model.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="save the state of training to this file regularly; an existing file requires --resume or --force",
    )
    model.add_argument(
        "--calibrate",
        choices=TASKS,
        metavar="TASK",
        help="choose noise, residuals and widths of intervals on held-out parts of the data, for this task: impute, "
        "reconstruct or forecast (of --horizon frames)",
    )
    model.add_argument("--resume", action="store_true", help="continue from --checkpoint, if that file exists")
    add_options(parser, "--calibrate chooses it; implies --quick")
    _add_machine(parser)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="data file: csv, npz, npy, bvh or video")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the page, .html. Default: NAME_report.html for NAME.csv"
    )
    add_layout(parser, "--sequence")
    _add_likelihood(parser)
    _add_choice(parser)
    _add_machine(parser)


def _add_likelihood(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--likelihood",
        metavar="NAME",
        help=f"distribution of the outputs: {', '.join(TEXTS)}. Counts: negative-binomial or poisson; "
        "0 and 1: bernoulli; successes of TOTAL trials: binomial:TOTAL; numbers with outliers: student-t. "
        "Default: gaussian",
    )


def _add_choice(parser: argparse.ArgumentParser, page: bool = False) -> None:
    """:param page: whether a page of the comparison is an option."""
    choice = parser.add_argument_group("the comparison on held-out data")
    choice.add_argument(
        "--task",
        choices=TASKS,
        help="what will be predicted: missing entries of these sequences, hidden columns of new or partly observed "
        "frames, or later frames. Default: impute if something is missing, else forecast",
    )
    choice.add_argument(
        "--horizon",
        type=count,
        metavar="N",
        help="number of frames to forecast; implies --task forecast. Default: an eighth of the median sequence",
    )
    choice.add_argument(
        "--hidden",
        metavar="NAMES",
        help="columns that will be hidden in new frames, separated by commas, such as those of a sensor that they do "
        "not have; implies --task reconstruct. Default: half of the columns, at random",
    )
    choice.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help="time budget: no further candidate is tried after it. Default: none",
    )
    choice.add_argument(
        "--candidates",
        metavar="NAMES",
        help="models to try, by their names in the report, separated by commas; none for none. Default: those that "
        "suit the data",
    )
    choice.add_argument(
        "--baselines",
        metavar="NAMES",
        help='baselines to try, in the same way, as in "column mean,last value". Default: those that suit the data',
    )
    choice.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="keep finished candidates in this folder, so that the same command continues after an interruption",
    )
    choice.add_argument(
        "--processes",
        type=count,
        metavar="N",
        help="number of processes. Default: one for each core if the data are large",
    )
    if page:
        choice.add_argument(
            "--report", type=Path, metavar="FILE", help="also write the page with pictures that evaluate writes, .html"
        )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="random seed. Default: 0")
    add_machine(parser)
