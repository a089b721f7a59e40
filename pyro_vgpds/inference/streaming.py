# SPDX-License-Identifier: Apache-2.0
"""One pass over sequences: the sums over their frames, by which q(U) and the bound follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, TypeAlias, cast

import torch
from torch.distributions import kl_divergence

from pyro_vgpds.data.batches import Batch, SequenceDataset
from pyro_vgpds.data.frame_batches import FrameDataset
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.inference.subsampling import model_of
from pyro_vgpds.inference.untraced import ExplicitGuide, UntracedModel, batch_priors, can_skip_trace
from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.mapping.bound import SiteLimits, site_limits
from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.mapping.explicit import ExplicitGP, optimum
from pyro_vgpds.mapping.explicit_outputs import ExpectedOutputs, ExplicitOutputs
from pyro_vgpds.mapping.frame_sums import FrameSums, added_sums, frame_sums, removed_sums, sum_frames
from pyro_vgpds.mapping.inducing_gaussian import InducingPrior
from pyro_vgpds.mapping.latent_gp import scaled_sites
from pyro_vgpds.pyro_state import own_store
from pyro_vgpds.temporal.distributions import TemporalGP

__all__ = ["Streamed", "at_medians", "stream", "versions"]

_FRAMES = 20_000  # of a single sequence whose outputs are in memory at a time

_Outputs: TypeAlias = "ExplicitGP | ExplicitOutputs"


class Streamed(NamedTuple):
    """What a pass over sequences found."""

    sums: FrameSums  #: over their frames
    kl: float  #: KL(q(X), p(X)) of their latent paths
    prior: InducingPrior  #: p(U), with the kernel and inducing inputs that the sums belong to
    limits: SiteLimits | None = None  #: of the Gaussian factors of outputs that are not Gaussian
    estimate: float = 0.0  #: what draws add to the bound

    def optimum(self) -> tuple[Dual, float]:
        """The statistics of the optimal q(U) of these sequences, and the collapsed bound, without what draws add."""
        with torch.no_grad():
            dual, expected = optimum(self.sums, self.prior.noise)
            dual = replace(dual, factor=self.prior.factor.detach(), inducing=self.prior.inducing.detach())
            return dual, float(expected) - self.kl

    def without(self, part: Streamed) -> Streamed:
        """What the sequences that are not in ``part`` add."""
        limits = None
        if self.limits is not None and part.limits is not None:
            seen, most = self.limits.seen - part.limits.seen, self.limits.most - part.limits.most
            limits = SiteLimits(seen, self.limits.size - part.limits.size, most)
        rest = self.estimate - part.estimate
        return Streamed(removed_sums(self.sums, part.sums), self.kl - part.kl, self.prior, limits, rest)

    def estimated(self, guide: OpperArchambeauGuide, data: SequenceDataset | Batch, batch_size: int = 1) -> Streamed:
        """The same with what draws add to the bound under q(U), by one more pass, if the likelihood needs draws."""
        if self.limits is None or not model_of(guide).output_likelihood.is_drawn:
            return self
        total = 0.0
        communicator, own = data.communicator, data if isinstance(data, Batch) else data.of_this_process()
        with torch.no_grad(), communicator.sharing_errors():
            for batch in _batches(own, batch_size):
                expected, sites = _factors(guide, batch, *at_medians(guide, batch))
                y = expected.outputs.data.y
                assert y is not None
                total += float(expected.correction(expected.inducing, y.double(), sites)[0])
        return self._replace(estimate=float(communicator.all_reduce(torch.tensor([total]).double())))


def stream(guide: OpperArchambeauGuide, data: SequenceDataset | Batch, batch_size: int = 1) -> Streamed:
    """The sums over frames. One batch of ``batch_size`` is in memory at a time; of a single sequence, a batch of its
    frames.

    Several processes that have the sequences together all call this; each reads its own.

    :raises NumericalError: if rounding error dominates.
    """
    total: FrameSums | None = None
    limits: SiteLimits | None = None
    divergence = 0.0
    communicator, own = data.communicator, data if isinstance(data, Batch) else data.of_this_process()
    with torch.no_grad(), communicator.sharing_errors():
        for batch in _batches(own, batch_size):
            inducing, prior, outputs = at_medians(guide, batch)
            q = guide.make_posterior(prior)
            if batch.places is None or total is None:  # batches of frames have the same latent path
                divergence += float(kl_divergence(q, prior))
            if isinstance(outputs, ExplicitGP):
                assert batch.sequences.y is not None
                groups, rows = outputs.gp.groups(batch.sequences.y, columns=True), batch.places
                mean, variance = (x if rows is None else x[rows] for x in (q.mean, q.variance))
                sums = frame_sums(outputs.gp, mean, variance, inducing.factor, groups)
            else:
                expected, sites = _factors(guide, batch, inducing, prior, outputs)
                sums, gp = expected.sums(sites), outputs.gp
                found = site_limits(*scaled_sites(sites, gp.output_mean, gp.output_scale))
                limits = found if limits is None else limits.joined(found)
            total = sums if total is None else added_sums(total, sums)
        assert total is not None
        total, divergence = (
            sum_frames(total, communicator),
            float(communicator.all_reduce(torch.tensor([divergence]).double())),
        )
        limits = None if limits is None else limits.of_all(communicator)
    return Streamed(total, divergence, inducing, limits)


def _batches(data: SequenceDataset | Batch, batch_size: int) -> Iterable[Batch]:
    if isinstance(data, Batch):
        return [data]
    if data.num_sequences == 1 and data.num_frames > _FRAMES:
        return FrameDataset(data).batches(_FRAMES)
    return data.batches(batch_size)


def _factors(
    guide: OpperArchambeauGuide, batch: Batch, inducing: InducingPrior, prior: TemporalGP, outputs: _Outputs
) -> tuple[ExpectedOutputs, Sites]:
    """The bound of outputs that are not Gaussian under the q(U) of the guide, and their factors."""
    assert isinstance(outputs, ExplicitOutputs)
    q = cast("ExplicitGuide", guide).inducing_posterior(inducing)
    expected = outputs.integrate(guide.make_posterior(prior), q)
    assert batch.sequences.y is not None
    y = batch.sequences.y.double()
    return expected, outputs.likelihood.sites(y, expected.state(y))


def at_medians(guide: OpperArchambeauGuide, batch: Batch) -> tuple[InducingPrior, TemporalGP, _Outputs]:
    """The distributions of the sites of the model on a batch, with hyperparameters at their medians."""
    model = model_of(guide)
    if can_skip_trace(model, guide, batch):
        own = cast("UntracedModel", model)
        kernel, path, p_u = batch_priors(own, batch)
        x = p_u.inducing.new_zeros(len(batch.rows), model.latent_dim)  # which sums over frames do not read
        return p_u, path, own.outputs_on(batch, x, p_u.mean, p_u, kernel)
    with own_store():
        guide.median(batch)
        nodes = guide.get_traces()[0].nodes
    inducing, prior, outputs = (nodes[name]["fn"] for name in ("u", "x", "y"))
    assert isinstance(inducing, InducingPrior)
    assert isinstance(prior, TemporalGP)
    assert isinstance(outputs, (ExplicitGP, ExplicitOutputs))
    return inducing, prior, outputs


def versions(guide: OpperArchambeauGuide) -> list[tuple[int, int]]:
    """Which tensors the guide and its model have, and how often these have changed since they were made."""
    model = model_of(guide)
    # a model has the factors of the outputs of the data that it met last
    fixed = [value for name, value in model.named_buffers() if not name.startswith("sites.")]
    own = (model.parameters(), fixed, guide.parameters(), guide.buffers(recurse=False))
    return [(id(x), x._version) for part in own for x in part]
