# SPDX-License-Identifier: Apache-2.0
"""Sums in memory that processes share, here of threads, each of which is a process to the others."""

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pyro_vgpds.communication import sums as module
from pyro_vgpds.communication.sums import CAPACITY, SharedSums

pytestmark = pytest.mark.skipif(not module._supported(), reason="needs Linux on x86-64")


class Gather:
    """The texts of some threads."""

    def __init__(self, count):
        self.texts, self.barrier = [""] * count, threading.Barrier(count, timeout=60)

    def __call__(self, rank, text):
        self.barrier.wait()
        self.texts[rank] = text
        self.barrier.wait()
        return list(self.texts)


def opened(count=2, timeout=60.0, altered=lambda texts: texts):
    """The sums of all members."""
    gather = Gather(count)
    with ThreadPoolExecutor(count) as pool:
        calls = [
            pool.submit(SharedSums.open, rank, lambda text, rank=rank: altered(gather(rank, text)), timeout)
            for rank in range(count)
        ]
        return [call.result() for call in calls]


def exchanged(members, terms, reports=None):
    reports = reports or [0] * len(members)
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda i: members[i].exchange(terms[i], reports[i]), range(len(members))))


def test_sums_of_many_rounds():
    members = opened(3)
    generator = torch.Generator().manual_seed(0)
    for size in (0, 1, 7, 100, CAPACITY, CAPACITY + 1, 3 * CAPACITY + 5, 2, 0, 4):
        terms = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in members]
        for reports, total in exchanged(members, terms):
            assert reports == [0, 0, 0]
            assert torch.equal(total, terms[0] + terms[1] + terms[2])


def test_a_report_takes_the_place_of_the_sum():
    members = opened(2)
    long, none = torch.ones(2 * CAPACITY, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    for _ in range(3):
        assert [found[0] for found in exchanged(members, [long, none], [0, 2])] == [[0, 2], [0, 2]]
    assert float(exchanged(members, [long, long])[1][1].sum()) == 4 * CAPACITY


def test_different_lengths():
    members = opened(2)
    with pytest.raises(RuntimeError, match=r"the processes are in different operations: sums of \[1, 2\] numbers"):
        exchanged(members, [torch.ones(1, dtype=torch.float64), torch.ones(2, dtype=torch.float64)])


def test_no_answer():
    members = opened(2, timeout=0.05)
    with pytest.raises(RuntimeError, match=r"process 1 did not answer within 0\.05 seconds"):
        members[0].exchange(torch.ones(1, dtype=torch.float64), 0)


def test_a_process_that_ended():
    """It is an error, unless it has answered before."""
    memories = opened(2)[0]._memories
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        other = os.pidfd_open(process.pid)
        assert not module._ended(other)
        process.communicate()
    sums, none = SharedSums(0, memories, {1: other}, 60.0), torch.zeros(0, dtype=torch.float64)
    memories[1].write(1, 1, 0, 0, none)  # the first round is in place 1
    assert sums.exchange(none, 0)[0] == [0, 0]
    with pytest.raises(RuntimeError, match="process 1 has ended"):
        sums.exchange(none, 0)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("part", [0, 1, 2, None], ids=["process", "descriptor", "identity", "not supported"])
def test_without_shared_memory(which, part, monkeypatch):
    """If one process cannot reach another, none of them uses shared memory, and nothing is kept."""

    def altered(texts):
        words = texts[which].split()
        if part is None:
            return ["" if i == which else text for i, text in enumerate(texts)]
        if len(words) == 3:
            words[part] = "7" if part == 2 else "999999999"
        return [" ".join(words) if i == which else text for i, text in enumerate(texts)]

    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    assert opened(2, altered=altered) == [None, None]
    assert set(os.listdir("/proc/self/fd")) == before


def test_other_systems(monkeypatch):
    monkeypatch.setattr(module.platform, "machine", lambda: "aarch64")
    assert opened(2) == [None, None]


def test_descriptors_are_closed():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    members = opened(2)
    assert len(os.listdir("/proc/self/fd")) > before
    del members
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
