# SPDX-License-Identifier: Apache-2.0
"""Kernels as trees of names from a fixed list. Names that are read are looked up and never run."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyro.distributions as dist
import torch
from pyro.nn import PyroSample
from torch import Tensor

from pyro_vgpds import kernels
from pyro_vgpds.kernels import Kernel, Product, Sum
from pyro_vgpds.parameters import ParameterModule

__all__ = ["Json", "build_kernel", "build_parameter", "describe_kernel", "describe_parameter"]

#: a part of a file's header
Json: TypeAlias = dict[str, Any]

_KERNELS: dict[str, type[Kernel]] = {
    name: getattr(kernels, name)
    for name in (
        "ARDRBF", "ARDLinear", "Bias", "Cosine", "Linear", "MarkovRBF", "Matern12", "Matern32", "Matern52",
        "Periodic", "RBF", "White",
    )
}  # fmt: skip
_PRIORS: dict[str, tuple[str, ...]] = {
    "Exponential": ("rate",),
    "Gamma": ("concentration", "rate"),
    "HalfCauchy": ("scale",),
    "HalfNormal": ("scale",),
    "InverseGamma": ("concentration", "rate"),
    "LogNormal": ("loc", "scale"),
    "Uniform": ("low", "high"),
    "Weibull": ("scale", "concentration"),
}


def describe_kernel(kernel: Kernel) -> Json:
    """A kernel as a tree of names.

    :raises TypeError: if a kernel or a prior is not one of the library's own.
    """
    if isinstance(kernel, (Sum, Product)):
        return {"kind": type(kernel).__name__, "parts": [describe_kernel(part) for part in kernel]}
    if _KERNELS.get(type(kernel).__name__) is not type(kernel):
        raise TypeError(
            f"save knows the kernels {', '.join(_KERNELS)}, sums and products, but the model has {kernel!r}. "
            "Save model.state_dict() instead, and make the model again before loading it."
        )
    about = {
        "kind": type(kernel).__name__,
        "parameters": {name: describe_parameter(kernel, name) for name in kernel.parameter_names},
    }
    options = {name: getattr(kernel, name) for name in kernel.option_names}
    return {**about, "options": options} if options else about


def describe_parameter(module: ParameterModule, name: str) -> str | Json:
    """``"fixed"``, ``"learned"``, or the prior.

    :raises TypeError: if the prior is not one of a fixed list.
    """
    if module.is_fixed(name):
        return "fixed"
    prior, event_dim = module.prior(name), 0
    if prior is None:
        return "learned"
    while isinstance(prior, dist.Independent):
        event_dim, prior = event_dim + prior.reinterpreted_batch_ndims, prior.base_dist
    kind = type(prior).__name__
    if kind not in _PRIORS or type(prior) is not getattr(dist, kind):
        raise TypeError(
            f"save knows the priors {', '.join(_PRIORS)}, but {name!r} has {prior!r}. Save state_dict() instead."
        )
    return {"prior": kind, "event_dim": event_dim, **{key: getattr(prior, key).tolist() for key in _PRIORS[kind]}}


def build_kernel(about: Json, tensors: dict[str, Tensor], dtype: torch.dtype, prefix: str = "") -> Kernel:
    """The kernel that :func:`describe_kernel` described, with its parameters in ``tensors``.

    :param dtype: of priors.
    :raises KeyError: if a name is not in the fixed lists, or a tensor is missing.
    """
    if about["kind"] in ("Sum", "Product"):
        parts = [build_kernel(part, tensors, dtype, f"{prefix}parts.{i}.") for i, part in enumerate(about["parts"])]
        return (Sum if about["kind"] == "Sum" else Product)(*parts)
    values = {name: build_parameter(how, tensors, dtype, prefix + name) for name, how in about["parameters"].items()}
    kernel = _KERNELS[about["kind"]](**values, **about.get("options", {}))
    fixed = [name for name, how in about["parameters"].items() if how == "fixed"]
    return kernel.fix(*fixed) if fixed else kernel


def build_parameter(how: str | Json, tensors: dict[str, Tensor], dtype: torch.dtype, name: str) -> Tensor | PyroSample:
    """The value or the prior of a parameter."""
    if how == "fixed":
        return tensors[name]
    if isinstance(how, str):
        return tensors[f"{name}_unconstrained"].exp()
    arguments = {key: torch.tensor(how[key], dtype=dtype) for key in _PRIORS[how["prior"]]}
    return PyroSample(getattr(dist, how["prior"])(**arguments).to_event(how["event_dim"]))
