# SPDX-License-Identifier: Apache-2.0
"""Where the held-out entries of several splits are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    @classmethod
    def of(cls, splits: Sequence[Split], data: Sequences) -> Entries:
        """The entries of splits of ``data``, one split after the other."""
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for number, split in enumerate(splits):
            new = iter(sorted(set(range(data.num_sequences)) - set(split.kept)))  # whole sequences that are hidden
            belongs = [next(new) if s is None else split.kept[s] for s in split.sequence]
            rows = torch.cat(split.truth).isfinite().nonzero()[:, 0]
            sequence = torch.cat([torch.full((len(t),), s) for s, t in zip(belongs, split.t, strict=True)])
            parts.append((sequence[rows.cpu()], torch.cat(split.t)[rows].cpu(), torch.full((len(rows),), number)))
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))
