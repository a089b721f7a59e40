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
from pyro_vgpds.mapping.pseudo import PseudoGP, SitePart
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.prediction.joint_prior import kl_of
from pyro_vgpds.temporal.gaussian import PathPosterior

__all__ = ["Training", "guessed"]


@dataclass(frozen=True)
class Training:
    """The trained distributions and their data. What needs all training frames is computed once."""

    q: PathPosterior  #: q(X)
    likelihood: SparseGP  #: p(y given x), with its parameters
    data: Sequences  #: the training sequences

    @cached_property
    def kl(self) -> float:
        """KL(q(X), p(X)) of all training sequences."""
        return kl_of(self.q, list(range(self.data.num_sequences)))

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
        return self.likelihood.estimate(self.q, self.sites)


def guessed(outputs: LikelihoodValue, data: Sequences) -> Sequences:
    """Guesses of the functions in place of outputs that are not Gaussian, NaN for outputs that a sequence has not.

    :param outputs: the likelihood of the outputs, at its parameters.
    :param data: sequences with outputs.
    """
    assert data.y is not None
    y, lengths = data.y.double(), list(data.times.lengths)
    f = guess(outputs, y, data.times.lengths)
    parts = []
    for part, seen in zip(f.split(lengths), torch.isfinite(y).split(lengths), strict=True):
        known = seen.any(0).repeat_interleave(part.shape[1] // seen.shape[1])
        parts.append(torch.where(known, part, torch.nan).to(data.dtype))
    return Sequences(list(data.times.t.split(lengths)), parts, dtype=data.dtype, device=data.device)
