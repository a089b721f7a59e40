# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds plot``: figures of a trained model."""

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
from pyro_vgpds.cli.progress import say
from pyro_vgpds.cli.trained import NEW, ModelFile
from pyro_vgpds.cli.writing import check_output
from pyro_vgpds.data.dates import format_times
from pyro_vgpds.files.container import placed
from pyro_vgpds.plotting import (
    plot_forecast,
    plot_frames,
    plot_latent,
    plot_plane,
    plot_reconstruction,
    plot_relevance,
    plot_training,
)  # fmt: skip
from pyro_vgpds.prediction.results import Outputs

__all__ = ["FIGURES", "run_plot"]

_SUFFIXES = (".png", ".pdf", ".svg")


def run_plot(args: argparse.Namespace) -> int:
    matplotlib.use("Agg")
    torch.set_num_threads(args.threads)
    kind = "" if args.what == "overview" else f"_{args.what}"
    target = args.output or args.model.with_name(f"{args.model.stem}{kind}.png")
    check_output(target, args.force, _SUFFIXES, inputs=(args.model,))
    trained = ModelFile.read(args.model)
    try:
        figure = FIGURES[args.what](trained, args)
        with placed(target) as part:
            figure.savefig(part, dpi=args.dpi)
    finally:
        plt.close("all")
    say(args, f"figure: {target}")
    return OK


def _overview(trained: ModelFile, args: argparse.Namespace) -> Figure:
    order, names = _order(trained), trained.metadata.get("names")
    figure = plt.figure(figsize=(11, 7.2), layout="constrained")
    places = figure.subplot_mosaic(
        [["relevance", "first"], ["relevance", "second"], ["plane", "last"], ["plane", "last"]]
    )
    plot_relevance(trained.model.relevance(trained.guide, trained.data), _before(trained), places["relevance"])
    leading = order[:2] if len(order) > 1 else order * 2
    plot_latent(trained.posterior, leading, [places["first"], places["second"]], names=names)
    plot_plane(trained.posterior, leading, places["plane"], names=names)
    if trained.result is not None:
        plot_training(trained.result, places["last"])
    else:
        predicted = trained.posterior.impute(fill=False)
        _draw_fit(trained, predicted, _widest(trained, 1)[0], places["last"])
    return figure


def _training(trained: ModelFile, args: argparse.Namespace) -> Figure:
    if trained.result is None:
        raise CommandError(
            f"{trained.path} has no record of its training; models written by `pyro-vgpds fit` have one."
        )
    return _figure(plot_training(trained.result))


def _relevance(trained: ModelFile, args: argparse.Namespace) -> Figure:
    return _figure(plot_relevance(trained.model.relevance(trained.guide, trained.data), _before(trained)))


def _latent(trained: ModelFile, args: argparse.Namespace) -> Figure:
    active = int(trained.model.relevance(trained.guide, trained.data).active.sum())
    names = trained.metadata.get("names")
    return plot_latent(trained.posterior, _order(trained)[: max(1, active)], names=names)[0].figure


def _plane(trained: ModelFile, args: argparse.Namespace) -> Figure:
    order = _order(trained)
    if len(order) < 2:
        raise CommandError(f"{trained.path} has one latent dimension, but --what plane requires two.")
    return _figure(plot_plane(trained.posterior, order[:2], names=trained.metadata.get("names")))


def _fit(trained: ModelFile, args: argparse.Namespace) -> Figure:
    which = 0 if args.sequence is None else trained.sequence(args.sequence)
    if which is None:
        raise UsageError(
            f"--sequence must be a training sequence with --what fit, but got {NEW!r}. Use --what forecast for it."
        )
    if trained.shape is not None and args.outputs is None:
        function = trained.posterior.impute(fill=False, include_noise=False).mean
        films = {"data": trained.outputs(), "model": function.cpu().numpy()}
        labels = format_times(trained.times(0))
        frames = {name: film.reshape(-1, *trained.shape) for name, film in films.items()}
        return plot_frames(frames, labels=labels)[0, 0].figure
    chosen = _outputs(trained, args)
    figure, axes = _panels(len(chosen))
    predicted = trained.posterior.impute(fill=False)
    for ax, output in zip(axes, chosen, strict=True):
        _draw_fit(trained, predicted, output, ax, which)
    _share_labels(axes)
    return figure


def _draw_fit(trained: ModelFile, predicted: Outputs, output: int, ax: Axes, which: int = 0) -> None:
    """The model's prediction ``predicted`` of the training frames, and the data."""
    rows = trained.data.times.slices()[which]
    data = trained.outputs()[rows]
    plot_reconstruction(predicted.select(rows), output, ax, truth=data, seen=data)
    _name_sequence(trained, which, ax)


def _name_sequence(trained: ModelFile, which: int, ax: Axes) -> None:
    if trained.data.num_sequences > 1:
        ax.set_title(f"sequence {trained.names[which]}", loc="right", fontsize="small")


def _forecast(trained: ModelFile, args: argparse.Namespace) -> Figure:
    sequence = trained.sequence(args.sequence)
    times = trained.horizon(sequence, args.times, args.until, args.step)
    predicted = trained.posterior.forecast(times, sequence)
    history = None
    if sequence is not None:
        history = trained.times(sequence), trained.outputs()[trained.data.times.slices()[sequence]]
    chosen = _outputs(trained, args)
    figure, axes = _panels(len(chosen))
    for ax, output in zip(axes, chosen, strict=True):
        plot_forecast(predicted, output, ax, history=history)
        if sequence is not None:
            _name_sequence(trained, sequence, ax)
    _share_labels(axes)
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with axes below one another that share the times."""
    size = (7.5, 2.4 * count)
    figure, axes = plt.subplots(count, 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    return figure, list(axes[:, 0])


def _share_labels(axes: Sequence[Axes]) -> None:
    """Keep one legend, one title and one label of the times."""
    for ax in axes[:-1]:
        ax.set_xlabel("")
    for ax in axes[1:]:
        if (legend := ax.get_legend()) is not None:
            legend.remove()
        ax.set_title("", loc="right")


def _figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def _order(trained: ModelFile) -> list[int]:
    relevance = trained.model.relevance(trained.guide, trained.data).value
    return relevance.argsort(descending=True).tolist()


def _before(trained: ModelFile) -> np.ndarray | None:
    before = trained.metadata.get("relevance_before")
    return None if before is None else np.array(before)


def _outputs(trained: ModelFile, args: argparse.Namespace) -> list[int]:
    if args.outputs is None:
        return _widest(trained, 4)
    return select(args.outputs, trained.posterior.columns, trained.posterior.num_outputs, "--outputs")


def _widest(trained: ModelFile, count: int) -> list[int]:
    """The outputs that vary most, in the order of the file."""
    spread = trained.data.output_variances[: trained.data.num_base_outputs].cpu().numpy()
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
}
