# SPDX-License-Identifier: Apache-2.0
"""The dynamical GP-LVM that the paper compares with: the same model with latent points instead of q(X)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_kind
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.ascent import lbfgs, lbfgs_steps
from pyro_vgpds.mapping.inducing import InducingPosterior
from pyro_vgpds.mapping.posterior_gp import PosteriorGP
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.arguments import read_new_data
from pyro_vgpds.prediction.solver import nearest_frames
from pyro_vgpds.pyro_state import one_at_a_time, own_store
from pyro_vgpds.temporal.distributions import TemporalGP
from pyro_vgpds.types import ArrayLike

__all__ = ["MapGPLVM"]

_WALL = 1e10  # what the line search sees if the objective is not finite
_PRECISION = 10.0  # of the initial latent points, which are smoothed by the prior


@dataclass
class MapGPLVM:
    """MAP estimate of the latent path: log p(Y given X) + log p(X given t), maximised over X and all hyperparameters.

    This is a Gaussian process dynamical model in time (Lawrence 2007 with a prior on X), with the inducing inputs of
    ``model``. Nothing keeps it from fitting noise with more latent dimensions; the variational treatment does.

    >>> from pyro_vgpds.baselines import MapGPLVM
    >>> rival = MapGPLVM.fit(VGPDS.from_data(data, latent_dim=2, num_inducing=10), data, num_steps=5)
    >>> rival.x.shape
    torch.Size([48, 2])
    """

    model: VGPDS  #: the model that :meth:`fit` trained, in place
    x: Tensor  #: latent points of the training frames, (N, Q)
    data: Sequences  #: the training sequences

    @classmethod
    @one_at_a_time
    def fit(cls, model: VGPDS, data: Sequences, num_steps: int = 300) -> MapGPLVM:
        """Train a model by L-BFGS, in place.

        :param model: made by :meth:`VGPDS.from_data <pyro_vgpds.VGPDS.from_data>`.
        :param data: the training sequences.
        :param num_steps: maximum number of iterations.
        :raises ValueError: if the model has no initial latent points.
        """
        check_kind("model", model, VGPDS, "a VGPDS")
        check_data(data)
        check_count("num_steps", num_steps)
        if model.start is None:
            raise ValueError("MapGPLVM.fit needs a model made by VGPDS.from_data, for its initial latent points.")
        target = model.start.x
        white = _whitened(_prior(model, data.times), target, torch.full_like(target, _PRECISION))

        def path() -> Tensor:
            return _prior(model, data.times).covariance.correlate(white)

        with own_store():
            _maximise(lambda: _log_joint(model, path(), data, white), [white, *model.parameters()], num_steps)
            with torch.no_grad():
                return cls(model, path(), data)

    @one_at_a_time
    def reconstruct(self, t: ArrayLike, y: ArrayLike, num_steps: int = 100) -> Tensor:
        """Outputs (T, D) of a new, partly observed sequence. The search starts at the nearest training frames.

        :param t: times (T,).
        :param y: outputs (T, D), NaN if hidden.
        :param num_steps: maximum number of iterations.

        >>> seen = data.read()[:10].clone()
        >>> seen[:, 3:] = float("nan")
        >>> rival.reconstruct(data.times.t[:10], seen, num_steps=5).shape
        torch.Size([10, 5])
        """
        check_count("num_steps", num_steps)
        new = read_new_data(t, y, self.data)
        both = self.data.joined(new)
        with torch.no_grad():
            prior = _prior(self.model, new.times)
            near, known = nearest_frames(self.data, new, self.model.output_scale)
            target = self.x[near] * known
        white = _whitened(prior, target, torch.full_like(target, _PRECISION) * known + 1e-6)

        def path() -> Tensor:
            return torch.cat([self.x, prior.covariance.correlate(white)])

        with own_store():
            _maximise(lambda: _log_joint(self.model, path(), both, white), [white], num_steps)
            with torch.no_grad():
                x = path()
                posterior = InducingPosterior(self.model.likelihood(x, both), x, torch.zeros_like(x), both)
                return PosteriorGP(x[len(self.x) :], posterior).mean


def _prior(model: VGPDS, times: Times) -> TemporalGP:
    return TemporalGP(model.temporal(), times, model.latent_dim, structure=model.structure)


def _whitened(prior: TemporalGP, target: Tensor, lam: Tensor) -> Tensor:
    """The leaf e of X = K^½ e near ``target``: in e the prior is white, and steps are smooth paths."""
    with torch.no_grad():
        smooth = prior.covariance.gain(lam, lam.sqrt() * target)
        white = prior.covariance.uncorrelate(smooth).contiguous()  # L-BFGS needs it contiguous
    return white.requires_grad_()


def _log_joint(model: VGPDS, x: Tensor, data: Sequences, white: Tensor) -> Tensor:
    """The sparse GP's variational bound on log p(Y given X), plus log p(X given t) without its constants."""
    assert data.y is not None
    return model.likelihood(x, data).log_prob(data.y) - 0.5 * white.square().sum()


def _maximise(objective: Callable[[], Tensor], parameters: list[Tensor], num_steps: int) -> None:
    def evaluate() -> float:
        loss = -objective()
        loss.backward()
        return -float(loss.detach())

    lbfgs_steps(lbfgs(parameters), evaluate, lambda: _WALL, num_steps)
