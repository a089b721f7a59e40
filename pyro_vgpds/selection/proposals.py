# SPDX-License-Identifier: Apache-2.0
"""Which models to try for data and a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from pyro_vgpds.baselines.counts import common_period
from pyro_vgpds.baselines.cycle import find_period
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.start import Sizes, find_start
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.families import StudentT
from pyro_vgpds.likelihoods.names import parse_likelihood
from pyro_vgpds.selection.configuration import Configuration
from pyro_vgpds.selection.likelihoods import LikelihoodLike, are_continuous
from pyro_vgpds.selection.named_baselines import BASELINES
from pyro_vgpds.selection.output_baselines import known_output_baselines, propose_output_baselines

__all__ = ["check_candidates", "known_baselines", "propose_baselines", "propose_models", "propose_origins"]

_LINEAR = 50  # latent dimensions of a linear mapping
_OWN, _SHARED = 20, 10  # and of models with neighbouring frames: a noise variance for each output, or one for all
_PLAIN = "matern32(variance=1 fixed)+white(variance=0.01)+bias(variance=0.1)"  # a path without a rhythm
_ORIGINS, _MOST_ORIGINS = 4, 8  # of forecasts; of counts at the most
_MANY = 50  # outputs from which three origins are enough, because each has many errors
_SHORTEST = 1.9  # frames: two months are at least 59 days, and the median month has 31
_WIDE = 2000  # outputs above which a noise variance for each of them takes too much time


def propose_models(data: Sequences, task: str, likelihood: LikelihoodLike = None) -> list[Configuration]:
    """Configurations of models, the cheapest first.

    :param data: the training sequences.
    :param task: what will be predicted.
    :param likelihood: of the outputs. Default: Gaussian outputs.
    """
    if likelihood is not None:
        found = [
            Configuration("linear mapping", "linear", likelihood=likelihood),
            Configuration("nonlinear mapping", likelihood=likelihood),
        ]
        if isinstance(parse_likelihood(likelihood), StudentT):
            # heavy tails take real movement of a few frames for outliers; together with Gaussian outputs they do less
            found.append(Configuration("nonlinear mapping, Gaussian outputs", likelihood="gaussian"))
        return found
    n, d = data.num_frames, data.num_base_outputs
    if d > _WIDE:
        return [Configuration("nonlinear mapping, one noise variance", noise_per_output=False)]
    latent = max(1, min(_LINEAR, d, n // 3))
    several = data.num_sequences > 1
    linear = _PLAIN if several and task != "forecast" else None
    nonlinear = _PLAIN if several and task == "reconstruct" else None  # a new sequence may have another rhythm
    found = [
        Configuration("linear mapping", "linear", linear, latent),
        Configuration("nonlinear mapping", temporal=nonlinear),
    ]
    period = find_period(data) if task == "forecast" else None
    if period is not None and not _is_default(period, data):
        found.append(Configuration("cycle, nonlinear mapping", temporal=_cycle(data, period)))
    if period is not None and (longer := find_period(data, longer=True)) is not None:
        found.append(Configuration("two cycles, nonlinear mapping", temporal=_cycle(data, period, longer)))
    if task == "reconstruct" and min(data.lengths) >= 10 and d <= 400:
        own = Configuration("neighbouring frames", temporal=nonlinear, latent_dim=min(_OWN, latent), lags=(-4, 4))
        # with one noise variance, outputs that are hard to predict count as much as the others
        name, few = "neighbouring frames, one noise variance", min(_SHARED, latent)
        found += [own, replace(own, name=name, latent_dim=few, noise_per_output=False)]
    return found


def _is_default(period: float, data: Sequences) -> bool:
    """Whether the default temporal kernel has a cycle of about this period already."""
    if data.num_sequences > 1:
        return False
    latent = Sizes(None, None, None).chosen(data)[0]
    own = find_start(data, latent, 0, data.output_means, data.output_scales).cycle
    return own is not None and abs(own / period - 1.0) < 0.1


def _cycle(data: Sequences, period: float, longer: float | None = None) -> str:
    """A cycle, or two, with two harmonics each that change over several periods, and what changes within a period.

    Harmonics of fewer than two frames look like longer periods, and are not part of it.
    """
    cycles = [period] if longer is None else [period, longer]
    steps = torch.cat([t.diff() for t in data.times.t.split(data.lengths)])
    least = _SHORTEST * float(steps.median())
    each = [(p / k, k) for p in cycles for k in (1, 2, 3) if k == 1 or p / k >= least]
    waves = "+".join(f"cosine(variance={1.0 / k**2!r}, period={p!r})" for p, k in each)
    return (
        f"matern32(variance=1 fixed, lengthscale={7.0 * cycles[-1]!r})*({waves})"
        f"+matern32(lengthscale={period!r})+white(variance=0.01)+bias(variance=0.1)"
    )


def propose_origins(data: Sequences, horizon: int | None, likelihood: Likelihood | None = None) -> int:
    """Number of origins of forecasts; of counts consecutive ones that cover a cycle, since seasons differ.

    :param likelihood: of the outputs. Default: Gaussian outputs.
    """
    if likelihood is None:
        return _ORIGINS - (data.num_base_outputs >= _MANY)
    period = common_period(data)
    if period is None:
        return _ORIGINS
    frames = period * (data.num_frames - 1) / float(data.times.t[-1] - data.times.t[0])
    needed = math.ceil(frames / (horizon or max(1, data.num_frames // 8)) - 0.1)  # the period is an estimate
    return min(_MOST_ORIGINS, max(_ORIGINS, needed))


def propose_baselines(data: Sequences, task: str, likelihood: Likelihood | None = None) -> list[str]:
    """Names of the baselines that suit the task and the size of the data, the cheapest first.

    :param likelihood: of the outputs. Default: Gaussian outputs, whose baselines also suit heavy tails.
    """
    if likelihood is not None and not are_continuous(likelihood):
        return propose_output_baselines(data, task, likelihood)
    return [name for name, kind in BASELINES.items() if task in kind.tasks and kind.allows(data)]


def known_baselines(likelihood: Likelihood | None = None) -> list[str]:
    """Names of all baselines for a likelihood. Default: for Gaussian outputs."""
    return list(BASELINES) if likelihood is None or are_continuous(likelihood) else known_output_baselines(likelihood)


def check_candidates(
    names: Sequence[str], models: Sequence[Configuration], likelihood: Likelihood | None = None
) -> None:
    """Raise an error if there is nothing to try, or a baseline or model is unknown, before any of them is trained."""
    known = known_baselines(likelihood)
    if names and not known:
        raise ValueError(f"baselines must be [] for a likelihood of your own, but got {list(names)!r:.80}.")
    for name in names:
        if name not in known:
            raise ValueError(f"baselines must be some of {', '.join(map(repr, known))}, but got {name!r}.")
    for model in models:
        if not isinstance(model, Configuration):
            raise TypeError(f"candidates must be of the class Configuration, but got {type(model).__name__}.")
        if (model.likelihood is None) != (likelihood is None):
            raise ValueError(
                f"the candidate {model.name!r} must have a likelihood if auto has one, and only then, but it has "
                f"{model.likelihood!r:.80}."
            )
    each = [*names, *(model.name for model in models)]
    if not each:
        raise ValueError("candidates and baselines are both empty: there is nothing to choose from.")
    if twice := [name for name in each if each.count(name) > 1]:
        raise ValueError(f"each candidate needs a name of its own, but {twice[0]!r} occurs twice.")
