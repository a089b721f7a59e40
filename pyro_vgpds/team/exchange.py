# SPDX-License-Identifier: Apache-2.0
"""Sums over few processes, each of which sends its terms to every other.

For sums of this library the time is that of the messages, not of their bytes: ``all_reduce`` of gloo takes several
messages in turn, and a round of reports before it as many again. Here all messages are sent at once. Each process sends
a head, its report and the number of its terms, and then the terms. A process that has failed does not know what the
others sum: it waits for their heads, and takes part with zeros. The tag of terms is their number, so that terms of
different lengths, which would end a process, never meet.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["FEW", "exchange"]

FEW = 4  #: processes up to which this is used: K processes send K − 1 times the terms each


def exchange(
    terms: Tensor, report: int, rank: int, ranks: Sequence[int], group: dist.ProcessGroup | None
) -> tuple[list[int], Tensor]:
    """The reports of all processes, and the sum of their terms, the same bits in each process.

    :param terms: of the same length in all processes, float64; empty if this process has failed.
    :param report: any integer, nonzero if this process has failed.
    :raises RuntimeError: if a process has ended, or if the lengths differ.
    """
    others = [i for i in range(len(ranks)) if i != rank]
    heads, rows = terms.new_zeros(len(ranks), 2), _rows(len(ranks), terms, rank)
    heads[rank] = torch.tensor([report, len(terms)])
    first, rest = _Messages(ranks, group), _Messages(ranks, group)
    for i in others:
        first.swap(i, heads[rank], heads[i], 0)
        if len(terms):
            rest.swap(i, terms, rows[i], len(terms))
    first.wait()
    reports, lengths = ([int(x) for x in column] for column in heads.T.tolist())
    length = max(lengths)
    if any(own < length and not failed for own, failed in zip(lengths, reports, strict=True)):
        raise RuntimeError(f"the processes are in different operations: sums of {lengths} numbers")
    if len(terms) < length:  # this process has failed
        rows = _rows(len(ranks), terms.new_zeros(length), rank)
        for i in others:
            if lengths[i]:
                rest.swap(i, rows[rank], rows[i], length)
    rest.wait()
    return reports, functools.reduce(torch.add, rows)


def _rows(count: int, own: Tensor, rank: int) -> Tensor:
    """The terms of all processes, of which those of this process are known."""
    rows = own.new_zeros(count, len(own))
    rows[rank] = own
    return rows


class _Messages:
    """Messages that are on their way."""

    def __init__(self, ranks: Sequence[int], group: dist.ProcessGroup | None) -> None:
        self.ranks, self.group = ranks, group
        self.works: list[dist.Work | None] = []

    def swap(self, other: int, own: Tensor, theirs: Tensor, tag: int) -> None:
        """Send a tensor to another process of the group, and receive its own."""
        rank = self.ranks[other]
        self.works += [dist.irecv(theirs, rank, self.group, tag), dist.isend(own, rank, self.group, tag)]

    def wait(self) -> None:
        for work in self.works:
            assert work is not None, "the group is that of other processes"
            work.wait()
