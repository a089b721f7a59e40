# SPDX-License-Identifier: Apache-2.0
"""Predictive distributions of outputs that are not Gaussian."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_vgpds.checks import check_count, check_flags, check_probability, find_output
from pyro_vgpds.likelihoods.factors import filled
from pyro_vgpds.likelihoods.quadrature import hermite_nodes, normal_draws, normal_lattice, with_moments
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.mapping.inducing import InducingPosterior
from pyro_vgpds.mapping.posterior_gp import PosteriorGP
from pyro_vgpds.prediction.arguments import expose
from pyro_vgpds.prediction.correlations import Correlations
from pyro_vgpds.prediction.marginals import drop_known, hidden_covariance, put_known
from pyro_vgpds.prediction.output_residuals import OutputResiduals
from pyro_vgpds.prediction.outputs import Parts
from pyro_vgpds.prediction.predictions import Functions, Prediction, Reconstruction
from pyro_vgpds.prediction.quantiles import Weighted, mixture_cdf, mixture_log_probs, mixture_quantiles
from pyro_vgpds.prediction.residuals import Residuals
from pyro_vgpds.threads import thread_limited
from pyro_vgpds.types import ArrayLike

__all__ = ["OutputPrediction", "OutputReconstruction"]

_DRAWS = 32  # of the latent point of a frame, in antithetic pairs
_NODES = {1: 7, 2: 4}  # Gauss–Hermite points in each function of an output, by the number of these functions
_POINTS = 12  # of a function value for functions with steps
_BLOCK = 1 << 23  # largest array of draws × nodes × frames × outputs


class _Nodes(NamedTuple):
    """Function values (K, T, F) of some frames that stand for their distribution, and their weights (K,)."""

    rows: slice
    outputs: LikelihoodValue  #: the likelihood of these frames
    f: Tensor
    weight: Tensor


class OutputPrediction(Prediction):
    """Outputs at T times, (T, D), that are not Gaussian. :class:`~pyro_vgpds.Posterior` makes them.

    The predictive distribution of an entry is a mixture over the latent point x and the function value f: f given x is
    Gaussian and is integrated by Gauss–Hermite quadrature, x by antithetic quasi-random draws that are the same in each
    call. The mixture has the exact mean and variance of f (``likelihoods/quadrature.py``). ``mean`` is the mean of
    the output: a rate for counts, a probability for yes/no. ``interval`` has quantiles of the mixture, whole numbers
    for counts. ``log_prob`` is the log-probability of each entry under the mixture, summed.

    With ``include_noise=False`` it is the distribution of the rate: the mean of the output given f.

    With residuals e that are correlated in time, f + e takes the place of f, and the likelihood has the scale of the
    white part. The distribution of the rate is that of the mapping alone.

    :param outputs: the likelihood at its parameters.
    :param residuals: residuals carried to these times. Default: the noise is white. Other parameters as in
        :class:`~pyro_vgpds.Prediction`.
    """

    def __init__(
        self,
        t: Tensor,
        path: TorchDistribution,
        inducing: InducingPosterior,
        outputs: LikelihoodValue,
        *,
        include_noise: bool = True,
        observed: Tensor | None = None,
        residuals: Residuals | None = None,
        correlations: Correlations | None = None,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(
            t, path, inducing, include_noise=include_noise, observed=observed, correlations=correlations, parts=parts
        )
        self.outputs = outputs
        self._paths = residuals if isinstance(residuals, OutputResiduals) else None
        self._exact: tuple[Tensor, Tensor] | None = None

    is_gaussian = False

    @property
    def _carried(self) -> OutputResiduals | None:
        return self._paths if self.include_noise else None

    @property
    def _given(self) -> LikelihoodValue:
        """The likelihood given the functions and what is carried of residuals."""
        return self.outputs if self._carried is None else self._carried.outputs

    @property
    def is_whole(self) -> Tensor:
        return self.outputs.is_discrete(self.shape[1]).to(self.t.device) if self.include_noise else super().is_whole

    @property
    def function(self) -> Prediction:
        """The latent functions f, (T, F), as a Gaussian prediction with their exact moments."""
        return Functions(
            self.t, self.path, self.inducing, include_noise=False, correlations=self.correlations, parts=self.parts
        )

    @property
    def rate(self) -> OutputPrediction:
        """The mean of the outputs given f: a rate for counts, a probability for yes/no."""
        return self.with_noise(False)

    def kind_of(self, output: int) -> str:
        kind = self.outputs.likelihood.kind_of(find_output("output", output, None, self.shape[1]))
        return "continuous" if kind == "count" and not self.include_noise else kind

    def with_noise(self, include_noise: bool) -> OutputPrediction:
        check_flags(include_noise=include_noise)
        return self if include_noise == self.include_noise else self._changed(include_noise, self.outputs)

    def with_exposure(self, exposure: ArrayLike) -> OutputPrediction:
        """The prediction for counts with other exposures, such as the population of the next year.

        :param exposure: (D,) or (T, D), positive; 1 for outputs that are not counts.
        :raises ValueError: if the shape is another, an exposure is not positive, or an output has none.
        """
        return self._changed(self.include_noise, expose(self.outputs, exposure, self))

    def _changed(self, include_noise: bool, outputs: LikelihoodValue) -> OutputPrediction:
        new = copy.copy(self)
        new.include_noise, new.outputs, new._moments, new._covariance = include_noise, outputs, None, None
        return new

    # the mixture

    def _function_moments(self) -> tuple[Tensor, Tensor]:
        """The exact mean and variance of the functions, (T, F) each."""
        if self._exact is None:
            mean = self.path.mean.double()
            found = mean.new_empty(2, len(mean), self.inducing.num_outputs)
            for rows, frames in self._frames():
                for index, _, centre, spread in self.inducing.moments(frames):
                    found[0][rows, index], found[1][rows, index] = centre, spread
            self._exact = found[0], found[1]
        return self._exact

    def _functions(self, num_nodes: int, widen: bool = True) -> Iterator[tuple[slice, LikelihoodValue, Tensor, Tensor]]:
        """Rows, the likelihood there, and mean and variance of the functions given draws of x, (S, T, F) each, with
        what is carried of residuals.

        The arrays will be multiplied by ``num_nodes`` nodes of each function value; ``widen`` is for
        :func:`~pyro_vgpds.likelihoods.quadrature.with_moments`.
        """
        mean, variance, exact = self.path.mean.double(), self.path.variance.double(), self._function_moments()
        z = normal_draws(_DRAWS, mean.shape[1]).to(mean)
        shift, noise = (None, None) if self._carried is None else self._carried.path_moments()
        step = max(1, _BLOCK // (_DRAWS * num_nodes * self.inducing.num_outputs))
        for start in range(0, len(mean), step):
            rows = slice(start, min(start + step, len(mean)))
            x = mean[rows] + variance[rows].sqrt() * z.unsqueeze(-2)  # (S, T, Q)
            centre, spread = PosteriorGP(x, self.inducing, include_noise=False).moments()
            moments = (part[rows] for part in exact)
            centre, spread = with_moments(centre, spread.clamp_min(0.0), *moments, widen=widen)
            if shift is not None and noise is not None:
                centre, spread = centre + shift[rows], spread + noise[rows]
            yield rows, self._given.rows(rows), centre, spread

    def _nodes(self, has_steps: bool = False, widen: bool = True) -> Iterator[_Nodes]:
        """Function values that stand for the distribution of each entry, some frames at a time: more of them for
        functions of f that have steps.
        """
        count, functions = self.outputs.likelihood.num_functions, self.inducing.num_outputs
        if has_steps and count == 1:
            points = normal_lattice(_POINTS, _DRAWS + widen)[..., None, None]  # (H, S, 1, 1)
            weight = torch.full((_POINTS,), 1.0 / _POINTS, dtype=torch.float64)
        else:
            points, weight = hermite_nodes(_NODES.get(count, 3), count)  # (H, P), (H,)
            # function d·P + p has the p-th coordinate of the points
            points = points.repeat(1, functions // count)[:, None, None]  # (H, 1, 1, F)
        for rows, outputs, centre, spread in self._functions(len(weight), widen):
            f = centre + spread.sqrt() * points.to(centre)  # (H, S, T, F)
            share = (weight.to(centre) / len(centre)).repeat_interleave(len(centre))
            yield _Nodes(rows, outputs, f.flatten(0, 1), share)

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        every = torch.arange(self.shape[1], device=self.t.device)
        with torch.no_grad():
            for rows, outputs, f, weight in self._nodes():
                w = weight[:, None, None]
                means, variances = outputs.moments(f)
                mean = (w * means).sum(0)
                variance = (w * (means - mean).square()).sum(0)
                if self.include_noise:
                    variance = variance + (w * variances).sum(0)
                mean, variance = put_known(self.observed, mean, at=rows), put_known(self.observed, variance, 0.0, rows)
                yield rows, every, mean, variance

    @thread_limited
    def _make_covariance(self) -> Tensor:
        parts = []
        with torch.no_grad():
            # what widens the components is independent in each output
            for rows, outputs, f, weight in self._nodes(widen=False):
                means, _ = outputs.moments(f)
                given = means.unflatten(0, (-1, _DRAWS)).mul(weight.unflatten(0, (-1, _DRAWS))[..., None, None])
                given = given.sum(0) * _DRAWS  # (S, T, D): the mean given the latent point
                centred = given - given.mean(0)
                full = torch.einsum("std,ste->tde", centred, centred) / _DRAWS
                full.diagonal(dim1=-2, dim2=-1).copy_(self.variance[rows])
                parts.append(full)
        full = torch.cat(parts)
        return hidden_covariance(self.observed, full).to(self.t.dtype)

    @thread_limited
    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (T, D) of central intervals: quantiles of each entry's predictive distribution.

        For counts and yes/no they are whole numbers, and the interval holds at least ``probability``.
        """
        check_probability(probability)
        levels = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
        ends = torch.empty(2, *self.shape, dtype=self.t.dtype, device=self.t.device)
        with torch.no_grad():
            for rows, outputs, f, weight in self._nodes(has_steps=True):
                if not self.include_noise:
                    found = Weighted(outputs.moments(f)[0], weight).quantiles(levels)
                else:
                    found = mixture_quantiles(outputs, f, weight, levels)
                for end, value in zip(ends, found, strict=True):
                    end[rows] = put_known(self.observed, value, at=rows)
        return ends[0], ends[1]

    @thread_limited
    def sample(self, num_samples: int = 1) -> Tensor:
        """Joint draws (num_samples, T, D): each has one latent path and one function, so it is coherent in time."""
        check_count("num_samples", num_samples)
        with torch.no_grad():
            f = PosteriorGP(self.path.sample((num_samples,)), self.inducing, include_noise=False).sample()
            if self.correlations is not None:
                f += self.correlations.sample(self.inducing, num_samples)
            if self._carried is not None:
                f += self._carried.sample(num_samples)
            y = self._given.distribution(f).sample() if self.include_noise else self.outputs.moments(f)[0]
            return put_known(self.observed, y).to(self.t.dtype)

    @thread_limited
    def log_probs(self, y: ArrayLike) -> Tensor:
        """Log-probability or log-density of each entry, (T, D); NaN for what is ignored.

        :raises ValueError: if ``y`` has another shape, or it is a prediction of the rate.
        """
        if not self.include_noise:
            raise ValueError("log_prob needs a prediction of the outputs, with include_noise=True.")
        value = drop_known(self.observed, self.checked(y)).double()
        result = torch.full_like(value, torch.nan)
        with torch.no_grad():
            nodes = _NODES.get(self.outputs.likelihood.num_functions, 3) ** self.outputs.likelihood.num_functions
            for rows, outputs, mean, variance in self._functions(nodes):
                here = value[rows]
                known = mixture_log_probs(outputs, filled(here), mean, variance, _NODES)
                result[rows] = torch.where(torch.isfinite(here), known, torch.nan)
        return result.to(self.t.dtype)

    def cdf(self, y: ArrayLike) -> Tensor:
        """P(output ≤ y) of each entry, (T, D); NaN for what is ignored. A randomised PIT of counts also needs y − 1."""
        value = self.checked(y).double()
        result = torch.full_like(value, torch.nan)
        with torch.no_grad():
            for rows, outputs, f, weight in self._nodes(has_steps=True):
                here = value[rows]
                y_here = torch.where(torch.isfinite(here), here, 0.0)
                if self.include_noise:
                    found = mixture_cdf(outputs, f, weight, y_here)
                else:
                    found = (weight[:, None, None] * (outputs.moments(f)[0] <= y_here)).sum(0)
                if self.observed is not None:
                    found = put_known(self.observed, found, self.observed[rows].double() <= y_here, rows)
                result[rows] = torch.where(torch.isfinite(here), found, torch.nan)
        return result.to(self.t.dtype)


class OutputReconstruction(OutputPrediction, Reconstruction):
    """An :class:`OutputPrediction` from partly observed outputs."""
