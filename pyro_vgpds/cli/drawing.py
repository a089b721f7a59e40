# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds plot``: figures of a trained model. Those of the latent space show the first model of a mixture, or the
best of an ensemble.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyro_vgpds.cli.errors import OK, CommandError, UsageError
from pyro_vgpds.cli.layout import select
from pyro_vgpds.cli.model_file import NEW, ModelFile, relevance_of
from pyro_vgpds.cli.output_files import check_output
from pyro_vgpds.cli.progress import say
from pyro_vgpds.data.dates import format_times
from pyro_vgpds.files.atomic import atomic_write
from pyro_vgpds.plotting import (
    plot_forecast,
    plot_frames,
    plot_latent,
    plot_plane,
    plot_raster,
    plot_reconstruction,
    plot_relevance,
    plot_training,
)  # fmt: skip
from pyro_vgpds.plotting.style import labelled, legend_above
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.posterior import Posterior

__all__ = ["FIGURES", "run_plot"]

_OF_ONE = ("overview", "relevance", "latent", "plane")  # figures that show one model
_SUFFIXES = (".png", ".pdf", ".svg")
_HISTORY, _LEAST_HISTORY = 8, 100  # frames before a forecast that are drawn, for each of its frames, and at least


def run_plot(args: argparse.Namespace) -> int:
    matplotlib.use("Agg")
    torch.set_num_threads(args.threads)
    kind = "" if args.what == "overview" else f"_{args.what}"
    target = args.output or args.model.with_name(f"{args.model.stem}{kind}.png")
    check_output(target, args.force, _SUFFIXES, inputs=(args.model,))
    trained = ModelFile.read(args.model)
    if args.what in _OF_ONE and len(trained.members) and not isinstance(trained.posterior, Posterior):
        kind = "best model of the ensemble" if isinstance(trained.posterior, Ensemble) else "first model of the mixture"
        say(args, f"{args.what}: of the {kind}, {next(iter(trained.members))}")
    try:
        figure = FIGURES[args.what](trained, args)
        with atomic_write(target) as part:
            figure.savefig(part, dpi=args.dpi)
    finally:
        plt.close("all")
    say(args, f"figure: {target}")
    return OK


def _overview(trained: ModelFile, args: argparse.Namespace) -> Figure:
    first, order, about = trained.first("--what overview"), _order(trained), trained.metadata
    figure, leading = plt.figure(figsize=(11, 7.2), layout="constrained"), order[:2]
    if len(leading) == 1:  # no plane
        places = figure.subplot_mosaic([["relevance", "first"], ["relevance", "last"]])
    else:
        places = figure.subplot_mosaic(
            [["relevance", "first"], ["relevance", "second"], ["plane", "last"], ["plane", "last"]]
        )
        plot_plane(first, leading, places["plane"], names=trained.data.names)
    plot_relevance(relevance_of(first), about.relevance_before, places["relevance"])
    shown = [places[name] for name in ("first", "second") if name in places]
    plot_latent(first, leading, shown, names=trained.data.names)
    if about.training is not None:
        plot_training(about.training, places["last"])
    else:
        _draw_fit(trained, trained.posterior.impute(fill=False), _widest(trained, 1)[0], places["last"])
    return figure


def _training(trained: ModelFile, args: argparse.Namespace) -> Figure:
    if trained.metadata.training is None:
        raise CommandError(
            f"{trained.path} has no record of its training; models written by `pyro-vgpds fit --quick` have one."
        )
    return _figure(plot_training(trained.metadata.training))


def _relevance(trained: ModelFile, args: argparse.Namespace) -> Figure:
    return _figure(plot_relevance(relevance_of(trained.first("--what relevance")), trained.metadata.relevance_before))


def _latent(trained: ModelFile, args: argparse.Namespace) -> Figure:
    first = trained.first("--what latent")
    active = int(relevance_of(first).active.sum())
    return _figure(plot_latent(first, _order(trained)[: max(1, active)], names=trained.data.names)[0])


def _plane(trained: ModelFile, args: argparse.Namespace) -> Figure:
    first, order = trained.first("--what plane"), _order(trained)
    if len(order) < 2:
        raise CommandError(f"{trained.path} has one latent dimension, but --what plane requires two.")
    return _figure(plot_plane(first, order[:2], names=trained.data.names))


def _fit(trained: ModelFile, args: argparse.Namespace) -> Figure:
    which, shape = 0 if args.sequence is None else trained.sequence(args.sequence), trained.metadata.shape
    if which is None:
        raise UsageError(
            f"--sequence must be a training sequence with --what fit, but got {NEW!r}. Use --what forecast for it."
        )
    if shape is not None and args.outputs is None:
        function = trained.posterior.impute(fill=False).mean.cpu().numpy()
        frames = {name: y.reshape(-1, *shape) for name, y in (("data", trained.outputs()), ("model", function))}
        return _figure(plot_frames(frames, labels=format_times(trained.times(0)))[0, 0])
    chosen = _outputs(trained, args)
    figure, axes = _panels(len(chosen))
    predicted = trained.posterior.impute(fill=False)
    for ax, output in zip(axes, chosen, strict=True):
        _draw_fit(trained, predicted, output, ax, which)
    _share_labels(axes)
    return figure


def _draw_fit(trained: ModelFile, predicted: Outputs, output: int, ax: Axes, which: int = 0) -> None:
    """The data of a training sequence, and their prediction."""
    data = trained.outputs(which)
    plot_reconstruction(predicted.select(trained.data.times.slices()[which]), output, ax, truth=data, seen=data)
    _name_sequence(trained, which, ax)


def _name_sequence(trained: ModelFile, which: int, ax: Axes) -> None:
    if trained.data.num_sequences > 1:
        ax.set_title(f"sequence {trained.names[which]}", loc="right", fontsize="small")


def _forecast(trained: ModelFile, args: argparse.Namespace) -> Figure:
    sequence = trained.sequence(args.sequence)
    times = trained.ahead(sequence, args)
    predicted = trained.posterior.forecast(times, sequence)
    history = None
    if sequence is not None:
        shown = max(_HISTORY * len(times), _LEAST_HISTORY)
        history = trained.times(sequence)[-shown:], trained.outputs(sequence)[-shown:]
    chosen = _outputs(trained, args)
    figure, axes = _panels(len(chosen))
    for ax, output in zip(axes, chosen, strict=True):
        plot_forecast(predicted, output, ax, history=history)
        if sequence is not None:
            _name_sequence(trained, sequence, ax)
    _share_labels(axes)
    return figure


def _raster(trained: ModelFile, args: argparse.Namespace) -> Figure:
    chosen = None if args.outputs is None else _outputs(trained, args)
    return _figure(plot_raster(trained.data, trained.posterior.impute(fill=False), outputs=chosen)[0])


def _figure(ax: Axes) -> Figure:
    figure = ax.figure
    assert isinstance(figure, Figure)
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with axes below one another that share the times."""
    size = (7.5, 2.4 * count)
    figure, axes = plt.subplots(count, 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    return figure, list(axes[:, 0])


def _share_labels(axes: Sequence[Axes]) -> None:
    """Draw one legend with the labels of all axes, one title and one label of the times."""
    _figure(axes[0]).align_ylabels(axes)
    legend_above(axes[0], labelled(*axes))
    for ax in axes[:-1]:
        ax.set_xlabel("")
    for ax in axes[1:]:
        if (legend := ax.get_legend()) is not None:
            legend.remove()
        ax.set_title("", loc="right")


def _order(trained: ModelFile) -> list[int]:
    """The latent dimensions of the first model, the most relevant first."""
    return relevance_of(trained.first("this figure")).value.argsort(descending=True).tolist()


def _outputs(trained: ModelFile, args: argparse.Namespace) -> list[int]:
    if args.outputs is None:
        return _widest(trained, 4)
    return select(args.outputs, trained.posterior.columns, trained.posterior.num_outputs, "--outputs")


def _widest(trained: ModelFile, count: int) -> list[int]:
    """The outputs that vary most, in the order of the file."""
    spread = trained.data.output_variances[: trained.posterior.num_outputs].cpu().numpy()
    return sorted(np.argsort(-spread, kind="stable")[:count].tolist())


#: by the names of ``--what``
FIGURES: dict[str, Callable[[ModelFile, argparse.Namespace], Figure]] = {
    "overview": _overview,
    "training": _training,
    "relevance": _relevance,
    "latent": _latent,
    "plane": _plane,
    "fit": _fit,
    "forecast": _forecast,
    "raster": _raster,
}
