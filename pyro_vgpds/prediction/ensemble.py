# SPDX-License-Identifier: Apache-2.0
"""Several predictors as one: weights for each output, and calibrated intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyro_vgpds.checks import (
    check_count,
    check_dict,
    check_flags,
    check_list,
    check_parts,
    check_probability,
    check_texts,
)
from pyro_vgpds.data.parts import base_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import check_task
from pyro_vgpds.formatting import Default, counted
from pyro_vgpds.prediction.arguments import ONLY, OneSequence, SequenceLike, read_new_data, resolve_sequence
from pyro_vgpds.prediction.combination import Combination, Limits, find_growth_limits
from pyro_vgpds.prediction.disagreement import mean_disagreement
from pyro_vgpds.prediction.marginals import put_known
from pyro_vgpds.prediction.mixture_prediction import MixturePrediction
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.predictor import BasePredictor
from pyro_vgpds.training.progress import CountLike, check_progress, part_of
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["Ensemble", "EnsemblePrediction"]


class EnsemblePrediction(Outputs):
    r"""Outputs at T times from several predictions with weights w for each output:

    .. math:: m = \sum_i w_i m_i, \qquad v = c^2 \sum_i w_i (v_i + (m_i - m)^2),

    with the calibration's factor c of each output. For sequences to reconstruct, the disagreement
    :math:`\sum_i w_i (m_i - m)^2` is averaged over the hidden entries of a sequence and has a factor of its own.
    Intervals have the widths of the calibration. ``sample`` draws from a member, moved and scaled to these moments;
    ``log_prob`` uses independent Gaussians. The means of members, intervals and draws do not pass the limits of the
    outputs, such as zero for rain.

    :param components: the prediction of each member.
    :param combination: their weights and the calibration.
    :param observed: (T, D), known numbers that are returned unchanged, NaN elsewhere.
    :param hidden: a mask (T, D) of the entries that are not observed. Default: all of them.
    :param scale: (D,), standard deviations of the outputs, in whose units disagreement is averaged. Default: 1.

    >>> found = post.calibrate("forecast").forecast([2.6, 2.7], sequence=0)
    >>> found.mean.shape, len(found.components)
    (torch.Size([2, 5]), 1)
    """

    def __init__(
        self,
        components: Sequence[Outputs],
        combination: Combination,
        observed: Tensor | None = None,
        hidden: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        self.components, self.combination = list(components), combination
        first = self.components[0]
        self.observed = observed
        self._scale = first.t.new_ones(first.shape[1]) if scale is None else scale.to(first.t)
        self._hidden = first.t.new_ones(first.shape, dtype=torch.bool) if hidden is None else hidden
        self._kinds = combination.at(self._hidden.all(1))
        super().__init__(first.t, first.data, first.include_noise, first.parts)

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        mean, variance = (self.t.new_zeros(self.shape) for _ in range(2))
        for combination, rows in self._kinds:
            limits = combination.limits
            used = [
                (w, part.mean[rows] if limits is None else limits.clamp(part.mean[rows]), part.variance[rows])
                for w, part in zip(combination.weights.to(self.t), self.components, strict=True)
                if bool((w > 0).any())
            ]
            mixed = sum((w * m for w, m, _ in used), start=mean[rows])
            mean[rows] = mixed
            own = sum((w * v for w, _, v in used), start=variance[rows])
            between = sum((w * (m - mixed).square() for w, m, _ in used), start=variance[rows])
            if combination.disagreement is not None:
                between = combination.disagreement * self._average(between, rows)
            variance[rows] = (own + between) * combination.calibration.factor.to(self.t).square()
        return put_known(self.observed, mean), put_known(self.observed, variance, 0.0)

    def _average(self, between: Tensor, rows: Tensor) -> Tensor:
        """The disagreement (n, D) about some frames, averaged over those of each sequence."""
        part = torch.arange(len(self.parts.lengths)).repeat_interleave(torch.tensor(self.parts.lengths)).to(rows.device)
        scale, group = self._scale.expand_as(between), part[rows].unsqueeze(-1).expand_as(between)
        entries = (each.flatten().to(between.device) for each in (between, scale, group, self._hidden[rows]))
        return mean_disagreement(*entries).view_as(between)

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        check_probability(probability)
        widths = self.t.new_zeros(len(self.t), 1)
        for combination, rows in self._kinds:
            widths[rows] = combination.calibration.width(probability)
        width = widths * self.stddev
        return self._clamp(self.mean - width), self._clamp(self.mean + width)

    def _clamp(self, numbers: Tensor) -> Tensor:
        """Numbers (..., T, D) within the limits; observed numbers may be outside of them."""
        limits = self._kinds[0][0].limits
        if limits is None:
            return numbers
        mean = self.mean
        return numbers.clamp(torch.minimum(limits.lower.to(mean), mean), torch.maximum(limits.upper.to(mean), mean))

    def sample(self, num_samples: int = 1) -> Tensor:
        check_count("num_samples", num_samples)
        share = sum(combination.weights.mean(1) * int(rows.sum()) for combination, rows in self._kinds)
        which = torch.multinomial(share, num_samples, replacement=True)  # type: ignore[arg-type]
        draws = self.t.new_empty((num_samples, *self.shape))
        for i, part in enumerate(self.components):
            mine = (which == i).to(self.t.device)
            if bool(mine.any()):
                drawn = part.sample(int(mine.sum())) - part.mean
                unit = torch.where(part.stddev > 0, drawn / part.stddev, torch.randn_like(drawn))
                draws[mine] = self._clamp(self.mean + self.stddev * unit)
        return draws


class Ensemble(BasePredictor):
    """Predictors of the same data as one, with weights and intervals that were chosen on held-out data.

    :func:`~pyro_vgpds.auto` and :meth:`Posterior.calibrate <pyro_vgpds.Posterior.calibrate>` make them. Methods are
    those of :class:`~pyro_vgpds.Posterior`.

    :param members: the predictors.
    :param combinations: how they are combined for each task: ``"impute"``, ``"reconstruct"`` and ``"forecast"``. A
        task without a combination uses the first one.
    :param names: of the members. Default: their numbers.
    :ivar is_gaussian: whether members have Gaussian outputs and are combined by their moments. If not, predictions are
        :class:`~pyro_vgpds.prediction.MixturePrediction`, without calibration.
    :ivar report: how :func:`~pyro_vgpds.auto` chose the members; None for other ensembles.
    :raises ValueError: if a task is unknown, there is no combination, or the weights do not fit.

    >>> both = post.calibrate("forecast")
    >>> both
    Ensemble(1 member of Sequences(2 sequences, 48 frames, 5 outputs), calibrated to forecast)
    """

    def __init__(
        self,
        members: Sequence[BasePredictor],
        combinations: Mapping[str, Combination],
        names: Sequence[str] | None = None,
    ) -> None:
        check_list("members", members, "a list of trained models")
        for member in members:
            check_parts("members", member, "trained models", "data")
        check_dict("combinations", combinations, "{task: Combination}", Combination)
        check_texts("names", names, optional=True)
        self.members, self.combinations = list(members), dict(combinations)
        self.names = [str(i) for i in range(len(self.members))] if names is None else list(names)
        if not self.members or not self.combinations or len(self.names) != len(self.members):
            raise ValueError(
                f"members, names and combinations are required, but got {len(self.members)}, {len(self.names)} and "
                f"{len(self.combinations)} of them."
            )
        self.data = self.members[0].data
        is_gaussian = all(getattr(member, "likelihood", None) is None for member in self.members)
        self.is_gaussian = is_gaussian and not any(each.is_pool for each in self.combinations.values())
        self.report: object | None = None
        shape = (len(self.members), self.num_outputs)
        for task, combination in self.combinations.items():
            check_task(task)
            for one in (combination, combination.lost):
                if one is not None and tuple(one.weights.shape) != shape:
                    raise ValueError(f"weights of {task} must be {shape}, but got {tuple(one.weights.shape)}.")

    def __repr__(self) -> str:
        tasks = ", ".join(self.combinations)
        return f"Ensemble({counted(len(self.members), 'member')} of {self.data}, calibrated to {tasks})"

    def combination(self, task: str) -> Combination:
        """Weights and calibration for a task, or those of the first task if it has none.

        :param task: ``"impute"``, ``"reconstruct"`` or ``"forecast"``.
        :raises ValueError: if it is another name.
        """
        check_task(task)
        return self.combinations.get(task, next(iter(self.combinations.values())))

    def impute(self, *, fill: bool = True) -> EnsemblePrediction | MixturePrediction:
        check_flags(fill=fill)
        seen = base_outputs(self.data)
        return self._combine("impute", [member.impute(fill=fill) for member in self._used("impute")], seen, fill)

    def forecast(
        self, t: ArrayLike, sequence: OneSequence | Default = ONLY, *, given: ArrayLike | None = None
    ) -> EnsemblePrediction | MixturePrediction:
        members = self._used("forecast")
        if given is None:
            return self._combine("forecast", [member.forecast(t, sequence) for member in members])
        which = resolve_sequence(sequence, self.data)
        seen = base_outputs(read_new_data(t, given, self.data, "given"))
        return self._combine(
            "forecast", [member.reconstruct(t, given, which, fill=True) for member in members], seen, True
        )

    def reconstruct(
        self,
        t: DataLike,
        y: DataLike,
        sequence: SequenceLike = None,
        *,
        fill: bool = False,
        progress: CountLike = False,
    ) -> EnsemblePrediction | MixturePrediction:
        check_flags(fill=fill)
        check_progress(progress)
        seen = base_outputs(read_new_data(t, y, self.data))
        used = self._used("reconstruct")
        found = [
            member.reconstruct(t, y, sequence, fill=fill, progress=part_of(progress, i, len(used)))
            for i, member in enumerate(used)
        ]
        return self._combine("reconstruct", found, seen, fill)

    def condition(self, data: Sequences, sequences: Sequence[OneSequence] | None = None) -> Ensemble:
        """As :meth:`Posterior.condition <pyro_vgpds.Posterior.condition>`; weights and calibration stay."""
        return Ensemble([m.condition(data, sequences) for m in self.members], self.combinations, self.names)

    def extended(self, t: DataLike, y: DataLike, sequence: SequenceLike | Default = ONLY) -> Ensemble:
        """As :meth:`Posterior.extended <pyro_vgpds.Posterior.extended>`; weights and calibration stay."""
        return Ensemble([m.extended(t, y, sequence) for m in self.members], self.combinations, self.names)

    def _used(self, task: str) -> list[BasePredictor]:
        """Members with a weight: the others need not predict."""
        used = self.combination(task).used.tolist()
        return [member for member, use in zip(self.members, used, strict=True) if use]

    def _combine(
        self, task: str, found: list[Outputs], seen: Tensor | None = None, fill: bool = False
    ) -> EnsemblePrediction | MixturePrediction:
        """
        :param seen: the observed numbers of the frames (T, D), NaN elsewhere. Default: none.
        :param fill: return them unchanged.
        """
        combination = self.combination(task)
        if not self.is_gaussian:
            weights = combination.weights[combination.used].mean(1).to(found[0].t)
            limits = self._growth_limits() if task == "forecast" else None
            return MixturePrediction(found, weights, combination.spread, limits)
        hidden = None if seen is None else ~seen.isfinite()
        scale, members = self.data.output_scales[: self.num_outputs], combination.take(combination.used)
        return EnsemblePrediction(found, members, seen if fill else None, hidden, scale)

    def _growth_limits(self) -> Limits | None:
        """Limits of the means of counts ahead. They depend on the data, which may be longer than at the comparison."""
        values = (getattr(member, "likelihood", None) for member in self.members)
        value = next((value for value in values if value is not None), None)
        return None if value is None else find_growth_limits(self.data, value.likelihood)
