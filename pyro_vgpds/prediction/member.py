# SPDX-License-Identifier: Apache-2.0
"""What an ensemble needs of its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import Default
from pyro_vgpds.prediction.arguments import ONLY, OneSequence, SequenceLike
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.training.progress import CountLike
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["Member"]


class Member(Protocol):
    """A predictor in an ensemble: a :class:`~pyro_vgpds.Posterior`, or a baseline with its methods."""

    @property
    def data(self) -> Sequences: ...

    def impute(self, *, fill: bool = True) -> Outputs: ...

    def forecast(self, t: ArrayLike, sequence: OneSequence | Default = ONLY) -> Outputs: ...

    def reconstruct(
        self,
        t: DataLike,
        y: DataLike,
        sequence: SequenceLike = None,
        *,
        fill: bool = False,
        progress: CountLike = False,
    ) -> Outputs: ...

    def condition(self, data: Sequences, sequences: Sequence[OneSequence] | None = None) -> Member: ...

    def extended(self, t: DataLike, y: DataLike, sequence: SequenceLike | Default = ONLY) -> Member: ...
