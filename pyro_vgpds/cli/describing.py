# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds info``: a description of a trained model, or of each member of a mixture or an ensemble."""

from __future__ import annotations

import argparse
import json
import math
import re
from typing import Any

import numpy as np

from pyro_vgpds.cli.errors import OK
from pyro_vgpds.cli.model_file import ModelFile, relevance_of, trained_model
from pyro_vgpds.cli.options import likelihood_facts, numbers_text
from pyro_vgpds.data.dates import format_duration, format_times
from pyro_vgpds.formatting import counted
from pyro_vgpds.kernels import Kernel
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.posterior_mixture import PosteriorMixture
from pyro_vgpds.selection.report import Report

__all__ = ["run_info"]

_MOST = 4  # numbers of a parameter that are printed each
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?"


def run_info(args: argparse.Namespace) -> int:
    facts = _facts(ModelFile.read(args.model))
    print(json.dumps(_finite(facts), indent=2) if args.json else _text(facts))
    return OK


def _finite(value: object) -> object:
    """The same with None instead of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _facts(trained: ModelFile) -> dict[str, Any]:
    data, about, outputs = trained.data, trained.metadata, trained.posterior.num_outputs
    facts: dict[str, Any] = {
        "file": str(trained.path),
        "source": about.source,
        "data": {
            "sequences": dict(zip(trained.names, data.lengths, strict=True)),
            "frames": data.num_frames,
            "outputs": outputs,
            "missing": data.num_frames * outputs - int(data.output_counts[:outputs].sum()),
            "columns": trained.posterior.columns,
            "times": {name: format_times(trained.times(s)[[0, -1]]) for s, name in enumerate(trained.names)},
            "dates": data.time_origin is not None,
            "video": about.shape,
            "scaled": any(
                m.likelihood is None and bool((trained_model(m).output_scale != 1.0).any())
                for m in trained.members.values()
            ),
        },
    }
    if isinstance(trained.posterior, PosteriorMixture):
        weights = trained.posterior.weights.tolist()
        models = trained.posterior.posteriors
        facts["models"] = [{"weight": w, **_describe(p)} for w, p in zip(weights, models, strict=True)]
    elif isinstance(trained.posterior, Ensemble):
        facts |= _describe_ensemble(trained.posterior)
    else:
        facts |= _describe(trained.posterior)
    if (result := about.training) is not None:
        facts["training"] = {
            "method": result.method, "steps": result.num_steps, "seconds": result.seconds, "stopped": result.stopped,
        }  # fmt: skip
    return facts


def _describe_ensemble(ensemble: Ensemble) -> dict[str, Any]:
    combination = next(iter(ensemble.combinations.values()))
    weights, lost = combination.weights.mean(1).tolist(), combination.lost
    lost_weights = [None] * len(weights) if lost is None else lost.weights.mean(1).tolist()
    members: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": "model" if isinstance(member, Posterior) else "baseline",
            "weight": weight,
            **({} if lost_weight is None else {"weight_in_lost_frames": lost_weight}),
            **(_describe(member) if isinstance(member, Posterior) else {}),
        }
        for name, member, weight, lost_weight in zip(
            ensemble.names, ensemble.members, weights, lost_weights, strict=True
        )
    ]
    members.sort(key=lambda member: -member["weight"])
    report = ensemble.report if isinstance(ensemble.report, Report) else None
    return {
        "tasks": list(ensemble.combinations),
        "members": members,
        "report": None if report is None else report.to_dict(),
    }


def _describe(posterior: Posterior) -> dict[str, Any]:
    model, residual, outputs = trained_model(posterior), posterior.origin.residual, posterior.likelihood
    facts: dict[str, Any] = {
        "temporal": repr(model.temporal),
        "mapping": repr(model.mapping),
        "inducing": model.num_inducing,
        "likelihood": None if outputs is None else likelihood_facts(outputs),
        "noise_sd": posterior.noise_variance.sqrt().tolist() if outputs is None else None,
        "residual": None if residual is None else repr(residual),
        "lags": list(posterior.data.lags),
        "bound": posterior.bound,
    }
    if posterior.data.time_origin is not None:
        facts["durations"] = _time_parameters(model.temporal)
    relevance = relevance_of(posterior)
    facts["relevance"] = relevance.value.tolist()
    facts["active"] = relevance.active.nonzero().flatten().tolist()
    return facts


def _time_parameters(kernel: Kernel) -> dict[str, list[float]]:
    """The values of lengthscales and periods; those of further leaves of one kind have a number."""
    found: dict[str, list[float]] = {}
    for leaf in kernel.leaves():
        for name in leaf.parameter_names:
            if name in leaf.time_parameters and leaf.prior(name) is None:
                full = f"{type(leaf).__name__}.{name}"
                count = sum(known.split(" ")[0] == full for known in found)
                found[f"{full} ({count + 1})" if count else full] = getattr(leaf, name).detach().flatten().tolist()
    return found


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
    for i, model in enumerate(facts.get("models", [])):
        lines += ["", f"model {i}    weight {model['weight']:.4g} in the mixture", *_model_lines(model, about["dates"])]
    if "members" in facts:
        lines += _ensemble_lines(facts, about["dates"])
    elif "models" not in facts:
        lines += _model_lines(facts, about["dates"])
    return "\n".join(lines)


def _ensemble_lines(facts: dict[str, Any], dates: bool) -> list[str]:
    lines = [f"ensemble   {counted(len(facts['members']), 'member')}, weighted and calibrated to {facts['tasks'][0]}"]
    if facts["report"] is not None:
        lines += ["", *str(Report.from_dict(facts["report"])).splitlines()]
    for member in facts["members"]:
        lost = member.get("weight_in_lost_frames")
        other = "" if lost is None else f", {lost:.3g} in frames of which nothing is observed"
        lines += ["", f"{member['kind']:9}  {member['name']}, mean weight {member['weight']:.3g}{other}"]
        if member["kind"] == "model":
            lines += _model_lines(member, dates)
    return lines


def _model_lines(facts: dict[str, Any], dates: bool) -> list[str]:
    lines = [
        f"temporal   {_shortened(facts['temporal'])}" + (", in seconds" if dates else ""),
        *(f"           {name} is {_durations(seconds)}" for name, seconds in facts.get("durations", {}).items()),
        f"mapping    {_shortened(facts['mapping'])}",
        f"inducing   {facts['inducing']} points",
        f"noise sd   {numbers_text(np.array(facts['noise_sd']))}"
        if facts["likelihood"] is None
        else f"likelihood {facts['likelihood']['text']}",
        *([f"residual   {_shortened(facts['residual'])}"] if facts["residual"] else []),
        *([f"lags       {', '.join(f'{lag:+d}' for lag in facts['lags'])}"] if facts["lags"] else []),
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
    return lines


def _shortened(kernel: str) -> str:
    """A kernel as text, with long lists of numbers by their count and range; ``--json`` has all of them."""

    def shorten(found: re.Match[str]) -> str:
        values = [float(text) for text in found[1].split(", ")]
        return found[0] if len(values) <= _MOST else f"[{len(values)} values, {min(values):.4g} to {max(values):.4g}]"

    return re.sub(rf"\[({_NUMBER}(?:, {_NUMBER})*)\]", shorten, kernel)


def _durations(seconds: list[float]) -> str:
    if len(seconds) <= _MOST:
        return ", ".join(map(format_duration, seconds))
    return f"{format_duration(min(seconds))} to {format_duration(max(seconds))}"
