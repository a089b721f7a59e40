# SPDX-License-Identifier: Apache-2.0
"""Where the held-out entries of several splits are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import Split

__all__ = ["Entries"]


@dataclass(frozen=True)
class Entries:
    """Where the n held-out entries are."""

    sequence: Tensor  #: (n,), index in the data
    t: Tensor  #: (n,)
    split: Tensor  #: (n,), number of the split, such as the origin of a forecast
    lost: Tensor  #: (n,), whether nothing is observed in the frame

    def take(self, where: Tensor) -> Entries:
        """Some of the entries.

        :param where: a mask (n,) or indices.
        """
        return Entries(*(getattr(self, field.name)[where] for field in fields(self)))

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
            number_of = torch.full((len(rows),), number)
            parts.append((sequence[rows.cpu()], torch.cat(split.t)[rows].cpu(), number_of, lost[rows].cpu()))
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))
