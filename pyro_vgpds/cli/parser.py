# SPDX-License-Identifier: Apache-2.0
"""The commands with their arguments, and examples of each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro_vgpds
from pyro_vgpds.cli import describing, fitting, others, predicting
from pyro_vgpds.cli.arguments import add_answer, add_layout, add_machine, add_when, count, seed, whole
from pyro_vgpds.training.api import METHODS

__all__ = ["PROGRAM", "make_parser"]

PROGRAM = "pyro-vgpds"

_ABOUT = """\
Variational Gaussian process dynamical systems: learn the low-dimensional path behind many outputs in time; then
forecast, fill in what is missing, and make up new sequences.

Data files are csv (a column of times, numbers or dates; the other columns are outputs; an empty cell is missing; a
column `sequence` may tell sequences apart), npz (y (N, D), and perhaps t, sequence, columns; or frames (T, H, W) of a
video), npy, or with the [video] extra mp4, avi, mkv, mov and gif.
"""
_CODES = """\
A file that is there already is replaced only with --force. Files appear when they are complete.
Exit codes: 0 done, 1 failed (a file is missing or holds the wrong thing), 2 an argument is wrong, 130 after Ctrl-C
(fit keeps the model so far).
"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"`{PROGRAM} COMMAND --help` has the arguments of a command, with examples.\n{_CODES}",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {pyro_vgpds.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_demo, _fit, _forecast, _reconstruct, _generate, _info, _plot, _experiment):
        add(commands)
    return parser


def _command(commands: Any, name: str, run: Callable[[Any], int], about: str, examples: str) -> Any:
    lines = "\n".join(f"  {PROGRAM} {line.strip()}" for line in examples.strip().splitlines())
    parser = commands.add_parser(
        name,
        help=about.split(".")[0].lower(),
        description=about,
        epilog=f"examples:\n{lines}\n\n{_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors and the answer")
    return parser


def _demo(commands: Any) -> None:
    parser = _command(
        commands,
        "demo",
        others.run_demo,
        "Train on a small video and a gait that are made on the spot, and leave a report with pictures.",
        "demo\ndemo --output somewhere --seed 3",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo_output"),
        metavar="DIR",
        help="folder of the report; what an earlier demo left there is replaced (demo_output)",
    )
    parser.add_argument("--steps", type=count, default=150, metavar="N", help="training steps of each model (150)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of everything that is random (0)")


def _fit(commands: Any) -> None:
    parser = _command(
        commands,
        "fit",
        fitting.run_fit,
        "Train a model on a file of data.",
        """fit walk.csv -o walk.safetensors
        fit gaits.csv -o gaits.safetensors --sequence-column gait
        fit prices.csv -o prices.safetensors --time date --scale --temporal "matern32+white+bias"
        fit clip.mp4 -o clip.safetensors --shrink 2 --temporal "rbf*periodic+white" --hold period
        fit long.npz -o long.safetensors --steps 2000 --checkpoint long.checkpoint --resume""",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the data: csv, npz, npy or video")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="MODEL", help="the model, .safetensors")
    add_layout(parser, "--sequence")
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--latent-dim",
        type=count,
        metavar="Q",
        help="latent dimensions to begin with; those that are not needed are switched off (9)",
    )
    model.add_argument("--num-inducing", type=count, metavar="M", help="inducing points (100, or as many as frames)")
    model.add_argument(
        "--temporal",
        default="matern32+white+bias",
        metavar="KERNEL",
        help="kernel of time: rbf, markovrbf, matern12, matern32, matern52, periodic, linear, white, bias with + and "
        '*, brackets and parameters, as in "periodic(period=24 fixed)*rbf+white" (matern32+white+bias)',
    )
    model.add_argument(
        "--hold",
        metavar="NAMES",
        help="parameters of that kernel that stay where the data put them at the start, such as period",
    )
    model.add_argument(
        "--scale",
        action="store_true",
        help="divide each output by its standard deviation; answers come in the units of the data",
    )
    model.add_argument("--noise-per-output", action="store_true", help="one noise for each output, not one for all")
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=count, default=500, metavar="N", help="steps at the most (500)")
    training.add_argument("--method", choices=METHODS, default="natural", help="how to train (natural)")
    training.add_argument("--restarts", type=whole, default=0, metavar="N", help="more runs; the best is kept (0)")
    training.add_argument("--seed", type=seed, default=0, metavar="N", help="of everything that is random (0)")
    training.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="write the state of training here as it goes; one that is there needs --resume or --force",
    )
    training.add_argument("--resume", action="store_true", help="go on from --checkpoint, where there is one")
    add_machine(parser)


def _forecast(commands: Any) -> None:
    parser = _command(
        commands,
        "forecast",
        predicting.run_forecast,
        "Predict outputs at new times. Without -o, csv goes to the standard output.",
        """forecast walk.safetensors --until 12
        forecast prices.safetensors --until 2024-06-30 --step 1d -o june.csv
        forecast gaits.safetensors --times 10:12:0.1 --sequence run -o run.npz
        forecast clip.safetensors --until 150 -o ahead.gif""",
    )
    add_answer(parser, interval=0.95)
    add_when(parser, "which sequence goes on: its name or number, or new; may be left out where there is one")
    add_machine(parser)


def _reconstruct(commands: Any) -> None:
    parser = _command(
        commands,
        "reconstruct",
        predicting.run_reconstruct,
        "Fill in what is missing. Without FILE, the gaps of the training data; without -o, csv goes to the standard "
        "output.",
        """reconstruct walk.safetensors broken.csv -o whole.csv
        reconstruct walk.safetensors -o filled.csv
        reconstruct walk.safetensors other.csv --hide left_knee,left_ankle -o found.csv
        reconstruct clip.safetensors broken.npz -o whole.gif""",
    )
    add_answer(parser, interval=0.0)
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="frames with missing cells; columns that it does not have count as missing",
    )
    add_layout(parser, shrink=None)
    how = parser.add_argument_group("how")
    how.add_argument(
        "--sequence",
        metavar="NAME",
        help="the training sequence that the frames belong to; left out, they are new sequences",
    )
    how.add_argument(
        "--hide",
        metavar="NAMES",
        help="outputs to hide as well, by name or number (3, 10:20), to see how well they are found",
    )
    how.add_argument("--smooth", action="store_true", help="predict what was seen as well, and do not keep it as it is")
    how.add_argument("--factorised", action="store_true", help="the quick way: training frames stay as they are")
    how.add_argument("--starts", type=count, default=3, metavar="N", help="starting points (3)")
    how.add_argument("--steps", type=count, default=200, metavar="N", help="steps at the most from each start (200)")
    how.add_argument("--seed", type=seed, default=0, metavar="N", help="of everything that is random (0)")
    add_machine(parser)


def _generate(commands: Any) -> None:
    parser = _command(
        commands,
        "generate",
        predicting.run_generate,
        "Make up whole sequences. Without times, at those of the first training sequence.",
        """generate walk.safetensors --samples 3 -o made_up.csv
        generate clip.safetensors --until 60 --no-noise -o made_up.gif""",
    )
    add_answer(parser, interval=None)
    add_when(parser, "a training sequence to go on from; left out, a new one", default="new")
    parser.add_argument("--samples", type=count, default=1, metavar="N", help="how many sequences (1)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of everything that is random (0)")
    add_machine(parser)


def _info(commands: Any) -> None:
    parser = _command(
        commands,
        "info",
        describing.run_info,
        "Say what a model has learned. Kernels, noise, the data, and which latent dimensions are on.",
        "info walk.safetensors\ninfo walk.safetensors --json",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a file that fit wrote")
    parser.add_argument("--json", action="store_true", help="for programs")


def _plot(commands: Any) -> None:
    parser = _command(
        commands,
        "plot",
        describing.run_plot,
        "Draw what a model has learned.",
        """plot walk.safetensors
        plot walk.safetensors --what fit --outputs left_knee,right_knee -o knees.pdf
        plot gaits.safetensors --what forecast --until 12 --sequence run -o run.png""",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a file that fit wrote")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="png, pdf or svg (MODEL.png; of others, as MODEL_fit.png)"
    )
    parser.add_argument("--what", choices=describing.PICTURES, default="overview", help="which picture (overview)")
    parser.add_argument("--outputs", metavar="NAMES", help="of fit and forecast: outputs by name or number (3, 10:20)")
    parser.add_argument("--dpi", type=count, default=110, metavar="N", help="dots an inch (110)")
    add_when(parser, "of fit and forecast: a sequence, by name or number")
    add_machine(parser)


def _experiment(commands: Any) -> None:
    parser = _command(
        commands,
        "experiment",
        others.run_experiment,
        "Run an experiment of the paper. Without NAME, say which there are.",
        "experiment\nexperiment cmu35 --seeds 5 --output results\nexperiment missa --quick",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="which")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("experiment_output"),
        metavar="DIR",
        help="folder of tables, figures and models; a second run uses what is there (experiment_output)",
    )
    parser.add_argument("--seeds", type=count, metavar="N", help="runs from different starts")
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it works")
    parser.add_argument("--data-home", type=Path, metavar="DIR", help="folder of the data (PYRO_VGPDS_DATA)")
    parser.add_argument("--download", action="store_true", help="fetch data that are not there, if allowed")
