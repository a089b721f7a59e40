# SPDX-License-Identifier: Apache-2.0
"""The correlation in time of residuals, chosen by the density of hidden entries.

Training residuals do not show it: where an output was observed, the latent path has fitted what the output has of its
own. So some observed entries are hidden, q(X) is found again without them at fixed hyperparameters, and what the
residuals of the other entries tell about them is compared for a few kernels.
"""

from __future__ import annotations

import pyro
import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import Split, hold_out
from pyro_vgpds.inference.distributed_elbo import independent
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.kernels import Kernel, Matern12, Matern32, White
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.prediction.conditioning import condition
from pyro_vgpds.prediction.fitted import FittedModel
from pyro_vgpds.prediction.residuals import Correlation, Residuals, every_frame

__all__ = ["choose_residual", "typical_step"]

#: kernels of residuals: class, lengthscale in frames, and share of white noise
_KERNELS: tuple[tuple[type[Matern12 | Matern32], float, float], ...] = (
    (Matern32, 2.0, 0.05),
    (Matern32, 4.0, 0.05),
    (Matern12, 1.5, 0.1),
    (Matern12, 3.0, 0.1),
)
_GAIN = 0.005  # nats for each hidden entry by which a kernel must be better than white noise
_SHARE = 0.1  # of the entries that are hidden
_STEPS = 10  # of q(X) without them
_MOST = 10**7  # entries of the data, which are held in memory


def choose_residual(posterior: FittedModel) -> Kernel | None:
    """The kernel of residuals under which hidden training entries are most likely; None for white noise.

    The hidden gaps are like those of the data. Residuals are white if nothing is missing, because then no entry
    between the others is to be predicted, if outputs are not Gaussian, or if the data are not all in memory.

    :param posterior: a trained model whose noise is white.
    """
    data, training = posterior.data, posterior.training
    own = data.num_base_outputs
    if (
        posterior.likelihood is not None
        or training.summary is not None
        or not isinstance(posterior.origin.guide, OpperArchambeauGuide)
        or data.num_frames * own > _MOST
        or bool(data.mask()[:, :own].all())
    ):
        return None
    state = pyro.util.get_rng_state()
    try:
        split = hold_out(data, "impute", share=_SHARE)
    except ValueError:  # too few entries to hide some of them
        return None
    try:
        with independent():  # a posterior is of one process
            return _best(condition(posterior, split.train, num_steps=_STEPS), split)
    except NumericalError:
        return None
    finally:  # the caller's random numbers do not depend on the choice
        pyro.util.set_rng_state(state)


def typical_step(data: Sequences) -> float:
    """The typical time between frames; 1 if there are only single frames."""
    steps = torch.cat([data.times.t[rows].diff() for rows in data.times.slices()])
    return float(steps.median()) if len(steps) else 1.0


@torch.no_grad()
def _best(blind: FittedModel, split: Split) -> Kernel | None:
    """The best kernel of a model of the training part."""
    t, truth, step = blind.data.times.t, torch.cat(split.truth), typical_step(blind.data)
    hidden = truth.isfinite()
    function = blind.predict(t, blind.q, blind.inducing, include_noise=False)
    error, uncertain = (truth - function.mean)[hidden], function.variance[hidden]

    def density(kernel: Kernel | None) -> float:
        """The mean log-density of the hidden entries, up to a constant."""
        shift, noise = (part[hidden] for part in _noise(blind, kernel))
        variance = uncertain + noise
        return -0.5 * float(((error - shift).square() / variance + variance.log()).mean())

    kernels = [kind(1.0 - white, scale * step) + White(white) for kind, scale, white in _KERNELS]
    best, kernel = max(((density(kernel), kernel) for kernel in kernels), key=lambda pair: pair[0])
    return kernel if best > density(None) + _GAIN else None


def _noise(blind: FittedModel, kernel: Kernel | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of the noise at the training frames, (N, D) each."""
    t, inducing = blind.data.times.t, blind.inducing
    index = torch.arange(blind.num_outputs, device=t.device)
    variance = inducing.noise_of(index).expand(len(t), -1)
    if kernel is None:
        return torch.zeros_like(variance), variance
    v = variance.new_empty(inducing.basis.size, len(index))
    for part in inducing.columns():
        v[:, part.outputs] = part.mean
    carried = Residuals(Correlation.read(kernel, t), inducing, t, every_frame(blind.data))
    mean, share = carried.moments(index, v)
    return mean, share * variance
