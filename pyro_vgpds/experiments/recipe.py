# SPDX-License-Identifier: Apache-2.0
"""How an experiment trains a model: settings that can be written down, and predictions in the units of the data."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch

from pyro_vgpds.data.lags import lagged
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.models import save
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import RBF, Bias, Kernel, Matern12, Matern32, Matern52, Periodic, White
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.outputs import Prediction
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.training.api import fit

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
    lags: tuple[int, ...] = ()  #: frames whose outputs count as outputs of a frame

    def kernel(self) -> Kernel:
        if self.temporal == "periodic":
            assert self.period is not None, "a periodic kernel begins with a period"
            slow = RBF(1.0, 5.0 * self.period).fix("variance")
            return Periodic(1.0, 1.0, self.period).fix("variance") * slow + White(1e-2) + Bias(0.1)
        smooth: Kernel = _SMOOTH[self.temporal]()
        return smooth.fix("variance") + White(1e-2) + Bias(0.1)

    def train(self, t: Sequence[Any], y: Sequence[np.ndarray], seed: int, progress: bool | None = None) -> Trained:
        """A model of these sequences. Deterministic: the same seed gives the same model.

        :raises KeyboardInterrupt: where training was interrupted; a model that is half trained is no result.
        """
        start = time.perf_counter()
        num_outputs = y[0].shape[1]
        y = [lagged(part, self.lags) for part in y]
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
        result = fit(model, guide, data, self.num_steps, progress=progress)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        seconds = time.perf_counter() - start
        return Trained(
            Posterior(model, guide, data), model, guide, scale, num_outputs, self.lags, result.bound, seconds
        )

    def settings(self) -> dict[str, Any]:
        return asdict(self)


def _spread_over_dimensions(model: VGPDS) -> None:
    """Give each latent dimension temporal parameters of its own, where they are learned."""
    for leaf in model.temporal.leaves():
        for name in list(leaf._pyro_params):
            leaf.set(name, getattr(leaf, name).detach().expand(model.latent_dim))


@dataclass(frozen=True)
class Trained:
    """A trained model, and what its outputs are: the data's, and those of lags, divided by a scale."""

    posterior: Posterior
    model: VGPDS
    guide: AutoOpperArchambeau
    scale: np.ndarray
    num_outputs: int
    lags: tuple[int, ...]
    bound: float
    seconds: float

    def with_noise(self, factor: float) -> Trained:
        """The same with a noise for each output: a multiple of the trained one plus what is left unexplained of it."""
        trained = self.posterior.noise_variance.expand(self.posterior.num_outputs)
        noise = factor * (trained + self.posterior.residual_variance())
        return replace(self, posterior=Posterior(self.model, self.guide, self.posterior.data, noise_variance=noise))

    def carrying(self, residual: Kernel) -> Trained:
        """The same with a kernel of time for its residuals."""
        post = self.posterior
        return replace(
            self,
            posterior=Posterior(
                self.model, self.guide, post.data, noise_variance=post.noise_variance, residual=residual
            ),
        )

    def balanced(self, share: float) -> Trained:
        """The same for outputs of unequal signal: each in units of its own, and the trained noise in those units.

        The prior takes all outputs to vary alike. One that varies by less than a share of that, beyond the noise, would
        have its noise fitted, so it is magnified to where its signal is that share; its noise grows along.
        """
        post = self.posterior
        with torch.no_grad():
            level = share * float(self.model.mapping().cov_diag(post.q.mean[:1]))
        noise = float(post.noise_variance)
        signal = (post.data.output_variances - noise).clamp_min(0.05 * noise)
        magnified = (signal / level).clamp_max(1.0).sqrt()
        model, guide = copy.deepcopy((self.model, self.guide))
        model.output_mean = model.output_mean / magnified
        data = Sequences(post.data.times.t, post.data.read() / magnified)
        posterior = Posterior(model, guide, data, noise_variance=noise / magnified**2)
        scale = self.scale * magnified.numpy()
        return replace(self, posterior=posterior, model=model, guide=guide, scale=scale)

    def save(self, path: Path, **metadata: Any) -> None:
        """A file as those of the command line, whose answers are in the units of the data.

        :param metadata: what else is known of the outputs, such as the ``shape`` of a video's frames.
        """
        scale = None if (self.scale == 1.0).all() else torch.as_tensor(self.scale)
        about = {"scale": scale, "lags": list(self.lags), **metadata}
        save(path, self.model, self.guide, self.posterior.data, about)

    def predict(self, t: Any, y: np.ndarray, sequence: int | None = None, **options: Any) -> Prediction:
        """Partly seen frames, in the model's units."""
        return self.posterior.reconstruct(t, lagged(y, self.lags) / self.scale, sequence, **options)

    def reconstruct(self, t: Any, y: np.ndarray, sequence: int | None = None, **options: Any) -> np.ndarray:
        """Means (T, D) of partly seen frames."""
        return self.mean(self.predict(t, y, sequence, **options))

    def mean(self, prediction: Prediction) -> np.ndarray:
        """Means (T, D) in the units of the data."""
        mean: np.ndarray = (prediction.mean.numpy() * self.scale)[:, : self.num_outputs]
        return mean

    def variance(self, prediction: Prediction) -> np.ndarray:
        """Variances (T, D) in the units of the data."""
        variance: np.ndarray = (prediction.variance.numpy() * self.scale**2)[:, : self.num_outputs]
        return variance
