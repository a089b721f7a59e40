# SPDX-License-Identifier: Apache-2.0
"""How the members of an ensemble are combined: weights, calibration, and limits.

Outputs reach limits but do not pass them, such as zero for light, rain and sales. They are found in the data. Means of
counts ahead have limits of another kind: exp f has an enormous mean if the log rate f is uncertain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_vgpds.data.parts import base_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.prediction.intervals import Calibration

__all__ = ["Combination", "Limits", "find_growth_limits", "find_limits"]

_RUNS = 5  # separate times that an output must have been at its limit: a price that rises in steps is not at one
_PART = 0.05  # of the observed entries that must be at the limit
_FEW_RUNS, _MOST = 3, 0.5  # the same for an output that is there for most of the time, such as rain in dry weather
_GROWTH = 2.0  # times the largest count of an output: the largest mean of a forecast


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
    #: factor of the members' mean disagreement over a sequence, in variances. Default: that of each entry, once
    disagreement: float | None = None

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


@dataclass(frozen=True)
class Limits:
    """The smallest and the largest possible number of each output.

    >>> import torch
    >>> from pyro_vgpds.prediction import Limits
    >>> Limits(torch.tensor([0.0, -torch.inf]), torch.tensor([torch.inf, 1.0])).clamp(torch.tensor([-2.0, 3.0]))
    tensor([0., 1.])
    """

    lower: Tensor  #: (D,), -inf for no limit
    upper: Tensor  #: (D,), inf for no limit

    def clamp(self, numbers: Tensor) -> Tensor:
        """Numbers (..., D) within the limits.

        :param numbers: (..., D).
        """
        return numbers.clamp(self.lower.to(numbers), self.upper.to(numbers))

    def clamp_means(self, found: HeldOut) -> HeldOut:
        """Held-out predictions with means within the limits.

        :param found: the predictions.
        """
        return replace(found, mean=self.clamp_entries(found.mean, found.output))

    def clamp_entries(self, numbers: Tensor, output: Tensor) -> Tensor:
        """Numbers (n,) of single entries within the limits.

        :param numbers: (n,).
        :param output: the output of each entry, (n,).
        """
        lower, upper = (limit.to(numbers)[output] for limit in (self.lower, self.upper))
        return numbers.clamp(lower, upper)


def find_limits(data: Sequences) -> Limits | None:
    """The limits that the outputs of data reach again and again; None if no output has one.

    An output has a limit if at least 5 % of its observed entries are equal to its smallest (or largest) number, in five
    or more separate runs, and more of them than are equal to the next number: the largest of some counts is no limit.
    Three runs are enough for half of its entries.

    :param data: the training sequences.
    """
    y = base_outputs(data)
    seen = y.isfinite()
    before = _previous(seen, data.lengths)
    lower, upper = (sign * _lowest(sign * y, seen, before) for sign in (1.0, -1.0))
    if not bool((lower.isfinite() | upper.isfinite()).any()):
        return None
    return Limits(lower, upper)


def find_growth_limits(data: Sequences, likelihood: Likelihood) -> Limits | None:
    """Limits of the means of forecasts: twice the largest observed count of each output; none for other outputs.

    :param data: the training sequences.
    :param likelihood: of the outputs.
    :returns: None without counts, and if each entry has its own exposure, since rates are what can be compared then.
    """
    y = base_outputs(data)
    is_count = torch.tensor([likelihood.has_exposure(output) for output in range(y.shape[1])], device=y.device)
    if not bool(is_count.any()) or (data.exposure is not None and data.exposure.dim() > 1):
        return None
    upper = _GROWTH * y.nan_to_num(nan=0.0).amax(0).clamp_min(1.0)
    return Limits(torch.full_like(upper, -torch.inf), torch.where(is_count, upper, torch.inf))


def _previous(seen: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """For each entry (N, D) the row of the last observed one before it in its column and sequence, or -1."""
    rows = torch.arange(len(seen), device=seen.device).unsqueeze(-1)
    found = []
    for part, own in zip(seen.split(lengths), rows.split(lengths), strict=True):
        last = torch.where(part, own, -1).cummax(0).values
        found.append(torch.cat([last.new_full((1, part.shape[1]), -1), last[:-1]]))
    return torch.cat(found)


def _lowest(y: Tensor, seen: Tensor, before: Tensor) -> Tensor:
    """The lower limit of each output (D,), -inf for no limit.

    :param before: the rows of :func:`_previous`.
    """
    value = torch.where(seen, y, torch.inf)
    least = value.amin(0)
    at = seen & (value == least)
    follows = at.gather(0, before.clamp_min(0)) & (before >= 0)
    count, runs = at.sum(0), (at & ~follows).sum(0)
    following = value.masked_fill(at, torch.inf).amin(0)
    others = (seen & (value == following)).sum(0)
    total = seen.sum(0)
    often = ((runs >= _RUNS) & (count >= _PART * total)) | ((runs >= _FEW_RUNS) & (count >= _MOST * total))
    good = often & (count > others)
    return torch.where(good, least, -torch.inf)
