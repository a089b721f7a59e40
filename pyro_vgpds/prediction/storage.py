# SPDX-License-Identifier: Apache-2.0
"""Posteriors as files: the trained models, and the noise, scale and residual kernel that predictions are made with."""

from __future__ import annotations

import torch

from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.files.data import build_data, describe_data
from pyro_vgpds.files.models import check_device_and_dtype, convert_names, convert_scale, pack_metadata, reading
from pyro_vgpds.prediction.descriptions import (
    build_ensemble,
    build_mixture,
    build_posterior,
    describe_ensemble,
    describe_mixture,
    describe_posterior,
)
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.posterior_mixture import PosteriorMixture
from pyro_vgpds.types import PathLike

__all__ = ["load_posterior", "save_posterior"]


def save_posterior(
    path: PathLike, posterior: Posterior | PosteriorMixture | Ensemble, metadata: dict[str, object] | None = None
) -> None:
    """Write a posterior to one file, from which :func:`load_posterior` makes one with the same predictions.

    :func:`~pyro_vgpds.load` reads model, guide and data of a file with one model.

    :param path: the file. An existing file is replaced when the new one is complete.
    :param posterior: a :class:`~pyro_vgpds.Posterior`, a :class:`~pyro_vgpds.PosteriorMixture`, or an
        :class:`~pyro_vgpds.Ensemble` with its report. Members that have the same data share them in the file.
    :param metadata: as in :func:`~pyro_vgpds.save`.
    :raises TypeError: if a kernel or a likelihood is not registered, or a prior, a guide or a baseline is not one of
        those that files can hold.
    :raises ValueError: if a model was changed after the posterior was made.

    >>> from pyro_vgpds import load_posterior, save_posterior
    >>> wide = Posterior(model, guide, data, noise_variance=0.1)
    >>> save_posterior("wide.safetensors", wide)
    >>> again = load_posterior("wide.safetensors")
    >>> bool((again.forecast([2.6], 0).variance == wide.forecast([2.6], 0).variance).all())
    True
    """
    if isinstance(posterior, Posterior):
        header, tensors = describe_posterior(posterior)
        data_header, data_tensors = describe_data(posterior.data)
        header, kind = header | data_header, "model"
        tensors |= data_tensors
    elif isinstance(posterior, PosteriorMixture):
        header, tensors = describe_mixture(posterior)
        kind = "mixture"
    elif isinstance(posterior, Ensemble):
        header, tensors = describe_ensemble(posterior)
        kind = "ensemble"
    else:
        raise TypeError(
            f"posterior must be a Posterior, PosteriorMixture or Ensemble, but got {type(posterior).__name__}."
        )
    header |= pack_metadata(metadata, tensors)
    write_file(path, kind, header, tensors)


def load_posterior(
    path: PathLike, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Posterior | PosteriorMixture | Ensemble:
    """The posterior that :func:`save_posterior` wrote, or that of the model that :func:`~pyro_vgpds.save` wrote.

    Arguments and errors as in :func:`~pyro_vgpds.load`.

    >>> from pyro_vgpds import load_posterior, save
    >>> save("model.safetensors", model, guide, data)
    >>> abs(load_posterior("model.safetensors").bound - post.bound) < 1e-6
    True
    """
    check_device_and_dtype(device, dtype)
    header, tensors = read_file(path, "model", "mixture", "ensemble")
    with reading(path, "a posterior"):
        convert_names(header, tensors)
        if header["kind"] == "model":
            convert_scale(header, tensors)
            return build_posterior(header, tensors, build_data(header, tensors, device, dtype))
        build = build_mixture if header["kind"] == "mixture" else build_ensemble
        return build(header, tensors, device, dtype)
