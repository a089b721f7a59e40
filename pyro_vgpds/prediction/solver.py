# SPDX-License-Identifier: Apache-2.0
"""The search for q(X, X*) of partly observed frames: its settings, and its starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_not_negative, check_rate
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.pseudo import PseudoGP
from pyro_vgpds.prediction.reconstruction import Joint
from pyro_vgpds.prediction.site_reconstruction import SiteJoint
from pyro_vgpds.prediction.solution import Solution
from pyro_vgpds.prediction.starts import nearest_starts
from pyro_vgpds.prediction.trained import Training
from pyro_vgpds.training.progress import CountLike, counting_bar

__all__ = ["Solver", "check_solver", "solve"]


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
    new: Sequences,
    belongs: Sequence[int | None],
    solver: Solver,
    *,
    factorised: bool = False,
    free: bool = False,
    trust: float = 1.0,
    sites: tuple[Tensor, Tensor] | None = None,
    progress: CountLike = False,
) -> tuple[Joint, Solution, list[float]]:
    """The best q(X, X*) over all starts, and the bounds of all starts, best first.

    :param belongs: for each sequence of ``new`` its training sequence, or None.
    :param sites: η and λ (T, Q) of the new frames, if they are known. Default: they are searched for.
    :param progress: show a progress bar over the steps, or a function that is called with the number of steps done and
        of all. None: a bar on a terminal only.
    :raises NumericalError: if no start has a finite bound.
    """
    combined = training.data.joined(new)
    observed = new.num_observed
    limit = solver.tolerance * observed
    num_steps = solver.num_steps if observed and sites is None else 0
    kind = SiteJoint if isinstance(training.likelihood, PseudoGP) else Joint
    fixed = kind(training, new, belongs, combined, factorised=factorised, trust=trust)
    blank = torch.zeros(new.num_frames, training.q.event_shape[-1], dtype=new.dtype, device=new.device)
    starts = [(blank, blank) if sites is None else sites]
    if observed and sites is None:
        near = nearest_starts(training, new, solver.num_starts - (solver.num_starts > 1))
        starts = [*near, *starts][: solver.num_starts]
    solutions: list[Solution] = []
    failure: NumericalError | None = None
    free = free and observed > 0
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
        freed = kind(training, new, belongs, combined, free=True, trust=trust)
        return freed, run(freed, *fixed.new_sites(best), len(starts)), bounds
