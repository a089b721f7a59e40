# SPDX-License-Identifier: Apache-2.0
"""The trained distributions and their data, with what all searches for the latent paths of new frames share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.likelihoods.base import LikelihoodValue
from pyro_vgpds.likelihoods.guess import guess
from pyro_vgpds.mapping.bound import site_bound
from pyro_vgpds.mapping.explicit import optimum
from pyro_vgpds.mapping.pseudo import PseudoGP, SitePart
from pyro_vgpds.mapping.remembered import Remembered
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.mapping.sums import FrameSums, added_sums, frame_sums
from pyro_vgpds.prediction.joint_prior import kl_of
from pyro_vgpds.temporal.gaussian import GaussianPosterior, PathPosterior

__all__ = ["Training", "guessed"]


@dataclass(frozen=True)
class Training:
    """The trained distributions and their data. What needs all training frames is computed once."""

    q: PathPosterior  #: q(X)
    likelihood: SparseGP  #: p(y given x), with its parameters
    data: Sequences  #: the training sequences
    remembered: Remembered | None = None  #: what training sequences that are not in memory add

    @cached_property
    def kl(self) -> float:
        """KL(q(X), p(X)) of all training sequences in memory."""
        return kl_of(self.q, list(range(self.data.num_sequences)))

    @property
    def sums(self) -> FrameSums | None:
        """Sums over training frames that are not in memory."""
        return None if self.remembered is None else self.remembered.sums

    def expected(self) -> Tensor:
        """The part of the bound that is not a KL divergence of latent paths, if some sequences are not in memory."""
        assert self.remembered is not None
        q, gp = self.q, self.likelihood
        if isinstance(gp, PseudoGP):
            part, more = self.sites, self.remembered.part(self.factor)
            bound = site_bound(part.psi + more.psi, self.factor, part.limits.joined(more.limits))
            return bound + part.terms + more.terms + self.estimate
        own = frame_sums(gp, q.mean, q.variance, self.factor, gp.groups_of(self.data, columns=True))
        return optimum(added_sums(self.remembered.sums, own), gp.noise)[1]

    @property
    def kl_elsewhere(self) -> float:
        """KL(q(X), p(X)) of training sequences that are not in memory."""
        return 0.0 if self.remembered is None else self.remembered.kl

    @cached_property
    def factor(self) -> Tensor:
        """L, the Cholesky factor of K_MM."""
        return self.likelihood.basis.factor()

    @cached_property
    def guessed(self) -> Sequences:
        """The data, with guesses of the functions in place of outputs that are not Gaussian."""
        return guessed(self.likelihood.outputs, self.data) if isinstance(self.likelihood, PseudoGP) else self.data

    @cached_property
    def sites(self) -> SitePart:
        """What the Gaussian factors of all training outputs add to the bound, if the outputs are not Gaussian."""
        assert isinstance(self.likelihood, PseudoGP)
        return self.likelihood.part(self.q.mean, self.q.variance)

    @cached_property
    def estimate(self) -> float:
        """What draws add to the bound of the training outputs, with the q(U) of training."""
        assert isinstance(self.likelihood, PseudoGP)
        more = 0.0 if self.remembered is None else self.remembered.estimate
        return self.likelihood.estimate(self.q, self.sites) + more

    @cached_property
    def candidates(self) -> tuple[Sequences, Tensor, Tensor]:
        """Frames from which the search for latent points may start: outputs, latent points and λ, (n, Q) each.

        They are the frames in memory and, if others are not in memory, the inducing inputs with their expected outputs.
        """
        q, data = self.q, self.guessed
        lam = q.sites()[1] if isinstance(q, GaussianPosterior) else q.lam
        known, gp = self.remembered, self.likelihood
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
