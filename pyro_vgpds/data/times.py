# SPDX-License-Identifier: Apache-2.0
"""The times of one or several sequences, and batches of sequences of similar length for linear algebra."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.checks import check_list, check_tensor, is_whole

__all__ = ["Times", "check_range"]

_ROUNDING = 8.0  # rounding errors of a time step, in units of the last place of the largest time

_PADDING = 1.25  # sequences share a batch while the longest is at most this many times the shortest
_BATCH = 1 << 15  # and while their blocks, B n² numbers, stay in cache


@dataclass(frozen=True)
class PaddedBatch:
    """B sequences of similar length, padded to n frames: times (B, n), rows (B, n) among all frames, mask (B, n)."""

    t: Tensor
    rows: Tensor
    mask: Tensor | None  # None: nothing is padded

    def mask_block(self, block: Tensor) -> Tensor:
        """The blocks (..., B, n, n) with the identity in place of padding."""
        if self.mask is None:
            return block
        real = self.mask.to(block.dtype)
        return block * real.unsqueeze(-1) * real.unsqueeze(-2) + torch.diag_embed(1.0 - real)


def check_range(t: Tensor) -> None:
    """Raise a ValueError if a finite time has become infinite in the dtype of the computation."""
    if bool(t.isinf().any()):
        i = int(t.isinf().nonzero()[0])
        raise ValueError(
            f"t must be finite, but time {i} is too large for {t.dtype}: use another unit or torch.float64."
        )


class Times:
    """Times of sequences, one after the other: ``t`` (N,) and the ``lengths`` of the sequences.

    :param t: a tensor (N,), increasing within each sequence.
    :param lengths: frames in each sequence. Default: one sequence.
    :raises ValueError: if the lengths are not positive with sum N.

    >>> import torch
    >>> from pyro_vgpds.data import Times
    >>> Times(torch.tensor([0.0, 1.0, 0.0, 1.0, 2.0]), lengths=[2, 3]).slices()
    [slice(0, 2, None), slice(2, 5, None)]
    """

    def __init__(self, t: Tensor, lengths: Sequence[int] | None = None) -> None:
        check_tensor("t", t)
        check_list("lengths", lengths, "a list of whole numbers", optional=True)
        if lengths is not None and not all(is_whole(n) for n in lengths):
            raise TypeError(f"lengths must be a list of whole numbers, but got {lengths!r:.80}.")
        self.t = t
        self.lengths = tuple(int(n) for n in lengths) if lengths is not None else (len(t),)
        if t.dim() != 1 or sum(self.lengths) != len(t) or min(self.lengths, default=0) < 1:
            raise ValueError(f"t must be (N,) and lengths positive with sum N, but got {tuple(t.shape)} and {lengths}.")
        self.starts = tuple(itertools.accumulate(self.lengths, initial=0))[:-1]
        #: what other modules have made of these times alone, by keys of their own
        self.made: dict[object, object] = {}

    @functools.cached_property
    def batches(self) -> list[PaddedBatch]:
        """The sequences in batches of similar length, computed on first use: a Markov prior does not need them."""
        return self._make_batches()

    @functools.cached_property
    def _is_one_batch(self) -> bool:
        """Whether one batch has all frames in their order, so that nothing is moved."""
        rows = self.batches[0].rows.flatten()
        return len(self.batches) == 1 and len(rows) == len(self) and bool((rows.diff() == 1).all())

    @functools.cached_property
    def _place(self) -> Tensor:
        """The position of each frame among the padded ones."""
        valid = [torch.ones_like(b.rows, dtype=torch.bool) if b.mask is None else b.mask for b in self.batches]
        order = torch.cat([b.rows[m] for b, m in zip(self.batches, valid, strict=True)])
        place = torch.cat([m.flatten() for m in valid]).nonzero().squeeze(-1)
        where = torch.empty_like(place)
        where[order] = place
        return where

    @functools.cached_property
    def steps(self) -> tuple[Tensor, Tensor]:
        """The different time steps between frames, (U,), and which of them precedes each frame, (N,).

        Steps that differ by the rounding errors of the times count as equal. The step before the first frame of a
        sequence is 0. Everything is float64.
        """
        t = self.t.detach().double()
        dt = torch.diff(t, prepend=t[:1])
        dt[list(self.starts)] = 0.0
        levels, which = torch.round(dt / self.resolution).unique(return_inverse=True)
        steps = dt.new_zeros(len(levels)).index_copy_(0, which, dt)  # one of those that are equal
        return steps, which

    @functools.cached_property
    def resolution(self) -> Tensor:
        """The rounding errors of time steps and distances: those that differ by less count as equal."""
        t = self.t.detach().double()
        return _ROUNDING * torch.finfo(t.dtype).eps * t.abs().max().clamp_min(torch.finfo(t.dtype).tiny)

    @functools.cached_property
    def in_double(self) -> Times:
        """The same in float64, in which everything is computed; itself if it is."""
        return self if self.t.dtype == torch.float64 else self.to(torch.float64)

    def __len__(self) -> int:
        return len(self.t)

    def check_resolution(self) -> None:
        """Raise a ValueError if times of a sequence are infinite or equal in the dtype of the computation."""
        check_range(self.t)
        close = torch.diff(self.t, append=self.t[-1:]) <= 0
        close[torch.tensor(self.starts, device=close.device) - 1] = False  # the last frame of each sequence
        if bool(close.any()):
            i = bisect.bisect_right(self.starts, int(close.nonzero()[0])) - 1
            raise ValueError(
                f"the times of sequence {i} are too close together for {self.t.dtype}: use a later origin, "
                "another unit, or dtype=torch.float64."
            )

    def to(self, *args: Any, **kwargs: Any) -> Times:
        """A copy on another device or in another dtype."""
        return Times(self.t.to(*args, **kwargs), self.lengths)

    def slices(self) -> list[slice]:
        """The rows of each sequence."""
        return [slice(a, a + n) for a, n in zip(self.starts, self.lengths, strict=True)]

    def _make_batches(self) -> list[PaddedBatch]:
        order = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i])
        groups: list[list[int]] = []
        for i in order:
            n = self.lengths[i]
            if groups and n <= _PADDING * self.lengths[groups[-1][0]] and (len(groups[-1]) + 1) * n * n <= _BATCH:
                groups[-1].append(i)
            else:
                groups.append([i])
        return [self._make_batch(group) for group in groups]

    def _make_batch(self, group: list[int]) -> PaddedBatch:
        lengths = torch.tensor([self.lengths[i] for i in group], device=self.t.device).unsqueeze(-1)
        starts = torch.tensor([self.starts[i] for i in group], device=self.t.device).unsqueeze(-1)
        step = torch.arange(int(lengths.max()), device=self.t.device)
        rows = starts + torch.minimum(step, lengths - 1)  # padding repeats the last frame, and has no effect
        mask = step < lengths
        return PaddedBatch(self.t[rows], rows, None if bool(mask.all()) else mask)

    def split(self, v: Tensor) -> list[Tensor]:
        """One tensor (..., Q, B, n) for each batch, with zeros as padding.

        :param v: (..., N, Q).
        """
        v = v.mT
        if self._is_one_batch:
            return [v.unflatten(-1, self.batches[0].rows.shape)]
        parts = []
        for batch in self.batches:
            part = v.index_select(-1, batch.rows.flatten()).unflatten(-1, batch.rows.shape)
            parts.append(part if batch.mask is None else part * batch.mask)
        return parts

    def join(self, parts: list[Tensor]) -> Tensor:
        """The inverse of :meth:`split`, (..., N, Q).

        :param parts: one tensor (..., Q, B, n) for each batch.
        """
        if self._is_one_batch:
            return parts[0].flatten(-2).mT
        return torch.cat([part.flatten(-2) for part in parts], -1).index_select(-1, self._place).mT

    def block_diagonal(self, blocks: list[Tensor]) -> Tensor:
        """One matrix (..., N, N) with these blocks on its diagonal.

        :param blocks: one tensor (..., B, n, n) for each batch.
        """
        full = blocks[0].new_zeros(blocks[0].shape[:-3] + (len(self), len(self)))
        for batch, block in zip(self.batches, blocks, strict=True):
            for i, rows in enumerate(batch.rows):
                n = len(rows) if batch.mask is None else int(batch.mask[i].sum())
                start = int(rows[0])
                full[..., start : start + n, start : start + n] = block[..., i, :n, :n]
        return full
