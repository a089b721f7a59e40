# SPDX-License-Identifier: Apache-2.0
"""The arguments of all imputers, read and checked once, and the way back to the form in which they came."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences

__all__ = ["Gaps", "around", "patterns"]


class Gaps:
    """Times and outputs of sequences, with what is missing.

    :raises ValueError: as :class:`~pyro_vgpds.Sequences` does, and where a column was never observed.
    """

    def __init__(self, t: Any, y: Any = None) -> None:
        if isinstance(t, Sequences) and y is not None:
            raise ValueError("give either Sequences alone or t and y, not both.")
        data = t if isinstance(t, Sequences) else Sequences(t, y)
        if data.num_outputs == 0:
            raise ValueError("y is missing: there is nothing to fill in times alone.")
        if bool((data.output_counts == 0).any()):
            column = int((data.output_counts == 0).nonzero()[0])
            raise ValueError(f"column {column} of y was never observed, so nothing is known of it; drop it.")
        self.y = data.read().to("cpu", torch.float64)  #: (N, D)
        self.t = data.times.t.to("cpu", torch.float64)  #: (N,)
        self.means = data.output_means.to(self.y)  #: (D,) of what was observed
        self.seen = ~torch.isnan(self.y)  #: (N, D)
        self.rows = data.times.slices()
        self._several = data.num_sequences > 1 or (isinstance(t, (list, tuple)) and np.ndim(t[0]) > 0)

    def sequences(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Rows, times (n,), outputs (n, D) and what was seen (n, D) of each sequence."""
        for rows in self.rows:
            yield rows, self.t[rows], self.y[rows], self.seen[rows]

    def fill(self, values: Tensor) -> Tensor | list[Tensor]:
        """``values`` (N, D) where nothing was observed, in the form in which the data came."""
        return self.shape(torch.where(self.seen, self.y, values))

    def shape(self, values: Tensor) -> Tensor | list[Tensor]:
        """(N, D) as one tensor, or as a list with one for each sequence."""
        return [values[rows] for rows in self.rows] if self._several else values


def around(seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For a column's every row, the last seen row up to it and the first seen row from it on, (n, D) each.

    At the edges, where there is none on one side, both are the one on the other; the third value, (D,), says which
    columns were seen at all.
    """
    n = len(seen)
    row = torch.arange(n).unsqueeze(-1).expand_as(seen)
    before = torch.where(seen, row, -1).cummax(0).values
    after = torch.where(seen, row, n).flip(0).cummin(0).values.flip(0)
    none_before, none_after = before < 0, after == n
    before, after = torch.where(none_before, after, before), torch.where(none_after, before, after)
    return before.clamp(0, n - 1), after.clamp(0, n - 1), seen.any(0)


def patterns(seen: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows of ``seen`` (n, m) as (P, m), and which of them each row is, (n,)."""
    packed = np.ascontiguousarray(np.packbits(seen.numpy(), axis=1))
    keys = packed.view([("", packed.dtype)] * packed.shape[1]).ravel()
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return seen[torch.from_numpy(first)], torch.from_numpy(place.ravel())
