# SPDX-License-Identifier: Apache-2.0
"""How an experiment trains a model: settings that can be written down, and predictions in the units of the data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyro

from pyro_vgpds.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import RBF, Bias, Kernel, Matern12, Matern32, Matern52, Periodic, White
from pyro_vgpds.model import VGPDS
from pyro_vgpds.posterior import Posterior
from pyro_vgpds.prediction import Prediction
from pyro_vgpds.sequences import Sequences
from pyro_vgpds.training import fit

__all__ = ["Recipe", "Trained"]

_SMOOTH: dict[str, Any] = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52}


@dataclass(frozen=True)
class Recipe:
    """Everything that is chosen about a model and its training."""

    temporal: str  #: "rbf", "matern12", "matern32", "matern52", or "periodic" for a cycle that drifts slowly
    latent_dim: int
    num_inducing: int
    num_steps: int
    scale: bool = False  #: divide outputs by their standard deviation
    noise_per_output: bool = False
    static_dim: int = 0  #: latent dimensions that start constant in each sequence
    per_dimension: bool = False  #: temporal parameters of its own for each latent dimension
    period: float | None = None  #: to begin with

    def kernel(self) -> Kernel:
        if self.temporal == "periodic":
            assert self.period is not None, "a periodic kernel begins with a period"
            slow = RBF(1.0, 5.0 * self.period).fix("variance")
            return Periodic(1.0, 1.0, self.period).fix("variance") * slow + White(1e-2) + Bias(0.1)
        smooth: Kernel = _SMOOTH[self.temporal]()
        return smooth.fix("variance") + White(1e-2) + Bias(0.1)

    def train(self, t: Sequence[Any], y: Sequence[np.ndarray], seed: int) -> Trained:
        """A model of these sequences. Deterministic: the same seed gives the same model."""
        start = time.perf_counter()
        scale = np.nanstd(np.concatenate(list(y)), 0) if self.scale else np.ones(y[0].shape[1])
        scale = np.where(scale > 1e-9, scale, 1.0)
        data = Sequences(list(t), [part / scale for part in y])
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        model = VGPDS.from_data(
            data,
            self.latent_dim,
            min(self.num_inducing, data.num_frames),
            self.kernel(),
            static_dim=self.static_dim,
            noise_per_output=self.noise_per_output,
        )
        if self.per_dimension:
            _spread_over_dimensions(model)
        guide = AutoOpperArchambeau(model)
        result = fit(model, guide, data, self.num_steps)
        return Trained(Posterior(model, guide, data), model, guide, scale, result.bound, time.perf_counter() - start)

    def settings(self) -> dict[str, Any]:
        return asdict(self)


def _spread_over_dimensions(model: VGPDS) -> None:
    """Give each latent dimension temporal parameters of its own, where they are learned."""
    for leaf in model.temporal.leaves():
        for name in list(leaf._pyro_params):
            leaf.set(name, getattr(leaf, name).detach().expand(model.latent_dim))


@dataclass(frozen=True)
class Trained:
    """A trained model, and the scale that its outputs were divided by, (D,)."""

    posterior: Posterior
    model: VGPDS
    guide: AutoOpperArchambeau
    scale: np.ndarray
    bound: float
    seconds: float

    def with_noise(self, factor: float) -> Trained:
        """The same with a noise for each output: a multiple of the trained one plus what is left unexplained of it."""
        trained = self.posterior.noise.expand(self.posterior.num_outputs)
        noise = factor * (trained + self.posterior.residual_variance())
        return replace(self, posterior=Posterior(self.model, self.guide, self.posterior.data, noise=noise))

    def reconstruct(self, t: Any, y: np.ndarray, sequence: int | None = None, **options: Any) -> np.ndarray:
        """Means (T, D) of partly seen frames."""
        return self.mean(self.posterior.reconstruct(t, y / self.scale, sequence, **options))

    def mean(self, prediction: Prediction) -> np.ndarray:
        """Means (T, D) in the units of the data."""
        mean: np.ndarray = prediction.mean.numpy() * self.scale
        return mean

    def variance(self, prediction: Prediction) -> np.ndarray:
        """Variances (T, D) in the units of the data."""
        variance: np.ndarray = prediction.variance.numpy() * self.scale**2
        return variance
