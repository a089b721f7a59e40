# SPDX-License-Identifier: Apache-2.0
"""One process beside several: ``torchrun --nproc-per-node 2 -m benchmarks.distributed --size XL --json``.

Times one evaluation of the bound with all its gradients. First, process 0 computes the whole data alone while the
others wait; then each process computes its part. Each has one thread. The two take turns of a few evaluations, and the
least of the times of each counts: other programs on the machine can only add to them. Each has a model of its own,
because the first evaluation of a model on other data runs it as a Pyro program, which training does only once.
``--size mocap`` has 31 sequences.

The last line of process 0 is JSON with ``--json``: the largest relative difference of bound and gradients to one
process, the wall time of one process over that of all, and the bytes that a process gives to sums in one evaluation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyro
import torch
from torch import Tensor

from benchmarks.drawn import SIZES
from benchmarks.problems import make
from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Sequences, distributed
from pyro_vgpds.communication import GroupCommunicator
from pyro_vgpds.pyro_state import own_store

T = TypeVar("T")
_IN_TURN = 3  # evaluations one after the other, as in training
_PIECES = 100  # sequences that the frames of a GP-LVM, which has no dynamics, are divided into


def in_pieces(data: Sequences) -> Sequences:
    """The same frames in many sequences; with white noise as the temporal kernel the model is the same."""
    t, y = data.times.t.numpy(), data.read().numpy()
    return Sequences(np.array_split(t, _PIECES), np.array_split(y, _PIECES))


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def largest_difference(found: list[Tensor], wanted: list[Tensor]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-300)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=[*SIZES, "mocap"], default="XL")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with distributed.join() as rank:
        whole_model, whole_guide, whole = make(args.size)
        model = make(args.size)[0]
        if args.size != "mocap":
            whole = in_pieces(whole)
        data = distributed.shard(whole)
        rows = slice(0, whole.num_frames)
        if isinstance(data, distributed.Shard):
            rows = slice(data.offset, data.offset + data.num_frames)
        sites = [value.detach() for value in (whole_guide.mean_bar, whole_guide.lam)]
        guide = AutoOpperArchambeau(model, mean_bar=sites[0][rows], lam=sites[1][rows])
        elbo, communicator = Collapsed_ELBO(), data.communicator

        def evaluate(model: VGPDS, own: AutoOpperArchambeau, on: Sequences) -> tuple[float, list[Tensor], list[Tensor]]:
            shared, mine = list(model.parameters()), [own.mean_bar_unconstrained, own.lam_unconstrained]
            for parameter in (*shared, *mine):
                parameter.grad = None
            loss = elbo.loss_and_grads(model, own, on)
            gradients = ([p.grad for p in some if p.grad is not None] for some in (shared, mine))
            return loss, *gradients

        def alone() -> tuple[float, list[Tensor], list[Tensor]]:
            with distributed.independent():
                return evaluate(whole_model, whole_guide, whole)

        def together() -> tuple[float, list[Tensor], list[Tensor]]:
            return evaluate(model, guide, data)

        stores: list[Any] = [None, None]  # the two guides have parameters of the same names

        def in_store(which: int, run: Callable[[], T]) -> T:
            with own_store(stores[which]):
                found = run()
                stores[which] = pyro.get_param_store().get_state()
            return found

        one_loss, one_shared, one_sites = in_store(0, alone)
        loss, joint_shared, joint_sites = in_store(1, together)
        difference = max(
            abs(loss - one_loss) / abs(one_loss),
            largest_difference(joint_shared, one_shared),
            largest_difference(joint_sites, [site[rows] for site in one_sites]),
        )
        difference = communicator.all_reduce_max([difference])[0]
        before = communicator.numbers if isinstance(communicator, GroupCommunicator) else 0
        in_store(1, together)
        sent = 8 * (communicator.numbers - before) if isinstance(communicator, GroupCommunicator) else 0

        one, several = [], []
        for _ in range(args.runs):
            communicator.check()
            if rank == 0:
                one += [in_store(0, lambda: seconds(alone)) for _ in range(_IN_TURN)]
            communicator.check()
            several += [in_store(1, lambda: seconds(together)) for _ in range(_IN_TURN)]
        cpu = communicator.all_reduce_max([statistics.median(time for _, time in several)])[0]
        if rank == 0:
            wall_one, wall_several = min(time for time, _ in one), min(time for time, _ in several)
            cpu_one = statistics.median(time for _, time in one)
            print(
                f"{args.size}: {whole!r}, {communicator.size} processes\n"
                f"wall: {1e3 * wall_one:.1f} ms alone, {1e3 * wall_several:.1f} ms together: "
                f"{wall_one / wall_several:.2f} times faster\n"
                f"CPU: {1e3 * cpu_one:.1f} ms alone, at most {1e3 * cpu:.1f} ms of each together: {cpu_one / cpu:.2f}\n"
                f"bytes given to sums: {sent:,}; largest relative difference: {difference:.1e}"
            )
            if args.json:
                row = {"difference": difference, "speedup": wall_one / wall_several, "bytes_per_step": sent}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
