# SPDX-License-Identifier: Apache-2.0
"""Several predictors as one: weights for each output, and calibrated intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_probability
from pyro_vgpds.data.parts import base_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import check_task
from pyro_vgpds.formatting import Default, counted
from pyro_vgpds.prediction.arguments import ONLY, OneSequence, SequenceLike, read_new_data, resolve_sequence
from pyro_vgpds.prediction.intervals import Calibration
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.training.progress import CountLike, part_of
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["Combination", "Ensemble", "EnsemblePrediction", "Member"]


class Member(Protocol):
    """A predictor in an ensemble: a :class:`~pyro_vgpds.Posterior`, or a baseline with its methods."""

    @property
    def data(self) -> Sequences: ...

    def impute(self, *, fill: bool = True) -> Outputs: ...

    def forecast(self, t: ArrayLike, sequence: OneSequence | Default = ONLY) -> Outputs: ...

    def reconstruct(
        self, t: DataLike, y: DataLike, sequence: SequenceLike = None, *, progress: CountLike = False
    ) -> Outputs: ...

    def condition(self, data: Sequences, sequences: Sequence[OneSequence] | None = None) -> Member: ...

    def extended(self, t: DataLike, y: DataLike, sequence: SequenceLike | Default = ONLY) -> Member: ...


@dataclass(frozen=True)
class Combination:
    """How the members of an ensemble are combined for one task.

    >>> post.calibrate("forecast").combination("forecast").weights.shape
    torch.Size([1, 5])
    """

    weights: Tensor  #: (members, D), with sum 1 over the members
    calibration: Calibration  #: of the intervals


class EnsemblePrediction(Outputs):
    r"""Outputs at T times from several predictions with weights w for each output:

    .. math:: m = \sum_i w_i m_i, \qquad v = c^2 \sum_i w_i (v_i + (m_i - m)^2),

    with the calibration's factor c of each output. Intervals have the widths of the calibration. ``sample`` draws from
    a member, moved and scaled to these moments; ``log_prob`` uses independent Gaussians.

    :param components: the prediction of each member.
    :param combination: their weights and the calibration.
    :param observed: (T, D), known numbers that are returned unchanged, NaN elsewhere.

    >>> found = post.calibrate("forecast").forecast([2.6, 2.7], sequence=0)
    >>> found.mean.shape, len(found.components)
    (torch.Size([2, 5]), 1)
    """

    def __init__(self, components: Sequence[Outputs], combination: Combination, observed: Tensor | None = None) -> None:
        self.components, self.combination = list(components), combination
        self._observed = observed
        first = self.components[0]
        super().__init__(first.t, first.data, first.include_noise, first.parts)

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        weights = self.combination.weights.to(self.t)
        factor = self.combination.calibration.factor.to(self.t)
        used = [(w, part) for w, part in zip(weights, self.components, strict=True) if bool((w > 0).any())]
        mean = sum((w * part.mean for w, part in used), start=self.t.new_zeros(self.shape))
        variance = sum(
            (w * (part.variance + (part.mean - mean).square()) for w, part in used), start=torch.zeros_like(mean)
        )
        variance = variance * factor.square()
        if self._observed is not None:
            known = self._observed.isfinite()
            mean, variance = torch.where(known, self._observed, mean), variance.masked_fill(known, 0.0)
        return mean, variance

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        check_probability(probability)
        width = self.combination.calibration.width(probability) * self.stddev
        return self.mean - width, self.mean + width

    def sample(self, num_samples: int = 1) -> Tensor:
        check_count("num_samples", num_samples)
        which = torch.multinomial(self.combination.weights.mean(1), num_samples, replacement=True)
        draws = self.t.new_empty((num_samples, *self.shape))
        for i, part in enumerate(self.components):
            mine = (which == i).to(self.t.device)
            if bool(mine.any()):
                drawn = part.sample(int(mine.sum())) - part.mean
                unit = torch.where(part.stddev > 0, drawn / part.stddev, torch.randn_like(drawn))
                draws[mine] = self.mean + self.stddev * unit
        return draws

    def log_prob(self, y: ArrayLike) -> Tensor:
        value = self._checked(y)
        counts = value.isfinite() & (self.variance > 0)
        v = self.variance[counts]
        return -0.5 * ((value - self.mean)[counts].square() / v + v.log() + math.log(2.0 * math.pi)).sum()


class Ensemble:
    """Predictors of the same data as one, with weights and intervals that were chosen on held-out data.

    :func:`~pyro_vgpds.auto` and :meth:`Posterior.calibrate <pyro_vgpds.Posterior.calibrate>` make them. Methods are
    those of :class:`~pyro_vgpds.Posterior`.

    :param members: the predictors.
    :param combinations: how they are combined for each task: ``"impute"``, ``"reconstruct"`` and ``"forecast"``. A
        task without a combination uses the first one.
    :param names: of the members. Default: their numbers.
    :ivar report: how :func:`~pyro_vgpds.auto` chose the members; None for other ensembles.
    :raises ValueError: if a task is unknown, there is no combination, or the weights do not fit.

    >>> both = post.calibrate("forecast")
    >>> both
    Ensemble(1 member of Sequences(2 sequences, 48 frames, 5 outputs), calibrated to forecast)
    """

    def __init__(
        self, members: Sequence[Member], combinations: Mapping[str, Combination], names: Sequence[str] | None = None
    ) -> None:
        self.members, self.combinations = list(members), dict(combinations)
        self.names = [str(i) for i in range(len(self.members))] if names is None else list(names)
        if not self.members or not self.combinations or len(self.names) != len(self.members):
            raise ValueError(
                f"members, names and combinations are required, but got {len(self.members)}, {len(self.names)} and "
                f"{len(self.combinations)} of them."
            )
        for member in self.members:
            if (likelihood := getattr(member, "likelihood", None)) is not None:
                raise ValueError(
                    f"an Ensemble combines Gaussian outputs, but a member has {likelihood.likelihood}. Combine such "
                    "models with PosteriorMixture."
                )
        self.report: object | None = None
        shape = (len(self.members), self.num_outputs)
        for task, combination in self.combinations.items():
            check_task(task)
            if tuple(combination.weights.shape) != shape:
                raise ValueError(f"weights of {task} must be {shape}, but got {tuple(combination.weights.shape)}.")

    def __repr__(self) -> str:
        tasks = ", ".join(self.combinations)
        return f"Ensemble({counted(len(self.members), 'member')} of {self.data}, calibrated to {tasks})"

    @property
    def data(self) -> Sequences:
        """The training sequences."""
        return self.members[0].data

    @property
    def num_outputs(self) -> int:
        """D, the number of outputs."""
        return self.data.num_base_outputs

    @property
    def columns(self) -> list[str] | None:
        """Names of the outputs, if the data have names."""
        return None if self.data.columns is None else self.data.columns[: self.num_outputs]

    def combination(self, task: str) -> Combination:
        """Weights and calibration for a task, or those of the first task if it has none.

        :param task: ``"impute"``, ``"reconstruct"`` or ``"forecast"``.
        :raises ValueError: if it is another name.
        """
        check_task(task)
        return self.combinations.get(task, next(iter(self.combinations.values())))

    def impute(self, *, fill: bool = True) -> EnsemblePrediction:
        """As :meth:`Posterior.impute <pyro_vgpds.Posterior.impute>`."""
        observed = base_outputs(self.data) if fill else None
        return self._combine("impute", [member.impute(fill=fill) for member in self._used("impute")], observed)

    def forecast(
        self, t: ArrayLike, sequence: OneSequence | Default = ONLY, *, given: ArrayLike | None = None
    ) -> EnsemblePrediction:
        """As :meth:`Posterior.forecast <pyro_vgpds.Posterior.forecast>`."""
        members = self._used("forecast")
        if given is None:
            return self._combine("forecast", [member.forecast(t, sequence) for member in members])
        which = resolve_sequence(sequence, self.data)
        observed = base_outputs(read_new_data(t, given, self.data, "given"))
        return self._combine("forecast", [member.reconstruct(t, given, which) for member in members], observed)

    def reconstruct(
        self,
        t: DataLike,
        y: DataLike,
        sequence: SequenceLike = None,
        *,
        fill: bool = False,
        progress: CountLike = False,
    ) -> EnsemblePrediction:
        """As :meth:`Posterior.reconstruct <pyro_vgpds.Posterior.reconstruct>`."""
        observed = base_outputs(read_new_data(t, y, self.data)) if fill else None
        used = self._used("reconstruct")
        found = [
            member.reconstruct(t, y, sequence, progress=part_of(progress, i, len(used)))
            for i, member in enumerate(used)
        ]
        return self._combine("reconstruct", found, observed)

    def generate(self, t: ArrayLike, num_samples: int = 1, sequence: OneSequence = None) -> Tensor:
        """As :meth:`Posterior.generate <pyro_vgpds.Posterior.generate>`: draws (num_samples, T, D)."""
        return self.forecast(t, sequence).sample(num_samples)

    def condition(self, data: Sequences, sequences: Sequence[OneSequence] | None = None) -> Ensemble:
        """As :meth:`Posterior.condition <pyro_vgpds.Posterior.condition>`; weights and calibration stay."""
        return Ensemble([m.condition(data, sequences) for m in self.members], self.combinations, self.names)

    def extended(self, t: DataLike, y: DataLike, sequence: SequenceLike | Default = ONLY) -> Ensemble:
        """As :meth:`Posterior.extended <pyro_vgpds.Posterior.extended>`; weights and calibration stay."""
        return Ensemble([m.extended(t, y, sequence) for m in self.members], self.combinations, self.names)

    def _used(self, task: str) -> list[Member]:
        """Members with a weight: the others need not predict."""
        weights = self.combination(task).weights
        return [member for member, w in zip(self.members, weights, strict=True) if bool((w > 0).any())]

    def _combine(self, task: str, found: list[Outputs], observed: Tensor | None = None) -> EnsemblePrediction:
        combination = self.combination(task)
        used = (combination.weights > 0).any(1)
        return EnsemblePrediction(found, Combination(combination.weights[used], combination.calibration), observed)
