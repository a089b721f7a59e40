# SPDX-License-Identifier: Apache-2.0
"""Trained models as files: the kernels as a tree of names from a fixed list, and every parameter as a tensor."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroSample
from torch import Tensor

from pyro_vgpds import kernels
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.container import FileFormatError, pack, read_file, unpack, write_file
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels.base import Kernel, Product, Sum
from pyro_vgpds.model import VGPDS

__all__ = ["FileFormatError", "load", "load_metadata", "save"]

_KERNELS = {
    name: getattr(kernels, name)
    for name in (
        "ARDRBF", "ARDLinear", "Bias", "Linear", "MarkovRBF", "Matern12", "Matern32", "Matern52", "Periodic", "RBF",
        "White",
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


def save(
    path: str | os.PathLike[str],
    model: VGPDS,
    guide: AutoOpperArchambeau,
    data: Sequences,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write the model, the guide and the data they were trained on, which prediction needs, to one file.

    :param path: the file; one that is there is replaced once the new one is complete.
    :param model: a :class:`~pyro_vgpds.VGPDS`.
    :param guide: its :class:`~pyro_vgpds.AutoOpperArchambeau`.
    :param data: what they were trained on.
    :param metadata: what else is to be kept with them, such as units and names: any nesting of numbers, texts, lists,
        dictionaries and tensors. :func:`load_metadata` reads it, and :func:`load` does not need it.
    :raises TypeError: where a kernel or a prior is not one of the library's own; keep ``state_dict()`` of those.
    :raises ValueError: where guide, model and data do not belong together.

    >>> from pyro_vgpds import load, load_metadata, save
    >>> save("model.safetensors", model, guide, data, metadata={"unit": "cm"})
    """
    for name, value, kind in (
        ("model", model, VGPDS),
        ("guide", guide, AutoOpperArchambeau),
        ("data", data, Sequences),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {kind.__name__}, but got {type(value).__name__}.")
    shape = (data.num_frames, model.latent_dim)
    if data.y is None or not hasattr(guide, "lam") or tuple(guide.lam.shape) != shape:
        raise ValueError(f"the guide must be one of this model on this data, with outputs, for {shape} latent points.")
    header: dict[str, Any] = {
        "model": {
            "temporal": _describe(model.temporal),
            "mapping": _describe(model.mapping),
            "noise": _describe_parameter(model, "noise"),
            "jitter": model.jitter,
            "structure": model.structure,
            "latent_dim": model.latent_dim,
            "num_inducing": model.num_inducing,
            "num_outputs": model.num_outputs,
        },
        "data": {"lengths": list(data.lengths), "columns": data.columns, "time_origin": _text(data.time_origin)},
        "dtype": str(data.dtype).removeprefix("torch."),
    }
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"guide.{name}": value for name, value in guide.state_dict().items()}
    tensors |= {"data.t": data.times.t, "data.y": data.read()}
    if metadata is not None:
        more: dict[str, Tensor] = {}
        header["metadata"] = pack(metadata, more)
        tensors |= {f"metadata.{name}": value for name, value in more.items()}
    write_file(path, "model", header, tensors)


def load_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The metadata that :func:`save` was given; empty where there was none. Raises as :func:`load`.

    :param path: the file.

    >>> from pyro_vgpds import load_metadata, save
    >>> save("model.safetensors", model, guide, data, metadata={"unit": "cm"})
    >>> load_metadata("model.safetensors")
    {'unit': 'cm'}
    """
    header, tensors = read_file(path, "model")
    try:
        return dict(unpack(header.get("metadata", {"d": []}), _strip(tensors, "metadata.")))
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"the metadata of {path} cannot be read: {error!r}.") from None


def load(
    path: str | os.PathLike[str], device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """What :func:`save` wrote: the model, the guide and the data.

    :param path: the file.
    :param device: where it is to be; left out, the CPU.
    :param dtype: what it is to be computed in; left out, as it was.
    :raises FileFormatError: where the file is cut short, changed, of another kind, or of a later version.
    :raises FileNotFoundError: where there is none.

    >>> from pyro_vgpds import load, save
    >>> save("model.safetensors", model, guide, data)
    >>> again, its_guide, its_data = load("model.safetensors")
    >>> Posterior(again, its_guide, its_data).bound == post.bound
    True
    """
    header, tensors = read_file(path, "model")
    try:
        return _build(header, tensors, device, dtype or getattr(torch, header["dtype"]))
    except (KeyError, IndexError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise FileFormatError(f"{path} does not describe a model: {error!r}.") from None


def _build(header: dict[str, Any], tensors: dict[str, Tensor], device: Any, dtype: torch.dtype) -> Any:
    about = header["model"]
    part = {kind: _strip(tensors, f"{kind}.") for kind in ("model", "guide", "data")}
    part["model"].setdefault("output_scale", torch.ones_like(part["model"]["output_mean"]))  # not in older files
    model = VGPDS(
        _kernel(about["temporal"], part["model"], "temporal."),
        _kernel(about["mapping"], part["model"], "mapping."),
        inducing=part["model"]["inducing_unconstrained"],
        noise=_parameter(about["noise"], part["model"], "noise"),
        output_mean=part["model"]["output_mean"],
        output_scale=part["model"]["output_scale"],
        jitter=about["jitter"],
        structure=about.get("structure"),  # files of before there was a choice have none
    )
    model.load_state_dict(part["model"])
    ends = torch.tensor(header["data"]["lengths"]).cumsum(0)[:-1]
    t, y = (list(torch.tensor_split(part["data"][name], ends)) for name in ("t", "y"))
    data = Sequences(t, y, columns=header["data"]["columns"], dtype=dtype, device=device)
    origin = header["data"]["time_origin"]
    data.time_origin = None if origin is None else np.datetime64(origin)
    model.to(device=device, dtype=dtype)
    guide = AutoOpperArchambeau(
        model, mean_bar=part["guide"]["mean_bar_unconstrained"], lam=part["guide"]["lam_unconstrained"].exp()
    )
    if any(name.startswith("locs.") for name in part["guide"]):  # hyperpriors' parameters are made when first used
        with pyro.get_param_store().scope(), torch.no_grad():
            guide.to(device=device, dtype=dtype)(data)
    guide.load_state_dict(part["guide"])
    return model, guide.to(device=device, dtype=dtype), data


def _strip(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _describe(kernel: Kernel) -> dict[str, Any]:
    """A kernel as a tree of names."""
    if isinstance(kernel, (Sum, Product)):
        return {"kind": type(kernel).__name__, "parts": [_describe(part) for part in kernel]}
    if _KERNELS.get(type(kernel).__name__) is not type(kernel):
        raise TypeError(
            f"save knows the kernels {', '.join(_KERNELS)}, sums and products, but the model has {kernel!r}. "
            "Keep model.state_dict() instead, and make the model again before loading it."
        )
    about = {
        "kind": type(kernel).__name__,
        "parameters": {name: _describe_parameter(kernel, name) for name in kernel._names},
    }
    options = {name: getattr(kernel, name) for name in kernel._options}
    return {**about, "options": options} if options else about


def _describe_parameter(module: Any, name: str) -> Any:
    if name in module._buffers:
        return "fixed"
    if name not in module._pyro_samples:
        return "learned"
    prior, event_dim = module._pyro_samples[name], 0
    while isinstance(prior, dist.Independent):
        event_dim, prior = event_dim + prior.reinterpreted_batch_ndims, prior.base_dist
    kind = type(prior).__name__
    if kind not in _PRIORS or type(prior) is not getattr(dist, kind):
        raise TypeError(
            f"save knows the priors {', '.join(_PRIORS)}, but {name!r} has {prior!r}. Keep state_dict() instead."
        )
    return {"prior": kind, "event_dim": event_dim, **{key: getattr(prior, key).tolist() for key in _PRIORS[kind]}}


def _kernel(about: dict[str, Any], tensors: dict[str, Tensor], prefix: str) -> Kernel:
    if about["kind"] in ("Sum", "Product"):
        parts = [_kernel(part, tensors, f"{prefix}parts.{i}.") for i, part in enumerate(about["parts"])]
        return (Sum if about["kind"] == "Sum" else Product)(*parts)
    values = {name: _parameter(how, tensors, prefix + name) for name, how in about["parameters"].items()}
    kernel: Kernel = _KERNELS[about["kind"]](**values, **about.get("options", {}))
    fixed = [name for name, how in about["parameters"].items() if how == "fixed"]
    return kernel.fix(*fixed) if fixed else kernel


def _parameter(how: Any, tensors: dict[str, Tensor], name: str) -> Any:
    if how == "fixed":
        return tensors[name]
    if how == "learned":
        return tensors[f"{name}_unconstrained"].exp()
    arguments = {key: torch.tensor(how[key], dtype=torch.float64) for key in _PRIORS[how["prior"]]}
    return PyroSample(getattr(dist, how["prior"])(**arguments).to_event(how["event_dim"]))
