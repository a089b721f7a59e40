# SPDX-License-Identifier: Apache-2.0
"""The commands with their arguments and examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyro_vgpds
from pyro_vgpds.cli import choosing, describing, fitting, lazy, predicting
from pyro_vgpds.cli.arguments import add_answer, add_layout, add_machine, add_model, add_when, count, seed, weight
from pyro_vgpds.cli.fit_arguments import add_evaluate, add_fit
from pyro_vgpds.cli.options import add_options

__all__ = ["PROGRAM", "make_parser"]

PROGRAM = "pyro-vgpds"

_ABOUT = """\
Variational Gaussian process dynamical systems: learn a low-dimensional latent path from many outputs over time, then
forecast, reconstruct missing values, and generate new sequences.

Data files are csv (one column of times, numbers or dates; the other columns are outputs; empty cells are missing
values; an optional column `sequence` names the sequence of each row), npz (y (N, D), optionally t, sequence and
columns; or frames (T, H, W) of a video), npy, bvh (motion capture), or with the [video] extra mp4, avi, mkv, mov and
gif.
"""
_FIRST = f"""\
first steps:
  {PROGRAM} fit data.csv -o data.safetensors --horizon 24
  {PROGRAM} forecast data.safetensors --horizon 24 -o ahead.csv

"""
_CODES = """\
An existing file is replaced only with --force. A file is never written partially.
Exit codes: 0 success, 1 failure (a file is missing or has the wrong content), 2 wrong argument, 130 Ctrl-C (fit --quick
saves the best model so far).
"""
_SINGLE = "of single models only"


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
        epilog=f"{_FIRST}`{PROGRAM} COMMAND --help` shows the arguments of a command, with examples.\n{_CODES}",
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


def _forecast(parser: argparse.ArgumentParser) -> None:
    add_answer(parser, interval=0.95)
    add_options(parser, _SINGLE)
    add_when(
        parser, "training sequence to forecast, by name or number, or new. Default: the only one; with --horizon, all"
    )
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
    how.add_argument(
        "--trust",
        type=weight,
        metavar="W",
        help="weight of an observed value of FILE relative to one of training: below 1, the reconstruction relies more "
        f"on the times; {_SINGLE}. Default: 1",
    )
    how.add_argument("--factorised", action="store_true", help=f"faster: do not update the training frames; {_SINGLE}")
    how.add_argument("--starts", type=count, metavar="N", help=f"number of initial values; {_SINGLE}. Default: 3")
    how.add_argument("--steps", type=count, metavar="N", help=f"maximum number of steps; {_SINGLE}. Default: 200")
    how.add_argument("--seed", type=seed, default=0, metavar="N", help="random seed. Default: 0")
    add_options(parser, _SINGLE)
    add_machine(parser)


def _generate(parser: argparse.ArgumentParser) -> None:
    add_answer(parser, interval=None)
    add_options(parser, _SINGLE)
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
        help="fit, forecast and raster: outputs, by name or number (3, 10:20). Default: the four that vary most, and "
        "all for raster",
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
        add_fit,
        "Train on a data file. Models and baselines are compared on held-out data; the best are combined, their "
        "intervals\nare calibrated, and they are trained on all data. --quick trains a single model instead.",
        """fit walk.csv -o walk.safetensors
        fit gaits.csv -o gaits.safetensors --sequence-column gait --task reconstruct
        fit prices.csv -o prices.safetensors --time date --task forecast --horizon 30 --report prices.html
        fit clip.mp4 -o clip.safetensors --shrink 2 --temporal "rbf*periodic+white" --hold period
        fit long.npz -o long.safetensors --quick --steps 2000 --checkpoint long.checkpoint --resume""",
    ),
    _Command(
        "evaluate",
        choosing.run_evaluate,
        add_evaluate,
        "Compare models and baselines on held-out data. Prints a table of errors and writes a page with pictures.",
        """evaluate walk.csv
        evaluate prices.csv --time date --task forecast --horizon 30 -o prices.html
        evaluate gaits.csv --sequence-column gait --task reconstruct --baselines "nearest neighbour,kernel ridge" """,
    ),
    _Command(
        "forecast",
        predicting.run_forecast,
        _forecast,
        "Predict outputs at new times.",
        """forecast walk.safetensors --horizon 24 -o ahead.csv
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
        reconstruct walk.safetensors broken.csv --trust 0.1 --noise-factor 2 -o careful.csv
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
        "Repeat an experiment of the paper or of the documentation.",
        "experiment\nexperiment cmu35 --seeds 5 --output results\nexperiment missa --quick",
    ),
)
