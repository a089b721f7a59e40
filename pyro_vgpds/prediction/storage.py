# SPDX-License-Identifier: Apache-2.0
"""Posteriors as files: the trained models, and the noise, scale and residual kernel that predictions are made with."""

from __future__ import annotations

from collections.abc import Set

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.container import FileFormatError, read_file, write_file
from pyro_vgpds.files.kernels import Json, build_kernel, describe_kernel
from pyro_vgpds.files.models import (
    BAD_CONTENT,
    build_data,
    build_model,
    convert_scale,
    describe_data,
    describe_model,
    pack_metadata,
    strip,
)
from pyro_vgpds.prediction.mixture import PosteriorMixture
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.types import PathLike

__all__ = ["load_posterior", "save_posterior"]

Tensors = dict[str, Tensor]


def save_posterior(
    path: PathLike, posterior: Posterior | PosteriorMixture, metadata: dict[str, object] | None = None
) -> None:
    """Write a posterior to one file, from which :func:`load_posterior` makes one with the same predictions.

    :func:`~pyro_vgpds.load` reads model, guide and data of a file with one model.

    :param path: the file. An existing file is replaced when the new one is complete.
    :param posterior: a :class:`~pyro_vgpds.Posterior` or :class:`~pyro_vgpds.PosteriorMixture`. Models of a mixture
        that have the same data share them in the file.
    :param metadata: as in :func:`~pyro_vgpds.save`.
    :raises TypeError: if a kernel or a prior is not one of the library's own.
    :raises ValueError: if a model was changed after the posterior was made.

    >>> from pyro_vgpds import load_posterior, save_posterior
    >>> wide = Posterior(model, guide, data, noise_variance=0.1)
    >>> save_posterior("wide.safetensors", wide)
    >>> again = load_posterior("wide.safetensors")
    >>> bool((again.forecast([2.6], 0).variance == wide.forecast([2.6], 0).variance).all())
    True
    """
    if isinstance(posterior, Posterior):
        header, tensors = _describe(posterior)
        data_header, data_tensors = describe_data(posterior.data)
        header, kind = header | data_header, "model"
        tensors |= data_tensors
    elif isinstance(posterior, PosteriorMixture):
        header, tensors = _describe_mixture(posterior)
        kind = "mixture"
    else:
        raise TypeError(f"posterior must be a Posterior or PosteriorMixture, but got {type(posterior).__name__}.")
    header |= pack_metadata(metadata, tensors)
    write_file(path, kind, header, tensors)


def load_posterior(
    path: PathLike, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Posterior | PosteriorMixture:
    """The posterior that :func:`save_posterior` wrote, or that of the model that :func:`~pyro_vgpds.save` wrote.

    :param path: the file.
    :param device: Default: the CPU.
    :param dtype: Default: the dtype at saving.
    :raises FileFormatError: if the file is truncated, modified, of another kind, or of a later version.
    :raises FileNotFoundError: if there is no such file.

    >>> from pyro_vgpds import load_posterior, save
    >>> save("model.safetensors", model, guide, data)
    >>> load_posterior("model.safetensors").bound == post.bound
    True
    """
    header, tensors = read_file(path, "model", "mixture")
    try:
        if header["kind"] == "model":
            convert_scale(header, tensors)
            return _build(header, tensors, build_data(header, tensors, device, dtype))
        return _build_mixture(header, tensors, device, dtype)
    except BAD_CONTENT as error:
        raise FileFormatError(f"{path} does not describe a posterior: {error!r}.") from None


def _describe(posterior: Posterior) -> tuple[Json, Tensors]:
    """Header and tensors of everything except the data."""
    origin = posterior.origin
    if origin.states[0].keys() != _names(origin.model):
        raise ValueError(
            "the model was changed after the posterior was made: parameters were fixed or given priors. "
            "Make a new Posterior and save that."
        )
    header, tensors = describe_model(origin.model, origin.guide, posterior.data, origin.states)
    given = {"noise_variance": origin.noise_variance, "output_scale": origin.output_scale}
    tensors |= {f"prediction.{name}": value for name, value in given.items() if value is not None}
    about: Json = {}
    if origin.residual is not None:
        about["residual"] = describe_kernel(origin.residual)
        tensors |= {f"prediction.residual.{name}": value for name, value in origin.residual.state_dict().items()}
    return {**header, "prediction": about}, tensors


def _names(model: PyroModule) -> Set[str]:
    return model.state_dict().keys() if isinstance(model, PyroModule) else set()


def _build(header: Json, tensors: Tensors, data: Sequences) -> Posterior:
    model, guide = build_model(header, tensors, data)
    given, about, residual = strip(tensors, "prediction."), header.get("prediction", {}), None
    if "residual" in about:
        state = strip(given, "residual.")
        residual = build_kernel(about["residual"], state, data.dtype)
        residual.load_state_dict(state)
    scale, noise = given.get("output_scale"), given.get("noise_variance")
    return Posterior(model, guide, data, noise_variance=noise, output_scale=scale, residual=residual)


def _describe_mixture(mixture: PosteriorMixture) -> tuple[Json, Tensors]:
    members: list[Json] = []
    tensors: Tensors = {"weights": mixture.weights}
    kept: list[tuple[int, Json, Tensors]] = []  # data that are written, and the members that they belong to
    for i, posterior in enumerate(mixture.posteriors):
        header, own = _describe(posterior)
        data_header, data = describe_data(posterior.data)
        first = next((at for at, *other in kept if _same(other, [data_header, data])), i)
        if first == i:
            kept.append((i, data_header, data))
            own |= data
        members.append({**header, **data_header, "data_of": first})
        tensors |= {f"{i}.{name}": value for name, value in own.items()}
    return {"members": members}, tensors


def _build_mixture(
    header: Json, tensors: Tensors, device: torch.device | str | None, dtype: torch.dtype | None
) -> PosteriorMixture:
    posteriors: list[Posterior] = []
    for i, member in enumerate(header["members"]):
        first, own = member["data_of"], strip(tensors, f"{i}.")
        data = posteriors[first].data if first < i else build_data(member, own, device, dtype)
        posteriors.append(_build(member, own, data))
    return PosteriorMixture(posteriors, tensors["weights"].tolist())


def _same(a: list[Json | Tensors], b: list[Json | Tensors]) -> bool:
    """Whether two data have equal headers and tensors, NaN included."""
    return a[0] == b[0] and all(
        value.shape == b[1][name].shape and torch.equal(value.nan_to_num(0.0), b[1][name].nan_to_num(0.0))
        and torch.equal(value.isnan(), b[1][name].isnan())
        for name, value in a[1].items()
    )  # fmt: skip
