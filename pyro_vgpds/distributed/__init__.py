# SPDX-License-Identifier: Apache-2.0
"""One model trained by several processes, each with sequences of its own, on one machine or many."""

from pyro_vgpds.communication import ProcessError
from pyro_vgpds.data.column_shards import ColumnShard
from pyro_vgpds.data.shards import Shard
from pyro_vgpds.distributed.api import join, shard, share
from pyro_vgpds.inference.distributed_elbo import IndependentWarning, independent
from pyro_vgpds.inference.gather import gather, same

__all__ = [
    "ColumnShard", "IndependentWarning", "ProcessError", "Shard", "gather", "independent", "join", "same", "shard",
    "share",
]  # fmt: skip
