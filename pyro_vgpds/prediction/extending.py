# SPDX-License-Identifier: Apache-2.0
"""New frames of training sequences: the data with them, and the posterior of those data without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from pyro_vgpds.checks import check_flags
from pyro_vgpds.data.parts import make_like, merge_frames, split_outputs, take_frames
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import Default
from pyro_vgpds.prediction.arguments import SequenceLike, read_new_data, resolve_sequences
from pyro_vgpds.prediction.conditioning import condition, from_sites, place_sites
from pyro_vgpds.prediction.fitted import FittedModel
from pyro_vgpds.prediction.solver import Solver, check_solver, solve
from pyro_vgpds.temporal.gaussian import GaussianPosterior
from pyro_vgpds.types import DataLike

__all__ = ["Extension", "extend", "extend_data"]

P = TypeVar("P", bound=FittedModel)

_STEPS = 30  # natural steps of all frames, at most
_SOLVER = Solver(num_starts=2)  # from the nearest training frames and from the forecast


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
            joint, solution, _ = solve(
                posterior.training, part, [s if s < found.num_old else None for s in kept], solver
            )
            eta, lam = joint.new_sites(solution)
        for s, rows in zip(kept, part.times.slices(), strict=True):
            known[s].append((part.times.t[rows], eta[rows], lam[rows]))
    # lags tell old frames about new ones, and new numbers of old frames tell them about themselves
    all_move = free or bool(old.lags) or not all(bool(mask.all()) for mask in fresh)
    num_steps = _STEPS if all_move and found.new.num_observed else 0
    sites = place_sites(posterior, found.data, known)
    return from_sites(posterior, found.data, sites, num_steps=num_steps)


def _is_in(t: Tensor, known: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Which of the times (n,) the training sequence has."""
    return torch.isin(t, known[0][0]) if known else torch.zeros_like(t, dtype=torch.bool)
