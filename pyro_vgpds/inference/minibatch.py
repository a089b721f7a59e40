# SPDX-License-Identifier: Apache-2.0
"""Natural gradients for q(X) and q(U) of a model on batches."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.checks import check_rate
from pyro_vgpds.inference.explicit import AutoExplicit
from pyro_vgpds.inference.natural import Tracked, natural_step
from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.mapping.frame_sums import FrameSums
from pyro_vgpds.mapping.inducing_gaussian import InducingGaussian, InducingPrior
from pyro_vgpds.temporal.distributions import TemporalGP
from pyro_vgpds.temporal.gaussian import least_lam

__all__ = ["MinibatchNaturalGradient"]


class MinibatchNaturalGradient:
    r"""Moves q(U) and the visited part of q(X) by natural gradient steps, while an optimiser moves everything else.

    q(U) is moved in dual form (:class:`~pyro_vgpds.mapping.Dual`): its statistics A and v go by ρ towards those of the
    batch, times the number of all sequences over that of the batch. This happens within the evaluation, as soon as the
    statistics of the batch are known, so that the gradients are those at the new q(U). With all sequences and ρ = 1
    they are the gradients of the collapsed bound. q(X) of the sequences of the batch takes the step of
    :class:`~pyro_vgpds.NaturalGradient` with their own derivatives, which no scale multiplies. Sequences that are not
    in the batch stay as they are. Of a batch of frames (:class:`~pyro_vgpds.data.FrameBatch`) the sites of these frames
    move. The Gaussian factors of outputs that are not Gaussian are updated as well. ::

        many = SequenceDataset(data)
        svi = SVI(model, guide, Adam({"lr": 0.02}), Collapsed_ELBO())
        with MinibatchNaturalGradient(guide) as natural:
            for epoch in range(20):
                for batch in many.batches(8, torch.randperm(len(many))):
                    svi.step(batch)  # evaluates an estimate of the bound, and moves hyperparameters
                    natural.step(0.7)  # moves q(X) of the batch and q(U)

    :param guide: an :class:`~pyro_vgpds.AutoExplicit` that is not free.
    :param inducing_rate: ρ of q(U) in (0, 1]; an attribute that can be changed between steps.
    :raises TypeError: if the guide is of another type.
    :raises ValueError: if it is free, or ``inducing_rate`` is not in (0, 1].
    :raises RuntimeError: if it already has a MinibatchNaturalGradient.

    >>> from pyro_vgpds import AutoExplicit, Collapsed_ELBO, MinibatchNaturalGradient
    >>> from pyro_vgpds.data import SequenceDataset
    >>> own, everything = AutoExplicit.from_collapsed(guide, data), SequenceDataset(data).batch([0, 1])
    >>> with MinibatchNaturalGradient(own, inducing_rate=1.0):
    ...     loss = Collapsed_ELBO().loss_and_grads(model, own, everything)
    >>> abs(loss + post.bound) < 1e-5 * abs(loss)  # at the optimal q(U)
    True
    """

    def __init__(self, guide: AutoExplicit, inducing_rate: float = 0.25) -> None:
        if not isinstance(guide, AutoExplicit):
            raise TypeError(f"guide must be an AutoExplicit, but got {type(guide).__name__}.")
        if guide.is_free:
            raise ValueError("guide must not be free: an optimiser moves a free q(X) and q(U).")
        check_rate("inducing_rate", inducing_rate)
        self.guide, self.inducing_rate = guide, inducing_rate
        self.q: Tracked | None = None
        self.u: _Following | None = None
        self._scale = 1.0

    def __enter__(self) -> MinibatchNaturalGradient:
        if "make_posterior" in vars(self.guide):
            raise RuntimeError("this guide already has a MinibatchNaturalGradient; leave its block first.")
        self.guide.make_posterior = self.posterior  # type: ignore[method-assign]
        self.guide.inducing_posterior = self.inducing_posterior  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        del self.guide.make_posterior, self.guide.inducing_posterior
        self.q = self.u = None

    def posterior(self, prior: TemporalGP) -> Tracked:
        """q(X) of a batch, whose mean and variance keep the derivatives. The guide calls this method.

        :param prior: the :class:`~pyro_vgpds.TemporalGP` of the model.
        """
        q = Tracked.from_natural(prior, *self.guide.sites(prior))
        assert isinstance(q, Tracked)
        self.q = q
        return q

    def inducing_posterior(self, prior: InducingPrior) -> InducingGaussian:
        """q(U), which moves when it meets the statistics of the batch. The guide calls this method.

        :param prior: p(U) of the model.
        """
        self._scale = prior.scale
        self.u = _Following(self.guide.dual.carried(prior), prior, self.inducing_rate)
        self.u.outputs = self.guide.batch_factors(prior, is_held=True)
        return self.u

    def derivatives(self) -> tuple[Tensor, Tensor]:
        """∂F̂/∂μ and ∂F̂/∂s of the last backward pass of a loss, for the frames of the batch, without its scale."""
        q = self.q
        if q is None or q.tracked_mean is None or q.tracked_mean.grad is None or q.tracked_variance.grad is None:
            raise RuntimeError("a natural step needs a backward pass of the loss before it, such as svi.step(batch).")
        return -q.tracked_mean.grad / self._scale, -q.tracked_variance.grad / self._scale

    def step(self, rate: float) -> None:
        """Take one step, with the statistics and derivatives of the last evaluation.

        :param rate: step length ρ of q(X), in (0, 1].
        :raises ValueError: if ``rate`` is not in (0, 1].
        :raises RuntimeError: if there was no backward pass since the last step.
        """
        check_rate("rate", rate)
        d_mean, d_variance = self.derivatives()
        assert self.q is not None
        self._move(self.q, d_mean, d_variance, rate)
        if self.u is not None:
            self.guide.dual = self.u.dual
            if self.u.outputs is not None:
                self.u.outputs.step(rate)
        self.q = self.u = None  # its derivatives have been used

    def _move(self, q: Tracked, d_mean: Tensor, d_variance: Tensor, rate: float) -> None:
        with torch.no_grad():
            own = slice(None) if q.prior.places is None else q.prior.places
            least = least_lam(q.prior.variance).expand(q.event_shape)
            eta, lam, mean, d_mean, d_variance = (x[own] for x in (q.eta, q.lam, q.mean, d_mean, d_variance))
            rows = own if q.prior.rows is None else q.prior.rows
            moved = natural_step(eta, lam, mean, d_mean, d_variance, least[own], rate)
            self.guide.eta[rows], self.guide.lam[rows] = moved


class _Following(InducingGaussian):
    """q(U) that takes its step when it meets the statistics of the batch; until then it is not known."""

    def __init__(self, dual: Dual, prior: InducingPrior, rate: float) -> None:
        self.dual, self._prior, self._rate = dual, prior, rate
        mean = prior.mean
        super().__init__(mean, torch.zeros_like(dual.a), mean, dual.of_output, orthogonal=True)

    def before(self) -> InducingGaussian | None:
        return self.dual.posterior(self._prior.noise).before()

    def given(self, sums: FrameSums) -> InducingGaussian:
        self.dual = self.dual.moved(sums, self._prior.scale, self._rate)
        found = self.dual.posterior(self._prior.noise)
        self._mean, self.basis, self.spread, self.of_output = found.mean, found.basis, found.spread, found.of_output
        return self
