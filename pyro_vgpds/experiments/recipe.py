# SPDX-License-Identifier: Apache-2.0
"""How an experiment trains a model: settings that can be stored, and predictions in the units of the data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import RBF, Bias, Kernel, Matern12, Matern32, Matern52, Periodic, White
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.outputs import Prediction, Reconstruction
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.storage import save_posterior
from pyro_vgpds.training.api import fit
from pyro_vgpds.types import ArrayLike

__all__ = ["Recipe", "Trained"]

_SMOOTH: dict[str, Any] = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52}


@dataclass(frozen=True)
class Recipe:
    """All settings of a model and its training."""

    temporal: str  #: "rbf", "matern12", "matern32", "matern52", or "periodic" for a cycle that drifts slowly
    latent_dim: int
    num_inducing: int
    num_steps: int
    scale: bool = False  #: divide outputs by their standard deviation
    noise_per_output: bool = False
    static_dim: int = 0  #: latent dimensions that start constant in each sequence
    per_dimension: bool = False  #: separate temporal parameters for each latent dimension
    period: float | None = None  #: the initial period of a periodic kernel
    lags: tuple[int, ...] = ()  #: neighbouring frames whose outputs are outputs of a frame as well

    def kernel(self) -> Kernel:
        if self.temporal == "periodic":
            assert self.period is not None, "a periodic kernel needs an initial period"
            slow = RBF(1.0, 5.0 * self.period).fix("variance")
            return Periodic(1.0, 1.0, self.period).fix("variance") * slow + White(1e-2) + Bias(0.1)
        smooth: Kernel = _SMOOTH[self.temporal]()
        return smooth.fix("variance") + White(1e-2) + Bias(0.1)

    def train(self, t: Sequence[Any], y: Sequence[np.ndarray], seed: int, progress: bool | None = None) -> Trained:
        """A model of these sequences. Deterministic: the same seed gives the same model.

        :raises KeyboardInterrupt: if training was interrupted, because a partly trained model is not a result.
        """
        start = time.perf_counter()
        data = Sequences(list(t), list(y))
        data = data.lagged(self.lags) if self.lags else data
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        model = VGPDS.from_data(
            data,
            self.latent_dim,
            min(self.num_inducing, data.num_frames),
            self.kernel(),
            static_dim=self.static_dim,
            noise_per_output=self.noise_per_output,
            scale_outputs=self.scale,
        )
        if self.per_dimension:
            model.temporal.per_dimension(model.latent_dim)
        guide = AutoOpperArchambeau(model)
        result = fit(model, guide, data, self.num_steps, progress=progress)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        seconds = time.perf_counter() - start
        return Trained(Posterior(model, guide, data), model, guide, result.bound, seconds)

    def settings(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Trained:
    """A trained model and its predictions, in the units of the data."""

    posterior: Posterior
    model: VGPDS
    guide: AutoOpperArchambeau
    bound: float
    seconds: float

    def with_noise(self, factor: float) -> Trained:
        """The same with one noise for each output: a multiple of the trained noise plus the residual variance.

        Lagged copies of outputs also have separate noise variances.
        """
        data = self.posterior.data
        every = Sequences(list(data.times.t.split(data.lengths)), list(data.read().split(data.lengths)))
        whole = Posterior(self.model, self.guide, every)
        return self._with(noise_variance=factor * (whole.noise_variance + whole.residual_variance()))

    def carrying(self, residual: Kernel) -> Trained:
        """The same with a temporal kernel for its residuals."""
        return self._with(noise_variance=self.posterior.settings.noise_variance, residual=residual)

    def balanced(self, share: float) -> Trained:
        """The same for outputs whose signals differ in size and were not scaled.

        The prior assumes that all outputs vary alike. The noise of an output that varies by less than a share of that,
        beyond the noise, would be fitted. So its scale becomes that at which its signal is that share.
        """
        post = self.posterior
        with torch.no_grad():
            level = share * float(self.model.mapping().cov_diag(post.q.mean[:1]))
        noise = float(post.noise_variance)
        signal = (post.data.output_variances - noise).clamp_min(0.05 * noise)
        return self._with(output_scale=(signal / level).clamp_max(1.0).sqrt())

    def _with(self, **settings: Any) -> Trained:
        return replace(self, posterior=Posterior(self.model, self.guide, self.posterior.data, **settings))

    def save(self, path: Path, **metadata: Any) -> None:
        """A file that :func:`~pyro_vgpds.load_posterior` and the command line read.

        :param metadata: more about the outputs, such as the ``shape`` of a video's frames.
        """
        save_posterior(path, self.posterior, metadata)

    def predict(self, t: ArrayLike, y: np.ndarray, sequence: int | None = None, **options: Any) -> Reconstruction:
        """Predictions of partly observed frames."""
        return self.posterior.reconstruct(t, y, sequence, **options)

    def reconstruct(self, t: ArrayLike, y: np.ndarray, sequence: int | None = None, **options: Any) -> np.ndarray:
        """Means (T, D) of partly observed frames."""
        return self.mean(self.predict(t, y, sequence, **options))

    def mean(self, prediction: Prediction) -> np.ndarray:
        """Means (T, D)."""
        return prediction.mean.numpy()

    def variance(self, prediction: Prediction) -> np.ndarray:
        """Variances (T, D)."""
        return prediction.variance.numpy()
