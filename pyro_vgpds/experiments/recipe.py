# SPDX-License-Identifier: Apache-2.0
"""How an experiment trains a model, and the noise and scale that it predicts with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import RBF, Bias, Kernel, Matern12, Matern32, Matern52, Periodic, White
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.training.api import fit
from pyro_vgpds.types import ArrayLike

__all__ = ["Recipe", "balanced_scale", "noise_with_residuals", "train_default"]

_SMOOTH: dict[str, type[RBF | Matern12 | Matern32 | Matern52]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
}


@dataclass(frozen=True)
class Recipe:
    """All choices about a model and its training."""

    temporal: str  #: "rbf", "matern12", "matern32", "matern52", or "periodic" for a cycle that drifts slowly
    latent_dim: int
    num_inducing: int  #: at most; no more than frames
    num_steps: int
    scale: bool = False  #: divide outputs by their standard deviation within the model
    noise_per_output: bool = False
    static_dim: int = 0  #: number of latent dimensions that are initialised to one constant per sequence
    per_dimension: bool = False  #: each latent dimension has its own temporal parameters
    period: float | None = None  #: initial period
    lags: tuple[int, ...] = ()  #: neighbouring frames whose outputs are also outputs of a frame
    lengthscale: float | None = None  #: fixed lengthscale of time. Default: learned

    def kernel(self) -> Kernel:
        if self.temporal == "periodic":
            assert self.period is not None, "a periodic kernel requires an initial period"
            slow = RBF(1.0, 5.0 * self.period).fix("variance")
            return Periodic(1.0, 1.0, self.period).fix("variance") * slow + White(1e-2) + Bias(0.1)
        smooth = _SMOOTH[self.temporal](lengthscale=self.lengthscale).fix("variance")
        return (smooth if self.lengthscale is None else smooth.fix("lengthscale")) + White(1e-2) + Bias(0.1)

    def train(
        self, t: Sequence[ArrayLike], y: Sequence[np.ndarray], seed: int, progress: bool | None = None
    ) -> Posterior:
        """A model of these sequences. The same seed gives the same model."""
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
        return _fitted(model, data, self.num_steps, progress)

    def settings(self) -> dict[str, object]:
        return asdict(self)


def train_default(data: Sequences, seed: int, num_steps: int | None = None, progress: bool | None = None) -> Posterior:
    """The library's default model. The same seed gives the same model."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    return _fitted(VGPDS.from_data(data), data, num_steps, progress)


def _fitted(model: VGPDS, data: Sequences, num_steps: int | None, progress: bool | None) -> Posterior:
    guide = AutoOpperArchambeau(model)
    if fit(model, guide, data, num_steps, progress=progress).stopped == "interrupted":
        raise KeyboardInterrupt
    return Posterior(model, guide, data)


def noise_with_residuals(posterior: Posterior, factor: float) -> Tensor:
    """A noise variance for each output: a multiple of the trained one plus the variance of its residuals.

    Lagged copies of outputs have their own.
    """
    data = posterior.data
    t, y = (list(values.split(data.lengths)) for values in (data.times.t, data.read()))
    every = Posterior(posterior.origin.model, posterior.origin.guide, Sequences(t, y))  # lags as outputs
    return factor * (every.noise_variance + every.residual_variance())


def balanced_scale(posterior: Posterior, share: float) -> Tensor:
    """Scales (D,) for outputs of unequal signal that were trained without scales.

    The prior assumes that all outputs vary alike, so the noise of an output with little signal would be fitted. The
    scale of such an output makes its signal, the variance beyond the noise, a share of the mapping's variance.
    """
    model, noise = posterior.origin.model, float(posterior.noise_variance)
    with torch.no_grad():
        level = share * float(model.mapping().cov_diag(posterior.q.mean[:1]))
    signal = (posterior.data.output_variances - noise).clamp_min(0.05 * noise)
    return (signal / level).clamp_max(1.0).sqrt()
