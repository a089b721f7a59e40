# SPDX-License-Identifier: Apache-2.0
r"""q(X, X*) for new, partly observed frames: the bound on training and new frames together.

The trained hyperparameters are fixed. The bound is that of the training problem with more rows: the columns are grouped
again by the rows they are observed in. As long as q(X) of the training frames is fixed, their part of the Ψ statistics
is a constant, and the cost of a step depends on the new frames only, not on D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.ascent import Ascent, Damping
from pyro_vgpds.inference.natural import natural_step
from pyro_vgpds.likelihoods.factors import Moments
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.bound import collapsed_bound
from pyro_vgpds.mapping.inducing import InducingPosterior
from pyro_vgpds.mapping.output_sites import joined_moments
from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.mapping.sequence_summary import SequenceSummary, joined_groups, summary_psi
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.prediction.correlations import Correlations, correlations_of
from pyro_vgpds.prediction.path_search import Training, conditional, kl_of, merge
from pyro_vgpds.temporal.distributions import OpperArchambeau
from pyro_vgpds.temporal.gaussian import least_lam
from pyro_vgpds.temporal.paths import GaussianPath

__all__ = ["Factors", "Joint", "JointEvaluation", "NewFrames", "Solution"]

_LEAST_RATE = 1e-4  # the iteration ends if a step has to be shorter
_PATIENCE = 3  # consecutive steps with a small change that end the iteration


_Point: TypeAlias = "tuple[Solution, JointEvaluation]"


@dataclass(frozen=True)
class Solution:
    """The end of a run of natural steps."""

    eta: Tensor  #: sites η of the active frames
    lam: Tensor  #: sites λ of the active frames
    bound: float  #: the bound at these sites
    num_steps: int  #: natural steps that led to them
    state: Tensor | None = None  #: of the factors of the new outputs, (2, T, F), if they are not Gaussian


class JointEvaluation(NamedTuple):
    """The bound at some sites."""

    bound: float
    mean: Tensor  #: of q minus that of the prior
    d_mean: Tensor  #: derivative of F̂ in the mean
    d_variance: Tensor  #: and in the variance
    functions: Moments | None = None  #: of the functions of the new outputs, if these are not Gaussian


class Factors(NamedTuple):
    """The Gaussian factors of new outputs (T, F), in which the gradients of the bound give moments of the functions."""

    weight: Tensor
    linear: Tensor
    drawn: Moments | None  #: moments of functions whose bound is an estimate with draws


@dataclass(frozen=True)
class NewFrames:
    """New, partly observed frames, and in which form q(X, X*) is searched for."""

    data: Sequences  #: their times and outputs, NaN if hidden
    belongs: Sequence[int | None]  #: for each sequence the training sequence whose times it shares, or None
    free: bool = False  #: update the sites of training frames, too
    factorised: bool = False  #: q(X, X*) = q(X) q(X*), with a fixed q(X)
    trust: float = 1.0  #: weight of a new frame relative to a training frame: its noise is the trained one over it


class Joint:
    """The bound as a function of the Gaussian sites (η, λ) of the frames that are active.

    :param combined: the training data and the new frames.

    The rows are the training frames, then the new ones. Active frames are the new ones and, unless ``factorised``, the
    training frames of the sequences they belong to, with which they share a prior; with ``free`` they are all frames.
    """

    def __init__(self, training: Training, new: NewFrames, combined: Sequences) -> None:
        self.training, self.combined = training, combined
        q, data = training.q, training.data
        self.num_old, device = data.num_frames, data.device
        t = combined.times.t
        old, fresh = data.times.slices(), combined.times.slices()[data.num_sequences :]
        self.shift: Tensor | float = 0.0
        self.kl_rest = 0.0
        if new.factorised:
            sequences = [torch.arange(s.start, s.stop, device=device) for s in fresh]
        else:
            sequences = merge(t, old, fresh, new.belongs, new.free)
        self.rows = torch.cat(sequences)  # of the active frames, by sequence, in the order of time
        times = Times(t[self.rows], [len(s) for s in sequences])
        if new.factorised and any(k is not None for k in new.belongs):
            self.prior, self.shift, self.kl_rest = conditional(q, times, new.belongs)
        else:
            self.prior = q.prior.at(times)
        self.is_new = self.rows >= self.num_old
        self.movable = (self.is_new | new.free).unsqueeze(-1)
        self.weight = torch.ones_like(t, dtype=torch.float64)
        self.weight[self.num_old :] = new.trust
        self.factor = training.factor
        self.set_outputs(new)
        self.least = least_lam(self.prior.variance)
        fixed = torch.ones(self.num_old, dtype=torch.bool, device=device)
        fixed[self.rows[~self.is_new]] = False
        self.rest = self.fixed_psi(fixed.nonzero().squeeze(-1)) if bool(fixed.any()) else None
        if training.summary is not None:
            self.rest = self.with_summary(training.summary)
        every = bool(fixed.all())
        others = training.kl if every else kl_of(q, [i for i, s in enumerate(old) if bool(fixed[s.start])])
        self.kl_rest += others + training.kl_elsewhere
        # the training frames' sites, and zero for the new ones
        self._eta = q.mean.new_zeros(combined.num_frames, q.event_shape[-1])
        self._lam = torch.zeros_like(self._eta)
        if isinstance(q, OpperArchambeau):
            self._eta[: self.num_old], self._lam[: self.num_old] = q.eta, q.lam

    def set_outputs(self, new: NewFrames) -> None:
        """Read the outputs of all frames."""
        summary = self.training.summary
        groups = self.training.likelihood.groups_of(self.combined, columns=summary is not None)
        if summary is not None:
            groups = joined_groups(groups, summary.sums)
        # with weights w, Σ w y² replaces Σ y², and the normaliser of the new entries is that of the noise over w
        root = groups.factor * self.weight.sqrt().unsqueeze(-1)
        squares = root.square().sum(0)
        if summary is not None:
            squares = squares + summary.sums.square[groups.order]
        square = torch.stack([part.sum() for part in squares.split(groups.widths)])
        self.groups = replace(groups, factor=root, square=square, joint_squares=squares)
        self._weighted_y = groups.factor * self.weight.unsqueeze(-1)
        self._normaliser = 0.5 * new.data.num_observed * math.log(new.trust)

    def psi(self, rows: Tensor, mean: Tensor, variance: Tensor) -> Psi:
        """The statistics of some frames."""
        weight = self.weight[rows]
        mask = weight.unsqueeze(0) if self.groups.mask is None else self.groups.mask[:, rows] * weight
        return self.training.likelihood.basis.expect(mean, variance, mask, self._weighted_y[rows])

    def fixed_psi(self, rows: Tensor) -> Psi:
        """The statistics of the rows of training frames that are fixed."""
        return self.psi(rows, self.training.q.mean[rows], self.training.q.variance[rows])

    def with_summary(self, summary: SequenceSummary) -> Psi:
        """The statistics of all frames that are fixed, with those of frames that are not in memory."""
        more = summary_psi(summary.sums, self.groups, self.factor)
        return more if self.rest is None else self.rest + more

    def sites(self, eta: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Sites of the active frames, from sites (T, Q) of the new ones."""
        place = self.rows[self.is_new]
        full_eta, full_lam = self._eta.clone(), self._lam.clone()
        full_eta[self.num_old :], full_lam[self.num_old :] = eta, lam
        if isinstance(self.shift, Tensor):  # sites of x minus its prior mean
            full_eta[place] -= full_lam[place] * self.shift
        full_eta, full_lam = full_eta[self.rows], full_lam[self.rows]
        return full_eta, torch.where(self.movable, torch.maximum(full_lam, self.least), full_lam)

    def new_sites(self, solution: Solution) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`sites`."""
        eta, lam = (torch.zeros_like(self._eta) for _ in range(2))
        eta[self.rows], lam[self.rows] = solution.eta + solution.lam * self.shift, solution.lam
        return eta[self.num_old :], lam[self.num_old :]

    def q(self, solution: Solution) -> OpperArchambeau:
        """The posterior of the active frames, minus the mean of their prior."""
        return OpperArchambeau.from_natural(self.prior, solution.eta, solution.lam)

    def correlations(self, solution: Solution, inducing: InducingPosterior) -> Correlations | None:
        """Those of the latent dimensions in new frames; None if the prior has a mean, to which the sites belong."""
        if isinstance(self.shift, Tensor):
            return None
        return correlations_of(self.q(solution), inducing, self.rows, self.new_places)

    def mapping(self, solution: Solution) -> SparseGP:
        """p(y given x) of all frames."""
        return self.training.likelihood

    def evaluate(self, eta: Tensor, lam: Tensor, state: Tensor | None = None) -> JointEvaluation:
        """The bound and its derivatives.

        :param state: of the factors of the new outputs, if they are not Gaussian.
        :raises NumericalError: if one of them is not finite.
        """
        q = OpperArchambeau.from_natural(self.prior, eta, lam)
        mean = (self.shift + q.mean).requires_grad_()
        variance = q.variance.clone().requires_grad_()
        with torch.enable_grad():
            value, found = self.expected(mean, variance, state)
            factors = () if found is None else (found.weight, found.linear)
            d_mean, d_variance, *told = torch.autograd.grad(value, (mean, variance, *factors))
            functions = None if found is None else joined_moments(told[1], -2.0 * told[0], found.drawn)
        bound = float(value) - float(kl_divergence(q, self.prior)) - self.kl_rest
        if not (bool(torch.isfinite(d_mean).all()) and bool(torch.isfinite(d_variance).all()) and bound == bound):
            raise NumericalError(
                "the bound of the reconstruction is not finite: the outputs of y must be in the units of the training "
                "data, without huge values."
            )
        return JointEvaluation(bound, q.mean, d_mean, d_variance, functions)

    def expected(self, mean: Tensor, variance: Tensor, state: Tensor | None) -> tuple[Tensor, Factors | None]:
        """F̂ at moments of the active frames, and the factors of new outputs that are not Gaussian."""
        psi = self.psi(self.rows, mean, variance)
        if self.rest is not None:
            psi = self.rest + psi
        value = collapsed_bound(psi, self.factor, self.training.likelihood.noise, self.groups)
        return value + self._normaliser, None

    def first_state(self) -> Tensor | None:
        """The first state of the factors of the new outputs; None if these are Gaussian."""
        return None

    def next_state(self, state: Tensor | None, functions: Moments | None, rate: float) -> Tensor | None:
        """The state of the factors of the new outputs after a step of this length, by moments of their functions."""
        return None

    def solve(
        self,
        eta: Tensor,
        lam: Tensor,
        num_steps: int,
        rate: float,
        tolerance: float,
        watch: Callable[[int], object] = lambda step: None,
    ) -> Solution:
        """Natural steps from these sites of the active frames; one that lowers the bound is undone and halved.

        :param tolerance: a smaller change of the bound in some consecutive steps ends the iteration.
        :param watch: is called with the number of steps after each of them.
        :raises NumericalError: if the bound has no finite value at these sites.
        """
        damping = Damping(drop=tolerance, small=lambda bound: tolerance, patience=_PATIENCE, least=_LEAST_RATE / rate)

        def advance(state: Ascent[_Point]) -> tuple[_Point, float]:
            now, (_, mean, d_mean, d_variance, functions) = state.point
            moved = natural_step(now.eta, now.lam, mean, d_mean, d_variance, self.least, rate * state.length)
            outputs = self.next_state(now.state, functions, rate * state.length)
            eta, lam = (torch.where(self.movable, a, b) for a, b in zip(moved, (now.eta, now.lam), strict=True))
            return point(eta, lam, state.step + 1, outputs)

        def point(eta: Tensor, lam: Tensor, step: int, outputs: Tensor | None) -> tuple[_Point, float]:
            found = self.evaluate(eta, lam, outputs)
            return (Solution(eta, lam, found.bound, step, outputs), found), found.bound

        state = Ascent(*point(eta, lam, 0, self.first_state()))
        while state.step < num_steps and damping.stopped(state) is None:
            state = damping.step(state, advance)
            watch(state.step)
        return state.point[0]

    def path(self, solution: Solution) -> TorchDistribution:
        """q(X*) of the new frames."""
        q = self.q(solution)
        if isinstance(self.shift, Tensor):
            return GaussianPath(self.shift + q.mean, q.variance, lambda: q.covariance_matrix)
        return q.frames(self.new_places)

    @property
    def new_places(self) -> Tensor:
        """The places of the new frames among the active ones, in the order of the new frames."""
        place = torch.empty_like(self.rows[self.is_new])
        place[self.rows[self.is_new] - self.num_old] = self.is_new.nonzero().squeeze(-1)
        return place

    def moments(self, solution: Solution) -> tuple[Tensor, Tensor]:
        """Means and variances of q(X, X*) for training and new frames, (N + T, Q)."""
        q, old = self.q(solution), self.training.q
        mean = torch.cat([old.mean, old.mean.new_zeros(self.combined.num_frames - self.num_old, old.mean.shape[1])])
        variance = torch.zeros_like(mean)
        variance[: self.num_old] = old.variance
        mean[self.rows], variance[self.rows] = self.shift + q.mean, q.variance
        return mean, variance
