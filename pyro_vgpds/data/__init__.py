# SPDX-License-Identifier: Apache-2.0
"""The data: sequences of outputs at given times, and what the bound reads of them."""

from pyro_vgpds.data.lags import lagged
from pyro_vgpds.data.sequences import ColumnGroups, Sequences
from pyro_vgpds.data.times import Times

__all__ = [
    "ColumnGroups",
    "Sequences",
    "Times",
    "lagged",
]
