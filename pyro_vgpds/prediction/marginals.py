# SPDX-License-Identifier: Apache-2.0
"""The distribution of each predicted number alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import check_probability
from pyro_vgpds.types import ArrayLike

__all__ = ["Marginals", "drop_known", "hidden_covariance", "put_known"]


class Marginals(ABC):
    """Predicted numbers (T, D) at times ``t``, each with a Gaussian distribution unless a derived class has another.

    :ivar is_gaussian: whether intervals, ``cdf`` and ``log_probs`` are those of Gaussians.
    """

    t: Tensor
    is_gaussian: bool = True

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(T, D)."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """(T, D)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """(T, D)."""

    @property
    def is_whole(self) -> Tensor:
        """Whether each output is a whole number, as counts are, (D,)."""
        return torch.zeros(self.shape[1], dtype=torch.bool, device=self.t.device)

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (T, D) of central intervals, separately for each output.

        :param probability: of each interval.
        :raises ValueError: if ``probability`` is not between 0 and 1.

        >>> ahead = post.forecast([2.6, 2.7], sequence=0)
        >>> lower, upper = ahead.interval(0.95)
        >>> bool((lower < ahead.mean).all() and (ahead.mean < upper).all())
        True
        """
        check_probability(probability)
        width = NormalDist().inv_cdf(0.5 + 0.5 * probability) * self.variance.sqrt()
        return self.mean - width, self.mean + width

    def log_prob(self, y: ArrayLike) -> Tensor:
        """Log-density of all outputs, as independent ones unless a derived class has their joint distribution.

        :param y: (T, D); NaN is ignored, and so are numbers that were known.
        :raises ValueError: if ``y`` has another shape, or infinite numbers.
        """
        return torch.nansum(self.log_probs(y))

    def log_probs(self, y: ArrayLike) -> Tensor:
        """Log-density of each output alone, (T, D), or its log-probability if it is discrete.

        :param y: (T, D); NaN is ignored.
        :returns: NaN for what is ignored, and for numbers that were known.
        :raises ValueError: if ``y`` has another shape.

        >>> ahead = post.forecast([2.6, 2.7], sequence=0)
        >>> bool((ahead.log_probs(ahead.mean) >= ahead.log_probs(ahead.mean + 1.0)).all())
        True
        """
        value, variance = self.checked(y), self.variance
        terms = (value - self.mean).square() / variance + variance.log() + math.log(2.0 * math.pi)
        return torch.where(variance > 0.0, -0.5 * terms, torch.nan)

    def cdf(self, y: ArrayLike) -> Tensor:
        """P(output ≤ y) of each output alone, (T, D); a step for a number that was known.

        :param y: (T, D); NaN is ignored.
        :returns: NaN for what is ignored.
        :raises ValueError: if ``y`` has another shape.

        >>> ahead = post.forecast([2.6, 2.7], sequence=0)
        >>> ahead.cdf(ahead.mean)[0, 0].item()
        0.5
        """
        value = self.checked(y)
        found = torch.special.ndtr((value - self.mean) / self.variance.sqrt().clamp_min(torch.finfo(value.dtype).tiny))
        return torch.where(
            self.variance > 0.0, found, torch.where(value.isnan(), value, (value >= self.mean).to(value))
        )

    def checked(self, y: ArrayLike) -> Tensor:
        """``y`` as a tensor of the shape of the prediction."""
        try:
            value = y if isinstance(y, Tensor) else torch.as_tensor(np.asarray(y))
            if value.is_complex() or value.dtype == torch.bool:
                raise TypeError(f"its dtype is {value.dtype}")
            value = value.to(self.t)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"y must be numbers of the shape {self.shape}, but got {y!r:.80}: {error}") from None
        if tuple(value.shape) != self.shape:
            raise ValueError(f"y must have the shape {self.shape}, but its shape is {tuple(value.shape)}.")
        if bool(value.isinf().any()):
            row, column = (int(i) for i in value.isinf().nonzero()[0])
            raise ValueError(
                f"y must be finite, or NaN for what is ignored, but row {row}, column {column} is infinite."
            )
        return value


# Predictions return known numbers ``observed`` (T, D), NaN elsewhere, unchanged. None stands for no known numbers.


def put_known(observed: Tensor | None, value: Tensor, known: Tensor | float | None = None, at: Any = ...) -> Tensor:
    """Values (..., T, D) with the observed numbers, or with ``known``, in place of predictions.

    :param at: the entries (T, D) that they belong to, as an index. Default: all.
    """
    if observed is None:
        return value
    seen = observed[at]
    return torch.where(seen.isfinite(), torch.as_tensor(seen if known is None else known).to(value), value)


def drop_known(observed: Tensor | None, y: Tensor) -> Tensor:
    """Outputs (T, D) with NaN in place of observed numbers, whose probability does not count."""
    return y if observed is None else y.masked_fill(observed.isfinite(), torch.nan)


def hidden_covariance(observed: Tensor | None, full: Tensor) -> Tensor:
    """Covariances (T, D, D) of outputs, with zeros for observed numbers."""
    if observed is None:
        return full
    hidden = observed.isnan().to(full.dtype)
    return full * hidden.unsqueeze(-1) * hidden.unsqueeze(-2)
