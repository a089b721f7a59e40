# SPDX-License-Identifier: Apache-2.0
"""What processes kept of a run in batches, for another number of them."""

import pytest
import torch
from problems import make_data

from pyro_vgpds import SequenceDataset
from pyro_vgpds.communication import Communicator
from pyro_vgpds.training.checkpoint_parts import regrouped

LENGTHS, FRAMES = (3, 2, 4, 1, 5), [5, 10]  # two processes, with two and three sequences


def kept(order, batch, rows, generator=0):
    """What a process kept after some of two batches; its sites tell the row and the process."""
    site = torch.tensor(rows).double().unsqueeze(-1) + 100.0 * generator
    undo = [torch.tensor(rows), site, -site, torch.stack([site, 2.0 * site])]
    state = torch.Generator().manual_seed(generator).get_state()
    return {"order": torch.tensor(order), "position": [batch, 2], "generator": state, "undo": undo}


OWNS = [kept([1, 0], 1, [3, 4], 1), kept([2, 0, 1], 1, [5, 6, 7, 8, 9, 0, 1, 2, 3], 2)]


def of_process(rank, size, first, lengths, offset):
    """The dataset of one process."""
    data = SequenceDataset(make_data(lengths))
    data.communicator = Communicator()
    data.communicator.rank, data.communicator.size = rank, size
    data.total_sequences, data.first_sequence, data.offset = len(LENGTHS), first, offset
    return data


def test_one_process_continues_two():
    own = regrouped(OWNS, FRAMES, of_process(0, 1, 0, LENGTHS, 0))
    assert sorted(own["order"].tolist()) == list(range(5))
    assert set(own["order"][:3].tolist()) == {1, 4, 2}  # visited in this epoch: 1 of the first, 2 and 0 of the second
    rows, eta, lam, factors = own["undo"]
    assert rows.tolist() == [3, 4, 10, 11, 12, 13, 14, 5, 6, 7, 8]
    assert eta.flatten().tolist() == [103, 104, *(200 + row for row in [5, 6, 7, 8, 9, 0, 1, 2, 3])]
    assert torch.equal(lam, -eta)
    assert torch.equal(factors, torch.stack([eta, 2.0 * eta]))


def test_three_processes_continue_two():
    places = [(0, LENGTHS[:2], 0), (2, LENGTHS[2:3], 5), (3, LENGTHS[3:], 9)]
    owns = [regrouped(OWNS, FRAMES, of_process(rank, 3, *place)) for rank, place in enumerate(places)]
    assert [own["order"].tolist() for own in owns[:2]] == [[1, 0], [0]]
    assert owns[2]["order"].tolist() == [1, 0]
    assert [own["undo"][0].tolist() for own in owns] == [[3, 4], [0, 1, 2, 3], [1, 2, 3, 4, 5]]
    assert owns[2]["undo"][1].flatten().tolist() == [205, 206, 207, 208, 209]
    assert not torch.equal(owns[0]["generator"], owns[1]["generator"])


def test_other_sequences():
    with pytest.raises(ValueError, match="the checkpoint has 2 sequences, but the data have 5"):
        regrouped(OWNS[:1], FRAMES[:1], of_process(0, 1, 0, LENGTHS, 0))


def test_no_step_to_undo():
    owns = [{**own, "undo": None} for own in OWNS]
    assert regrouped(owns, FRAMES, of_process(0, 1, 0, LENGTHS, 0))["undo"] is None
