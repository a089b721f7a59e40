# SPDX-License-Identifier: Apache-2.0
"""A baseline with the methods of a posterior, so that both can be compared and combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.checks import check_callable, check_flags, check_list, check_tensor
from pyro_vgpds.data.parts import base_outputs, check_data, make_like, merge_frames, split_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import Default
from pyro_vgpds.prediction.arguments import (
    ONLY,
    OneSequence,
    SequenceLike,
    describe_parts,
    read_new_data,
    read_new_times,
    resolve_sequence,
    resolve_sequences,
)
from pyro_vgpds.prediction.baseline_predictions import GaussianPrediction
from pyro_vgpds.prediction.conditioning import extend_data
from pyro_vgpds.prediction.outputs import Outputs, Parts
from pyro_vgpds.prediction.predictor import BasePredictor
from pyro_vgpds.training.progress import CountLike, check_progress
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["BaselinePosterior", "Imputer"]

#: sequences with NaN to means and variances (N, D); the variances may be None
Imputer: TypeAlias = Callable[[Sequences], tuple[Tensor, Tensor | None]]


class BaselinePosterior(BasePredictor):
    """An imputer with the methods of :class:`~pyro_vgpds.Posterior`: a forecast imputes frames without outputs.

    :param imputer: a function of sequences without lags that returns means and variances (N, D).
    :param data: the training sequences.
    :param variance: variances of the outputs (D,), for imputers without variances. Default: those of the data.

    >>> import torch
    >>> from pyro_vgpds.baselines import BaselinePosterior, linear_interpolation
    >>> line = BaselinePosterior(lambda data: (torch.cat(linear_interpolation(data)), None), data)
    >>> line.forecast([2.6, 2.7], sequence=0)
    GaussianPrediction(2 times from 2.6 to 2.7, 5 outputs)
    """

    #: every prediction fills all sequences, so that forecasts of many are one call of :meth:`reconstruct` in tests
    fills_all = True

    def __init__(self, imputer: Imputer, data: Sequences, variance: Tensor | None = None) -> None:
        check_callable("imputer", imputer)
        check_data(data)
        check_tensor("variance", variance, 1, optional=True)
        if variance is not None and variance.shape != (data.num_base_outputs,):
            raise ValueError(f"variance must be ({data.num_base_outputs},), but its shape is {tuple(variance.shape)}.")
        self.imputer, self.data = imputer, data
        own = data.output_variances[: data.num_base_outputs] if variance is None else variance
        self.variance = own.to(data.times.t)

    def condition(self, data: Sequences, sequences: Sequence[OneSequence] | None = None) -> BaselinePosterior:
        """The same imputer for other data.

        :param data: sequences of the same outputs.
        :param sequences: as in :meth:`Posterior.condition <pyro_vgpds.Posterior.condition>`; not used.
        """
        check_list("sequences", sequences, "a list with an index, a name or None for each sequence", optional=True)
        return self._of(data)

    def _of(self, data: Sequences) -> BaselinePosterior:
        return BaselinePosterior(self.imputer, data, self.variance)

    def extended(self, t: DataLike, y: DataLike, sequence: SequenceLike | Default = ONLY) -> BaselinePosterior:
        return self._of(extend_data(self.data, t, y, sequence).data)

    def impute(self, *, fill: bool = True) -> Outputs:
        """Outputs at the training frames, (N, D). Observed numbers are returned unchanged.

        :param fill: for the same arguments as in :meth:`Posterior.impute <pyro_vgpds.Posterior.impute>`.
        """
        check_flags(fill=fill)
        t, y = split_outputs(self.data)
        rows, seen = torch.arange(self.data.num_frames), base_outputs(self.data) if fill else None
        return self._predict(self.data.times.t, t, y, rows, Parts.of(self.data), seen)

    def forecast(self, t: ArrayLike, sequence: OneSequence | Default = ONLY) -> Outputs:
        times, which = read_new_times(t, self.data), resolve_sequence(sequence, self.data)
        hidden = times.new_full((len(times), self.num_outputs), torch.nan)
        return self._with_new(times, [times], [hidden], [which])

    def reconstruct(
        self,
        t: DataLike,
        y: DataLike,
        sequence: SequenceLike = None,
        *,
        fill: bool = False,
        progress: CountLike = False,
    ) -> Outputs:
        """As :meth:`Posterior.reconstruct <pyro_vgpds.Posterior.reconstruct>`; observed numbers are always unchanged,
        and there are no steps to show progress of.
        """
        check_flags(fill=fill)
        check_progress(progress)
        new = read_new_data(t, y, self.data)
        self._check_new(new)
        belongs = resolve_sequences(sequence, self.data, new.num_sequences)
        parts, seen = describe_parts(self.data, new, belongs), base_outputs(new) if fill else None
        return self._with_new(new.times.t, *split_outputs(new), belongs, parts, seen)

    def _check_new(self, new: Sequences) -> None:
        """Raise a ValueError if outputs ``y`` are not possible."""

    def _with_new(
        self,
        times: Tensor,
        t_new: list[Tensor],
        y_new: list[Tensor],
        belongs: Sequence[int | None],
        parts: Parts | None = None,
        seen: Tensor | None = None,
    ) -> Outputs:
        """Predictions at new frames: those of a training sequence are sorted into it."""
        t, y = split_outputs(self.data)
        where: list[tuple[int, Tensor]] = []  # sequence and frames in it, of each new part
        for times_new, part, which in zip(t_new, y_new, belongs, strict=True):
            if which is None:
                t, y, which = [*t, times_new[:0]], [*y, part[:0]], len(t)
            old = t[which]
            t[which], y[which] = merge_frames(old, y[which], times_new, part)
            where = [(s, torch.searchsorted(t[s], old)[frames] if s == which else frames) for s, frames in where]
            where.append((which, torch.searchsorted(t[which], times_new.contiguous())))
        starts = torch.tensor([0, *(len(part) for part in t)]).cumsum(0)
        return self._predict(times, t, y, torch.cat([starts[s] + frames for s, frames in where]), parts, seen)

    def _predict(
        self, times: Tensor, t: list[Tensor], y: list[Tensor], rows: Tensor, parts: Parts | None, seen: Tensor | None
    ) -> Outputs:
        """
        :param t: times of each sequence, those to predict included.
        :param y: their outputs, NaN if hidden.
        :param rows: the frames to predict, in all sequences one after the other.
        :param seen: numbers (T, D) that are returned unchanged, which imputers do with all observed ones.
        """
        mean, variance = self.imputer(make_like(self.data, t, y, lags=()))
        if variance is None:
            variance = torch.cat(y).isnan() * self.variance
        return GaussianPrediction(times, self.data, mean.to(times)[rows], variance.to(times)[rows], parts=parts)
