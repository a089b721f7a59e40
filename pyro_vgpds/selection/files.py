# SPDX-License-Identifier: Apache-2.0
"""How files describe what the automatic choice adds to ensembles: baselines by name, and reports."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from pyro_vgpds.baselines import BaselinePosterior, OutputBaseline
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.likelihoods import pack_likelihood, unpack_likelihood
from pyro_vgpds.prediction.descriptions import register
from pyro_vgpds.selection.named_baselines import BASELINES, NamedBaseline, make_baseline
from pyro_vgpds.selection.report import Report

__all__ = ["register_files"]


def register_files() -> None:
    """Let :func:`~pyro_vgpds.save_posterior` write the ensembles of :func:`~pyro_vgpds.auto`."""
    register("baseline of outputs", OutputBaseline, _describe_outputs, _build_outputs, is_member=True)
    register("baseline", BaselinePosterior, _describe_baseline, _build_baseline, is_member=True)
    register("report", Report, Report.to_dict, Report.from_dict, is_member=False)


def _describe_baseline(member: BaselinePosterior) -> dict[str, object]:
    baseline = member.imputer
    if not isinstance(baseline, NamedBaseline):
        raise TypeError(
            f"a BaselinePosterior with an imputer of your own, {baseline!r:.80}, cannot be saved: only the baselines "
            f"that auto knows can: {', '.join(BASELINES)}."
        )
    return {
        "name": baseline.name,
        "variance": member.variance,
        "state": baseline.state(),
        "setting": baseline.setting,
        "data": member.data,
        "trained_on": baseline.data,
    }


def _describe_outputs(member: OutputBaseline) -> dict[str, object]:
    likelihood = pack_likelihood(member.likelihood.likelihood)
    return {"name": member.name, "likelihood": likelihood, "data": member.data}


def _build_outputs(content: dict[str, Any]) -> OutputBaseline:
    if content.keys() != {"name", "likelihood", "data"}:
        raise ValueError("a baseline of outputs must have its name, likelihood and data.")
    return OutputBaseline(content["name"], content["data"], unpack_likelihood(content["likelihood"]))


def _build_baseline(content: dict[str, Any]) -> BaselinePosterior:
    name, data, trained = content["name"], content["data"], content["trained_on"]
    variance, state = content["variance"], content["state"]
    if name not in BASELINES:
        raise ValueError(f"the baseline {name!r:.80} is unknown.")
    if not isinstance(data, Sequences) or not isinstance(trained, Sequences):
        raise ValueError("a baseline must have its data.")
    shape = (data.num_base_outputs,)
    if not isinstance(variance, Tensor) or variance.shape != shape or trained.num_base_outputs != shape[0]:
        raise ValueError(f"the variance of a baseline must be {shape}.")
    needed = _shapes(name, state, shape[0])
    if state.keys() != needed.keys() or any(
        not isinstance(state[key], Tensor) or (size is not None and tuple(state[key].shape) != size)
        for key, size in needed.items()
    ):
        raise ValueError(f"the parameters of {name} do not fit together.")
    setting = content.get("setting")  # files of earlier versions do not have it
    allowed = (
        isinstance(setting, float | int) and 0.0 <= setting < math.inf and (setting or BASELINES[name].allows_zero)
    )
    if setting is not None and not allowed:
        raise ValueError(f"the setting of {name} must be positive, but it is {setting!r:.80}.")
    return make_baseline(name, trained, variance, state, setting).condition(data)


def _shapes(name: str, state: dict[str, Any], outputs: int) -> dict[str, tuple[int, ...] | None]:
    """The shapes of the trained parameters of a baseline; None for any shape."""
    if name != "linear dynamical system":
        return {}
    k = len(state["transition"])
    return {
        "transition": (k, k), "transition_noise": (k, k), "loadings": (outputs, k), "offset": (outputs,),
        "noise": (outputs,), "initial_mean": (k,), "initial_covariance": (k, k), "step": (), "objective": None,
    }  # fmt: skip
