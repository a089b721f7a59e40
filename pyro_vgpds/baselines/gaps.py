# SPDX-License-Identifier: Apache-2.0
"""Arguments of all imputers: parsing, checks, and conversion of the result to the form of the input."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.data.filling import line_between
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["Filled", "FilledPair", "Gaps"]

#: (N, D), or a list with one entry for each sequence
Filled: TypeAlias = Tensor | list[Tensor]
#: the same, or a pair of means and variances
FilledPair: TypeAlias = Filled | tuple[Filled, Filled]


class Gaps:
    """Times and outputs of sequences, with the mask of observed entries.

    :param hidden_columns: whether a column may have no observed value.
    :raises ValueError: as :class:`~pyro_vgpds.Sequences`, and if a column was never observed.
    """

    def __init__(self, t: DataLike | Sequences, y: DataLike | None = None, hidden_columns: bool = False) -> None:
        if isinstance(t, Sequences) and y is not None:
            raise ValueError("pass either Sequences alone, or t and y, not both.")
        data = t if isinstance(t, Sequences) else Sequences(t, y)
        if data.num_outputs == 0:
            raise ValueError("y is required: these data have times only, so there is nothing to impute.")
        if not hidden_columns and bool((data.output_counts == 0).any()):
            column = int((data.output_counts == 0).nonzero()[0])
            raise ValueError(f"column {column} of y was never observed and cannot be imputed: drop it.")
        self.y = data.read().to("cpu", torch.float64)  #: (N, D)
        self.t = data.times.t.to("cpu", torch.float64)  #: (N,)
        self.means = data.output_means.to(self.y)  #: (D,) means of the observed values
        self.seen = ~torch.isnan(self.y)  #: (N, D)
        self.rows = data.times.slices()
        self._several = data.num_sequences > 1 or (isinstance(t, (list, tuple)) and np.ndim(t[0]) > 0)

    @cached_property
    def spread(self) -> Tensor:
        """Standard deviations (D,) of the observed values, 1 for constant columns."""
        spread = (self.y - self.means).square().nanmean(0).sqrt()
        return torch.where(spread == 0, 1.0, spread)

    @cached_property
    def step(self) -> Tensor:
        """The median interval between frames, (); 1 for single frames."""
        intervals = torch.cat([self.t[rows].diff() for rows in self.rows])
        return intervals.median() if len(intervals) else torch.ones_like(self.t[0])

    def sequences(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Rows, times (n,), outputs (n, D) and the mask of observed entries (n, D) of each sequence."""
        for rows in self.rows:
            yield rows, self.t[rows], self.y[rows], self.seen[rows]

    def lines(self, t: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        """Some frames (n, D) of a sequence without NaN: linear interpolation, means in columns without observations."""
        return torch.where(seen.any(0), line_between(t, y, seen), self.means)

    def fill(self, values: Tensor) -> Filled:
        """The data with ``values`` (N, D) in place of NaN, in the form of the input."""
        return self.shape(torch.where(self.seen, self.y, values))

    def fill_pair(self, values: Tensor, variances: Tensor, return_variance: bool) -> FilledPair:
        """The same, with the variances (N, D) of missing entries if they are wanted, zero for observed ones."""
        filled = self.fill(values)
        return (filled, self.shape(torch.where(self.seen, 0.0, variances))) if return_variance else filled

    def shape(self, values: Tensor) -> Filled:
        """(N, D) as one tensor, or as a list with one tensor for each sequence."""
        return [values[rows] for rows in self.rows] if self._several else values
