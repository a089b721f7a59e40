# SPDX-License-Identifier: Apache-2.0
"""The dynamical GP-LVM that the paper compares with: the same model with latent points in place of q(X)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.inducing import InducingPosterior, PosteriorGP
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.reconstruction import nearest_frames
from pyro_vgpds.temporal.distributions import TemporalGP

__all__ = ["MapGPLVM"]

_WALL = 1e10  # what the line search sees where the objective has no value


@dataclass
class MapGPLVM:
    """MAP estimate of the latent path: log p(Y given X) + log p(X given t), maximised over X and all hyperparameters.

    This is a Gaussian process dynamical model in time (Lawrence 2007 with a prior on X), with the inducing inputs of
    ``model``. Nothing keeps it from fitting noise with more latent dimensions, which is what the variational treatment
    is for.

    >>> from pyro_vgpds.baselines import MapGPLVM
    >>> rival = MapGPLVM.fit(VGPDS.from_data(data, latent_dim=2, num_inducing=10), data, num_steps=5)
    >>> rival.x.shape
    torch.Size([48, 2])
    """

    model: VGPDS  #: the model that :meth:`fit` trained, in place
    x: Tensor  #: latent points of the training frames, (N, Q)
    data: Sequences  #: the training sequences

    @classmethod
    def fit(cls, model: VGPDS, data: Sequences, num_steps: int = 300) -> MapGPLVM:
        """Train a model by L-BFGS, in place.

        :param model: made by :meth:`VGPDS.from_data <pyro_vgpds.VGPDS.from_data>`.
        :param data: the training sequences.
        :param num_steps: iterations at the most.
        :raises ValueError: where the model has no start.
        """
        if model.start is None:
            raise ValueError("MapGPLVM.fit needs a model made by VGPDS.from_data, whose start it begins from.")
        # X = K^½ e: in e the prior is white, and steps are smooth paths
        prior = TemporalGP(model.temporal(), data.times, model.latent_dim, structure=model.structure)
        with torch.no_grad():
            target = model.start.x
            lam = torch.full_like(target, 10.0)
            smooth = prior.covariance.gain(lam, lam.sqrt() * target)
            white = prior.covariance.uncorrelate(smooth).contiguous()  # as L-BFGS wants it
        white.requires_grad_()

        def objective() -> Tensor:
            prior = TemporalGP(model.temporal(), data.times, model.latent_dim, structure=model.structure)
            x = prior.covariance.correlate(white)
            return _fit_of(model, x, data) - 0.5 * white.square().sum()

        with pyro.get_param_store().scope():
            _maximise(objective, [white, *model.parameters()], num_steps)
            with torch.no_grad():
                prior = TemporalGP(model.temporal(), data.times, model.latent_dim, structure=model.structure)
                return cls(model, prior.covariance.correlate(white), data)

    def reconstruct(self, t: Any, y: Any, num_steps: int = 100) -> Tensor:
        """Outputs (T, D) of a new sequence that was seen in part; the search starts at the nearest training frames.

        :param t: times (T,).
        :param y: outputs (T, D), NaN where they are hidden.
        :param num_steps: iterations at the most.

        >>> seen = data.read()[:10].clone()
        >>> seen[:, 3:] = float("nan")
        >>> rival.reconstruct(data.times.t[:10], seen, num_steps=5).shape
        torch.Size([10, 5])
        """
        new = Sequences(t, y, dtype=self.data.dtype, device=self.data.device)
        both = self.data.joined(new)
        with torch.no_grad():
            prior = TemporalGP(self.model.temporal(), new.times, self.model.latent_dim, structure=self.model.structure)
            near, known = nearest_frames(self.data, new, self.model.output_scale)
            target = self.x[near] * known
            lam = torch.full_like(target, 10.0) * known + 1e-6
            white = prior.covariance.uncorrelate(prior.covariance.gain(lam, lam.sqrt() * target)).contiguous()
        white.requires_grad_()

        def objective() -> Tensor:
            x = torch.cat([self.x, prior.covariance.correlate(white)])
            return _fit_of(self.model, x, both) - 0.5 * white.square().sum()

        with pyro.get_param_store().scope():
            _maximise(objective, [white], num_steps)
            with torch.no_grad():
                x = torch.cat([self.x, prior.covariance.correlate(white)])
                zero = torch.zeros_like(x)
                posterior = InducingPosterior(self.model.likelihood(x, both), x, zero, both)
                return PosteriorGP(x[len(self.x) :], posterior).mean


def _fit_of(model: VGPDS, x: Tensor, data: Sequences) -> Tensor:
    """Log p(Y given X), the variational bound of the sparse GP."""
    assert data.y is not None
    return model.likelihood(x, data).log_prob(data.y)


def _maximise(objective: Callable[[], Tensor], parameters: list[Any], num_steps: int) -> None:
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=num_steps, max_eval=num_steps, history_size=20, line_search_fn="strong_wolfe",
        tolerance_grad=0.0, tolerance_change=0.0,
    )  # fmt: skip

    def closure() -> float:
        optimiser.zero_grad()
        try:
            loss = -objective()
        except NumericalError:
            return _WALL
        loss.backward()
        return float(loss.detach())

    optimiser.step(closure)
