# SPDX-License-Identifier: Apache-2.0
"""Several trained models as one: the mixture of their predictive distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, finite
from pyro_vgpds.data.parts import same_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted
from pyro_vgpds.kinds import check_list
from pyro_vgpds.prediction.arguments import OneSequence
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.predictions import Prediction
from pyro_vgpds.prediction.quantiles import invert
from pyro_vgpds.prediction.solver import Solver
from pyro_vgpds.training.progress import part_of
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["MixturePrediction", "PosteriorMixture"]


class MixturePrediction(Outputs):
    r"""Outputs at T times under a mixture of predictions with weights w:

    .. math:: m = \sum_i w_i m_i, \qquad v = \sum_i w_i (v_i + (m_i - m)^2).

    :param components: the :class:`~pyro_vgpds.Prediction` of each model; each has its own ``latent`` path.
    :param weights: (models,), with sum 1.

    >>> import torch
    >>> from pyro_vgpds.prediction.mixture import MixturePrediction
    >>> parts = [post.forecast([2.6], sequence=s) for s in (0, 1)]
    >>> mixed = MixturePrediction(parts, torch.tensor([0.5, 0.5]).double())
    >>> torch.allclose(mixed.mean, (parts[0].mean + parts[1].mean) / 2)
    True
    """

    def __init__(self, components: Sequence[Prediction], weights: Tensor) -> None:
        self.components, self.weights = list(components), weights
        first = self.components[0]
        super().__init__(first.t, first.data, first.include_noise, first.parts)
        self.is_gaussian = all(part.is_gaussian for part in self.components)

    def kind_of(self, output: int) -> str:
        return self.components[0].kind_of(output)

    def with_noise(self, include_noise: bool) -> MixturePrediction:
        """The same prediction with or without the outputs' noise.

        :param include_noise: with noise or without.
        """
        return MixturePrediction([part.with_noise(include_noise) for part in self.components], self.weights)

    def _mix(self, values: Callable[[Prediction], Tensor]) -> Tensor:
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


class PosteriorMixture:
    """Models that were trained on the same data from different starts, with different kernels or sizes, as one.

    If the start matters more than the settings, the average of several models predicts better than each of them. The
    spread of the models is part of its variance. Methods are those of :class:`~pyro_vgpds.Posterior`.

    :param posteriors: trained models of the same outputs, training sequences and times. Their lags may differ.
    :param weights: one for each, with sum 1. Default: equal weights.
    :raises ValueError: if data, outputs, sequences or times differ, or the weights are not positive with sum 1.

    >>> from pyro_vgpds import PosteriorMixture
    >>> both = PosteriorMixture([post, Posterior(model, guide, data, noise_variance=0.1)])
    >>> both.forecast([2.6, 2.7], sequence=0)
    MixturePrediction(2 times from 2.6 to 2.7, 5 outputs)
    >>> both.generate([0.0, 0.1], num_samples=3).shape
    torch.Size([3, 2, 5])
    """

    def __init__(self, posteriors: Sequence[Posterior], weights: Sequence[float] | None = None) -> None:
        check_list("posteriors", posteriors, "a list of Posterior")
        self.posteriors = list(posteriors)
        if not self.posteriors or not all(isinstance(p, Posterior) for p in self.posteriors):
            raise ValueError("posteriors must be a list of at least one Posterior.")
        first = self.posteriors[0]
        for i, other in enumerate(self.posteriors):
            _check_same(first, other, f"posteriors[{i}]")
        count = len(self.posteriors)
        shares = finite("weights", [1.0 / count] * count if weights is None else weights).double()
        is_share = shares.shape == (count,) and bool((shares > 0.0).all())
        if not is_share or not math.isclose(float(shares.sum()), 1.0, rel_tol=1e-6):
            raise ValueError(f"weights must be {count} positive numbers with sum 1, but got {weights!r:.200}.")
        self.weights = shares.detach().to(first.data.times.t)

    def _each(self, method: str, *args: Any, **options: Any) -> MixturePrediction:
        return MixturePrediction([getattr(p, method)(*args, **options) for p in self.posteriors], self.weights)

    def forecast(self, t: ArrayLike, *args: Any, **options: Any) -> MixturePrediction:
        """As :meth:`Posterior.forecast <pyro_vgpds.Posterior.forecast>`."""
        return self._each("forecast", t, *args, **options)

    def impute(self, **options: Any) -> MixturePrediction:
        """As :meth:`Posterior.impute <pyro_vgpds.Posterior.impute>`."""
        return self._each("impute", **options)

    def reconstruct(self, t: DataLike, y: DataLike, *args: Any, **options: Any) -> MixturePrediction:
        """As :meth:`Posterior.reconstruct <pyro_vgpds.Posterior.reconstruct>`."""
        progress, count = options.pop("progress", False), len(self.posteriors)
        found = [
            p.reconstruct(t, y, *args, progress=part_of(progress, i, count), **options)
            for i, p in enumerate(self.posteriors)
        ]
        return MixturePrediction(found, self.weights)

    def condition(self, data: Sequences, sequences: Sequence[OneSequence] | None = None) -> PosteriorMixture:
        """As :meth:`Posterior.condition <pyro_vgpds.Posterior.condition>`; the weights stay."""
        return PosteriorMixture([p.condition(data, sequences) for p in self.posteriors], self.weights.tolist())

    def extended(self, t: DataLike, y: DataLike, *args: Any, **options: Any) -> PosteriorMixture:
        """As :meth:`Posterior.extended <pyro_vgpds.Posterior.extended>`; the weights stay."""
        longer = [p.extended(t, y, *args, **options) for p in self.posteriors]
        return PosteriorMixture(longer, self.weights.tolist())

    @property
    def data(self) -> Sequences:
        """The training sequences."""
        return self.posteriors[0].data

    def generate(
        self, t: ArrayLike, num_samples: int = 1, sequence: OneSequence = None, *, include_noise: bool = True
    ) -> Tensor:
        """Draws of whole sequences, (num_samples, T, D), each from one model. Arguments as in :meth:`Posterior.generate
        <pyro_vgpds.Posterior.generate>`.
        """
        return self.forecast(t, sequence, include_noise=include_noise).sample(num_samples)

    def log_density(self, t: DataLike, y: DataLike, *, solver: Solver | None = None) -> Tensor:
        """A lower bound on the log-density of new sequences under the mixture. Arguments as in
        :meth:`Posterior.log_density <pyro_vgpds.Posterior.log_density>`.
        """
        terms = torch.stack([p.log_density(t, y, solver=solver) for p in self.posteriors], -1)
        return torch.logsumexp(terms + self.weights.log(), -1)

    def __repr__(self) -> str:
        return f"PosteriorMixture({counted(len(self.posteriors), 'model')} of {self.posteriors[0].data})"


def _check_same(first: Posterior, other: Posterior, name: str) -> None:
    """Raise a ValueError if two models are not of the same outputs, sequences and times."""
    for what, a, b in (
        ("outputs", first.num_outputs, other.num_outputs),
        ("names of outputs", first.columns, other.columns),
        ("lengths of sequences", first.data.lengths, other.data.lengths),
        ("dtype", first.data.dtype, other.data.dtype),
        ("first date", first.data.time_origin, other.data.time_origin),
        ("time zone", first.data.time_zone, other.data.time_zone),
    ):
        if a != b:
            raise ValueError(f"the models must have the same {what}, but {name} has {b} and posteriors[0] has {a}.")
    if not torch.equal(first.data.times.t, other.data.times.t):
        raise ValueError(f"the models must have the same training times, but those of {name} differ.")
    if not same_outputs(first.data, other.data):
        raise ValueError(f"the models must be of the same data, but the training outputs of {name} differ.")
