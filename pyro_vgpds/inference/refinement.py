# SPDX-License-Identifier: Apache-2.0
"""Natural gradient steps of q(X) alone, at fixed hyperparameters."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_vgpds.checks import check_count, check_not_negative, check_rate
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.ascent import Ascent, Damping
from pyro_vgpds.inference.natural import natural_step
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.temporal.distributions import OpperArchambeau
from pyro_vgpds.temporal.gaussian import PathPosterior, least_lam
from pyro_vgpds.temporal.paths import GaussianPath

__all__ = ["Refined", "refine_sites"]

_LEAST_LENGTH = 1e-4  # of a step, relative to a full one; the ascent ends if it has to be shorter
_PATIENCE = 3  # consecutive steps with a small change that end the ascent

_Point: TypeAlias = "tuple[OpperArchambeau, Tensor, Tensor]"  # q(X), and the derivatives of F̂ in mean and variance


class Refined(NamedTuple):
    """The end of the steps."""

    q: OpperArchambeau  #: the best q(X)
    bound: float  #: its bound
    first: float  #: the bound before the first step
    num_steps: int  #: natural steps that were taken


def refine_sites(
    q: PathPosterior, likelihood: SparseGP, data: Sequences, num_steps: int, rate: float, tolerance: float
) -> Refined:
    """Maximise the bound over the sites of q(X), from those that it has. The result is never worse.

    :param tolerance: change of the bound, in nats per observed number, that ends the steps.
    :raises ValueError: if an argument is out of its range.
    :raises NumericalError: if the first bound is not finite.
    """
    y = data.y
    assert isinstance(q, OpperArchambeau)
    assert y is not None
    if data.team.size > 1:
        raise ValueError(
            "refine needs the sequences of one process: refine the guide of the whole data, or of sequences that are "
            "not shared."
        )
    check_count("num_steps", num_steps, 0)
    check_rate("natural_rate", rate)
    check_not_negative("tolerance", tolerance)
    prior, least, small = q.prior, least_lam(q.prior.variance), tolerance * data.num_observed
    damping = Damping(drop=small, small=lambda bound: small, patience=_PATIENCE, least=_LEAST_LENGTH)

    def evaluate(q: OpperArchambeau) -> tuple[_Point, float]:
        mean, variance = (value.detach().clone().requires_grad_() for value in (q.mean, q.variance))
        with torch.enable_grad():
            expected = likelihood.integrate(_marginals(mean, variance)).log_prob(y)
        d_mean, d_variance = torch.autograd.grad(expected, (mean, variance))
        bound = float(expected) - float(kl_divergence(q, prior))
        if bound != bound or not all(bool(torch.isfinite(d).all()) for d in (d_mean, d_variance)):
            raise NumericalError("the bound or one of its derivatives is not finite.")
        return (q, d_mean, d_variance), bound

    def advance(state: Ascent[_Point]) -> tuple[_Point, float]:
        now, d_mean, d_variance = state.point
        sites = natural_step(now.eta, now.lam, now.mean, d_mean, d_variance, least, rate * state.length)
        return evaluate(OpperArchambeau.from_natural(prior, *sites))

    with torch.no_grad():
        state = Ascent(*evaluate(q))
        first = best = state
        while state.step < num_steps and damping.stopped(state) is None:
            state = damping.step(state, advance)
            best = state if state.bound > best.bound else best
        return Refined(best.point[0], best.bound, first.bound, state.step)


def _marginals(mean: Tensor, variance: Tensor) -> GaussianPath:
    """A path of independent frames: F̂ depends on q(X) through its marginals only."""
    return GaussianPath(mean, variance, lambda: torch.diag_embed(variance.mT))
