# SPDX-License-Identifier: Apache-2.0
"""The linear pool of several predictive distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_probability
from pyro_vgpds.prediction.combination import Limits
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.quantiles import invert
from pyro_vgpds.types import ArrayLike

__all__ = ["MixturePrediction", "spread_density", "spread_probability"]


_TAIL = 1e-15  # probability beyond which the tail of a pool is that of the mixture


class MixturePrediction(Outputs):
    r"""Outputs at T times under a mixture of predictions with weights w:

    .. math:: m = \sum_i w_i m_i, \qquad v = \sum_i w_i (v_i + (m_i - m)^2).

    :param components: the prediction of each member. Those of models (:class:`~pyro_vgpds.Prediction`) have their own
        ``latent`` paths.
    :param weights: (models,), with sum 1.
    :param spread: c, by which the mixture F is wider: the distribution is Φ(Φ⁻¹(F) / c) with that of a standard
        Gaussian, Φ. Medians and means stay, and variances are multiplied by c², which is exact for a Gaussian. It is
        for continuous outputs. Default: 1, the mixture itself.
    :param limits: of the means of the components, for numbers that are not known. Default: none.

    >>> import torch
    >>> from pyro_vgpds.prediction.mixture_prediction import MixturePrediction
    >>> parts = [post.forecast([2.6], sequence=s) for s in (0, 1)]
    >>> mixed = MixturePrediction(parts, torch.tensor([0.5, 0.5]).double())
    >>> torch.allclose(mixed.mean, (parts[0].mean + parts[1].mean) / 2)
    True
    """

    def __init__(
        self, components: Sequence[Outputs], weights: Tensor, spread: float = 1.0, limits: Limits | None = None
    ) -> None:
        self.components, self.weights, self.spread, self.limits = list(components), weights, spread, limits
        first = self.components[0]
        super().__init__(first.t, first.data, first.include_noise, first.parts)
        self.is_gaussian = all(part.is_gaussian for part in self.components)

    def kind_of(self, output: int) -> str:
        return self.components[0].kind_of(output)

    def with_noise(self, include_noise: bool) -> MixturePrediction:
        """The same prediction with or without the outputs' noise.

        :param include_noise: with noise or without.
        :raises ValueError: if a component is that of a baseline, which has no function without noise.
        """
        return self._each("with_noise", include_noise, "always includes noise", self.limits)

    def with_exposure(self, exposure: ArrayLike) -> MixturePrediction:
        """The prediction for counts with other exposures.

        :param exposure: (D,) or (T, D), positive; 1 for outputs that are not counts.
        :raises ValueError: if the shape is another, an exposure is not positive, or an output has none.
        """
        return self._each("with_exposure", exposure, "has no exposure", None)  # limits are those of other exposures

    def _each(self, method: str, argument: object, fault: str, limits: Limits | None) -> MixturePrediction:
        """The mixture of what a method of all components returns; a ValueError if a component does not have it."""
        for part in self.components:
            if not hasattr(part, method):
                raise ValueError(f"a {type(part).__name__}, one of the components, {fault}.")
        parts = [getattr(part, method)(argument) for part in self.components]
        return MixturePrediction(parts, self.weights, self.spread, limits)

    def _mix(self, values: Callable[[Outputs], Tensor]) -> Tensor:
        total = torch.zeros(self.shape, dtype=self.t.dtype, device=self.t.device)
        for weight, part in zip(self.weights, self.components, strict=True):
            total += weight * values(part)
        return total

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        mean = self._mix(self._limited_mean)
        return mean, self.spread**2 * self._mix(lambda part: part.variance + (self._limited_mean(part) - mean).square())

    def _limited_mean(self, part: Outputs) -> Tensor:
        if self.limits is None:
            return part.mean
        return torch.where(part.variance > 0.0, self.limits.clamp(part.mean), part.mean)

    @property
    def is_whole(self) -> Tensor:
        return torch.stack([part.is_whole for part in self.components]).all(0)

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (T, D) of central intervals: quantiles of the mixture of the components' distributions.

        :param probability: of each interval.
        :raises ValueError: if it is not between 0 and 1.
        """
        check_probability(probability)
        tail = 0.5 * (1.0 - probability)
        if self.spread != 1.0:  # the level of the same interval under the mixture itself
            tail = NormalDist().cdf(self.spread * NormalDist().inv_cdf(tail))
        ends = [part.interval(1.0 - 2.0 * tail) for part in self.components]
        lower, upper = (torch.stack(side) for side in zip(*ends, strict=True))
        return self._quantile(tail, lower), self._quantile(1.0 - tail, upper)

    def _quantile(self, probability: float, ends: Tensor) -> Tensor:
        low, high = ends.amin(0), ends.amax(0)  # the mixture's quantile lies between those of its components
        whole = self.is_whole.expand(self.shape)
        found = low
        for is_whole, needed in ((False, (high > low) & ~whole), (True, (high > low) & whole)):
            if bool(needed.any()):
                centre, spread = 0.5 * (low + high), 0.5 * (high - low)
                centre = centre.floor() if is_whole else centre
                spread = torch.where(needed, spread, 1.0)
                found = torch.where(
                    needed,
                    invert(self._mixed_cdf, probability, centre, spread, is_whole=is_whole, needed=needed),
                    found,
                )
        return found

    def _mixed_cdf(self, y: ArrayLike) -> Tensor:
        return self._mix(lambda part: part.cdf(y))

    def cdf(self, y: ArrayLike) -> Tensor:
        return spread_probability(self._mixed_cdf(y), self.spread)

    def log_probs(self, y: ArrayLike) -> Tensor:
        terms = torch.stack([part.log_probs(y) for part in self.components])
        found = torch.logsumexp(terms + self.weights.log()[:, None, None], 0)
        return found if self.spread == 1.0 else found + spread_density(self._mixed_cdf(y), self.spread).to(found)

    def sample(self, num_samples: int = 1) -> Tensor:
        """Joint draws (num_samples, T, D), each from one model.

        :param num_samples: number of draws.
        """
        check_count("num_samples", num_samples)
        which = torch.multinomial(self.weights, num_samples, replacement=True)
        draws = torch.empty((num_samples, *self.shape), dtype=self.t.dtype, device=self.t.device)
        for i, part in enumerate(self.components):
            mine = which == i
            if bool(mine.any()):
                draws[mine] = part.sample(int(mine.sum()))
        return draws if self.spread == 1.0 else self.mean + self.spread * (draws - self.mean)

    def log_prob(self, y: ArrayLike) -> Tensor:
        """Log-density of all outputs together under the mixture of the components' densities; NaN is ignored. With a
        ``spread``, outputs are independent.

        :param y: (T, D).
        :raises ValueError: if ``y`` has another shape.
        """
        value = self.checked(y)
        if self.spread != 1.0:
            return torch.nansum(self.log_probs(value))
        terms = torch.stack([part.log_prob(value) for part in self.components])
        return torch.logsumexp(terms + self.weights.log(), 0)


def spread_probability(probability: Tensor, spread: float) -> Tensor:
    """Φ(Φ⁻¹(F) / c): probabilities F under distributions that are wider by a factor c."""
    return probability if spread == 1.0 else torch.special.ndtr(torch.special.ndtri(probability) / spread)


def spread_density(probability: Tensor, spread: float) -> Tensor:
    """What is added to the log-densities of distributions that become wider by a factor c: log dΦ(Φ⁻¹(F) / c) / dF."""
    z = torch.special.ndtri(probability.double().clamp(_TAIL, 1.0 - _TAIL))
    return 0.5 * z.square() * (1.0 - spread**-2) - math.log(spread)
