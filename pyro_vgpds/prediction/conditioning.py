# SPDX-License-Identifier: Apache-2.0
"""A trained model on other data, or with new frames: q(X) and q(U) are found again, the hyperparameters are fixed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from pyro.infer.autoguide import init_to_value
from torch import Tensor

from pyro_vgpds.checks import check_count, check_flags, check_kind, check_list, is_whole
from pyro_vgpds.data.parts import check_data, like_training, make_like, merge_frames, split_outputs, take_frames
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import Default, counted
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.inference.partial_guide import PartialGuide, summary_of
from pyro_vgpds.prediction.arguments import OneSequence, SequenceLike, read_new_data, resolve_sequences
from pyro_vgpds.prediction.fitted import FittedModel
from pyro_vgpds.prediction.reconstruction import NewFrames
from pyro_vgpds.prediction.solver import Solver, check_solver, solve
from pyro_vgpds.pyro_state import one_at_a_time
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.gaussian import GaussianPosterior, least_lam
from pyro_vgpds.training.api import fit
from pyro_vgpds.types import DataLike

__all__ = ["Extension", "condition", "extend", "extend_data", "from_sites", "place_sites"]

P = TypeVar("P", bound=FittedModel)

_FREE_STEPS = 30  # natural steps of all frames, at most
_SOLVER = Solver(num_starts=2)  # from the nearest training frames and from the forecast


def condition(
    posterior: P, data: Sequences, sequences: Sequence[OneSequence] | None = None, *, num_steps: int = 30
) -> P:
    """The posterior of other data at the same hyperparameters, as if the model had been trained before.

    q(X) starts from the sites of the same frames in the training data and moves by natural gradient steps. A new
    origin of a forecast, or more hidden entries, need no training this way.

    :param posterior: a trained model.
    :param data: sequences of the same outputs.
    :param sequences: for each of them the index or name of the training sequence that it belongs to, or None. Default:
        the same order.
    :param num_steps: maximum number of natural gradient steps.
    :raises ValueError: if the number of sequences or outputs differs.

    >>> from pyro_vgpds.data.parts import take_frames
    >>> from pyro_vgpds.prediction import condition
    >>> shorter = take_frames(data, [slice(0, 20), slice(0, 20)])
    >>> condition(post, shorter).forecast([2.1, 2.2], sequence=0).mean.shape
    torch.Size([2, 5])
    """
    check_kind("posterior", posterior, FittedModel, "a Posterior")
    check_data(data)
    check_list("sequences", sequences, "a list with an index, a name or None for each sequence", optional=True)
    check_count("num_steps", num_steps, 0)
    if data.num_base_outputs != posterior.num_outputs:
        raise ValueError(f"data has {data.num_base_outputs} outputs, but the model has {posterior.num_outputs}.")
    belongs = _belongs(posterior.data, data, sequences)
    posterior.check_new(data, "data")
    data = like_training(data, posterior.data)
    if data.lags != posterior.data.lags:
        data = data.lagged(posterior.data.lags)
    return from_sites(posterior, data, _sites(posterior, data, belongs), num_steps=num_steps)


def _belongs(known: Sequences, data: Sequences, sequences: Sequence[OneSequence] | None) -> list[int | None]:
    """The index of the training sequence of each sequence of ``data``, or None."""
    names, count = known.names or [], known.num_sequences
    given = list(range(data.num_sequences)) if sequences is None else list(sequences)
    found = [names.index(s) if isinstance(s, str) and s in names else s for s in given]
    belongs = [s for s in found if s is None or (is_whole(s) and 0 <= s < count)]
    if len(belongs) != data.num_sequences or len(belongs) < len(found):
        also = f" (names: {', '.join(map(repr, names))})" if names else ""
        raise ValueError(
            f"sequences must name for each of the {data.num_sequences} sequences of data one of the "
            f"{count} training sequences{also}, or None, but got {sequences}."
        )
    return belongs


@one_at_a_time
def from_sites(posterior: P, data: Sequences, sites: dict[str, Tensor], *, num_steps: int) -> P:
    """The posterior of other data at the same hyperparameters, with q(X) from sites ``mean_bar`` and ``lam``, (N, Q)
    each.

    :param num_steps: maximum number of natural gradient steps. 0: q(X) has these sites.
    """
    origin, known = posterior.origin, posterior.training.summary
    if known is not None and (num_steps or known.limits is not None):
        raise ValueError(
            "this needs natural steps with all training sequences in memory, but "
            f"{counted(known.num_sequences, 'sequence')} of this posterior are not. Make a posterior of all sequences, "
            "Posterior(model, explicit, explicit.data.sequences()). If outputs are Gaussian, extended works with new "
            "times only and without free=True."
        )
    model = copy.deepcopy(origin.model)
    model.load_state_dict(origin.states[0])
    options = {"init_loc_fn": init_to_value(values=origin.values)} if origin.values else {}
    if (known := summary_of(origin.guide)) is not None:  # the scale of origin.output_scale comes later
        guide: AutoOpperArchambeau = PartialGuide(model, known, **sites, **options)
    else:
        guide = AutoOpperArchambeau(model, **sites, **options)
    if origin.values:  # other guides name their parameters alike, but with another meaning
        own = isinstance(origin.guide, OpperArchambeauGuide)
        guide.take_hyperparameters(origin.states[1] if own else {}, data)
    q = {"mean_bar_unconstrained", "lam_unconstrained"}
    learned = [p for name, p in guide.named_parameters() if p.requires_grad and name not in q]
    learned += [p for p in model.parameters() if p.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    if num_steps and data.num_observed:  # without observations, q(X) is the prior
        result = fit(model, guide, data, num_steps, warmup=0, tolerance=1e-5, progress=False)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
    for parameter in learned:
        parameter.requires_grad_(True)
    return type(posterior)(
        model, guide, data, noise_variance=origin.noise_variance, output_scale=origin.output_scale,
        residual=origin.residual, widening=origin.widening,
    )  # fmt: skip


def _sites(posterior: FittedModel, data: Sequences, belongs: Sequence[int | None]) -> dict[str, Tensor]:
    """``mean_bar`` and ``lam`` for the new data, from η and λ of the same frames."""
    old = [None if s is None else posterior.data.times.slices()[s] for s in belongs]
    with torch.no_grad():
        q = posterior.q
        if isinstance(q, GaussianPosterior):  # of the form that natural steps need, with the same mean
            q = OpperArchambeau(q.prior, *q.sites())
        t, eta, lam = posterior.data.times.t, q.eta, q.lam
    return place_sites(posterior, data, [[] if rows is None else [(t[rows], eta[rows], lam[rows])] for rows in old])


def place_sites(
    posterior: FittedModel, data: Sequences, known: Sequence[Sequence[tuple[Tensor, Tensor, Tensor]]]
) -> dict[str, Tensor]:
    """``mean_bar`` and ``lam`` (N, Q) for ``data`` from known sites of some of its frames; the others are at the prior.

    These are, for each sequence, times (n,) that increase with η and λ (n, Q) there; later ones count.
    """
    with torch.no_grad():
        structure, old_prior = getattr(posterior.origin.model, "structure", None), posterior.q.prior
        prior = TemporalGP(old_prior.kernel, data.times, old_prior.event_shape[-1], structure=structure)
        lam = least_lam(prior.variance).expand(prior.event_shape).clone()
        eta = torch.zeros_like(lam)
        for rows, parts in zip(data.times.slices(), known, strict=True):
            t = data.times.t[rows]
            for times, its_eta, its_lam in parts:
                at = torch.searchsorted(times.contiguous(), t).clamp_max(len(times) - 1)
                same = (times[at] == t).nonzero().squeeze(-1)
                eta[rows.start + same] = its_eta[at[same]]
                lam[rows.start + same] = its_lam[at[same]]
        q = OpperArchambeau.from_natural(prior, eta, lam)
        return {"mean_bar": q.mean_bar, "lam": q.lam}


class Extension(NamedTuple):
    """Training data with new frames."""

    data: Sequences  #: the joined data
    new: Sequences  #: the new frames alone
    belongs: list[int]  #: the sequence of ``data`` that each sequence of ``new`` is part of
    num_old: int  #: sequences of ``data`` that are not new


def extend_data(data: Sequences, t: DataLike, y: DataLike, sequence: SequenceLike | Default) -> Extension:
    """The training data with new frames, in the order of time. Arguments as in :meth:`Posterior.extended
    <pyro_vgpds.Posterior.extended>`.
    """
    if data.exposure is not None and data.exposure.dim() > 1:
        raise ValueError(
            "extended cannot determine the exposure of new frames if it differs between frames. Give all frames with "
            "their exposures to condition(data) instead."
        )
    new = read_new_data(t, y, data)
    which = resolve_sequences(sequence, data, new.num_sequences)
    times, outputs = split_outputs(data)
    belongs: list[int] = []
    for t_new, y_new, s in zip(*split_outputs(new), which, strict=True):
        belongs.append(len(times) if s is None else s)
        if s is None:
            times.append(t_new)
            outputs.append(y_new)
        else:
            times[s], outputs[s] = merge_frames(times[s], outputs[s], t_new, y_new)
    names = None if data.names is None else _with_new_names(data.names, len(times))
    return Extension(make_like(data, times, outputs, names=names), new, belongs, data.num_sequences)


def _with_new_names(names: Sequence[str], count: int) -> list[str]:
    """Names of ``count`` sequences: those that are new have their numbers, or the next number that is not a name."""
    found, number = list(names), len(names)
    while len(found) < count:
        if str(number) not in found:
            found.append(str(number))
        number += 1
    return found


def extend(
    posterior: P,
    t: DataLike,
    y: DataLike,
    sequence: SequenceLike | Default,
    *,
    free: bool = False,
    solver: Solver | None = None,
) -> P:
    """As :meth:`Posterior.extended <pyro_vgpds.Posterior.extended>`."""
    if isinstance(posterior.q, GaussianPosterior):  # the frames of other guides have no sites that could stay
        posterior = condition(posterior, posterior.data)
    old = posterior.data
    check_flags(free=free)
    solver = _SOLVER if solver is None else check_solver(solver)
    found = extend_data(old, t, y, sequence)
    posterior.check_new(found.new)
    known: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in range(found.data.num_sequences)]
    for s, rows in enumerate(old.times.slices()):
        known[s].append((old.times.t[rows], posterior.q.eta[rows], posterior.q.lam[rows]))
    # frames that the training data do not have: their sites are found first, those of the others stay
    fresh = [
        ~_is_in(t_new, known[s])
        for t_new, s in zip(found.new.times.t.split(found.new.lengths), found.belongs, strict=True)
    ]
    if any(bool(mask.any()) for mask in fresh):
        part = take_frames(found.new, fresh)
        kept = [s for s, mask in zip(found.belongs, fresh, strict=True) if bool(mask.any())]
        with torch.no_grad():
            belongs = [s if s < found.num_old else None for s in kept]
            joint, solution, _ = solve(posterior.training, NewFrames(part, belongs), solver)
            eta, lam = joint.new_sites(solution)
        for s, rows in zip(kept, part.times.slices(), strict=True):
            known[s].append((part.times.t[rows], eta[rows], lam[rows]))
    # lags tell old frames about new ones, and new numbers of old frames tell them about themselves
    all_move = free or bool(old.lags) or not all(bool(mask.all()) for mask in fresh)
    num_steps = _FREE_STEPS if all_move and found.new.num_observed else 0
    sites = place_sites(posterior, found.data, known)
    return from_sites(posterior, found.data, sites, num_steps=num_steps)


def _is_in(t: Tensor, known: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Which of the times (n,) the training sequence has."""
    return torch.isin(t, known[0][0]) if known else torch.zeros_like(t, dtype=torch.bool)
