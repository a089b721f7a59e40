# SPDX-License-Identifier: Apache-2.0
"""One pass over sequences: the sums over their frames, by which q(U) and the bound follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.distributions import kl_divergence

from pyro_vgpds.data.batches import Batch
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.mapping.explicit import ExplicitGP, optimum
from pyro_vgpds.mapping.inducing_gaussian import InducingPrior
from pyro_vgpds.mapping.sums import FrameSums, added_sums, frame_sums, removed_sums
from pyro_vgpds.pyro_state import own_store
from pyro_vgpds.temporal.distributions import TemporalGP

__all__ = ["Streamed", "at_medians", "stream"]


class Streamed(NamedTuple):
    """What a pass over sequences found."""

    sums: FrameSums  #: over their frames
    kl: float  #: KL(q(X), p(X)) of their latent paths
    prior: InducingPrior  #: p(U), with the kernel and inducing inputs that the sums belong to

    def optimum(self) -> tuple[Dual, float]:
        """The statistics of the optimal q(U) of these sequences, and the bound, which is then the collapsed one."""
        with torch.no_grad():
            dual, expected = optimum(self.sums, self.prior.noise)
            dual = replace(dual, factor=self.prior.factor.detach(), inducing=self.prior.inducing.detach())
            return dual, float(expected) - self.kl

    def without(self, part: Streamed) -> Streamed:
        """What the other sequences add.

        :param part: of some of these sequences.
        """
        return self._replace(sums=removed_sums(self.sums, part.sums), kl=self.kl - part.kl)


def stream(guide: OpperArchambeauGuide, batches: Iterable[Batch]) -> Streamed:
    """The sums over the frames of batches. One batch is in memory at a time.

    :param guide: of the model on batches.
    :param batches: each sequence in one of them, at least one batch.
    :raises NumericalError: if rounding error dominates.
    """
    total: FrameSums | None = None
    divergence = 0.0
    with torch.no_grad():
        for batch in batches:
            inducing, prior, outputs = at_medians(guide, batch)
            q = guide.make_posterior(prior)
            divergence += float(kl_divergence(q, prior))
            assert batch.sequences.y is not None
            groups = outputs.gp.groups(batch.sequences.y, columns=True)
            sums = frame_sums(outputs.gp, q.mean, q.variance, inducing.factor, groups)
            total = sums if total is None else added_sums(total, sums)
    assert total is not None
    return Streamed(total, divergence, inducing)


def at_medians(guide: OpperArchambeauGuide, batch: Batch) -> tuple[InducingPrior, TemporalGP, ExplicitGP]:
    """The distributions of the sites of the model on a batch."""
    with own_store():
        guide.median(batch)
        nodes = guide.get_traces()[0].nodes
    inducing, prior, outputs = (nodes[name]["fn"] for name in ("u", "x", "y"))
    assert isinstance(inducing, InducingPrior)
    assert isinstance(prior, TemporalGP)
    assert isinstance(outputs, ExplicitGP)
    return inducing, prior, outputs
