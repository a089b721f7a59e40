# SPDX-License-Identifier: Apache-2.0
"""The correlation in time of residuals, chosen by the density of hidden entries.

Training residuals do not show it: where an output was observed, the latent path has fitted what the output has of its
own. So some observed entries are hidden, q(X) is found again without them at fixed hyperparameters, and what the
residuals of the other entries tell about them is compared for a few kernels.
"""

from __future__ import annotations

from dataclasses import replace

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import Split, hold_out
from pyro_vgpds.inference.distributed_elbo import independent
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.kernels import Kernel, Matern12, Matern32, White
from pyro_vgpds.likelihoods import StudentT
from pyro_vgpds.likelihoods.quadrature import hermite_nodes
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.prediction.conditioning import condition
from pyro_vgpds.prediction.fitted import FittedModel
from pyro_vgpds.prediction.output_residuals import OutputResiduals
from pyro_vgpds.prediction.predictions import Functions
from pyro_vgpds.prediction.residuals import Correlation, Residuals, every_frame, weights_of

__all__ = ["choose_residual", "typical_step"]

#: kernels of residuals: class, lengthscale in frames, and variances of it and of white noise
_KERNELS: tuple[tuple[type[Matern12 | Matern32], float, float, float], ...] = (
    (Matern32, 2.0, 0.95, 0.05),
    (Matern32, 4.0, 0.95, 0.05),
    (Matern12, 1.5, 0.9, 0.1),
    (Matern12, 3.0, 0.9, 0.1),
    (Matern32, 4.0, 0.5, 0.5),
    (Matern32, 4.0, 1.0, 0.7),
)
_SHORT = 1e-3  # lengthscale, in frames, of a path that carries nothing
_GAIN = 0.005  # nats for each hidden entry by which a kernel must be better than white noise
_SHARE = 0.05  # of the entries that are hidden in gaps, and of those that are hidden one by one
_STEPS = 10  # of q(X) without them
_NODES = 12  # of the function values of a hidden entry
_MOST = 10**7  # entries of the data, which are held in memory


def choose_residual(posterior: FittedModel) -> Kernel | None:
    """The kernel of residuals under which hidden training entries are most likely; None for white noise.

    Half of the hidden entries are in gaps like those of the data, the others are single ones. Residuals are white if
    nothing is missing, because then no entry between the others is to be predicted, if outputs are neither Gaussian nor
    Student-t, or if the data are not all in memory.

    :param posterior: a trained model whose noise is white.
    """
    data, training = posterior.data, posterior.training
    own = data.num_base_outputs
    if (
        not (posterior.likelihood is None or isinstance(posterior.likelihood.likelihood, StudentT))
        or training.summary is not None
        or not isinstance(posterior.origin.guide, OpperArchambeauGuide)
        or data.num_frames * own > _MOST
        or bool(data.mask()[:, :own].all())
    ):
        return None
    state = pyro.util.get_rng_state()
    try:
        split = _hide(data)
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


def _hide(data: Sequences) -> Split:
    """Gaps like those of the data, and single entries, which tell more about the kernel than long gaps."""
    gaps = hold_out(data, "impute", share=_SHARE)
    both = hold_out(gaps.train, "impute", share=_SHARE, pattern="entries")
    truth = [torch.where(a.isfinite(), a, b) for a, b in zip(gaps.truth, both.truth, strict=True)]
    return replace(both, truth=truth)


@torch.no_grad()
def _best(blind: FittedModel, split: Split) -> Kernel | None:
    """The best kernel of a model of the training part."""
    truth, step, outputs = torch.cat(split.truth).double(), typical_step(blind.data), blind.likelihood
    hidden = truth.isfinite()
    function = Functions(blind.data.times.t, blind.q, blind.inducing, include_noise=False)
    value, mean, uncertain = truth[hidden], function.mean[hidden].double(), function.variance[hidden].double()

    weights = weights_of(blind.inducing)

    def density(kernel: Kernel | None) -> float:
        """The mean log-density of the hidden entries, up to a constant."""
        if outputs is not None:
            return _density(blind, outputs, kernel, value, mean, uncertain, hidden)
        shift, noise = (part[hidden] for part in _noise(blind, kernel, weights))
        variance = uncertain + noise
        return -0.5 * float(((value - mean - shift).square() / variance + variance.log()).mean())

    kernels = [kind(own, scale * step) + White(white) for kind, scale, own, white in _KERNELS]
    white_ones: list[Kernel | None] = [None]
    if outputs is not None:  # other noise alone is no reason for a correlation; that of Gaussian outputs is the same
        white_ones += [kind(own, _SHORT * step) + White(white) for kind, _, own, white in _KERNELS if white >= 0.5]
    best, kernel = max(((density(kernel), kernel) for kernel in kernels), key=lambda pair: pair[0])
    return kernel if best > max(map(density, white_ones)) + _GAIN else None


def _density(
    blind: FittedModel, outputs: LikelihoodValue, kernel: Kernel | None, value: Tensor, mean: Tensor, variance: Tensor,
    hidden: Tensor,
) -> float:  # fmt: skip
    """The mean log-density of hidden Student-t outputs, by quadrature over f + e."""
    t = blind.data.times.t
    if kernel is not None:
        carried = OutputResiduals(Correlation.read(kernel, t), blind.inducing, t, every_frame(blind.data), outputs)
        outputs, (shift, more) = carried.outputs, carried.path_moments()
        mean, variance = mean + shift[hidden], variance + more[hidden]
    points, weight = hermite_nodes(_NODES)
    f = mean + variance.clamp_min(0.0).sqrt() * points.to(mean)
    df, scale = (x.double().expand(hidden.shape)[hidden] for x in (outputs.parameters.df, outputs.parameters.scale))
    terms = dist.StudentT(df, f, scale).log_prob(value) + weight.log().to(f).unsqueeze(-1)
    return float(torch.logsumexp(terms, 0).mean())


def _noise(blind: FittedModel, kernel: Kernel | None, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the noise at the training frames, (N, D) each, for these means of q(V)."""
    t, inducing = blind.data.times.t, blind.inducing
    index = torch.arange(blind.num_outputs, device=t.device)
    variance = inducing.noise_of(index).expand(len(t), -1)
    if kernel is None:
        return torch.zeros_like(variance), variance
    carried = Residuals(Correlation.read(kernel, t), inducing, t, every_frame(blind.data))
    mean, share = carried.moments(index, weights)
    return mean, share * variance
