# SPDX-License-Identifier: Apache-2.0
"""Sums over few processes: between machines by messages, on one machine through memory that all of them read.

Between machines each process sends its terms to every other. For sums of this library the time is that of the messages,
not of their bytes: ``all_reduce`` of gloo takes several messages in turn, and a round of reports before it as many
again. Here all messages are sent at once. Each process sends a head, its report and the number of its terms, and then
the terms. A process that has failed does not know what the others sum: it waits for their heads, and takes part with
zeros. The tag of terms is their number, so that terms of different lengths, which would end a process, never meet.

A message between two processes wakes a thread of the receiver. If its core was idle, this can take milliseconds,
especially on virtual machines, which is long compared with a step of training. So on one machine each process writes
its terms into memory of its own that the others map, then the number of the round, and waits for the same number in the
memory of the others. There are two places for terms, used in turn. A process writes to a place again only after all
others have finished the round between, so that no terms are overwritten that another process still reads. The memory
has no name, and is freed with the last process that maps it.
"""

from __future__ import annotations

import functools
import mmap
import os
import platform
import secrets
import select
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["CAPACITY", "FEW", "SharedSums", "exchange"]

FEW = 4  #: processes up to which this is used: K processes send K − 1 times the terms each
CAPACITY = 2**17  #: terms in one place; longer sums take several rounds
_HEAD = 4  # numbers before the terms of a place: round, report, length of the whole sum, and one that is not used
_PLACE = _HEAD + CAPACITY
_SIZE = 8 * (1 + 2 * _PLACE)  # bytes; the first number identifies the memory
_BUSY = 0.005  # seconds of waiting without sleep
_SHORTEST, _LONGEST = 1e-4, 2e-3  # seconds of sleep after that
_LOOK = 0.1  # seconds between checks that the others are running


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


class _Memory(NamedTuple):
    """The memory of one process."""

    numbers: memoryview  # all of it as integers
    terms: tuple[Tensor, Tensor]  # of the two places

    @classmethod
    def map(cls, descriptor: int) -> _Memory:
        area = mmap.mmap(descriptor, _SIZE)
        starts = [8 * (1 + place * _PLACE + _HEAD) for place in (0, 1)]
        first, second = (torch.frombuffer(area, dtype=torch.float64, count=CAPACITY, offset=n) for n in starts)
        return cls(memoryview(area).cast("q"), (first, second))

    def write(self, place: int, number: int, report: int, length: int, terms: Tensor) -> None:
        head = 1 + place * _PLACE
        self.terms[place][: len(terms)] = terms
        self.numbers[head + 1], self.numbers[head + 2] = report, length
        self.numbers[head] = number  # last: the others begin to read


class SharedSums:
    """The sums of some processes of this machine; see :meth:`open`.

    :param others: descriptors of the other processes, by their ranks.
    """

    def __init__(self, rank: int, memories: list[_Memory], others: dict[int, int], timeout: float) -> None:
        self._rank, self._memories, self._others, self._timeout = rank, memories, others, timeout
        self._round = 0
        weakref.finalize(self, _close, list(others.values()))

    @classmethod
    def open(cls, rank: int, gather: Callable[[str], list[str]], timeout: float) -> SharedSums | None:
        """Memory that all processes share, or None in each of them if one cannot reach that of another.

        :param gather: the texts of all processes, in their order; called twice, by all of them.
        :param timeout: seconds after which a process that does not answer is an error.
        """
        token = secrets.randbits(62)
        descriptor = os.memfd_create("pyro_vgpds") if _supported() else -1
        try:
            if descriptor >= 0:
                os.ftruncate(descriptor, _SIZE)
                _Memory.map(descriptor).numbers[0] = token
            addresses = gather(f"{os.getpid()} {descriptor} {token}" if descriptor >= 0 else "")
            memories, others = _reach(rank, addresses)
            reached = gather("yes" if len(memories) == len(addresses) else "")
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if all(reached):
            return cls(rank, memories, others, timeout)
        _close(list(others.values()))
        return None

    def exchange(self, terms: Tensor, report: int) -> tuple[list[int], Tensor]:
        """As :func:`~pyro_vgpds.communication.sums.exchange`: the reports, and if all are zero the sum.

        :raises RuntimeError: if a process has ended or does not answer, or if the lengths differ.
        """
        total = torch.empty_like(terms)
        for start in range(0, max(len(terms), 1), CAPACITY):
            piece = terms[start : start + CAPACITY]
            self._round += 1
            place = self._round % 2
            self._memories[self._rank].write(place, self._round, report, len(terms), piece)
            self._wait(1 + place * _PLACE)
            heads = [memory.numbers[2 + place * _PLACE : 4 + place * _PLACE].tolist() for memory in self._memories]
            reports, lengths = ([head[i] for head in heads] for i in (0, 1))
            if any(reports):
                return reports, terms
            if min(lengths) < max(lengths):
                raise RuntimeError(f"the processes are in different operations: sums of {lengths} numbers")
            part = total[start : start + CAPACITY].zero_()
            for memory in self._memories:
                part += memory.terms[place][: len(piece)]
        return reports, total

    def _wait(self, head: int) -> None:
        """Wait until the number of the round is in the memory of every process."""
        begin = time.perf_counter()
        looked, pause = begin, _SHORTEST
        for rank in self._others:
            numbers = self._memories[rank].numbers
            while numbers[head] != self._round:
                now = time.perf_counter()
                if now - begin < _BUSY:
                    os.sched_yield()
                    continue
                if now - looked > _LOOK:
                    looked = now
                    self._look(numbers, head, rank)
                if now - begin > self._timeout:
                    raise RuntimeError(f"process {rank} did not answer within {self._timeout:g} seconds")
                time.sleep(pause)
                pause = min(2.0 * pause, _LONGEST)

    def _look(self, numbers: memoryview, head: int, rank: int) -> None:
        """Raise an error if a process has ended without an answer."""
        if _ended(self._others[rank]) and numbers[head] != self._round:
            raise RuntimeError(f"process {rank} has ended")


def _supported() -> bool:
    """Whether the system has such memory, and a processor on which others see numbers in the order of their writing."""
    machine = platform.machine() in ("x86_64", "AMD64")
    return sys.platform == "linux" and machine and hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")


def _reach(rank: int, addresses: list[str]) -> tuple[list[_Memory], dict[int, int]]:
    """The memories of all processes up to the first that cannot be reached, and the descriptors of the others."""
    memories: list[_Memory] = []
    others: dict[int, int] = {}
    for other, address in enumerate(addresses):
        if not address:
            break
        pid, descriptor, token = (int(number) for number in address.split())
        try:
            opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
            try:
                memory = _Memory.map(opened)
            finally:
                os.close(opened)
            if memory.numbers[0] != token:  # a process of another machine has this number, too
                break
            if other != rank:
                others[other] = os.pidfd_open(pid)
        except (OSError, ValueError):
            break
        memories.append(memory)
    return memories, others


def _ended(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
