# SPDX-License-Identifier: Apache-2.0
"""Kernels and their parameters as trees of registered names. Names that are read are looked up, and never run."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.nn import PyroParam, PyroSample
from torch import Tensor
from torch.distributions import transform_to

from pyro_vgpds.files.container import UnknownNameError
from pyro_vgpds.kernels import Kernel, Product, Sum
from pyro_vgpds.kernels.names import KERNELS
from pyro_vgpds.parameters import ParameterLike, ParameterModule
from pyro_vgpds.parameters.declared import DeclaredParameters
from pyro_vgpds.parameters.registry import Registry, check_arguments

__all__ = [
    "Json", "build_declared", "build_kernel", "build_parameter", "describe_declared", "describe_kernel",
    "describe_parameter",
]  # fmt: skip

#: of kernels in files that were written before the kernels had options
_EARLIER_OPTIONS: dict[str, dict[str, float]] = {"Periodic": {"accuracy": 1e-12}}

#: a part of a file's header
Json: TypeAlias = dict[str, Any]

_PRIORS: dict[str, tuple[str, ...]] = {
    "Beta": ("concentration1", "concentration0"),
    "Cauchy": ("loc", "scale"),
    "Exponential": ("rate",),
    "Gamma": ("concentration", "rate"),
    "HalfCauchy": ("scale",),
    "HalfNormal": ("scale",),
    "InverseGamma": ("concentration", "rate"),
    "Laplace": ("loc", "scale"),
    "LogNormal": ("loc", "scale"),
    "Normal": ("loc", "scale"),
    "StudentT": ("df", "loc", "scale"),
    "Uniform": ("low", "high"),
    "Weibull": ("scale", "concentration"),
}


#: constraints with numbers of their own, and the names of these
_CONSTRAINTS: dict[str, tuple[str, ...]] = {
    "greater_than": ("lower_bound",),
    "greater_than_eq": ("lower_bound",),
    "interval": ("lower_bound", "upper_bound"),
    "less_than": ("upper_bound",),
}


_POSITIVE = {"constraint": "greater_than", "lower_bound": 0.0}


def describe_declared(module: DeclaredParameters, registry: Registry[Any], besides: str = "") -> Json:
    """The name of a kernel or a likelihood in files, and its parameters.

    :param besides: what files can hold besides the registered classes, for the error.
    :raises TypeError: if it is not registered, could not be made again from its parameters and options, or a prior is
        not one of a fixed list.
    """
    kind, what = type(module), registry.base.__name__.lower()
    name = registry.name_of(kind)
    if name is None:
        raise TypeError(
            f"save knows the {what}s {', '.join(registry.names())}{besides}, but the model has {module!r}. Register a "
            f"class of your own with @pyro_vgpds.{what}s.{registry.function}. Or save model.state_dict(), and make the "
            "model again before loading it."
        )
    check_arguments(kind, (*module.parameter_names, *module.option_names))
    return {"kind": name, "parameters": {own: describe_parameter(module, own) for own in module.parameter_names}}


def build_declared(
    about: Json, registry: Registry[Any], tensors: dict[str, Tensor], dtype: torch.dtype, prefix: str, options: Json
) -> Any:
    """What :func:`describe_declared` described, with its parameters in ``tensors``.

    :param options: the values of its options.
    :raises UnknownNameError: if the name is not registered.
    """
    kind, what = registry.find(about["kind"]), registry.base.__name__.lower()
    if kind is None:
        raise UnknownNameError(
            f"has the {what} {str(about['kind'])[:80]!r}, which is not registered. Import the module that registers it "
            f"with pyro_vgpds.{what}s.{registry.function}, and then load the file."
        )
    values = {name: build_parameter(how, tensors, dtype, prefix + name) for name, how in about["parameters"].items()}
    module = kind(**values, **options)
    fixed = [name for name, how in about["parameters"].items() if how == "fixed"]
    return module.fix(*fixed) if fixed else module


def describe_kernel(kernel: Kernel) -> Json:
    """A kernel as a tree of names.

    :raises TypeError: if a kernel is not registered, or a prior is not one of a fixed list.
    """
    if isinstance(kernel, (Sum, Product)):
        return {"kind": type(kernel).__name__, "parts": [describe_kernel(part) for part in kernel]}
    about = describe_declared(kernel, KERNELS, ", sums and products")
    for name in kernel.option_names:
        value = getattr(kernel, name)
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise TypeError(
                f"{type(kernel).__name__} cannot be saved: its option {name} must be a number, a string or None, but "
                f"it is {value!r:.80}."
            )
    options = {name: getattr(kernel, name) for name in kernel.option_names}
    return {**about, "options": options} if options else about


def describe_parameter(module: ParameterModule, name: str) -> str | Json:
    """``"fixed"``, ``"learned"`` if it is positive, its constraint if it is learned with another one, or the prior.

    :raises TypeError: if the prior or the constraint is not one of a fixed list.
    """
    if module.is_fixed(name):
        return "fixed"
    prior, event_dim = module.prior(name), 0
    if prior is None:
        return _describe_constraint(module, name)
    while isinstance(prior, dist.Independent):
        event_dim, prior = event_dim + prior.reinterpreted_batch_ndims, prior.base_dist
    kind = type(prior).__name__
    if kind not in _PRIORS or type(prior) is not getattr(dist, kind):
        raise TypeError(
            f"save knows the priors {', '.join(_PRIORS)}, but {name!r} has {prior!r}. Save state_dict() instead."
        )
    return {"prior": kind, "event_dim": event_dim, **{key: getattr(prior, key).tolist() for key in _PRIORS[kind]}}


def build_kernel(about: Json, tensors: dict[str, Tensor], dtype: torch.dtype, prefix: str = "") -> Kernel:
    """The kernel that :func:`describe_kernel` described, with its parameters in ``tensors``."""
    if about["kind"] in ("Sum", "Product"):
        parts = [build_kernel(part, tensors, dtype, f"{prefix}parts.{i}.") for i, part in enumerate(about["parts"])]
        return (Sum if about["kind"] == "Sum" else Product)(*parts)
    options = about.get("options", _EARLIER_OPTIONS.get(about["kind"], {}))
    kernel: Kernel = build_declared(about, KERNELS, tensors, dtype, prefix, options)
    return kernel


def build_parameter(how: str | Json, tensors: dict[str, Tensor], dtype: torch.dtype, name: str) -> ParameterLike:
    """The value or the prior of a parameter."""
    if how == "fixed":
        return tensors[name]
    if isinstance(how, str):
        return _exp(tensors[f"{name}_unconstrained"])
    if "constraint" in how:
        constraint = _build_constraint(how)
        return PyroParam(transform_to(constraint)(tensors[f"{name}_unconstrained"]), constraint)
    arguments = {key: torch.tensor(how[key], dtype=dtype) for key in _PRIORS[how["prior"]]}
    return PyroSample(getattr(dist, how["prior"])(**arguments).to_event(how["event_dim"]))


def _exp(logarithm: Tensor) -> Tensor:
    """A positive value in place of one that training has moved beyond the range of its dtype, 0 for example.

    The parameter itself is its logarithm, which the state of the model sets.
    """
    value, limits = logarithm.exp(), torch.finfo(logarithm.dtype)
    return torch.where(logarithm.isfinite(), value.clamp(limits.tiny, limits.max), value)


def _describe_constraint(module: ParameterModule, name: str) -> str | Json:
    constraint = module.constraint(name)
    if type(constraint) is type(constraints.real):  # copies of a model have copies of it
        return {"constraint": "real"}
    for kind, bounds in _CONSTRAINTS.items():
        if type(constraint) is type(getattr(constraints, kind)(*(0.0,) * len(bounds))):
            about = {"constraint": kind, **{bound: float(getattr(constraint, bound)) for bound in bounds}}
            return "learned" if about == _POSITIVE else about
    raise TypeError(
        f"save knows the constraints real, positive, {', '.join(_CONSTRAINTS)}, but {name!r} has {constraint}. Save "
        "state_dict() instead."
    )


def _build_constraint(how: Json) -> constraints.Constraint:
    if how["constraint"] == "real":
        return constraints.real
    bounds = [float(how[bound]) for bound in _CONSTRAINTS[how["constraint"]]]
    constraint: constraints.Constraint = getattr(constraints, how["constraint"])(*bounds)
    return constraint
