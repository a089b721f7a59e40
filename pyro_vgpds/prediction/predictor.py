# SPDX-License-Identifier: Apache-2.0
"""What all predictors share: trained models, mixtures and ensembles of them, and baselines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from pyro_vgpds.checks import check_count
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import Default
from pyro_vgpds.prediction.arguments import ONLY, OneSequence, SequenceLike
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.training.progress import CountLike
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["BasePredictor"]


class BasePredictor(ABC):
    """Predictions of the outputs of some training data. :class:`~pyro_vgpds.Posterior` describes the arguments.

    Scores take any object with the methods of :class:`~pyro_vgpds.evaluation.Predictor`.
    """

    data: Sequences  #: the training sequences

    @property
    def num_outputs(self) -> int:
        """D, the number of outputs."""
        return self.data.num_base_outputs

    @property
    def columns(self) -> list[str] | None:
        """Names of the outputs, if the data have names."""
        return self.data.base_columns

    @abstractmethod
    def impute(self, *, fill: bool = True) -> Outputs:
        """As :meth:`Posterior.impute <pyro_vgpds.Posterior.impute>`."""

    @abstractmethod
    def forecast(self, t: ArrayLike, sequence: OneSequence | Default = ONLY) -> Outputs:
        """As :meth:`Posterior.forecast <pyro_vgpds.Posterior.forecast>`."""

    @abstractmethod
    def reconstruct(
        self,
        t: DataLike,
        y: DataLike,
        sequence: SequenceLike = None,
        *,
        fill: bool = False,
        progress: CountLike = False,
    ) -> Outputs:
        """As :meth:`Posterior.reconstruct <pyro_vgpds.Posterior.reconstruct>`."""

    @abstractmethod
    def condition(self, data: Sequences, sequences: Sequence[OneSequence] | None = None) -> BasePredictor:
        """As :meth:`Posterior.condition <pyro_vgpds.Posterior.condition>`."""

    @abstractmethod
    def extended(self, t: DataLike, y: DataLike, sequence: SequenceLike | Default = ONLY) -> BasePredictor:
        """As :meth:`Posterior.extended <pyro_vgpds.Posterior.extended>`."""

    def generate(self, t: ArrayLike, num_samples: int = 1, sequence: OneSequence = None) -> Tensor:
        """As :meth:`Posterior.generate <pyro_vgpds.Posterior.generate>`: draws (num_samples, T, D)."""
        check_count("num_samples", num_samples)
        return self.forecast(t, sequence).sample(num_samples)
