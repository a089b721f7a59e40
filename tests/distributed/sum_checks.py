# SPDX-License-Identifier: Apache-2.0
"""Sums over processes in all three ways, and what each process hears if one of them fails in the middle of them."""

import sys

import torch
import torch.distributed as dist
from shared import check

from pyro_vgpds import NumericalError, distributed
from pyro_vgpds.communication import GroupCommunicator
from pyro_vgpds.communication.sums import CAPACITY

SIZES = (0, 1, 3, 5000, 2 * CAPACITY + 1)


def heard(function):
    try:
        function()
    except (NumericalError, distributed.ProcessError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@check
def sums(rank):
    """The sums of one machine, of few and of many processes, and errors in place of them; all go on together."""
    count, found = dist.get_world_size(), {}
    for way in ("machine", "few", "many"):
        communicator = GroupCommunicator()
        assert communicator._shared is not None or sys.platform != "linux"
        assert communicator._exchanges
        if way != "machine":
            communicator._shared, communicator._exchanges = None, way == "few"
        errors = []
        for size in SIZES:
            terms = [torch.linspace(0.0, 1.0, size) + 10.0**i for i in range(count)]
            total = communicator.all_reduce(terms[rank])
            errors.append(float((total - sum(terms)).abs().max()) if size else 0.0)
            shaped = communicator.all_reduce(terms[rank].float().reshape(-1, 1))
            assert shaped.dtype is torch.float32
            assert shaped.shape == (size, 1)

        def failing(communicator, which, error):
            def run():
                with communicator.sharing_errors():
                    if rank in which:
                        raise error
                    communicator.all_reduce(torch.ones(5000))

            return heard(run)

        texts = [
            failing(communicator, [1], KeyError("no sum")),
            failing(communicator, [0], NumericalError("not finite")),
            failing(communicator, range(count), NumericalError("nowhere finite")),
            failing(communicator, range(1, count), KeyError("in most")),
        ]
        flags = [communicator.any(False), communicator.any(rank == 1)]
        found[way] = [errors, texts, flags, communicator.numbers]
    return found


@check
def different_operations(rank):
    """Processes that sum different things, which nothing can continue from."""
    return heard(lambda: GroupCommunicator().all_reduce(torch.ones(3 + rank)))
