# SPDX-License-Identifier: Apache-2.0
"""The data: sequences of outputs at given times, and the column groups that the bound reads."""

from pyro_vgpds.data.batches import Batch, SequenceDataset
from pyro_vgpds.data.frame_batches import FrameBatch, FrameDataset
from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.data.lags import lagged
from pyro_vgpds.data.map_style import MappedSequences
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times

__all__ = [
    "Batch", "ColumnGroups", "FrameBatch", "FrameDataset", "MappedSequences", "SequenceDataset", "Sequences", "Times",
    "lagged",
]  # fmt: skip
