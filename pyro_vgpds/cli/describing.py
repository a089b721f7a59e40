# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds info``: a description of a trained model."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from pyro_vgpds.cli.dates import format_duration
from pyro_vgpds.cli.errors import OK
from pyro_vgpds.cli.trained import ModelFile
from pyro_vgpds.data.dates import format_times
from pyro_vgpds.formatting import counted

__all__ = ["run_info"]


def run_info(args: argparse.Namespace) -> int:
    trained = ModelFile.read(args.model)
    facts = _facts(trained)
    print(json.dumps(facts, indent=2) if args.json else _text(facts))
    return OK


def _facts(trained: ModelFile) -> dict[str, Any]:
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
            for name in leaf.parameter_names
            if name in ("lengthscale", "period") and leaf.prior(name) is None
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
    lines.append(f"relevance  {len(facts['active'])} of {len(relevance)} latent dimensions are active")
    for q in np.argsort(-relevance, kind="stable"):
        share = relevance[q] / relevance.max()
        state = "active" if q in facts["active"] else "inactive"
        lines.append(f"           {q:3d}  {share:6.4f}  {'#' * round(30 * share):30}  {state}")
    return "\n".join(lines)


def _numbers(values: np.ndarray) -> str:
    if len(values) == 1:
        return f"{values[0]:.4g}"
    if len(values) <= 6:
        return ", ".join(f"{value:.4g}" for value in values)
    return f"{values.min():.4g} to {values.max():.4g}, median {np.median(values):.4g}, one per output"
