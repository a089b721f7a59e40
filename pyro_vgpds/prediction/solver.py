# SPDX-License-Identifier: Apache-2.0
"""The search for q(X, X*) of partly observed frames: its settings, and its starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_not_negative, check_rate
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.site_gp import SiteGP
from pyro_vgpds.prediction.path_search import Training, guessed
from pyro_vgpds.prediction.reconstruction import Joint, NewFrames, Solution
from pyro_vgpds.prediction.site_reconstruction import SiteJoint
from pyro_vgpds.training.progress import CountLike, counting_bar

__all__ = ["Solver", "check_solver", "nearest_frames", "solve"]


_CANDIDATES = 20_000  # training frames that are searched for nearest neighbours


@dataclass(frozen=True)
class Solver:
    """Settings of the natural-gradient steps that find the latent path of new frames.

    :raises ValueError: if a setting is out of range.

    >>> from pyro_vgpds import Solver
    >>> Solver(num_starts=1, num_steps=50)
    Solver(num_starts=1, num_steps=50, natural_rate=0.7, tolerance=1e-05)
    """

    num_starts: int = 3  #: number of starting points: with 1 the nearest training frames, with 2 also the forecast
    num_steps: int = 200  #: maximum number of natural-gradient steps from each start
    natural_rate: float = 0.7  #: ρ in (0, 1], the step size
    tolerance: float = 1e-5  #: early stopping: change of the bound, in nats per observed number, that ends the steps

    def __post_init__(self) -> None:
        check_count("num_starts", self.num_starts)
        check_count("num_steps", self.num_steps)
        check_rate("natural_rate", self.natural_rate)
        check_not_negative("tolerance", self.tolerance)


def check_solver(solver: Solver | None) -> Solver:
    """The settings, or the default ones; a TypeError for something else."""
    if solver is not None and not isinstance(solver, Solver):
        raise TypeError(f"solver must be a Solver, such as Solver(num_starts=1), but got {solver!r:.80}.")
    return solver or Solver()


def solve(
    training: Training,
    new: NewFrames,
    solver: Solver,
    *,
    sites: tuple[Tensor, Tensor] | None = None,
    progress: CountLike = False,
) -> tuple[Joint, Solution, list[float]]:
    """The best q(X, X*) over all starts, and the bounds of all starts, best first.

    :param sites: η and λ (T, Q) of the new frames, if they are known. Default: they are searched for.
    :raises NumericalError: if no start has a finite bound.
    """
    data, combined = new.data, training.data.joined(new.data)
    observed = data.num_observed
    limit = solver.tolerance * observed
    num_steps = solver.num_steps if observed and sites is None else 0
    kind = SiteJoint if isinstance(training.likelihood, SiteGP) else Joint
    fixed = kind(training, replace(new, free=False), combined)
    blank = torch.zeros(data.num_frames, training.q.event_shape[-1], dtype=data.dtype, device=data.device)
    starts = [(blank, blank) if sites is None else sites]
    if observed and sites is None:
        near = _nearest_starts(training, data, solver.num_starts - (solver.num_starts > 1))
        starts = [*near, *starts][: solver.num_starts]
    solutions: list[Solution] = []
    failure: NumericalError | None = None
    free = new.free and observed > 0
    with counting_bar(num_steps * (len(starts) + free), "reconstruction", progress) as bar:

        def run(joint: Joint, eta: Tensor, lam: Tensor, done: int) -> Solution:
            """The solution from a start, after ``done`` others."""
            sites, first = joint.sites(eta, lam), done * num_steps
            try:
                return joint.solve(
                    *sites, num_steps, solver.natural_rate, limit, lambda n: bar.update(first + n - bar.n)
                )
            finally:
                bar.update(first + num_steps - bar.n)  # also if it ended early

        for done, (eta, lam) in enumerate(starts):
            try:
                solutions.append(run(fixed, eta, lam, done))
            except NumericalError as error:  # another start may succeed
                failure = error
        if failure is not None and not solutions:
            raise failure
        solutions.sort(key=lambda s: -s.bound)
        best, bounds = solutions[0], [s.bound for s in solutions]
        if not free:
            return fixed, best, bounds
        freed = kind(training, new, combined)
        return freed, run(freed, *fixed.new_sites(best), len(starts)), bounds


def _nearest_starts(training: Training, new: Sequences, num_starts: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Initial sites (η, λ) of the new frames: those of their nearest training frames.

    The first start compares outputs in the model's scale, the second divides them by their standard deviations, and so
    on in turn. From the third on, each searches a random half of the training frames.
    """
    likelihood, (data, x, precision) = training.likelihood, training.candidates
    if isinstance(likelihood, SiteGP):
        new = guessed(likelihood.outputs.elsewhere, new)
    deviation = data.output_variances.sqrt()
    scales = likelihood.output_scale, torch.where(deviation > 0, deviation, 1.0)
    for i in range(num_starts):
        near, known = nearest_frames(data, new, scales[i % 2], share=1.0 if i < 2 else 0.5)
        lam = precision[near] * known
        yield lam * x[near], lam


def nearest_frames(data: Sequences, new: Sequences, scale: Tensor, share: float = 1.0) -> tuple[Tensor, Tensor]:
    """The training frame (T,) nearest to each new one, and whether one was found, (T, 1).

    The distance is the mean squared difference of the outputs observed in both frames, divided by ``scale`` (D,). A
    random ``share`` of the training frames is searched.
    """
    candidates = torch.arange(data.num_frames, device=data.device)
    wanted = min(_CANDIDATES, max(1, round(share * data.num_frames)))
    if wanted < data.num_frames:
        candidates = torch.randperm(data.num_frames, device=data.device)[:wanted]
    distance = _distances(data, new, candidates, scale)
    return candidates[distance.argmin(1)], torch.isfinite(distance).any(1, keepdim=True)


def _distances(data: Sequences, new: Sequences, candidates: Tensor, scale: Tensor) -> Tensor:
    """Mean squared differences (T, candidates) of the outputs observed in both frames; infinite without any."""
    total = torch.zeros(new.num_frames, len(candidates), dtype=data.dtype, device=data.device)
    count = torch.zeros_like(total)
    centre = torch.nan_to_num(data.output_means)
    for where, block in data.blocks():
        parts = [(y - centre[where]) / scale[where] for y in (new.read(where.start, where.stop), block[candidates])]
        (a, seen_a), (b, seen_b) = ((torch.nan_to_num(p, nan=0.0), torch.isfinite(p).to(p.dtype)) for p in parts)
        total += a.square() @ seen_b.mT + seen_a @ b.square().mT - 2.0 * a @ b.mT
        count += seen_a @ seen_b.mT
    return torch.where(count > 0, total / count, torch.inf)
