# SPDX-License-Identifier: Apache-2.0
"""One model trained by several processes, each with sequences of its own, on one machine or many."""

from pyro_vgpds.communication import ProcessError
from pyro_vgpds.data.column_shards import ColumnShard
from pyro_vgpds.data.shards import Shard
from pyro_vgpds.distributed.processes import join, shard, share
from pyro_vgpds.inference.gathering import gather, same
from pyro_vgpds.inference.joint import IndependentWarning, independent

__all__ = [
    "ColumnShard", "IndependentWarning", "ProcessError", "Shard", "gather", "independent", "join", "same", "shard",
    "share",
]  # fmt: skip
