# SPDX-License-Identifier: Apache-2.0
"""A trained model on other data: q(X) and q(U) are found again, the hyperparameters are fixed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import pyro
import torch
from pyro.infer.autoguide import init_to_value
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.inference.natural import least_lam
from pyro_vgpds.prediction.fitted import FittedModel
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.gaussian import GaussianPosterior
from pyro_vgpds.training.api import fit

__all__ = ["condition", "continue_training"]

P = TypeVar("P", bound=FittedModel)

_STEPS = 20  # natural steps before hyperparameters are trained further: q(X) of new frames starts at the prior


def condition(
    posterior: P, data: Sequences, sequences: Sequence[int | None] | None = None, *, num_steps: int = 30
) -> P:
    """The posterior of other data at the same hyperparameters, as if the model had been trained before.

    q(X) starts from the sites of the same frames in the training data and moves by natural gradient steps. A new
    origin of a forecast, or more hidden entries, need no training this way.

    :param posterior: a trained model.
    :param data: sequences of the same outputs.
    :param sequences: for each of them the training sequence that it belongs to, or None. Default: the same order.
    :param num_steps: maximum number of natural gradient steps.
    :raises ValueError: if the number of sequences or outputs differs.

    >>> from pyro_vgpds.data.parts import take_frames
    >>> from pyro_vgpds.prediction import condition
    >>> shorter = take_frames(data, [slice(0, 20), slice(0, 20)])
    >>> condition(post, shorter).forecast([2.1, 2.2], sequence=0).mean.shape
    torch.Size([2, 5])
    """
    return continue_training(posterior, data, sequences, num_steps=num_steps, learn=False)


def continue_training(
    posterior: P,
    data: Sequences,
    sequences: Sequence[int | None] | None = None,
    *,
    num_steps: int,
    learn: bool = True,
) -> P:
    """As :func:`condition`, with hyperparameters that are trained further unless ``learn`` is False."""
    origin = posterior.origin
    belongs = list(range(data.num_sequences)) if sequences is None else list(sequences)
    if data.num_base_outputs != posterior.num_outputs:
        raise ValueError(f"data has {data.num_base_outputs} outputs, but the model has {posterior.num_outputs}.")
    if len(belongs) != data.num_sequences or any(
        s is not None and not 0 <= s < posterior.data.num_sequences for s in belongs
    ):
        raise ValueError(
            f"sequences must name for each of the {data.num_sequences} sequences of data one of the "
            f"{posterior.data.num_sequences} training sequences, or None, but got {sequences}."
        )
    if data.lags != posterior.data.lags:
        data = data.lagged(posterior.data.lags)
    model = copy.deepcopy(origin.model)
    model.load_state_dict(origin.states[0])
    options = {"init_loc_fn": init_to_value(values=origin.values)} if origin.values else {}
    guide = AutoOpperArchambeau(model, **_sites(posterior, data, belongs), **options)
    hyperparameters = {name: value for name, value in origin.states[1].items() if name.startswith(("locs.", "scales."))}
    if origin.values:
        with pyro.get_param_store().scope():
            guide.median(data)  # makes the distributions of hyperparameters with priors
        if isinstance(origin.guide, OpperArchambeauGuide):
            guide.load_state_dict(hyperparameters, strict=False)
    q = {"mean_bar_unconstrained", "lam_unconstrained"}
    learned = [p for name, p in guide.named_parameters() if p.requires_grad and name not in q]
    learned += [p for p in model.parameters() if p.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    result = fit(model, guide, data, _STEPS if learn else num_steps, warmup=0, tolerance=1e-5, progress=False)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    for parameter in learned:
        parameter.requires_grad_(True)
    if learn and fit(model, guide, data, num_steps, warmup=0, progress=False).stopped == "interrupted":
        raise KeyboardInterrupt
    return type(posterior)(
        model, guide, data, noise_variance=origin.noise_variance, output_scale=origin.output_scale,
        residual=origin.residual,
    )  # fmt: skip


def _sites(posterior: FittedModel, data: Sequences, belongs: Sequence[int | None]) -> dict[str, Tensor]:
    """``mean_bar`` and ``lam`` for the new data, from η and λ of the same frames."""
    with torch.no_grad():
        old_q = posterior.q
        if isinstance(old_q, GaussianPosterior):  # of the form that natural steps need, with the same mean
            old_q = OpperArchambeau(old_q.prior, *old_q.sites())
        structure, old_prior = getattr(posterior.origin.model, "structure", None), old_q.prior
        prior = TemporalGP(old_prior.kernel, data.times, old_prior.event_shape[-1], structure=structure)
        lam = least_lam(prior.variance).expand(prior.event_shape).clone()
        eta = torch.zeros_like(lam)
        old_rows = posterior.data.times.slices()
        for rows, sequence in zip(data.times.slices(), belongs, strict=True):
            if sequence is None:
                continue
            old = old_rows[sequence]
            t, known = data.times.t[rows], posterior.data.times.t[old].contiguous()
            at = torch.searchsorted(known, t).clamp_max(len(known) - 1)
            same = (known[at] == t).nonzero().squeeze(-1)
            eta[rows.start + same] = old_q.eta[old.start + at[same]]
            lam[rows.start + same] = old_q.lam[old.start + at[same]]
        q = OpperArchambeau.from_natural(prior, eta, lam)
        return {"mean_bar": q.mean_bar, "lam": q.lam}
