# SPDX-License-Identifier: Apache-2.0
"""How the members of an ensemble are combined: weights, calibration and limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_vgpds.prediction.intervals import Calibration
from pyro_vgpds.prediction.limits import Limits

__all__ = ["Combination"]


@dataclass(frozen=True)
class Combination:
    """How the members of an ensemble are combined for one task.

    >>> post.calibrate("forecast").combination("forecast").weights.shape
    torch.Size([1, 5])
    """

    weights: Tensor  #: (members, D), with sum 1 over the members
    calibration: Calibration  #: of the intervals
    lost: Combination | None = None  #: for frames of which nothing is observed. Default: the same
    is_pool: bool = False  #: whether the prediction is the mixture of the members' distributions, without calibration
    spread: float = 1.0  #: of a pool, as in :class:`~pyro_vgpds.prediction.MixturePrediction`
    limits: Limits | None = None  #: of the outputs, which predictions do not pass. Default: none

    @property
    def used(self) -> Tensor:
        """Which members have a weight, (members,)."""
        used = (self.weights > 0).any(1)
        return used if self.lost is None else used | self.lost.used

    def take(self, members: Tensor) -> Combination:
        """That of some members.

        :param members: a mask (members,).
        """
        lost = None if self.lost is None else self.lost.take(members)
        return replace(self, weights=self.weights[members], lost=lost)

    def within(self, limits: Limits | None) -> Combination:
        """The same with limits of the outputs.

        :param limits: None for none.
        """
        return replace(self, lost=None if self.lost is None else self.lost.within(limits), limits=limits)

    def at(self, lost: Tensor) -> list[tuple[Combination, Tensor]]:
        """The combinations of frames.

        :param lost: a mask (T,) of frames of which nothing is observed.
        :returns: combinations without others for lost frames, each with its frames (T,).
        """
        if self.lost is None:
            return [(self, torch.ones_like(lost))]
        return [(replace(self, lost=None), ~lost), (self.lost, lost)]
