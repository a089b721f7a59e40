# SPDX-License-Identifier: Apache-2.0
"""Posteriors and mixtures as parts of files: headers and tensors."""

from __future__ import annotations

from collections.abc import Set

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.data import build_data, describe_data
from pyro_vgpds.files.kernels import Json, build_kernel, describe_kernel
from pyro_vgpds.files.models import build_model, describe_model, strip
from pyro_vgpds.prediction.mixture import PosteriorMixture
from pyro_vgpds.prediction.posterior import Posterior

__all__ = ["build_mixture", "build_posterior", "describe_mixture", "describe_posterior", "same_data"]

Tensors = dict[str, Tensor]


def describe_posterior(posterior: Posterior) -> tuple[Json, Tensors]:
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


def build_posterior(header: Json, tensors: Tensors, data: Sequences) -> Posterior:
    """The posterior that :func:`describe_posterior` described."""
    model, guide = build_model(header, tensors, data)
    given, about, residual = strip(tensors, "prediction."), header.get("prediction", {}), None
    if "residual" in about:
        state = strip(given, "residual.")
        residual = build_kernel(about["residual"], state, data.dtype)
        residual.load_state_dict(state)
    scale, noise = given.get("output_scale"), given.get("noise_variance")
    return Posterior(model, guide, data, noise_variance=noise, output_scale=scale, residual=residual)


def describe_mixture(mixture: PosteriorMixture) -> tuple[Json, Tensors]:
    """Header and tensors of a mixture with its data."""
    members: list[Json] = []
    tensors: Tensors = {"weights": mixture.weights}
    kept: list[tuple[int, Json, Tensors]] = []  # data that are written, and the members that they belong to
    for i, posterior in enumerate(mixture.posteriors):
        header, own = describe_posterior(posterior)
        data_header, data = describe_data(posterior.data)
        first = next((at for at, *other in kept if same_data(other, [data_header, data])), i)
        if first == i:
            kept.append((i, data_header, data))
            own |= data
        members.append({**header, **data_header, "data_of": first})
        tensors |= {f"{i}.{name}": value for name, value in own.items()}
    return {"members": members}, tensors


def build_mixture(
    header: Json, tensors: Tensors, device: torch.device | str | None, dtype: torch.dtype | None
) -> PosteriorMixture:
    """The mixture that :func:`describe_mixture` described."""
    posteriors: list[Posterior] = []
    for i, member in enumerate(header["members"]):
        first, own = member["data_of"], strip(tensors, f"{i}.")
        data = posteriors[first].data if first < i else build_data(member, own, device, dtype)
        posteriors.append(build_posterior(member, own, data))
    return PosteriorMixture(posteriors, tensors["weights"].tolist())


def same_data(a: list[Json | Tensors], b: list[Json | Tensors]) -> bool:
    """Whether two data have equal headers and tensors, NaN included."""
    return a[0] == b[0] and all(
        value.shape == b[1][name].shape and torch.equal(value.nan_to_num(0.0), b[1][name].nan_to_num(0.0))
        and torch.equal(value.isnan(), b[1][name].isnan())
        for name, value in a[1].items()
    )  # fmt: skip
