# SPDX-License-Identifier: Apache-2.0
"""Posteriors, mixtures and ensembles as parts of files: headers and tensors.

Members of ensembles that are not models, and reports, belong to folders above this one, which register how they are
written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.container import pack, unpack
from pyro_vgpds.files.data import build_data, describe_data
from pyro_vgpds.files.kernels import Json, build_kernel, describe_kernel
from pyro_vgpds.files.models import build_model, describe_model, strip
from pyro_vgpds.prediction.combination import Combination, Limits
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.intervals import Calibration
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.posterior_mixture import PosteriorMixture
from pyro_vgpds.prediction.predictor import BasePredictor

__all__ = [
    "build_ensemble", "build_mixture", "build_posterior", "describe_ensemble", "describe_mixture",
    "describe_posterior", "register", "same_data",
]  # fmt: skip

Tensors = dict[str, Tensor]
_KINDS: dict[str, _Kind] = {}


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
    about: Json = {"widening": origin.widening}
    if origin.residual is not None:
        about["residual"] = describe_kernel(origin.residual)
        tensors |= {f"prediction.residual.{name}": value for name, value in origin.residual.state_dict().items()}
    return {**header, "prediction": about}, tensors


def _names(model: PyroModule) -> Set[str]:
    return model.state_dict().keys() if isinstance(model, PyroModule) else set()


def build_posterior(header: Json, tensors: Tensors, data: Sequences) -> Posterior:
    """The posterior that :func:`describe_posterior` described."""
    model, guide = build_model(header, tensors, data)
    if "prediction" not in header:  # a model that no posterior was made of
        return Posterior(model, guide, data)
    given, about, residual = strip(tensors, "prediction."), header["prediction"], None
    if "residual" in about:
        state = strip(given, "residual.")
        residual = build_kernel(about["residual"], state, data.dtype)
        residual.load_state_dict(state)
    scale, noise = given.get("output_scale"), given.get("noise_variance")
    return Posterior(
        model, guide, data, noise_variance=noise, output_scale=scale, residual=residual,
        widening=about.get("widening", False),
    )  # fmt: skip


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


@dataclass(frozen=True)
class _Kind:
    type: type
    describe: Callable[[Any], dict[str, object]]
    build: Callable[[dict[str, Any]], object]
    is_member: bool


def register(
    name: str,
    kind: type,
    describe: Callable[[Any], dict[str, object]],
    build: Callable[[dict[str, Any]], object],
    *,
    is_member: bool,
) -> None:
    """Let objects of a class be members or reports of ensembles in files.

    :param describe: an object as a dictionary of Sequences, tensors, and any nesting of numbers, strings and lists.
    """
    _KINDS[name] = _Kind(kind, describe, build, is_member)


class _Store:
    """The data of all members, each written once."""

    def __init__(self) -> None:
        self.kept: list[tuple[Sequences, Json, Tensors]] = []

    def add(self, data: Sequences) -> int:
        for i, (other, *content) in enumerate(self.kept):
            if other is data or same_data(content, list(describe_data(data))):
                return i
        self.kept.append((data, *describe_data(data)))
        return len(self.kept) - 1


def describe_ensemble(ensemble: Ensemble) -> tuple[Json, Tensors]:
    """Header and tensors of an ensemble; a TypeError if a member or the report cannot be written."""
    store, tensors = _Store(), Tensors()
    members: list[Json] = []
    for i, member in enumerate(ensemble.members):
        if isinstance(member, Posterior):
            about, own = describe_posterior(member)
            about = {"kind": "model", **about, "of": store.add(member.data)}
        else:
            about, own = _describe(member, f"member {ensemble.names[i]!r}", store)
        members.append(about)
        tensors |= {f"member.{i}.{name}": value for name, value in own.items()}
    report: Json | None = None
    if ensemble.report is not None:
        report, own = _describe(ensemble.report, "the report", store)
        tensors |= {f"report.{name}": value for name, value in own.items()}
    parts: Tensors = {}
    combinations = pack({task: asdict(one) for task, one in ensemble.combinations.items()}, parts)
    tensors |= {f"combination.{name}": value for name, value in parts.items()}
    for k, (_, _, own) in enumerate(store.kept):
        tensors |= {f"sequences.{k}.{name}": value for name, value in own.items()}
    header: Json = {
        "members": members,
        "names": ensemble.names,
        "combinations": combinations,
        "report": report,
        "sequences": [about for _, about, _ in store.kept],
    }
    return header, tensors


def build_ensemble(
    header: Json, tensors: Tensors, device: torch.device | str | None, dtype: torch.dtype | None
) -> Ensemble:
    """The ensemble that :func:`describe_ensemble` described."""
    data = [
        build_data(about, strip(tensors, f"sequences.{k}."), device, dtype)
        for k, about in enumerate(header["sequences"])
    ]
    members: list[BasePredictor] = []
    for i, about in enumerate(header["members"]):
        own = strip(tensors, f"member.{i}.")
        if about["kind"] == "model":
            members.append(build_posterior(about, own, data[about["of"]]))
        else:
            members.append(cast("BasePredictor", _build(about, own, data, is_member=True)))
    if len({member.data.num_base_outputs for member in members}) != 1:
        raise ValueError("all members must have the same outputs.")
    parts = unpack(header["combinations"], strip(tensors, "combination."))
    names = [checked(name, str) for name in header["names"]]
    ensemble = Ensemble(members, {task: _combination(one, members[0]) for task, one in parts.items()}, names)
    if header["report"] is not None:
        ensemble.report = _build(header["report"], strip(tensors, "report."), data, is_member=False)
    return ensemble


def _combination(about: dict[str, Any], member: BasePredictor) -> Combination:
    weights, given = checked(about["weights"], Tensor), about["calibration"]
    plain = Calibration.none(member.data.num_base_outputs)
    for field in fields(plain):
        known = getattr(plain, field.name)
        value = checked(given[field.name], type(known))
        if isinstance(known, Tensor) and (value.shape != known.shape or not bool(value.isfinite().all())):
            raise ValueError(f"{field.name} of a calibration must be finite, {tuple(known.shape)}.")
    if not bool((weights >= 0.0).all()) or not torch.allclose(weights.sum(0), torch.ones_like(weights[0])):
        raise ValueError("weights must not be negative and have sum 1.")
    # files of earlier versions do not have these
    lost, is_pool, spread = about.get("lost"), about.get("is_pool", False), checked(about.get("spread", 1.0), float)
    if not 0.0 < spread < math.inf:
        raise ValueError(f"the spread of a pool must be positive, but it is {spread}.")
    factor = about.get("disagreement")
    if factor is not None and not 0.0 <= checked(factor, float) < math.inf:
        raise ValueError(f"the factor of the disagreement must be finite and not negative, but it is {factor}.")
    lost = None if lost is None else _combination(lost, member)
    limits = None if about.get("limits") is None else _limits(about["limits"], len(plain.factor))
    return Combination(weights, Calibration(**given), lost, checked(is_pool, bool), spread, limits, factor)


def _limits(about: dict[str, Any], num_outputs: int) -> Limits:
    found = Limits(**{field.name: checked(about[field.name], Tensor) for field in fields(Limits)})
    if any(getattr(found, field.name).shape != (num_outputs,) for field in fields(Limits)):
        raise ValueError(f"limits must have {num_outputs} numbers each.")
    if not bool((found.lower <= found.upper).all()):
        raise ValueError("lower limits must not be above upper ones, and not be NaN.")
    return found


def _describe(value: object, what: str, store: _Store) -> tuple[Json, Tensors]:
    name = next((name for name, kind in _KINDS.items() if isinstance(value, kind.type)), None)
    if name is None:
        raise TypeError(f"{what} of the ensemble must be a Posterior or a baseline, but got {type(value).__name__}.")
    content, own = _KINDS[name].describe(value), Tensors()
    plain = {key: item for key, item in content.items() if not isinstance(item, Sequences)}
    data = {key: store.add(item) for key, item in content.items() if isinstance(item, Sequences)}
    return {"kind": name, "content": pack(plain, own), "of": data}, own


def _build(about: Json, tensors: Tensors, data: list[Sequences], *, is_member: bool) -> object:
    content, kind = unpack(about["content"], tensors), _KINDS[about["kind"]]
    if kind.is_member is not is_member:
        raise ValueError(f"{about['kind']} is not expected here.")
    return kind.build({**content, **{key: data[k] for key, k in about["of"].items()}})


def checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{kind.__name__} expected, but got {type(value).__name__}.")
    return value
