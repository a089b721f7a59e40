# SPDX-License-Identifier: Apache-2.0
"""The linear pool of several predictive distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.quantiles import invert
from pyro_vgpds.types import ArrayLike

__all__ = ["MixturePrediction"]


class MixturePrediction(Outputs):
    r"""Outputs at T times under a mixture of predictions with weights w:

    .. math:: m = \sum_i w_i m_i, \qquad v = \sum_i w_i (v_i + (m_i - m)^2).

    :param components: the prediction of each member. Those of models (:class:`~pyro_vgpds.Prediction`) have their own
        ``latent`` paths.
    :param weights: (models,), with sum 1.

    >>> import torch
    >>> from pyro_vgpds.prediction.pool import MixturePrediction
    >>> parts = [post.forecast([2.6], sequence=s) for s in (0, 1)]
    >>> mixed = MixturePrediction(parts, torch.tensor([0.5, 0.5]).double())
    >>> torch.allclose(mixed.mean, (parts[0].mean + parts[1].mean) / 2)
    True
    """

    def __init__(self, components: Sequence[Outputs], weights: Tensor) -> None:
        self.components, self.weights = list(components), weights
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
        parts = []
        for part in self.components:
            if (change := getattr(part, "with_noise", None)) is None:
                raise ValueError(f"a {type(part).__name__}, one of the components, always includes noise.")
            parts.append(change(include_noise))
        return MixturePrediction(parts, self.weights)

    def _mix(self, values: Callable[[Outputs], Tensor]) -> Tensor:
        total = torch.zeros(self.shape, dtype=self.t.dtype, device=self.t.device)
        for weight, part in zip(self.weights, self.components, strict=True):
            total += weight * values(part)
        return total

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        mean = self._mix(lambda part: part.mean)
        return mean, self._mix(lambda part: part.variance + (part.mean - mean).square())

    @property
    def is_whole(self) -> Tensor:
        return torch.stack([part.is_whole for part in self.components]).all(0)

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (T, D) of central intervals: quantiles of the mixture of the components' distributions.

        :param probability: of each interval.
        :raises ValueError: if it is not between 0 and 1.
        """
        ends = [part.interval(probability) for part in self.components]
        lower, upper = (torch.stack(side) for side in zip(*ends, strict=True))
        tail = 0.5 * (1.0 - probability)
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
                    needed, invert(self.cdf, probability, centre, spread, is_whole=is_whole, needed=needed), found
                )
        return found

    def cdf(self, y: ArrayLike) -> Tensor:
        return self._mix(lambda part: part.cdf(y))

    def log_probs(self, y: ArrayLike) -> Tensor:
        terms = torch.stack([part.log_probs(y) for part in self.components])
        return torch.logsumexp(terms + self.weights.log()[:, None, None], 0)

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
        return draws

    def log_prob(self, y: ArrayLike) -> Tensor:
        """Log-density of all outputs together under the mixture of the components' densities; NaN is ignored.

        :param y: (T, D).
        :raises ValueError: if ``y`` has another shape.
        """
        value = self.checked(y)
        terms = torch.stack([part.log_prob(value) for part in self.components])
        return torch.logsumexp(terms + self.weights.log(), 0)
