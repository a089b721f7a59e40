# SPDX-License-Identifier: Apache-2.0
r"""q(X, X*) for new frames whose outputs were seen in part: the bound on training and new frames together.

The hyperparameters stay as they were trained. The bound is that of the training problem with more rows, so the columns
are grouped anew by where they were seen, and what training frames add to the Ψ statistics is a constant as long as
their q(X) is held. A step then costs what the new frames cost, whatever D is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.natural import least_lam, natural_step
from pyro_vgpds.kernels.base import KernelValue
from pyro_vgpds.linalg import NumericalError, cholesky, default_jitter
from pyro_vgpds.mapping.bound import collapsed_bound
from pyro_vgpds.mapping.psi import Psi, expect
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.paths import GaussianPath, Rows

__all__ = ["Joint", "Solution", "Training", "nearest_frames", "nearest_starts"]

_LEAST_RATE = 1e-4  # a step that must be shorter than this has nowhere left to go
_PATIENCE = 3  # steps in a row with a small change that end the iteration
_CANDIDATES = 20_000  # training frames that are looked at for nearest neighbours


class Training(NamedTuple):
    """What was trained: q(X), p(y given x) with its parameters, and the data."""

    q: OpperArchambeau
    likelihood: SparseGP
    data: Sequences


@dataclass(frozen=True)
class Solution:
    """Sites η and λ of the active frames, the bound there, and the natural steps that led to it."""

    eta: Tensor
    lam: Tensor
    bound: float
    num_steps: int


class Joint:
    """The bound as a function of the Gaussian sites (η, λ) of the frames that are active.

    :param training: what was trained.
    :param new: the new frames, NaN where their outputs are hidden.
    :param belongs: for each sequence of ``new`` the training sequence whose times it shares, or None.
    :param combined: ``training.data`` joined with ``new``.
    :param free: training frames may move, too.
    :param factorised: q(X, X*) = q(X) q(X*): the training frames' q(X) stays as it is.
    :param trust: what a new frame weighs beside a training frame: its noise is that of training over ``trust``.

    Rows are training frames first, then new ones. Active are the new frames and, unless ``factorised``, the training
    frames of the sequences they belong to, with which they share a prior; with ``free`` all.
    """

    def __init__(
        self,
        training: Training,
        new: Sequences,
        belongs: Sequence[int | None],
        combined: Sequences,
        *,
        free: bool = False,
        factorised: bool = False,
        trust: float = 1.0,
    ) -> None:
        self.training, self.combined = training, combined
        q, likelihood, data = training
        self.num_old, device = data.num_frames, data.device
        t = combined.times.t
        old, fresh = data.times.slices(), combined.times.slices()[data.num_sequences :]
        self.shift: Tensor | float = 0.0
        self.kl_rest = 0.0
        if factorised:
            sequences = [torch.arange(s.start, s.stop, device=device) for s in fresh]
        else:
            sequences = _merge(t, old, fresh, belongs, free)
        self.rows = torch.cat(sequences)  # of the active frames, sequence by sequence in the order of time
        times = Times(t[self.rows], [len(s) for s in sequences])
        if factorised and any(k is not None for k in belongs):
            self.prior, self.shift, self.kl_rest = _conditional(q, times, belongs)
        else:
            self.prior = TemporalGP(q.prior.kernel, times, q.event_shape[-1], structure=q.prior.asked)
        self.is_new = self.rows >= self.num_old
        self.movable = (self.is_new | free).unsqueeze(-1)
        groups = likelihood.groups_of(combined)
        self.weight = torch.ones_like(t)
        self.weight[self.num_old :] = trust
        # with weights, Σ w y² stands for Σ y², and the normaliser of the new entries is that of a noise 1/w as large
        root = groups.factor * self.weight.sqrt().unsqueeze(-1)
        square = torch.stack([part.square().sum() for part in root.split(groups.widths, 1)])
        self.groups = replace(groups, factor=root, square=square)
        self._weighted_y = groups.factor * self.weight.unsqueeze(-1)
        self._normaliser = 0.5 * new.num_observed * math.log(trust)
        self.factor = likelihood.inducing_factor()
        self.least = least_lam(self.prior.variance)
        held = torch.ones(self.num_old, dtype=torch.bool, device=device)
        held[self.rows[~self.is_new]] = False
        self._rest = self._psi(held.nonzero().squeeze(-1), q.mean[held], q.variance[held]) if bool(held.any()) else None
        self.kl_rest += _kl_of(q, [i for i, s in enumerate(old) if bool(held[s.start])])
        # the training frames' sites, and none for the new ones
        self._eta = q.eta.new_zeros(combined.num_frames, q.event_shape[-1])
        self._lam = torch.zeros_like(self._eta)
        self._eta[: self.num_old], self._lam[: self.num_old] = q.eta, q.lam

    def _psi(self, rows: Tensor, mean: Tensor, variance: Tensor) -> Psi:
        weight = self.weight[rows]
        mask = weight.unsqueeze(0) if self.groups.mask is None else self.groups.mask[:, rows] * weight
        likelihood = self.training.likelihood
        return expect(likelihood.kernel, mean, variance, likelihood.inducing, mask, self._weighted_y[rows])

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

    def _q(self, eta: Tensor, lam: Tensor) -> OpperArchambeau:
        return OpperArchambeau.from_natural(self.prior, eta, lam)

    def evaluate(self, eta: Tensor, lam: Tensor) -> tuple[float, Tensor, Tensor, Tensor]:
        """The bound; the mean of q less that of the prior; and the derivatives of F̂ in mean and variance."""
        q = self._q(eta, lam)
        mean = (self.shift + q.mean).requires_grad_()
        variance = q.variance.clone().requires_grad_()
        with torch.enable_grad():
            psi = self._psi(self.rows, mean, variance)
            if self._rest is not None:
                rest = self._rest
                psi = Psi(rest.psi0 + psi.psi0, rest.psi1_y + psi.psi1_y, rest.psi2 + psi.psi2)
            value = collapsed_bound(psi, self.factor, self.training.likelihood.noise, self.groups)
        d_mean, d_variance = torch.autograd.grad(value, (mean, variance))
        bound = float(value) + self._normaliser - float(kl_divergence(q, self.prior)) - self.kl_rest
        if not (bool(torch.isfinite(d_mean).all()) and bool(torch.isfinite(d_variance).all()) and bound == bound):
            raise NumericalError("the bound of the reconstruction has no finite value.")
        return bound, q.mean, d_mean, d_variance

    def solve(self, eta: Tensor, lam: Tensor, num_steps: int, rate: float, tolerance: float) -> Solution:
        """Natural steps from these sites of the active frames; one that lowers the bound is undone and halved.

        :param tolerance: ends the iteration where the bound changes by less for some steps in a row.
        :raises NumericalError: where the bound has no finite value at the start.
        """
        bound, mean, d_mean, d_variance = self.evaluate(eta, lam)
        best = Solution(eta, lam, bound, 0)
        step, damping, quiet = 0, 1.0, 0
        while step < num_steps and quiet < _PATIENCE and rate * damping >= _LEAST_RATE:
            step += 1
            moved = natural_step(best.eta, best.lam, mean, d_mean, d_variance, self.least, rate * damping)
            eta, lam = (
                torch.where(self.movable, new, old) for new, old in zip(moved, (best.eta, best.lam), strict=True)
            )
            try:
                bound, *next_state = self.evaluate(eta, lam)
            except NumericalError:
                bound = -torch.inf
            if bound < best.bound - tolerance:
                damping *= 0.5
                continue
            quiet = quiet + 1 if bound - best.bound <= tolerance else 0
            best, (mean, d_mean, d_variance) = Solution(eta, lam, bound, step), next_state
            damping = min(1.0, 1.2 * damping)
        return best

    def path(self, solution: Solution) -> TorchDistribution:
        """q(X*) of the new frames."""
        q = self._q(solution.eta, solution.lam)
        place = torch.empty_like(self.rows[self.is_new])
        place[self.rows[self.is_new] - self.num_old] = self.is_new.nonzero().squeeze(-1)
        if isinstance(self.shift, Tensor):
            return GaussianPath(self.shift + q.mean, q.variance, lambda: q.covariance_matrix)
        return Rows(q, place)

    def moments(self, solution: Solution) -> tuple[Tensor, Tensor]:
        """Means and variances of q(X, X*) for training and new frames, (N + T, Q)."""
        q, old = self._q(solution.eta, solution.lam), self.training.q
        mean = torch.cat([old.mean, old.mean.new_zeros(self.combined.num_frames - self.num_old, old.mean.shape[1])])
        variance = torch.zeros_like(mean)
        variance[: self.num_old] = old.variance
        mean[self.rows], variance[self.rows] = self.shift + q.mean, q.variance
        return mean, variance


def _merge(t: Tensor, old: list[slice], fresh: list[slice], belongs: Sequence[int | None], free: bool) -> list[Tensor]:
    """Rows of each sequence that is active, in the order of time."""
    joined: dict[int, list[slice]] = {i: [rows] for i, rows in enumerate(old) if free or i in belongs}
    alone: list[list[slice]] = []
    for rows, sequence in zip(fresh, belongs, strict=True):
        if sequence is None:
            alone.append([rows])
        else:
            joined[sequence].append(rows)
    merged = []
    for parts in [*joined.values(), *alone]:
        index = torch.cat([torch.arange(s.start, s.stop, device=t.device) for s in parts])
        merged.append(index[t[index].argsort(stable=True)])
    return merged


def _conditional(q: OpperArchambeau, times: Times, belongs: Sequence[int | None]) -> tuple[TemporalGP, Tensor, float]:
    r"""p(X* given X) with X at its mean, and what the rest of E_q(X)[KL(q(X*), p(X* given X))] adds.

    With C the conditional covariance and V that of the forecast, which has the uncertainty of X in it, the rest is
    ½ tr(C⁻¹(V − C)). C is the forecast's covariance for sites of a precision that leaves only the jitter of K_t.
    """
    scale = q.prior.variance.mean()
    certain = OpperArchambeau(q.prior, q.mean_bar, torch.full_like(q.lam, 1.0 / default_jitter(q.lam.dtype)) / scale)
    covariance = q.lam.new_zeros(q.event_shape[-1], len(times), len(times))
    shift = q.lam.new_zeros(len(times), q.event_shape[-1])
    rest = 0.0
    for rows, sequence in zip(times.slices(), belongs, strict=True):
        block = certain.forecast(times.t[rows], sequence).covariance_matrix
        covariance[:, rows, rows] = block
        if sequence is not None:
            forecast = q.forecast(times.t[rows], sequence)
            shift[rows] = forecast.mean
            factor = cholesky(block, "the covariance of new frames given the training frames", None)
            excess = forecast.covariance_matrix - block
            trace = torch.cholesky_solve(excess, factor.expand_as(excess)).diagonal(dim1=-2, dim2=-1).sum()
            rest += 0.5 * float(trace.clamp_min(0.0))
    return TemporalGP(_Given(covariance), times.t, q.event_shape[-1]), shift, rest


class _Given(KernelValue):
    """Covariances (Q, T, T) of one sequence, as a kernel's value."""

    def __init__(self, covariance: Tensor) -> None:
        self.covariance = covariance

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return self.covariance.unsqueeze(-3)

    def diag(self, a: Tensor) -> Tensor:
        return self.covariance.diagonal(dim1=-2, dim2=-1)


def _kl_of(q: OpperArchambeau, sequences: list[int]) -> float:
    """KL(q, p) of some training sequences."""
    if not sequences:
        return 0.0
    times, chosen = q.prior.times, set(sequences)
    rows = torch.cat([torch.arange(s.start, s.stop, device=times.t.device)
                      for i, s in enumerate(times.slices()) if i in chosen])  # fmt: skip
    some = Times(times.t[rows], [times.lengths[i] for i in sequences])
    prior = TemporalGP(q.prior.kernel, some, q.event_shape[-1], structure=q.prior.asked)
    return float(kl_divergence(OpperArchambeau(prior, q.mean_bar[rows], q.lam[rows]), prior))


def nearest_starts(training: Training, new: Sequences, num_starts: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Sites (η, λ) of the new frames: those of their nearest training frames.

    The first start takes outputs in the model's scale, the second divides them by their standard deviations, and more
    look at random halves of the training frames only.
    """
    q, likelihood, data = training
    deviation = data.output_variances.sqrt()
    scales = likelihood.output_scale, torch.where(deviation > 0, deviation, 1.0)
    for i in range(num_starts):
        near, known = nearest_frames(data, new, scales[i % 2], share=1.0 if i < 2 else 0.5)
        lam = q.lam[near] * known
        yield lam * q.mean[near], lam


def nearest_frames(data: Sequences, new: Sequences, scale: Tensor, share: float = 1.0) -> tuple[Tensor, Tensor]:
    """The training frame (T,) nearest to each new one, and whether there is any, (T, 1).

    Near are frames whose outputs differ little where both were seen.

    :param scale: (D,), by which outputs are divided.
    :param share: of the training frames that are looked at, drawn at random.
    """
    candidates = torch.arange(data.num_frames, device=data.device)
    wanted = min(_CANDIDATES, max(1, round(share * data.num_frames)))
    if wanted < data.num_frames:
        candidates = torch.randperm(data.num_frames, device=data.device)[:wanted]
    distance = _distances(data, new, candidates, scale)
    return candidates[distance.argmin(1)], torch.isfinite(distance).any(1, keepdim=True)


def _distances(data: Sequences, new: Sequences, candidates: Tensor, scale: Tensor) -> Tensor:
    """Mean squared differences (T, candidates) over the outputs seen in both frames; infinite where there are none."""
    total = torch.zeros(new.num_frames, len(candidates), dtype=data.dtype, device=data.device)
    count = torch.zeros_like(total)
    centre = torch.nan_to_num(data.output_means)
    for where, block in data.blocks():
        parts = [(y - centre[where]) / scale[where] for y in (new.read(where.start, where.stop), block[candidates])]
        (a, seen_a), (b, seen_b) = ((torch.nan_to_num(p, nan=0.0), torch.isfinite(p).to(p.dtype)) for p in parts)
        total += a.square() @ seen_b.mT + seen_a @ b.square().mT - 2.0 * a @ b.mT
        count += seen_a @ seen_b.mT
    return torch.where(count > 0, total / count, torch.inf)
