# SPDX-License-Identifier: Apache-2.0
"""Likelihoods as trees of registered names. Names that are read are looked up, and never imported or run.

A likelihood is its name, its parameters and its options. An option may have likelihoods inside, such as those of groups
of columns, so the description is recursive. Tensors of parameters have the names that they have in the model.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.data import Tensors
from pyro_vgpds.files.kernels import Json, build_declared, build_parameter, describe_declared, describe_parameter
from pyro_vgpds.inference.outputs_start import check_outputs
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.names import LIKELIHOODS
from pyro_vgpds.model import VGPDS

__all__ = [
    "StoredOutputs", "build_likelihood", "check_sites", "describe_likelihood",
    "describe_outputs", "pack_likelihood", "read_outputs", "unpack_likelihood",
]  # fmt: skip

_PREFIX = "output_likelihood."  # of the tensors of a model's likelihood


# a likelihood


def describe_likelihood(likelihood: Likelihood) -> Json:
    """A likelihood as a tree of names.

    :raises TypeError: if a likelihood is not registered, could not be made again from its parameters and options, or a
        prior is not one of a fixed list.
    """
    return _describe(likelihood, {id(module): name for name, module in likelihood.named_modules()})


def _describe(likelihood: Likelihood, places: dict[int, str]) -> Json:
    """:param places: names of the modules inside the whole likelihood."""
    about = describe_declared(likelihood, LIKELIHOODS)
    if likelihood.option_names:
        about["options"] = {
            option: _describe_option(getattr(likelihood, option), f"{type(likelihood).__name__}.{option}", places)
            for option in likelihood.option_names
        }
    return about


def _describe_option(value: object, name: str, places: dict[int, str]) -> object:
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Likelihood):
        if id(value) not in places:
            raise TypeError(f"{name} cannot be saved: {value!r:.80} is not a module inside its likelihood.")
        return {"likelihood": _describe(value, places), "at": places[id(value)]}
    if isinstance(value, Tensor) and bool(torch.isfinite(value).all()):
        return _describe_option(value.tolist(), name, places)
    if isinstance(value, (list, tuple)):
        return {"l": [_describe_option(item, name, places) for item in value]}
    if isinstance(value, dict):
        return {"d": [[_describe_option(part, name, places) for part in item] for item in value.items()]}
    raise TypeError(
        f"{name} cannot be saved: an option must be a number, a string, None, a tensor or a likelihood, or a list or a "
        f"dictionary of these, but it is {value!r:.80}."
    )


def build_likelihood(about: Json, tensors: Tensors, dtype: torch.dtype, prefix: str = "", root: str = "") -> Likelihood:
    """The likelihood that :func:`describe_likelihood` described, with its parameters in ``tensors``.

    :param root: of the names of the tensors of the whole likelihood. Default: ``prefix``.
    :raises KeyError: if another name is not in the fixed lists, or a tensor is missing.
    """
    root = root or prefix
    options = {name: _build_option(option, tensors, dtype, root) for name, option in about.get("options", {}).items()}
    likelihood: Likelihood = build_declared(about, LIKELIHOODS, tensors, dtype, prefix, options)
    return likelihood


def _build_option(value: object, tensors: Tensors, dtype: torch.dtype, root: str) -> object:
    if not isinstance(value, dict):
        return value
    if "likelihood" in value:
        return build_likelihood(value["likelihood"], tensors, dtype, f"{root}{value['at']}.", root)
    ((kind, items),) = value.items()
    if kind == "l":
        return [_build_option(item, tensors, dtype, root) for item in items]
    if kind != "d":
        raise ValueError(f"an option is of the unknown kind {kind!r:.80}.")
    return {_build_option(key, tensors, dtype, root): _build_option(item, tensors, dtype, root) for key, item in items}


def pack_likelihood(likelihood: Likelihood) -> Json:
    """A likelihood with its parameters as dictionaries, lists, strings and numbers."""
    return {
        "likelihood": describe_likelihood(likelihood),
        "state": {name: value.tolist() for name, value in likelihood.state_dict().items()},
        "unset": {name: sorted(part.unset) for name, part in _parts(likelihood)},
    }


def unpack_likelihood(content: Json) -> Likelihood:
    """The likelihood that :func:`pack_likelihood` packed. Its parameters are double."""
    state = {name: torch.tensor(value, dtype=torch.float64) for name, value in content["state"].items()}
    likelihood = build_likelihood(content["likelihood"], state, torch.float64)
    exact = {name: value for name, value in state.items() if name.endswith("_unconstrained")}
    likelihood.double().load_state_dict(exact, strict=False)
    for name, part in _parts(likelihood):
        part.unset = set(content["unset"][name])
    return likelihood


def _parts(likelihood: Likelihood) -> list[tuple[str, Likelihood]]:
    """A likelihood and those inside it, by their names in it."""
    return [(name, part) for name, part in likelihood.named_modules() if isinstance(part, Likelihood)]


# the outputs of a model


class StoredOutputs(NamedTuple):
    """The arguments of :class:`~pyro_vgpds.VGPDS` that describe the outputs."""

    noise: Any
    likelihood: Likelihood | None
    scale: Tensor
    how_scale: str | Json | None  #: is learned; None for Gaussian outputs
    own_scale: Any

    def finish(self, model: VGPDS) -> None:
        """Give a scale that is fixed or has a prior to the model that was made with these arguments."""
        if self.how_scale in (None, "learned"):
            return
        assert self.own_scale is not None
        model.assign("output_scale", self.own_scale)
        if self.how_scale == "fixed":
            del model.output_scale
            model.register_buffer("output_scale", self.scale)


def describe_outputs(model: VGPDS) -> Json:
    """The noise of Gaussian outputs, or the likelihood and how the scale of the functions is learned."""
    if model.output_likelihood is None:
        return {"noise": describe_parameter(model, "noise")}
    return {
        "likelihood": describe_likelihood(model.output_likelihood),
        "output_scale": describe_parameter(model, "output_scale"),
    }


def read_outputs(about: Json, state: Tensors, data: Sequences) -> StoredOutputs:
    """What :func:`describe_outputs` described; files without a likelihood have Gaussian outputs.

    The tensors that older files do not have are added to ``state``.
    """
    dtype = data.dtype
    ones = torch.ones_like(state["output_mean"])
    if "likelihood" not in about:
        state.setdefault("output_scale", ones)
        noise = build_parameter(about["noise"], state, dtype, "noise")
        return StoredOutputs(noise, None, state["output_scale"], None, None)
    how = about["output_scale"]
    scale = build_parameter(how, state, dtype, "output_scale")
    likelihood = build_likelihood(about["likelihood"], state, dtype, _PREFIX)
    likelihood.meet(data.num_outputs, data.columns)
    return StoredOutputs(None, likelihood, scale if isinstance(scale, Tensor) else ones, how, scale)


def check_sites(model: VGPDS, data: Sequences, dtype: torch.dtype) -> None:
    """Check the state of the outputs' factors that was read, and the outputs.

    :param dtype: that of the file. In another one, the outputs are still those of the state.
    :raises ValueError: if it is not a state for these data, or the data are not possible under the likelihood.
    """
    if model.output_likelihood is None:
        return
    check_outputs(model.output_likelihood(), data)
    state, expected = model.sites.state, (2, data.num_frames, len(model.output_mean))
    if not state.numel():  # never met data
        return
    if tuple(state.shape) != expected or not bool(torch.isfinite(state).all()):
        raise ValueError(f"the state of the outputs' factors must be finite, {expected}, but is {tuple(state.shape)}.")
    if dtype != data.dtype:
        model.sites.belong_to(data)
