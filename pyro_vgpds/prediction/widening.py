# SPDX-License-Identifier: Apache-2.0
r"""Gaps in partly observed frames, where the function is less certain than q(X) and q(U) say.

What an output has of its own, the path and the mapping have fitted where it was observed. In a gap they know the frame
from the other outputs, and are too certain of this one, the more the longer the gap is. So the variance of the function
in a gap of L frames is multiplied by :math:`\sqrt{\min(L, 10)}`. Frames in which nothing was observed keep theirs,
which the temporal prior makes wide enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["gap_factors", "gap_lengths"]

_LONGEST = 10  # frames
_POWER = 0.5


def gap_factors(missing: Tensor, observed: Tensor, sequences: Sequence[slice]) -> Tensor:
    """The factors of the variance of the function, (N, D): 1 where nothing is missing, and in lost frames.

    :param missing: which entries are missing, (N, D).
    :param observed: in which frames something was observed, (N,).
    :param sequences: the rows of each sequence.
    """
    lengths = torch.cat([gap_lengths(missing[rows]) for rows in sequences])
    widened = missing & observed.unsqueeze(-1)
    return torch.where(widened, lengths.clamp(1, _LONGEST).double() ** _POWER, 1.0)


def gap_lengths(missing: Tensor) -> Tensor:
    """For each entry (n, D) of a sequence the number of consecutive missing ones that it belongs to; 0 if observed."""
    n = len(missing)
    frame = torch.arange(n, device=missing.device).unsqueeze(-1).expand_as(missing)
    before = frame.masked_fill(missing, -1).cummax(0).values
    after = frame.masked_fill(missing, n).flip(0).cummin(0).values.flip(0)
    return (after - before - 1).clamp_min(0)
