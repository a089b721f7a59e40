# SPDX-License-Identifier: Apache-2.0
"""Natural gradients for q(X), from the derivatives of the backward pass that the other parameters need anyway."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pyro_vgpds.checks import check_rate
from pyro_vgpds.inference.distributed_elbo import column_communicator_of
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.inference.untraced import UntracedModel, can_skip_trace
from pyro_vgpds.linalg import with_own_gradient
from pyro_vgpds.pyro_state import own_store
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.gaussian import LEAST_LAM, least_lam
from pyro_vgpds.temporal.path_gradients import MarkovPath, PathSource

__all__ = ["NaturalGradient", "Tracked", "natural_step"]


def natural_step(
    eta: Tensor, lam: Tensor, mean: Tensor, d_mean: Tensor, d_variance: Tensor, least: Tensor, rate: float
) -> tuple[Tensor, Tensor]:
    r"""The next η and λ: a step of length ρ = ``rate`` from q(X) with this mean and these derivatives of F̂."""
    wanted = torch.maximum(-2.0 * d_variance, least)
    return (1.0 - rate) * eta + rate * (d_mean + wanted * mean), (1.0 - rate) * lam + rate * wanted


class NaturalGradient:
    r"""Moves q(X) of ``guide`` by natural gradient steps, while an optimiser moves the other parameters.

    At a stationary point of the bound :math:`\lambda = -2\,\partial\hat F/\partial s` and
    :math:`\bar\mu = \partial\hat F/\partial\mu` (the paper's eq. 15). Damped in the natural parameters
    :math:`\eta = S^{-1}\mu` and λ, this fixed point is a natural gradient step of length ρ:

    .. math::
        \lambda \leftarrow (1-\rho)\,\lambda + \rho\,\lambda^*, \qquad
        \eta \leftarrow (1-\rho)\,\eta + \rho\,(\partial\hat F/\partial\mu + \lambda^* \circ \mu), \qquad
        \lambda^* = \max(-2\,\partial\hat F/\partial s, \epsilon).

    In a plain SVI loop::

        svi = SVI(model, guide, Adam({"lr": 0.02}), Collapsed_ELBO())
        with NaturalGradient(guide, data) as natural:
            for _ in range(300):
                svi.step(data)      # evaluates the bound, and moves everything except q(X)
                natural.step(0.3)   # moves q(X), with derivatives of the same evaluation

    Inside the block the guide uses η and λ; at its end ``guide.mean_bar`` and ``guide.lam`` are set from them. If
    temporal hyperparameters have priors, ``mean_bar`` fits the K_t of their medians only, and the mean of q(X) changes
    with every draw of them; with η and λ fixed it changes much less. So evaluate the bound over such draws inside a
    block, even without steps::

        with NaturalGradient(guide, data):
            loss = Collapsed_ELBO(num_particles=50).loss(model, guide, data)

    :param guide: an :class:`~pyro_vgpds.AutoOpperArchambeau` with ``mean_bar`` and ``lam``.
    :param args: arguments of the model: the data.
    :param kwargs: keyword arguments of the model.
    :raises TypeError: if the guide is of another type.
    :raises RuntimeError: if the guide already has a NaturalGradient.

    >>> from pyro_vgpds import Collapsed_ELBO, NaturalGradient
    >>> new = AutoOpperArchambeau(model)
    >>> with NaturalGradient(new, data) as natural:
    ...     for _ in range(3):
    ...         loss = Collapsed_ELBO().loss_and_grads(model, new, data)
    ...         natural.step(0.5)
    >>> Collapsed_ELBO().loss(model, new, data) < loss
    True
    """

    def __init__(self, guide: AutoOpperArchambeau, *args: Any, **kwargs: Any) -> None:
        if not isinstance(guide, AutoOpperArchambeau):
            raise TypeError(
                f"guide must be an AutoOpperArchambeau, but got {type(guide).__name__}. For an amortised guide, take "
                "natural steps with guide.refine(data)."
            )
        self.guide, self._call = guide, (args, kwargs)
        self.q: Tracked | MarkovPath | None = None
        self.eta = self.lam = torch.empty(0)

    def __enter__(self) -> NaturalGradient:
        if "make_posterior" in vars(self.guide):
            raise RuntimeError("this guide already has a NaturalGradient; leave its block first.")
        q = self._current()
        self.eta, self.lam = q.eta.detach().clone(), q.lam.detach().clone()
        self.guide.make_posterior = self.posterior  # type: ignore[method-assign]
        self.guide.analytic_path = self.analytic_path  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.write()  # after an error too: the guide keeps what was learned
        except Exception:
            if error[0] is None:
                raise
        finally:
            del self.guide.make_posterior, self.guide.analytic_path
            self.q = None

    def _current(self) -> OpperArchambeau:
        """q(X) on the prior at the guide's medians: η and mean_bar of one draw of the hyperparameters fit no other."""
        args, kwargs = self._call
        guide = self.guide
        with torch.no_grad():
            if not kwargs and can_skip_trace(guide.model, guide, *args):
                return guide.make_posterior(cast("UntracedModel", guide.model).path_prior(args[0]))
            with own_store():
                guide.median(*args, **kwargs)
                prior: Any = guide.get_traces()[0].nodes["x"]["fn"]
                return guide.make_posterior(prior)

    def write(self) -> None:
        """Set ``guide.mean_bar`` and ``guide.lam`` from η and λ."""
        q = self._current()
        self.guide.set(q.mean_bar, q.lam)

    def posterior(self, prior: TemporalGP) -> OpperArchambeau:
        """q(X) on a prior, whose mean and variance keep the derivatives of F̂. The guide calls this method.

        :param prior: the :class:`~pyro_vgpds.TemporalGP` of the model.
        """
        self.q = Tracked.from_natural(prior, self.eta, self.lam)
        return self.q

    def analytic_path(self, prior: PathSource) -> MarkovPath | None:
        """The same without a graph; None if its gradients need one. The collapsed bound calls this method.

        :param prior: the covariance of the latent path, or a reader of its kernel.
        """
        self.q = found = prior.markov_path(self.eta, self.lam)
        return found

    def step(self, rate: float) -> None:
        """Take one step, with the derivatives of the last backward pass.

        :param rate: step length ρ, in (0, 1].
        :raises ValueError: if ``rate`` is not in (0, 1].
        :raises RuntimeError: if there was no backward pass since the last step.
        """
        if type(rate) is not float or not 0.0 < rate <= 1.0:
            check_rate("rate", rate)
        q = self.q
        if isinstance(q, MarkovPath) and q.derivatives is not None:
            self.eta, self.lam = q.natural_step(rate, LEAST_LAM)
        else:
            d_mean, d_variance = self.derivatives()
            assert isinstance(q, Tracked)
            with torch.no_grad():
                least = least_lam(q.prior.variance)
                self.eta, self.lam = natural_step(self.eta, self.lam, q.mean, d_mean, d_variance, least, rate)
        self.q = None  # its derivatives have been used

    def derivatives(self) -> tuple[Tensor, Tensor]:
        """∂F̂/∂μ and ∂F̂/∂s of the last backward pass of a loss, minus the bound."""
        q = self.q
        if isinstance(q, MarkovPath) and q.derivatives is not None:
            return q.derivatives
        if (
            not isinstance(q, Tracked)
            or q.tracked_mean is None
            or q.tracked_mean.grad is None
            or q.tracked_variance.grad is None
        ):
            raise RuntimeError("a natural step needs a backward pass of the loss before it, such as svi.step(data).")
        communicator = column_communicator_of(*self._call)
        if communicator.size > 1 and not q.is_total:  # each process has the derivatives of its own columns
            q.tracked_mean.grad, q.tracked_variance.grad = communicator.all_reduce(
                torch.stack([q.tracked_mean.grad, q.tracked_variance.grad])
            )
            q.is_total = True
        return -q.tracked_mean.grad, -q.tracked_variance.grad


class Tracked(OpperArchambeau):
    """Returns the same tensors for mean and variance at each access, so that they collect gradients."""

    tracked_mean: Tensor | None = None
    tracked_variance: Tensor
    is_total: bool = False  # whether the gradients are those of the outputs of all processes

    def _track(self) -> None:
        if self.tracked_mean is None:
            self.tracked_mean = with_own_gradient(self.moments.mu)
            self.tracked_variance = with_own_gradient(self.moments.s.clamp_min(0.0))

    def take_gradients(self, mean: Tensor, variance: Tensor, d_mean: Tensor, d_variance: Tensor) -> None:
        self.tracked_mean, self.tracked_variance = mean, variance
        mean.grad, variance.grad = d_mean, d_variance

    @property
    def mean(self) -> Tensor:
        self._track()
        assert self.tracked_mean is not None
        return self.tracked_mean.expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        self._track()
        return self.tracked_variance.expand(self._extended_shape())
