# SPDX-License-Identifier: Apache-2.0
"""Trained models as files: the kernels as a tree of names from a fixed list, and every parameter as a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.checks import check_device, check_dtype, check_kind
from pyro_vgpds.communication import SINGLE_PROCESS
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.container import FileFormatError, UnknownNameError, pack, read_file, unpack, write_file
from pyro_vgpds.files.data import Tensors, build_data, describe_data
from pyro_vgpds.files.kernels import Json, build_kernel, describe_kernel
from pyro_vgpds.files.likelihoods import check_sites, describe_outputs, read_outputs
from pyro_vgpds.inference.amortized import AmortizedOpperArchambeau
from pyro_vgpds.inference.encoder import Encoder
from pyro_vgpds.inference.gather import gathered
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.inference.partial_guide import PartialGuide, summary_of
from pyro_vgpds.mapping.sequence_summary import SequenceSummary
from pyro_vgpds.model import VGPDS
from pyro_vgpds.pyro_state import own_store
from pyro_vgpds.types import PathLike

__all__ = [
    "FileFormatError", "build_model", "check_device_and_dtype", "convert_names", "convert_scale",
    "describe_model", "load", "load_metadata", "pack_metadata", "reading", "save", "strip",
]  # fmt: skip

# what reading a header or tensors of unexpected content raises
_BAD_CONTENT = (LookupError, AttributeError, TypeError, ValueError, RuntimeError, ArithmeticError, MemoryError)


@contextmanager
def reading(path: PathLike, what: str) -> Iterator[None]:
    """A block that reads ``what`` from a header and tensors; unexpected content becomes a FileFormatError."""
    try:
        yield
    except UnknownNameError as error:
        raise FileFormatError(f"{path} {error}") from None
    except _BAD_CONTENT as error:
        raise FileFormatError(f"{path} does not describe {what}: {error!r}.") from None


def save(
    path: PathLike,
    model: VGPDS,
    guide: OpperArchambeauGuide,
    data: Sequences,
    metadata: dict[str, object] | None = None,
) -> None:
    """Write the model, the guide and their training data, which predictions need, to one file.

    :param path: the file. An existing file is replaced when the new one is complete.
    :param model: a :class:`~pyro_vgpds.VGPDS`.
    :param guide: its :class:`~pyro_vgpds.AutoOpperArchambeau`, or :class:`~pyro_vgpds.AmortizedOpperArchambeau` with
        the default network.
    :param data: their training data.
    :param metadata: additional information, such as units and names: any nesting of numbers, strings, lists,
        dictionaries and tensors. :func:`load_metadata` reads it.
    :raises TypeError: if a kernel is not registered with :func:`~pyro_vgpds.kernels.register_kernel`, or a likelihood
        with :func:`~pyro_vgpds.likelihoods.register_likelihood`, or a prior is not one of a fixed list. Save
        ``state_dict()`` of those.
    :raises ValueError: if guide, model and data do not belong together.

    If several processes have the data together (:func:`~pyro_vgpds.distributed.shard`), all of them call this function,
    and the first one writes the whole model.

    >>> from pyro_vgpds import load, load_metadata, save
    >>> save("model.safetensors", model, guide, data, metadata={"unit": "cm"})
    """
    whole = gathered(guide, data)
    communicator = data.communicator if isinstance(data, Sequences) else SINGLE_PROCESS
    with communicator.sharing_errors():
        if whole is not None:
            own = model if whole[0] is guide else whole[0].model  # a copy has the factors of all outputs
            _write(path, own, *whole, metadata)
    communicator.check()  # the file is complete


def _write(
    path: PathLike, model: object, guide: OpperArchambeauGuide, data: Sequences, metadata: dict[str, object] | None
) -> None:
    header, tensors = describe_model(model, guide, data)
    data_header, data_tensors = describe_data(data)
    header |= data_header | pack_metadata(metadata, tensors)
    write_file(path, "model", header, tensors | data_tensors)


def load_metadata(path: PathLike) -> dict[str, object]:
    """The metadata that :func:`save` or :func:`~pyro_vgpds.save_posterior` was given; empty by default.

    Errors as in :func:`load`.

    :param path: the file.

    >>> from pyro_vgpds import load_metadata, save
    >>> save("model.safetensors", model, guide, data, metadata={"unit": "cm"})
    >>> load_metadata("model.safetensors")
    {'unit': 'cm'}
    """
    header, tensors = read_file(path, "model", "mixture", "ensemble")
    with reading(path, "metadata"):
        return _unpack_metadata(header, tensors)


def load(
    path: PathLike, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> tuple[VGPDS, OpperArchambeauGuide, Sequences]:
    """The model, the guide and the data that :func:`save` wrote.

    :param path: the file.
    :param device: Default: the CPU.
    :param dtype: Default: the dtype at saving.
    :raises FileFormatError: if the file is truncated, modified, of another kind, or of a later version, or has a kernel
        or a likelihood that is not registered.
    :raises FileNotFoundError: if there is no such file.
    :raises ValueError: if torch cannot use the device.

    >>> from pyro_vgpds import load, save
    >>> save("model.safetensors", model, guide, data)
    >>> again, its_guide, its_data = load("model.safetensors")
    >>> Posterior(again, its_guide, its_data).bound == post.bound
    True
    """
    check_device_and_dtype(device, dtype)
    header, tensors = read_file(path, "model", "mixture", "ensemble")
    if header["kind"] != "model":
        what = {"mixture": "a mixture of several models", "ensemble": "an ensemble of several predictors"}
        raise FileFormatError(f"{path} holds {what[header['kind']]}. Use load_posterior.")
    with reading(path, "a model"):
        convert_scale(header, tensors)
        convert_names(header, tensors)
        data = build_data(header, tensors, device, dtype)
        return *build_model(header, tensors, data), data


def check_device_and_dtype(device: torch.device | str | None, dtype: torch.dtype | None) -> None:
    """Check the arguments of :func:`load`, so that the file is not blamed for them."""
    check_device(device)
    if dtype is not None:
        check_dtype(dtype)


def describe_model(
    model: object, guide: object, data: Sequences, states: tuple[Tensors, Tensors] | None = None
) -> tuple[Json, Tensors]:
    """Header and tensors of a model and its guide, in the current states unless others are given."""
    if not isinstance(model, VGPDS):
        raise TypeError(f"model must be VGPDS, but got {type(model).__name__}.")
    if not isinstance(guide, OpperArchambeauGuide):
        raise TypeError(
            f"guide must be an AutoOpperArchambeau or AmortizedOpperArchambeau, but got {type(guide).__name__}. Save "
            "guide.state_dict(), or the posterior post.condition(post.data), whose guide is an AutoOpperArchambeau."
        )
    check_data(data, needs_outputs=False)
    shape = (data.num_frames, model.latent_dim)
    amortised = isinstance(guide, AmortizedOpperArchambeau)
    if isinstance(guide, AmortizedOpperArchambeau) and not isinstance(guide.network, Encoder):
        raise TypeError(
            f"save knows the default network only, but the guide has {type(guide.network).__name__}. Save "
            "guide.state_dict() instead, or guide.refine(data), which has no network."
        )
    fits = amortised or (hasattr(guide, "lam") and tuple(guide.lam.shape) == shape)
    if data.y is None or guide.model is not model or not fits:
        raise ValueError(
            f"guide must be the guide of this model on this data, with outputs, for {shape} latent points."
        )
    header: Json = {
        "model": {
            "temporal": describe_kernel(model.temporal),
            "mapping": describe_kernel(model.mapping),
            "jitter": model.jitter,
            "least_noise": model.least_noise,
            "structure": model.structure,
            "latent_dim": model.latent_dim,
            "num_inducing": model.num_inducing,
            "num_outputs": model.num_outputs,
            **describe_outputs(model),
        }
    }
    if amortised:
        header["guide"] = {"kind": "AmortizedOpperArchambeau"}
    if isinstance(guide, PartialGuide) and states is None:
        guide.put_factors(data)
    of_model, of_guide = (model.state_dict(), guide.state_dict()) if states is None else states
    tensors = {f"model.{name}": value for name, value in of_model.items()}
    if (known := summary_of(guide)) is not None:
        tensors |= {f"remembered.{name}": value for name, value in known.tensors().items()}
    return header, tensors | {f"guide.{name}": value for name, value in of_guide.items()}


def build_model(header: Json, tensors: Tensors, data: Sequences) -> tuple[VGPDS, OpperArchambeauGuide]:
    """The model and the guide that :func:`describe_model` described, in the dtype and on the device of the data."""
    about, state, guide_state = header["model"], strip(tensors, "model."), strip(tensors, "guide.")
    outputs = read_outputs(about, state, data)
    model = VGPDS(
        build_kernel(about["temporal"], state, data.dtype, "temporal."),
        build_kernel(about["mapping"], state, data.dtype, "mapping."),
        inducing=state["inducing_unconstrained"],
        noise=outputs.noise,
        likelihood=outputs.likelihood,
        output_mean=state["output_mean"],
        output_scale=outputs.scale,
        jitter=about["jitter"],
        least_noise=about.get("least_noise", 0.0),
        structure=about.get("structure"),  # not in older files
    )
    outputs.finish(model)
    _load_state(model, state)
    model.warns_of_scales = False  # training chose the values
    _move(model, data)
    check_sites(model, data, state["output_mean"].dtype)
    guide: OpperArchambeauGuide
    if header.get("guide", {}).get("kind") == "AmortizedOpperArchambeau":
        guide = AmortizedOpperArchambeau(model, num_hidden=len(guide_state["network.inner.bias"]))
    else:
        sites = {"mean_bar": guide_state["mean_bar_unconstrained"], "lam": guide_state["lam_unconstrained"].exp()}
        if known := strip(tensors, "remembered."):
            guide = PartialGuide(model, SequenceSummary.from_tensors(known, data.device), **sites)
        else:
            guide = AutoOpperArchambeau(model, **sites)
    if any(name.startswith("locs.") for name in guide_state):  # hyperpriors' parameters are made when first used
        with own_store(), torch.no_grad():
            _move(guide, data)(data)
    _load_state(guide, guide_state)
    _move(guide, data)
    return model, guide


def _load_state(module: torch.nn.Module, state: Tensors) -> None:
    """As ``module.load_state_dict``, of which older versions of torch take the first entry of a vector for a number."""
    for name, value in module.state_dict().items():
        if not value.dim() and name in state and state[name].dim():
            raise ValueError(f"{name} must be a number, but its shape is {tuple(state[name].shape)}.")
    module.load_state_dict(state)


def pack_metadata(metadata: dict[str, object] | None, tensors: Tensors) -> Json:
    """The metadata's part of the header; its tensors are added to ``tensors``."""
    check_kind("metadata", metadata, dict, "a dictionary", optional=True)
    if metadata is None:
        return {}
    more: Tensors = {}
    header = {"metadata": pack(metadata, more)}
    tensors |= {f"metadata.{name}": value for name, value in more.items()}
    return header


def _unpack_metadata(header: Json, tensors: Tensors) -> dict[str, object]:
    return dict(unpack(header.get("metadata", {"d": []}), strip(tensors, "metadata.")))


def convert_scale(header: Json, tensors: Tensors) -> None:
    """Older files of scaled models hold divided data, and the scale as metadata: put the data's units back."""
    if not {"model.output_scale", "model.output_scale_unconstrained"}.isdisjoint(tensors):
        return
    metadata, mean = _unpack_metadata(header, tensors), tensors["model.output_mean"]
    scale = metadata.get("scale") if {"training", "lags"} & metadata.keys() else None  # written by our own commands
    if not isinstance(scale, Tensor) or scale.shape != mean.shape or not bool((scale > 0.0).all()):
        return
    tensors["model.output_scale"] = scale.to(mean)
    for name in ("model.output_mean", "data.y"):
        tensors[name] = tensors[name] * scale.to(tensors[name])


def convert_names(header: Json, tensors: Tensors) -> None:
    """Files of our own commands may have the names of the sequences only as metadata: they become those of the data."""
    metadata = _unpack_metadata(header, tensors)
    names = metadata.get("names") if {"source", "training", "lags"} & metadata.keys() else None
    if not isinstance(names, list):
        return
    for part in (header, *header.get("members", []), *header.get("sequences", [])):
        about = part.get("data", {})
        if about.get("names") is None and len(about.get("lengths", [])) == len(names):
            about["names"] = names


def strip(tensors: Tensors, prefix: str) -> Tensors:
    """The tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _move(module: PyroModule, data: Sequences) -> PyroModule:
    return module.to(device=data.device, dtype=data.dtype)
