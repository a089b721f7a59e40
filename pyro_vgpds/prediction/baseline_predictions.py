# SPDX-License-Identifier: Apache-2.0
"""Predictions that are given, as baselines make them: by moments, or by the means of outputs that are not Gaussian."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_probability, find_output
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.likelihoods.factors import filled
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.prediction.arguments import expose
from pyro_vgpds.prediction.marginals import drop_known, put_known
from pyro_vgpds.prediction.outputs import Outputs, Parts
from pyro_vgpds.prediction.quantiles import mixture_cdf, mixture_quantiles
from pyro_vgpds.types import ArrayLike

__all__ = ["ComponentPrediction", "GaussianPrediction"]


class GaussianPrediction(Outputs):
    """Independent Gaussian outputs at T times with given moments.

    :param t: the times, (T,).
    :param data: the sequences that it was made from, for the names of the outputs and the dates.
    :param mean: (T, D).
    :param variance: (T, D); 0 for numbers that were observed.
    :param include_noise: whether the variance includes the noise of the outputs.
    :param parts: the sequences that the frames belong to. Default: one.

    >>> import torch
    >>> from pyro_vgpds.prediction import GaussianPrediction
    >>> t, mean = data.times.t[:3], torch.zeros(3, 5).double()
    >>> GaussianPrediction(t, data, mean, mean + 4.0).interval(0.95)[1][0, 0].round(decimals=6).item()
    3.919928
    """

    def __init__(
        self,
        t: Tensor,
        data: Sequences,
        mean: Tensor,
        variance: Tensor,
        include_noise: bool = True,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(t, data, include_noise, parts)
        self._moments = mean, variance

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        raise AssertionError("the moments are given")

    def sample(self, num_samples: int = 1) -> Tensor:
        check_count("num_samples", num_samples)
        return self.mean + self.stddev * torch.randn(
            num_samples, *self.shape, dtype=self.mean.dtype, device=self.mean.device
        )


class ComponentPrediction(Outputs):
    """Outputs at T times, (T, D): an equal mixture of a likelihood with given means.

    :param means: of the components at the exposure 1, (K, T, D).
    :param outputs: the likelihood at its parameters, with the exposures of these frames. It has one function for each
        output.
    :param observed: (T, D), known numbers that are returned unchanged, NaN elsewhere. Default: none.
    """

    is_gaussian = False

    def __init__(
        self,
        t: Tensor,
        data: Sequences,
        means: Tensor,
        outputs: LikelihoodValue,
        observed: Tensor | None = None,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(t, data, True, parts)
        self.means, self.outputs, self.observed = means.double(), outputs, observed
        self._weight = means.new_full((len(means),), 1.0 / len(means), dtype=torch.float64)

    @property
    def is_whole(self) -> Tensor:
        return self.outputs.is_discrete(self.shape[1]).to(self.t.device)

    def kind_of(self, output: int) -> str:
        return self.outputs.likelihood.kind_of(find_output("output", output, None, self.shape[1]))

    def with_outputs(self, outputs: LikelihoodValue) -> ComponentPrediction:
        """The same means with another likelihood at its parameters, with exposures."""
        new = copy.copy(self)
        new.outputs, new._moments = outputs, None
        return new

    def with_exposure(self, exposure: ArrayLike) -> ComponentPrediction:
        """As :meth:`OutputPrediction.with_exposure
        <pyro_vgpds.prediction.output_prediction.OutputPrediction.with_exposure>`.
        """
        return self.with_outputs(expose(self.outputs, exposure, self))

    @property
    def _f(self) -> Tensor:
        """Function values (K, T, D) with these means."""
        return self.outputs.link(self.means)

    def _known(self, value: Tensor, known: Tensor | float | None = None) -> Tensor:
        return put_known(self.observed, value, known).to(self.t.dtype)

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        means, variances = self.outputs.moments(self._f)
        mean = means.mean(0)
        return self._known(mean), self._known((variances + (means - mean).square()).mean(0), 0.0)

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        check_probability(probability)
        levels = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
        low, high = mixture_quantiles(self.outputs, self._f, self._weight, levels)
        return self._known(low), self._known(high)

    def sample(self, num_samples: int = 1) -> Tensor:
        """Draws (num_samples, T, D), each of one component."""
        check_count("num_samples", num_samples)
        which = torch.randint(len(self.means), (num_samples,), device=self.means.device)
        return self._known(self.outputs.distribution(self._f[which]).sample())

    def log_probs(self, y: ArrayLike) -> Tensor:
        value = drop_known(self.observed, self.checked(y)).double()
        terms = self.outputs.log_prob_of(self.outputs.distribution(self._f), filled(value))
        found = torch.logsumexp(terms + self._weight.log()[:, None, None], 0)
        return torch.where(value.isfinite(), found, torch.nan).to(self.t.dtype)

    def cdf(self, y: ArrayLike) -> Tensor:
        value = self.checked(y).double()
        found = mixture_cdf(self.outputs, self._f, self._weight, filled(value))
        if self.observed is not None:
            found = self._known(found, self.observed <= value)
        return torch.where(value.isfinite(), found, torch.nan).to(self.t.dtype)
