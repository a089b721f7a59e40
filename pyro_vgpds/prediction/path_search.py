# SPDX-License-Identifier: Apache-2.0
"""What all searches for paths of new frames share: the trained distributions, and the prior of the new frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.likelihoods.guess import guess
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.linalg import cholesky, default_jitter
from pyro_vgpds.mapping.bound import site_bound
from pyro_vgpds.mapping.explicit import optimum
from pyro_vgpds.mapping.frame_sums import FrameSums, added_sums, frame_sums
from pyro_vgpds.mapping.sequence_summary import SequenceSummary
from pyro_vgpds.mapping.site_gp import SiteGP, SitePart
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.gaussian import GaussianPosterior, PathPosterior

__all__ = ["Training", "conditional", "guessed", "kl_of", "merge"]


@dataclass(frozen=True)
class Training:
    """The trained distributions and their data. What needs all training frames is computed once."""

    q: PathPosterior  #: q(X)
    likelihood: SparseGP  #: p(y given x), with its parameters
    data: Sequences  #: the training sequences
    summary: SequenceSummary | None = None  #: what training sequences that are not in memory add

    @cached_property
    def kl(self) -> float:
        """KL(q(X), p(X)) of all training sequences in memory."""
        return kl_of(self.q, list(range(self.data.num_sequences)))

    @property
    def sums(self) -> FrameSums | None:
        """Sums over training frames that are not in memory."""
        return None if self.summary is None else self.summary.sums

    def expected(self) -> Tensor:
        """The part of the bound that is not a KL divergence of latent paths, if some sequences are not in memory."""
        assert self.summary is not None
        q, gp = self.q, self.likelihood
        if isinstance(gp, SiteGP):
            part, more = self.sites, self.summary.part(self.factor)
            bound = site_bound(part.psi + more.psi, self.factor, part.limits.joined(more.limits))
            return bound + part.terms + more.terms + self.estimate
        own = frame_sums(gp, q.mean, q.variance, self.factor, gp.groups_of(self.data, columns=True))
        return optimum(added_sums(self.summary.sums, own), gp.noise)[1]

    @property
    def kl_elsewhere(self) -> float:
        """KL(q(X), p(X)) of training sequences that are not in memory."""
        return 0.0 if self.summary is None else self.summary.kl

    @cached_property
    def factor(self) -> Tensor:
        """L, the Cholesky factor of K_MM."""
        return self.likelihood.basis.factor()

    @cached_property
    def guessed(self) -> Sequences:
        """The data, with guesses of the functions in place of outputs that are not Gaussian."""
        return guessed(self.likelihood.outputs, self.data) if isinstance(self.likelihood, SiteGP) else self.data

    @cached_property
    def sites(self) -> SitePart:
        """What the Gaussian factors of all training outputs add to the bound, if the outputs are not Gaussian."""
        assert isinstance(self.likelihood, SiteGP)
        return self.likelihood.part(self.q.mean, self.q.variance)

    @cached_property
    def estimate(self) -> float:
        """What draws add to the bound of the training outputs, with the q(U) of training."""
        assert isinstance(self.likelihood, SiteGP)
        more = 0.0 if self.summary is None else self.summary.estimate
        return self.likelihood.estimate(self.q, self.sites) + more

    @cached_property
    def candidates(self) -> tuple[Sequences, Tensor, Tensor]:
        """Frames from which the search for latent points may start: outputs, latent points and λ, (n, Q) each.

        They are the frames in memory and, if others are not in memory, the inducing inputs with their expected outputs.
        """
        q, data = self.q, self.guessed
        lam = q.sites()[1] if isinstance(q, GaussianPosterior) else q.lam
        known, gp = self.summary, self.likelihood
        if known is None:
            return data, q.mean, lam
        own = frame_sums(gp, q.mean, q.variance, self.factor, gp.groups_of(self.data, columns=True))
        u = optimum(added_sums(known.sums, own), gp.noise)[0].posterior(gp.noise).mean
        y = gp.output_mean + gp.output_scale * (self.factor @ u)
        both = torch.cat([data.read().to(y), y]).to(data.dtype)
        steps = torch.arange(len(both), dtype=data.dtype, device=data.device)
        every = Sequences(steps, both, dtype=data.dtype, device=data.device)
        return every, torch.cat([q.mean, gp.inducing]), torch.cat([lam, known.lam.expand(gp.inducing.shape)])


def guessed(outputs: LikelihoodValue, data: Sequences) -> Sequences:
    """Guesses of the functions in place of outputs that are not Gaussian, NaN for outputs that a sequence has not."""
    assert data.y is not None
    y, lengths = data.y.double(), list(data.times.lengths)
    if data.num_observed:
        f = guess(outputs, y, data.times.lengths)
    else:
        f = y.repeat_interleave(outputs.likelihood.num_functions, 1)
    parts = []
    for part, seen in zip(f.split(lengths), torch.isfinite(y).split(lengths), strict=True):
        known = seen.any(0).repeat_interleave(part.shape[1] // seen.shape[1])
        parts.append(torch.where(known, part, torch.nan).to(data.dtype))
    return Sequences(list(data.times.t.split(lengths)), parts, dtype=data.dtype, device=data.device)


def kl_of(q: PathPosterior, sequences: list[int]) -> float:
    """KL(q, p) of a subset of the training sequences."""
    if isinstance(q, GaussianPosterior):
        return float(q.kl(sequences))
    if not sequences:
        return 0.0
    times, chosen = q.prior.times, set(sequences)
    if len(chosen) == len(times.lengths):  # the moments of q are known
        return float(kl_divergence(q, q.prior))
    rows = torch.cat([torch.arange(s.start, s.stop, device=times.t.device)
                      for i, s in enumerate(times.slices()) if i in chosen])  # fmt: skip
    some = Times(times.t[rows], [times.lengths[i] for i in sequences])
    prior = q.prior.at(some)
    return float(kl_divergence(OpperArchambeau(prior, q.mean_bar[rows], q.lam[rows]), prior))


def merge(t: Tensor, old: list[slice], fresh: list[slice], belongs: Sequence[int | None], free: bool) -> list[Tensor]:
    """Rows of each active sequence, in the order of time."""
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


def conditional(q: PathPosterior, times: Times, belongs: Sequence[int | None]) -> tuple[TemporalGP, Tensor, float]:
    r"""p(X* given X) with X at its mean, its mean, and the remainder of E_q(X)[KL(q(X*), p(X* given X))].

    With C the conditional covariance and V that of the forecast, which includes the uncertainty of X, the remainder
    is ½ tr(C⁻¹(V − C)). C is the forecast's covariance for sites so precise that only the jitter of K_t is left.
    """
    certain: PathPosterior
    if isinstance(q, GaussianPosterior):
        certain = q.certain()
    else:
        precision = torch.full_like(q.lam, 1.0 / default_jitter(q.lam.dtype)) / q.prior.variance.mean()
        certain = OpperArchambeau(q.prior, q.mean_bar, precision)
    covariance = q.mean.new_zeros(q.event_shape[-1], len(times), len(times))
    shift = q.mean.new_zeros(len(times), q.event_shape[-1])
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
    """Covariances (Q, T, T) of one sequence, as a kernel value."""

    def __init__(self, covariance: Tensor) -> None:
        self.covariance = covariance

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return self.covariance.unsqueeze(-3)

    def diag(self, a: Tensor) -> Tensor:
        return self.covariance.diagonal(dim1=-2, dim2=-1)
