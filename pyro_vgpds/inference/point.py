# SPDX-License-Identifier: Apache-2.0
"""What a model and any guide say at one point: q(X), its prior and the mapping, with hyperparameters at their medians.

A guide is run with each of its latent sites at the median instead of a draw. Pyro's autoguides draw an auxiliary site,
and their site ``x`` is a ``Delta`` of it: the moments of x are then those of the auxiliary site.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.inference.moments import GuideMoments, middle, moments_of, pick_moments
from pyro_vgpds.mapping.latent_gp import CollapsedLatent, GivenLatent, LatentGP
from pyro_vgpds.mapping.site_gp import SiteGP
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.pyro_state import one_at_a_time, own_store
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.gaussian import GaussianPosterior, PathPosterior

__all__ = ["Point", "read_point"]


class Point(NamedTuple):
    """Model and guide at fixed parameters, detached from what an optimiser may change in place."""

    q: PathPosterior  #: q(X), with its prior
    likelihood: SparseGP  #: p(y given x)
    values: dict[str, Tensor]  #: hyperparameters with priors, at their medians


@one_at_a_time
def read_point(model: Callable[..., object], guide: Callable[..., object], data: Sequences) -> Point:
    """q(X) and the mapping at the current parameters.

    :param model: a model with a TemporalGP at site ``x`` and a SparseGP at site ``y``.
    :param guide: a guide of that model whose site ``x`` has a mean and a variance.
    :raises ValueError: if the guide has no site ``x`` or misses a latent site of the model, or ``x`` has another shape.
    :raises TypeError: if a site of the guide has no moments, or those of the model have other distributions.
    """
    with torch.no_grad():
        if isinstance(guide, OpperArchambeauGuide):
            return _read_own(guide, data)
        found = _read_guide(guide, data)
        if isinstance(model, PyroModule):  # it owns its parameters; others of the same names may be in the store
            with own_store():
                trace = _run_model(model, data, found.values)
        else:
            trace = _run_model(model, data, found.values)
        prior, likelihood = _distributions(trace)
        values = {name: value.clone() for name, value in found.values.items() if name not in ("x", "f")}
        q = _posterior(found, prior)
        # the training of other guides need not have updated the factors of the outputs
        return Point(q, likelihood.settled(q) if isinstance(likelihood, SiteGP) else likelihood, values)


def _read_own(guide: OpperArchambeauGuide, data: Sequences) -> Point:
    with own_store():
        guide.median(data)
        trace = guide.get_traces()[0]
        prior, likelihood = _distributions(trace)
        q = guide.posterior_of(data, prior)
    own = _latent_sites(trace).items()
    values = {name: site["value"].clone() for name, site in own if name not in ("x", "f")}
    return Point(OpperArchambeau(prior, q.mean_bar.clone(), q.lam.clone()), likelihood, values)


def _distributions(trace: Trace) -> tuple[TemporalGP, SparseGP]:
    prior, functions, likelihood = (trace.nodes[s]["fn"] if s in trace.nodes else None for s in ("x", "f", "y"))
    if isinstance(prior, TemporalGP) and isinstance(functions, LatentGP) and isinstance(likelihood, GivenLatent):
        return prior, _site_gp(functions, likelihood)
    if not isinstance(prior, TemporalGP) or not isinstance(likelihood, SparseGP):
        raise TypeError(
            "the model must have a TemporalGP at site 'x' and a SparseGP at site 'y', but has "
            f"{type(prior).__name__} and {type(likelihood).__name__}."
        )
    likelihood = copy.copy(likelihood)
    likelihood.inducing, likelihood.noise = likelihood.inducing.clone(), likelihood.noise.clone()
    return prior, likelihood


def _site_gp(gp: LatentGP, outputs: GivenLatent) -> SiteGP:
    """The mapping with the factors of the outputs, of which the model has the state."""
    latent, value = CollapsedLatent(gp), outputs.likelihood.detached()
    assert outputs.data.y is not None
    latent.belong_to(outputs.data)
    y, state = outputs.sites.read(outputs.data, outputs.data.y, value, latent.bound)
    frozen = LatentGP(
        gp.x.clone(), gp.kernel, inducing=gp.inducing.clone(), mean=gp.output_mean.clone(),
        scale=gp.output_scale.clone(), jitter=gp.jitter,
    )  # fmt: skip
    return SiteGP(frozen, value, y, state.clone())


class _Found(NamedTuple):
    """What a guide says."""

    fn: Any  #: its distribution at ``x``
    moments: GuideMoments  #: of ``x``
    values: dict[str, Tensor]  #: of all its latent sites


def _posterior(found: _Found, prior: TemporalGP) -> PathPosterior:
    if isinstance(found.fn, OpperArchambeau) and found.fn.prior.covariance.equals(prior.covariance):
        return OpperArchambeau(prior, found.fn.mean_bar.clone(), found.fn.lam.clone())
    mean = found.moments.mean
    if mean.shape != prior.event_shape:
        raise ValueError(
            f"the guide's site 'x' must have the shape {tuple(prior.event_shape)} = (frames, latent dimensions), but "
            f"its mean has {tuple(mean.shape)}."
        )
    return GaussianPosterior(prior, *found.moments)


class _Given(Messenger):
    """Sets latent sites to given values or, if ``others`` is True, to their medians."""

    def __init__(self, values: Mapping[str, Tensor], others: bool) -> None:
        super().__init__()
        self.values, self.others = values, others

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] or msg["value"] is not None or site_is_subsample(msg):
            return
        name = str(msg["name"])
        if name in self.values:
            value: Tensor | None = self.values[name]
        elif isinstance(msg["fn"], LatentGP):  # the functions are integrated out
            value = msg["fn"].mean
        elif self.others:
            fn: Any = msg["fn"]
            value = middle(fn)
            if value is None and name != "x":
                raise TypeError(
                    f"the guide's site {name!r} is a {type(fn).__name__} with neither a median nor a mean, so it "
                    "cannot be fixed for predictions."
                )
        else:
            raise ValueError(f"the model's latent site {name!r} is not in the guide. Give the guide of this model.")
        if value is not None:
            msg["value"], msg["done"] = value, True


def _run_model(model: Callable[..., object], data: Sequences, values: Mapping[str, Tensor]) -> Trace:
    with _Given(values, others=False):
        return poutine.trace(model).get_trace(data)


def _read_guide(guide: Callable[..., object], data: Sequences) -> _Found:
    store = pyro.get_param_store()

    def run(**given: Tensor) -> Trace:
        # a copy of the store: guides that are functions have their parameters there, and nothing is added to it
        with own_store(store.get_state()), _Given(given, others=True):
            return poutine.trace(guide).get_trace(data)

    sites = _latent_sites(run())
    if "x" not in sites:
        raise ValueError(
            f"guide has no latent site 'x', the latent path; its latent sites are {', '.join(sites) or 'none'}."
        )
    fn, x = sites["x"]["fn"], sites["x"]["value"]
    auxiliary = {name: site for name, site in sites.items() if site["infer"].get("is_auxiliary")}
    moments = _through(run, x, auxiliary) if isinstance(fn, dist.Delta) else moments_of(fn)
    if moments is None and isinstance(fn, dist.Delta) and not _depends(run, x, auxiliary):
        moments = moments_of(fn)  # a point
    if moments is None:
        raise TypeError(
            f"the guide's distribution of 'x' must have a mean and a variance, but {type(guide).__name__} has a "
            f"{type(fn).__name__}" + (" of auxiliary sites that are transformed." if auxiliary else ".")
        )
    values = {name: site["value"] for name, site in sites.items() if name not in auxiliary}
    return _Found(fn, moments, {**values, "x": moments.mean})


def _latent_sites(trace: Trace) -> dict[str, Any]:
    return {name: site for name, site in trace.nodes.items()
            if site["type"] == "sample" and not site["is_observed"] and not site_is_subsample(site)}  # fmt: skip


def _through(run: Callable[..., Trace], x: Tensor, auxiliary: Mapping[str, Any]) -> GuideMoments | None:
    """The moments of x = shift + scale ∘ z[index] for an auxiliary site z, or None if x is no such function.

    Runs of the guide with different z give shift, scale and index.
    """
    for name, site in auxiliary.items():
        z = site["value"]
        if x.dim() != 2 or z.numel() < x.numel():
            continue

        def x_of(value: Tensor, name: str = name) -> Tensor:
            result: Tensor = _latent_sites(run(**{name: value}))["x"]["value"]
            return result

        count = z.numel()
        shift = x_of(torch.zeros_like(z))
        scale = x_of(torch.ones_like(z)) - shift
        steps = (torch.arange(count, dtype=z.dtype, device=z.device) / count).reshape(z.shape)
        place = count * (x_of(steps) - shift) / scale
        index = place.round().nan_to_num(-1.0, -1.0, -1.0).long()
        if bool(((index < 0) | (index >= count)).any()) or len(index.unique()) < index.numel():
            continue
        trial = steps.square()
        if torch.allclose(x_of(trial), shift + scale * trial.flatten()[index], rtol=1e-4, atol=1e-6):
            return pick_moments(site["fn"], x, index, scale)
    return None


def _depends(run: Callable[..., Trace], x: Tensor, auxiliary: Mapping[str, Any]) -> bool:
    """Whether x changes with the auxiliary sites."""
    with torch.random.fork_rng(devices=[]):
        drawn = {name: site["fn"].sample() for name, site in auxiliary.items()}
    return not torch.equal(_latent_sites(run(**drawn))["x"]["value"], x)
