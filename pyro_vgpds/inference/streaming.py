# SPDX-License-Identifier: Apache-2.0
"""One pass over all sequences: q(U) at its optimum, and the bound."""

from __future__ import annotations

import torch
from torch.distributions import kl_divergence

from pyro_vgpds.data.batches import Batch, SequenceDataset
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.mapping.explicit import ExplicitGP, expected_log_density
from pyro_vgpds.mapping.inducing_gaussian import InducingPrior
from pyro_vgpds.mapping.sums import FrameSums, added_sums, frame_sums, sum_frames
from pyro_vgpds.pyro_state import own_store
from pyro_vgpds.temporal.distributions import TemporalGP

__all__ = ["stream"]


def stream(guide: OpperArchambeauGuide, data: SequenceDataset, batch_size: int) -> tuple[Dual, float]:
    """The statistics of the optimal q(U), and the bound, which is then the collapsed one.

    :param guide: of the model on batches.
    :param data: all sequences. Several processes that have them together all call this; each reads its own.
    :param batch_size: sequences that are in memory at a time.
    :raises NumericalError: if rounding error dominates.
    """
    total: FrameSums | None = None
    divergence = 0.0
    with torch.no_grad(), data.team.together():
        own = data.of_this_process()
        for batch in own.batches(batch_size):
            inducing, prior, outputs = _at_medians(guide, batch)
            q = guide.make_posterior(prior)
            divergence += float(kl_divergence(q, prior))
            assert batch.sequences.y is not None
            groups = outputs.gp.groups(batch.sequences.y, columns=True)
            sums = frame_sums(outputs.gp, q.mean, q.variance, inducing.factor, groups)
            total = sums if total is None else added_sums(total, sums)
        assert total is not None
        total, divergence = sum_frames(total, data.team), float(data.team.total(torch.tensor([divergence]).double()))
        m, d = inducing.event_shape
        dual = Dual.empty(m, d, device=total.v.device).carried(inducing).moved(total, 1.0, 1.0)
        u = dual.posterior(inducing.noise)
        return dual, float(expected_log_density(total, inducing.noise, u) - u.kl_to_prior()) - divergence


def _at_medians(guide: OpperArchambeauGuide, batch: Batch) -> tuple[InducingPrior, TemporalGP, ExplicitGP]:
    """The distributions of the sites of the model on a batch."""
    with own_store():
        guide.median(batch)
        nodes = guide.get_traces()[0].nodes
    inducing, prior, outputs = (nodes[name]["fn"] for name in ("u", "x", "y"))
    assert isinstance(inducing, InducingPrior)
    assert isinstance(prior, TemporalGP)
    assert isinstance(outputs, ExplicitGP)
    return inducing, prior, outputs
