# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds info`` and ``plot``: what a trained model has learned."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch

from pyro_vgpds.cli.dates import format_duration
from pyro_vgpds.cli.errors import OK, CommandError, UsageError
from pyro_vgpds.cli.fitting import say
from pyro_vgpds.cli.reading import select
from pyro_vgpds.cli.trained import NEW, Trained
from pyro_vgpds.cli.writing import check_output
from pyro_vgpds.data.dates import format_times
from pyro_vgpds.files.container import placed
from pyro_vgpds.formatting import counted
from pyro_vgpds.prediction.results import Outputs

__all__ = ["PICTURES", "run_info", "run_plot"]

PICTURES = ("overview", "training", "relevance", "latent", "plane", "fit", "forecast")
_SUFFIXES = (".png", ".pdf", ".svg")


def run_info(args: argparse.Namespace) -> int:
    trained = Trained.read(args.model)
    facts = _facts(trained)
    print(json.dumps(facts, indent=2) if args.json else _text(facts))
    return OK


def _facts(trained: Trained) -> dict[str, Any]:
    model, data = trained.model, trained.data
    noise = np.sqrt(model.noise.detach().cpu().numpy()) * trained.scale
    facts: dict[str, Any] = {
        "file": str(trained.path),
        "source": trained.metadata.get("source"),
        "data": {
            "sequences": dict(zip(trained.names, data.lengths, strict=True)),
            "frames": data.num_frames,
            "outputs": data.num_outputs,
            "missing": data.num_missing,
            "columns": data.columns,
            "times": {
                name: format_times(trained.times(s)[[0, -1]]) for s, name in enumerate(trained.names)
            },
            "dates": data.time_origin is not None,
            "video": trained.shape,
            "scaled": isinstance(trained.scale, np.ndarray),
        },
        "temporal": repr(model.temporal),
        "mapping": repr(model.mapping),
        "inducing": model.num_inducing,
        "noise_sd": noise.tolist(),
        "bound": trained.posterior.bound,
    }  # fmt: skip
    if data.time_origin is not None:
        facts["durations"] = {
            f"{type(leaf).__name__}.{name}": getattr(leaf, name).detach().flatten().tolist()
            for leaf in model.temporal.leaves()
            for name in leaf._names
            if name in ("lengthscale", "period") and name not in leaf._pyro_samples
        }
    relevance = model.relevance(trained.guide, data)
    facts["relevance"] = relevance.value.tolist()
    facts["active"] = relevance.active.nonzero().flatten().tolist()
    if (result := trained.result) is not None:
        facts["training"] = {
            "method": result.method, "steps": result.num_steps, "seconds": result.seconds, "stopped": result.stopped,
        }  # fmt: skip
    return facts


def _text(facts: dict[str, Any]) -> str:
    about = facts["data"]
    size = about["frames"] * about["outputs"]
    missing = f", {100 * about['missing'] / size:.3g} % missing" if about["missing"] else ""
    count = len(about["sequences"])
    lines = [
        f"file       {facts['file']}" + (f", trained on {facts['source']}" if facts["source"] else ""),
        f"data       {counted(count, 'sequence')}, {counted(about['frames'], 'frame')}, "
        f"{counted(about['outputs'], 'output')}"
        + missing
        + (f", frames of {about['video'][0]} x {about['video'][1]} pixels" if about["video"] else "")
        + (", each output divided by its standard deviation for training" if about["scaled"] else ""),
    ]
    for name, length in list(about["sequences"].items())[:20]:
        first, last = about["times"][name]
        lines.append(f"           sequence {name}: {counted(length, 'frame')} from {first} to {last}")
    if count > 20:
        lines.append(f"           and {count - 20} more")
    if about["columns"]:
        lines.append("outputs    " + ", ".join(about["columns"][:12]) + (", …" if len(about["columns"]) > 12 else ""))
    lines += [
        f"temporal   {facts['temporal']}" + (", in seconds" if about["dates"] else ""),
        *(
            f"           {name} is {', '.join(map(format_duration, seconds))}"
            for name, seconds in facts.get("durations", {}).items()
        ),
        f"mapping    {facts['mapping']}",
        f"inducing   {facts['inducing']} points",
        f"noise sd   {_numbers(np.ravel(facts['noise_sd']))}",
        f"bound      {facts['bound']:,.6g} nats",
    ]
    if "training" in facts:
        done = facts["training"]
        lines.append(
            f"training   {counted(done['steps'], done['method'] + ' step')} in {done['seconds']:.1f} s, "
            f"stopped: {done['stopped']}"
        )
    relevance = np.array(facts["relevance"])
    lines.append(f"relevance  {len(facts['active'])} of {len(relevance)} latent dimensions are on")
    for q in np.argsort(-relevance, kind="stable"):
        share = relevance[q] / relevance.max()
        state = "on" if q in facts["active"] else "off"
        lines.append(f"           {q:3d}  {share:6.4f}  {'#' * round(30 * share):30}  {state}")
    return "\n".join(lines)


def _numbers(values: np.ndarray) -> str:
    if len(values) == 1:
        return f"{values[0]:.4g}"
    if len(values) <= 6:
        return ", ".join(f"{value:.4g}" for value in values)
    return f"{values.min():.4g} to {values.max():.4g}, median {np.median(values):.4g}, one for each output"


# pictures


def run_plot(args: argparse.Namespace) -> int:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    torch.set_num_threads(args.threads)
    kind = "" if args.what == "overview" else f"_{args.what}"
    target = args.output or args.model.with_name(f"{args.model.stem}{kind}.png")
    check_output(target, args.force, _SUFFIXES, inputs=(args.model,))
    trained = Trained.read(args.model)
    draw = {"training": _training, "relevance": _relevance, "latent": _latent, "plane": _plane, "fit": _fit,
            "forecast": _forecast, "overview": _overview}[args.what]  # fmt: skip
    try:
        figure = draw(trained, args)
        with placed(target) as part:
            figure.savefig(part, dpi=args.dpi)
    finally:
        plt.close("all")
    say(args, f"picture: {target}")
    return OK


def _overview(trained: Trained, args: argparse.Namespace) -> Any:
    import matplotlib.pyplot as plt

    from pyro_vgpds.plotting import plot_latent, plot_plane, plot_relevance, plot_training

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
        said = trained.posterior.impute(fill=False)
        _draw_fit(trained, said, _widest(trained, 1)[0], places["last"])
    return figure


def _training(trained: Trained, args: argparse.Namespace) -> Any:
    from pyro_vgpds.plotting import plot_training

    if trained.result is None:
        raise CommandError(f"{trained.path} does not say how it was trained; models written by `pyro-vgpds fit` do.")
    return plot_training(trained.result).figure


def _relevance(trained: Trained, args: argparse.Namespace) -> Any:
    from pyro_vgpds.plotting import plot_relevance

    return plot_relevance(trained.model.relevance(trained.guide, trained.data), _before(trained)).figure


def _latent(trained: Trained, args: argparse.Namespace) -> Any:
    from pyro_vgpds.plotting import plot_latent

    active = int(trained.model.relevance(trained.guide, trained.data).active.sum())
    names = trained.metadata.get("names")
    return plot_latent(trained.posterior, _order(trained)[: max(1, active)], names=names)[0].figure


def _plane(trained: Trained, args: argparse.Namespace) -> Any:
    from pyro_vgpds.plotting import plot_plane

    order = _order(trained)
    if len(order) < 2:
        raise CommandError(f"{trained.path} has one latent dimension: there is no plane to draw.")
    return plot_plane(trained.posterior, order[:2], names=trained.metadata.get("names")).figure


def _fit(trained: Trained, args: argparse.Namespace) -> Any:
    import matplotlib.pyplot as plt

    from pyro_vgpds.plotting import plot_frames

    which = 0 if args.sequence is None else trained.sequence(args.sequence)
    if which is None:
        raise UsageError(
            f"--sequence must be one of training with --what fit, but got {NEW!r}; --what forecast draws a new one."
        )
    if trained.shape is not None and args.outputs is None:
        function = trained.posterior.impute(fill=False, include_noise=False).mean
        films = {"data": trained.outputs(), "model": function.cpu().numpy()}
        labels = format_times(trained.times(0))
        frames = {name: film.reshape(-1, *trained.shape) for name, film in films.items()}
        return plot_frames(frames, labels=labels)[0, 0].figure
    chosen = _outputs(trained, args)
    size = (7.5, 2.4 * len(chosen))
    figure, axes = plt.subplots(len(chosen), 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    said = trained.posterior.impute(fill=False)
    for ax, output in zip(axes[:, 0], chosen, strict=True):
        _draw_fit(trained, said, output, ax, which)
    return _stacked(figure, axes[:, 0])


def _draw_fit(trained: Trained, said: Outputs, output: int, ax: Any, which: int = 0) -> None:
    """What the model says of the training frames, ``said``, beside what it was given."""
    from pyro_vgpds.plotting import plot_reconstruction

    rows = trained.data.times.slices()[which]
    data = trained.outputs()[rows]
    plot_reconstruction(said.select(rows), output, ax, truth=data, seen=data)
    _name_sequence(trained, which, ax)


def _name_sequence(trained: Trained, which: int, ax: Any) -> None:
    if trained.data.num_sequences > 1:
        ax.set_title(f"sequence {trained.names[which]}", loc="right", fontsize="small")


def _forecast(trained: Trained, args: argparse.Namespace) -> Any:
    import matplotlib.pyplot as plt

    from pyro_vgpds.plotting import plot_forecast

    sequence = trained.sequence(args.sequence)
    times = trained.horizon(sequence, args.times, args.until, args.step)
    said = trained.posterior.forecast(times, sequence)
    history = None
    if sequence is not None:
        history = trained.times(sequence), trained.outputs()[trained.data.times.slices()[sequence]]
    chosen = _outputs(trained, args)
    size = (7.5, 2.4 * len(chosen))
    figure, axes = plt.subplots(len(chosen), 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    for ax, output in zip(axes[:, 0], chosen, strict=True):
        plot_forecast(said, output, ax, history=history)
        if sequence is not None:
            _name_sequence(trained, sequence, ax)
    return _stacked(figure, axes[:, 0])


def _stacked(figure: Any, axes: Any) -> Any:
    """Panels that share a time axis say once what all of them show."""
    for ax in axes[:-1]:
        ax.set_xlabel("")
    for ax in axes[1:]:
        ax.get_legend().remove()
        ax.set_title("", loc="right")
    return figure


def _order(trained: Trained) -> list[int]:
    relevance = trained.model.relevance(trained.guide, trained.data).value
    return relevance.argsort(descending=True).tolist()


def _before(trained: Trained) -> Any:
    before = trained.metadata.get("relevance_before")
    return None if before is None else np.array(before)


def _outputs(trained: Trained, args: argparse.Namespace) -> list[int]:
    if args.outputs is None:
        return _widest(trained, 4)
    return select(args.outputs, trained.posterior.columns, trained.posterior.num_outputs, "--outputs")


def _widest(trained: Trained, count: int) -> list[int]:
    """The outputs that vary most, in the order of the file."""
    spread = trained.data.output_variances[: trained.data.num_base_outputs].cpu().numpy()
    return sorted(np.argsort(-spread, kind="stable")[:count].tolist())
