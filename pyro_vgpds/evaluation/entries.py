# SPDX-License-Identifier: Apache-2.0
"""Where the held-out entries of several splits are, and how many of them are independent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_vgpds.data.filling import line_between
from pyro_vgpds.data.parts import split_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import Split

__all__ = ["Entries", "independent_outputs"]

_MOST = 1000  # changes, and outputs, that are compared, evenly spaced


@dataclass(frozen=True)
class Entries:
    """Where the n held-out entries are."""

    sequence: Tensor  #: (n,), index in the data
    t: Tensor  #: (n,)
    split: Tensor  #: (n,), number of the split, such as the origin of a forecast
    lost: Tensor  #: (n,), whether nothing is observed in the frame
    gap: Tensor  #: (n,), number of the gap of a column, whose entries have similar errors
    num_outputs: float | None = None  #: of forecasts, the number of independent outputs
    #: of frames to reconstruct, the expected error after training on all data, relative to that of the held-out parts
    gain: float | None = None

    @property
    def frame(self) -> Tensor:
        """(3, n), split, sequence and time of the frame that each entry is in."""
        return torch.stack([self.split.double(), self.sequence.double(), self.t.double()])

    @property
    def origin(self) -> Tensor:
        """(n,), number of the sequence of a split that each entry is in, such as an origin of a forecast."""
        return torch.stack([self.split, self.sequence]).unique(dim=1, return_inverse=True)[1]

    @property
    def gap_length(self) -> float:
        """The mean length of gaps, each with the weight of its length."""
        count = self.gap.unique(return_counts=True)[1].double()
        return float(count.square().sum() / count.sum())

    @property
    def group(self) -> Tensor:
        """(n,), the number of the part of a sequence, as long as a gap, that an entry is in: errors in one part, also
        of different outputs, are alike.
        """
        frames, at = self.frame.unique(dim=1, return_inverse=True)  # in the order of their times
        begins = torch.ones(frames.shape[1], dtype=torch.bool)
        begins[1:] = (frames[:2, 1:] != frames[:2, :-1]).any(0)
        number = torch.arange(len(begins))
        first = number[begins][begins.cumsum(0) - 1]
        part = (number - first) // max(1, round(self.gap_length))
        return torch.stack([first, part]).unique(dim=1, return_inverse=True)[1][at]

    @property
    def num_errors(self) -> float | None:
        """The effective number of independent errors of forecasts; None for other tasks.

        All frames of a forecast count as one error of each independent output, and so do the frames that forecasts from
        several origins share.
        """
        if self.num_outputs is None:
            return None
        every, frames = (frame.unique(dim=1).shape[1] for frame in (self.frame, self.frame[1:]))
        return self.num_outputs * frames * len(self.origin.unique()) / every

    def apart(self) -> Tensor:
        """A mask (n,) of the last split and of earlier ones that have no frame in common with those already taken."""
        frame = self.frame[1:].unique(dim=1, return_inverse=True)[1]
        taken = torch.zeros(len(frame), dtype=torch.bool)
        for number in self.split.unique().flip(0):
            own = self.split == number
            if not bool(torch.isin(frame[own], frame[taken]).any()):
                taken |= own
        return taken

    def take(self, where: Tensor) -> Entries:
        """Some of the entries.

        :param where: a mask (n,) or indices.
        """
        every = (self.sequence, self.t, self.split, self.lost, self.gap)
        sequence, t, split, lost, gap = (part[where] for part in every)
        return replace(self, sequence=sequence, t=t, split=split, lost=lost, gap=gap)

    @classmethod
    def of(cls, splits: Sequence[Split], data: Sequences) -> Entries:
        """The entries of splits of ``data``, one split after the other."""
        parts: list[tuple[Tensor, ...]] = []
        for number, split in enumerate(splits):
            new = iter(sorted(set(range(data.num_sequences)) - set(split.kept)))  # whole sequences that are hidden
            belongs = [next(new) if s is None else split.kept[s] for s in split.sequence]
            rows = torch.cat(split.truth).isfinite().nonzero()[:, 0]
            sequence = torch.cat([torch.full((len(t),), s) for s, t in zip(belongs, split.t, strict=True)])
            lost = ~torch.cat(split.y).isfinite().any(1)
            gap = _number_gaps([part.isfinite() for part in split.truth]) + sum(
                int(part[4].max()) + 1 for part in parts
            )
            found = sequence, torch.cat(split.t), torch.full((len(sequence),), number), lost
            parts.append((*(column.cpu()[rows.cpu()] for column in found), gap))
        sequence, t, which, lost, gap = (torch.cat(column) for column in zip(*parts, strict=True))
        task = splits[0].task
        gain = _gain(splits, data.num_sequences) if task == "reconstruct" else None
        return cls(sequence, t, which, lost, gap, independent_outputs(data) if task == "forecast" else None, gain)


def _gain(splits: Sequence[Split], count: int) -> float:
    """How much smaller errors become if the held-out sequences are trained on as well.

    The error of the mean of k independent sequences, as a prediction of the next one, has a variance proportional to
    1 + 1 / k, which is 1 + 1 / n for all n of them.
    """
    held_out = sum(1.0 + 1.0 / len(split.kept) for split in splits) / len(splits)
    return math.sqrt((1.0 + 1.0 / count) / held_out)


def _number_gaps(masks: Sequence[Tensor]) -> Tensor:
    """For each True of masks (T, D), one after the other, the number of its run in a column."""
    mask = torch.cat(list(masks)).cpu()
    first = torch.cat([_starts(part.cpu()) for part in masks])
    runs = first.mT.flatten().cumsum(0).unflatten(0, (mask.shape[1], mask.shape[0])).mT - 1
    return runs[mask]


def _starts(mask: Tensor) -> Tensor:
    """The first entries of all runs in columns."""
    first = mask.clone()
    first[1:] &= ~mask[:-1]
    return first


def independent_outputs(data: Sequences) -> float:
    r"""The effective number of independent outputs, from 1 to D.

    With the correlations :math:`\rho_{de}` of the n changes between neighbouring frames, it is

    .. math:: \frac{D^2}{D + \max\big(0, \sum_{d \ne e} \rho_{de}^2 - D (D - 1) / n\big)},

    where :math:`D (D - 1) / n` is the sum for independent outputs, by chance. Missing entries are interpolated
    linearly. Outputs that never change do not count. Of more than 1000 outputs, some tell the number, at most 1000.

    :param data: the sequences.
    """
    parts = []
    for t, y in zip(*split_outputs(data), strict=True):
        some = y[:, :: math.ceil(y.shape[1] / _MOST)].double()
        filled = line_between(t, some, some.isfinite())
        parts.append(torch.nan_to_num(filled, nan=0.0).diff(dim=0))
    change = torch.cat(parts)
    change = change[:: max(1, math.ceil(len(change) / _MOST))]
    change = change[:, change.any(0)]
    n, d = change.shape
    if n == 0 or d == 0:
        return 1.0
    unit = change / change.square().mean(0).sqrt()
    gram = unit.mT @ unit if d < n else unit @ unit.mT  # the sum of the squares of their elements is the same
    shared = float((gram / n).square().sum()) - d - d * (d - 1) / n
    return d**2 / (d + max(0.0, shared))
