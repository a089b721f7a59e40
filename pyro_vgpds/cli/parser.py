# SPDX-License-Identifier: Apache-2.0
"""The commands with their arguments and examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyro_vgpds
from pyro_vgpds.cli import describing, fitting, lazy, predicting
from pyro_vgpds.cli.arguments import add_answer, add_layout, add_machine, add_model, add_when, count, seed, whole
from pyro_vgpds.training.settings import METHODS

__all__ = ["PROGRAM", "make_parser"]

PROGRAM = "pyro-vgpds"

_ABOUT = """\
Variational Gaussian process dynamical systems: learn a low-dimensional latent path from many outputs over time, then
forecast, reconstruct missing values, and generate new sequences.

Data files are csv (one column of times, numbers or dates; the other columns are outputs; empty cells are missing
values; an optional column `sequence` names the sequence of each row), npz (y (N, D), optionally t, sequence and
columns; or frames (T, H, W) of a video), npy, or with the [video] extra mp4, avi, mkv, mov and gif.
"""
_CODES = """\
An existing file is replaced only with --force. A file is never written partially.
Exit codes: 0 success, 1 failure (a file is missing or has the wrong content), 2 wrong argument, 130 Ctrl-C (fit saves
the best model so far).
"""


@dataclass(frozen=True)
class _Command:
    name: str
    run: Callable[[argparse.Namespace], int]  #: returns the exit code
    add_arguments: Callable[[argparse.ArgumentParser], None]
    about: str  #: its first sentence is the command's line in the list of commands
    examples: str  #: one per line, without the program's name


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"`{PROGRAM} COMMAND --help` shows the arguments of a command, with examples.\n{_CODES}",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {pyro_vgpds.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        lines = "\n".join(f"  {PROGRAM} {line.strip()}" for line in command.examples.strip().splitlines())
        added = subparsers.add_parser(
            command.name,
            help=command.about.split(".")[0].lower(),
            description=command.about,
            epilog=f"examples:\n{lines}\n\n{_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=command.run)
        added.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
        added.add_argument("-q", "--quiet", action="store_true", help="print only errors and results")
        command.add_arguments(added)
    return parser


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo_output"),
        metavar="DIR",
        help="folder of the report; files of an earlier demo in it are replaced. Default: demo_output",
    )
    parser.add_argument("--steps", type=count, default=150, metavar="N", help="training steps per model. Default: 150")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="random seed. Default: 0")


def _fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="data file: csv, npz, npy or video")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="MODEL", help="model file, .safetensors")
    add_layout(parser, "--sequence")
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--latent-dim",
        type=count,
        metavar="Q",
        help="initial number of latent dimensions; training switches off those it does not need. "
        "Default: 9, or the number of outputs if that is smaller",
    )
    model.add_argument(
        "--num-inducing",
        type=count,
        metavar="M",
        help="number of inducing points. Default: 100, or the number of frames if that is smaller",
    )
    model.add_argument(
        "--temporal",
        default="matern32+white+bias",
        metavar="KERNEL",
        help="temporal kernel: rbf, markovrbf, matern12, matern32, matern52, periodic, linear, white, bias, combined "
        'with + and *, brackets and parameters, as in "periodic(period=24 fixed)*rbf+white". '
        "Default: matern32+white+bias",
    )
    model.add_argument(
        "--hold",
        metavar="NAMES",
        help="parameters of the temporal kernel, such as period, that stay fixed at their initial values",
    )
    model.add_argument(
        "--scale",
        action="store_true",
        help="divide each output by its standard deviation; predictions are in the units of the data",
    )
    model.add_argument("--noise-per-output", action="store_true", help="one noise variance per output, not one for all")
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=count, default=500, metavar="N", help="maximum number of steps. Default: 500")
    training.add_argument("--method", choices=METHODS, default="natural", help="optimiser. Default: natural")
    training.add_argument(
        "--restarts", type=whole, default=0, metavar="N", help="further runs; the best run is kept. Default: 0"
    )
    training.add_argument("--seed", type=seed, default=0, metavar="N", help="random seed. Default: 0")
    training.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="save the state of training to this file regularly; an existing file requires --resume or --force",
    )
    training.add_argument("--resume", action="store_true", help="continue from --checkpoint, if that file exists")
    add_machine(parser)


def _forecast(parser: argparse.ArgumentParser) -> None:
    add_answer(parser, interval=0.95)
    add_when(parser, "training sequence to forecast, by name or number, or new. Default: the only one")
    add_machine(parser)


def _reconstruct(parser: argparse.ArgumentParser) -> None:
    add_answer(parser, interval=0.0)
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="frames with missing values; columns that the file lacks count as missing. Default: the training data",
    )
    add_layout(parser, shrink=None)
    how = parser.add_argument_group("reconstruction")
    how.add_argument(
        "--sequence", metavar="NAME", help="training sequence that the frames belong to. Default: new sequences"
    )
    how.add_argument(
        "--hide",
        metavar="NAMES",
        help="outputs to hide as well, by name or number (3, 10:20), to measure the error of their reconstruction",
    )
    how.add_argument("--smooth", action="store_true", help="predict observed values too, instead of keeping them")
    how.add_argument("--factorised", action="store_true", help="faster: do not update the training frames")
    how.add_argument("--starts", type=count, default=3, metavar="N", help="number of initial values. Default: 3")
    how.add_argument(
        "--steps", type=count, default=200, metavar="N", help="maximum number of steps from each. Default: 200"
    )
    how.add_argument("--seed", type=seed, default=0, metavar="N", help="random seed. Default: 0")
    add_machine(parser)


def _generate(parser: argparse.ArgumentParser) -> None:
    add_answer(parser, interval=None)
    add_when(parser, "training sequence to continue, by name or number, or new. Default: new", default="new")
    parser.add_argument("--samples", type=count, default=1, metavar="N", help="number of sequences. Default: 1")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="random seed. Default: 0")
    add_machine(parser)


def _info(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _plot(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="png, pdf or svg. Default: MODEL.png for the overview, MODEL_WHAT.png for others, such as MODEL_fit.png",
    )
    parser.add_argument("--what", choices=lazy.FIGURES, default="overview", help="figure. Default: overview")
    parser.add_argument(
        "--outputs",
        metavar="NAMES",
        help="fit and forecast: outputs, by name or number (3, 10:20). Default: the four that vary most",
    )
    parser.add_argument("--dpi", type=count, default=110, metavar="N", help="dots per inch. Default: 110")
    add_when(parser, "fit: training sequence. Default: the first. forecast: the same, or new. Default: the only one")
    add_machine(parser)


def _experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the experiment. Default: list all names")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("experiment_output"),
        metavar="DIR",
        help="folder of tables, figures and models; finished parts in it are reused. Default: experiment_output",
    )
    parser.add_argument(
        "--seeds", type=count, metavar="N", help="number of random seeds. Default: as in the experiment's table"
    )
    parser.add_argument("--quick", action="store_true", help="small models and few steps, to test the installation")
    parser.add_argument(
        "--data-home", type=Path, metavar="DIR", help="folder of the data. Default: the variable PYRO_VGPDS_DATA"
    )
    parser.add_argument("--download", action="store_true", help="download missing data sets whose terms allow it")


_COMMANDS = (
    _Command(
        "demo",
        lazy.run_demo,
        _demo,
        "Train on a synthetic video and a synthetic gait, and write a report with figures.",
        "demo\ndemo --output somewhere --seed 3",
    ),
    _Command(
        "fit",
        fitting.run_fit,
        _fit,
        "Train a model on a data file.",
        """fit walk.csv -o walk.safetensors
        fit gaits.csv -o gaits.safetensors --sequence-column gait
        fit prices.csv -o prices.safetensors --time date --scale --temporal "matern32+white+bias"
        fit clip.mp4 -o clip.safetensors --shrink 2 --temporal "rbf*periodic+white" --hold period
        fit long.npz -o long.safetensors --steps 2000 --checkpoint long.checkpoint --resume""",
    ),
    _Command(
        "forecast",
        predicting.run_forecast,
        _forecast,
        "Predict outputs at new times.",
        """forecast walk.safetensors --until 12
        forecast prices.safetensors --until 2024-06-30 --step 1d -o june.csv
        forecast gaits.safetensors --times 10:12:0.1 --sequence run -o run.npz
        forecast clip.safetensors --until 150 -o ahead.gif""",
    ),
    _Command(
        "reconstruct",
        predicting.run_reconstruct,
        _reconstruct,
        "Reconstruct missing values of a data file, or of the training data.",
        """reconstruct walk.safetensors broken.csv -o whole.csv
        reconstruct walk.safetensors -o filled.csv
        reconstruct walk.safetensors other.csv --hide left_knee,left_ankle -o found.csv
        reconstruct clip.safetensors broken.npz -o whole.gif""",
    ),
    _Command(
        "generate",
        predicting.run_generate,
        _generate,
        "Generate new sequences. Default times: those of the first training sequence.",
        """generate walk.safetensors --samples 3 -o made_up.csv
        generate clip.safetensors --until 60 --no-noise -o made_up.gif""",
    ),
    _Command(
        "info",
        describing.run_info,
        _info,
        "Describe a trained model. Prints the kernels, the noise, the data and the active latent dimensions.",
        "info walk.safetensors\ninfo walk.safetensors --json",
    ),
    _Command(
        "plot",
        lazy.run_plot,
        _plot,
        "Draw a figure of a trained model.",
        """plot walk.safetensors
        plot walk.safetensors --what fit --outputs left_knee,right_knee -o knees.pdf
        plot gaits.safetensors --what forecast --until 12 --sequence run -o run.png""",
    ),
    _Command(
        "experiment",
        lazy.run_experiment,
        _experiment,
        "Run an experiment of the paper.",
        "experiment\nexperiment cmu35 --seeds 5 --output results\nexperiment missa --quick",
    ),
)
