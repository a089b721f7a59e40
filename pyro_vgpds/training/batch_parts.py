# SPDX-License-Identifier: Apache-2.0
"""What each process keeps of its own when it trains in batches, for another number of processes.

A process has the order in which it visits its sequences, a generator for the next order, and the sites of the last
batch as they were before, to undo a step. If other processes continue, each takes the sites of its own frames. The
sequences that were not visited in the epoch come next, in a new random order.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.data.batches import SequenceDataset
from pyro_vgpds.training.settings import ResumeError

__all__ = ["regrouped"]


def regrouped(owns: list[dict[str, Any]], frames: list[int], data: SequenceDataset) -> dict[str, Any]:
    """What this process begins with, if the sequences were with other processes before.

    :param owns: what each of them kept: "order" (S,), "position" (batches of the epoch so far, and in all),
        "generator", and "undo", the rows of the last batch and their sites, or None.
    :param frames: the number of frames of each of them.
    :param data: the sequences of this process.
    :raises ResumeError: if they had another number of sequences.
    """
    sizes = [len(own["order"]) for own in owns]
    if sum(sizes) != data.total_sequences:
        raise ResumeError(
            f"Cannot resume: the checkpoint has {sum(sizes)} sequences, but the data have {data.total_sequences}."
        )
    generator = torch.Generator()
    generator.set_state(owns[0]["generator"])
    seeds = torch.randint(1 << 62, (data.team.size,), generator=generator)  # another one for each process
    generator.manual_seed(int(seeds[data.team.rank]))
    mine = _visited(owns)[data.first_sequence :][: data.num_sequences]
    order = torch.randperm(data.num_sequences, generator=generator)
    order = order[(~mine[order]).to(torch.uint8).argsort(stable=True)]
    undo = None
    if all(own["undo"] is not None for own in owns):
        undo = _own_rows([own["undo"] for own in owns], frames, data)
    return {"order": order, "position": owns[0]["position"], "generator": generator.get_state(), "undo": undo}


def _visited(owns: list[dict[str, Any]]) -> Tensor:
    """Which sequences of all processes were visited in this epoch."""
    parts = []
    for own in owns:
        order, (batch, count) = own["order"].long(), own["position"]
        seen = torch.zeros(len(order), dtype=torch.bool)
        for indices in order.tensor_split(int(count))[: int(batch)]:
            seen[indices] = True
        parts.append(seen)
    return torch.cat(parts)


def _own_rows(undos: list[list[Tensor]], frames: list[int], data: SequenceDataset) -> list[Tensor]:
    """The rows of this process among those of all, with their sites."""
    starts = accumulate(frames[:-1], initial=0)
    rows = torch.cat([undo[0].long() + start for undo, start in zip(undos, starts, strict=True)]) - data.offset
    own = (rows >= 0) & (rows < data.num_frames)
    eta, lam, factors = (torch.cat(sites, -2)[..., own, :] for sites in zip(*(undo[1:] for undo in undos), strict=True))
    return [rows[own], eta, lam, factors]
