# SPDX-License-Identifier: Apache-2.0
"""What an ensemble needs of its members, and what its settings need of a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import Default
from pyro_vgpds.prediction.arguments import ONLY, OneSequence, SequenceLike
from pyro_vgpds.prediction.fitted import Origin
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.predictions import Prediction
from pyro_vgpds.prediction.solver import Solver
from pyro_vgpds.training.progress import CountLike
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["Member", "TrainedMember"]


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


class TrainedMember(Member, Protocol):
    """The part of :class:`~pyro_vgpds.Posterior` by which its noise is chosen and calibrated."""

    @property
    def origin(self) -> Origin: ...

    @property
    def noise_variance(self) -> Tensor: ...

    @property
    def num_outputs(self) -> int: ...

    def residual_variance(self) -> Tensor: ...

    def impute(self, *, fill: bool = True, include_noise: bool = True) -> Prediction: ...

    def reconstruct(
        self,
        t: DataLike,
        y: DataLike,
        sequence: SequenceLike = None,
        *,
        fill: bool = False,
        include_noise: bool = True,
        solver: Solver | None = None,
        progress: CountLike = False,
    ) -> Prediction: ...
