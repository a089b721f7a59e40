# SPDX-License-Identifier: Apache-2.0
"""Predictors, and what they predict of held-out numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["HeldOut", "Predicted", "Predictor"]


class Predicted(Protocol):
    """The part of :class:`~pyro_vgpds.prediction.Outputs` that scores need."""

    @property
    def mean(self) -> Tensor: ...

    @property
    def variance(self) -> Tensor: ...

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]: ...


class Predictor(Protocol):
    """Everything that predicts: :class:`~pyro_vgpds.Posterior`, mixtures, ensembles, and baselines.

    >>> from pyro_vgpds.evaluation import Predictor
    >>> predictor: Predictor = post
    >>> predictor.forecast([2.6, 2.7], 0).mean.shape
    torch.Size([2, 5])
    """

    def impute(self, *, fill: bool = True) -> Predicted:
        """As :meth:`Posterior.impute <pyro_vgpds.Posterior.impute>`."""

    def forecast(self, t: ArrayLike, sequence: int | None = None) -> Predicted:
        """As :meth:`Posterior.forecast <pyro_vgpds.Posterior.forecast>`."""

    def reconstruct(self, t: DataLike, y: DataLike, sequence: Sequence[int | None] | int | None = None) -> Predicted:
        """As :meth:`Posterior.reconstruct <pyro_vgpds.Posterior.reconstruct>`."""


@dataclass(frozen=True)
class HeldOut:
    """Hidden numbers and their predictions, one entry each.

    >>> from pyro_vgpds.evaluation import hold_out
    >>> split = hold_out(data, "forecast", horizon=2)
    >>> found = split.predict(post.condition(split.train))
    >>> found.ahead.unique().tolist(), found.output.unique().tolist()
    ([1, 2], [0, 1, 2, 3, 4])
    """

    truth: Tensor  #: (n,)
    mean: Tensor  #: (n,)
    variance: Tensor  #: (n,)
    output: Tensor  #: (n,), index of the output
    ahead: Tensor  #: (n,), number of frames since the last training frame of a forecast; 0 for other tasks
    log_density: Tensor | None = None  #: (n,), the predictions' own; None if they are Gaussian
    cdf: Tensor | None = None  #: (n, 2), P(output < truth) and P(output ≤ truth); None if they were not asked for
    ends: Tensor | None = None  #: (n, 2), of central 95 % intervals; None if they were not asked for

    def take(self, where: Tensor) -> HeldOut:
        """Some of the entries.

        :param where: a mask (n,) or indices.
        """
        where = where.to(self.truth.device)
        parts = (getattr(self, field.name) for field in fields(self))
        return HeldOut(*(None if part is None else part[where] for part in parts))  # type: ignore[arg-type]

    @classmethod
    def join(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """The entries of several, one after the other.

        :param parts: at least one.
        """
        every = [[getattr(part, field.name) for part in parts] for field in fields(cls)]
        return cls(*(None if any(p is None for p in column) else torch.cat(column) for column in every))  # type: ignore[arg-type]
