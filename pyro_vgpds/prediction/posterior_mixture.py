# SPDX-License-Identifier: Apache-2.0
"""Several trained models as one: the mixture of their predictive distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.checks import check_list, finite
from pyro_vgpds.data.parts import same_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted
from pyro_vgpds.prediction.arguments import OneSequence
from pyro_vgpds.prediction.mixture_prediction import MixturePrediction
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.predictor import BasePredictor
from pyro_vgpds.prediction.solver import Solver
from pyro_vgpds.training.progress import part_of
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["PosteriorMixture"]


class PosteriorMixture(BasePredictor):
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
        self.data = first.data
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
        return self._each("forecast", t, *args, **options)

    def impute(self, **options: Any) -> MixturePrediction:
        return self._each("impute", **options)

    def reconstruct(self, t: DataLike, y: DataLike, *args: Any, **options: Any) -> MixturePrediction:
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

    def generate(
        self, t: ArrayLike, num_samples: int = 1, sequence: OneSequence = None, *, include_noise: bool = True
    ) -> Tensor:
        """As :meth:`Posterior.generate <pyro_vgpds.Posterior.generate>`; each draw is from one model."""
        return self.forecast(t, sequence, include_noise=include_noise).sample(num_samples)

    def log_density(self, t: DataLike, y: DataLike, *, solver: Solver | None = None) -> Tensor:
        """A lower bound on the log-density of new sequences under the mixture. Arguments as in
        :meth:`Posterior.log_density <pyro_vgpds.Posterior.log_density>`.
        """
        terms = torch.stack([p.log_density(t, y, solver=solver) for p in self.posteriors], -1)
        return torch.logsumexp(terms + self.weights.log(), -1)

    def __repr__(self) -> str:
        return f"PosteriorMixture({counted(len(self.posteriors), 'model')} of {self.data})"


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
