# SPDX-License-Identifier: Apache-2.0
"""Baselines for outputs that are not Gaussian: means by simple rules, and a likelihood around them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from pyro_vgpds.baselines.counts import COUNT_RULES
from pyro_vgpds.baselines.predictor import BaselinePosterior
from pyro_vgpds.baselines.simple import linear_interpolation
from pyro_vgpds.checks import check_choice
from pyro_vgpds.data.parts import base_outputs, check_data, make_like, split_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.outputs_start import check_outputs
from pyro_vgpds.likelihoods.guess import function_means, guess
from pyro_vgpds.likelihoods.names import parse_likelihood
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.prediction.baseline_predictions import ComponentPrediction
from pyro_vgpds.prediction.outputs import Parts

__all__ = ["OUTPUT_BASELINES", "OutputBaseline"]


class OutputBaseline(BaselinePosterior):
    """A baseline of outputs that are not Gaussian, with the methods of :class:`~pyro_vgpds.Posterior`.

    :param name: the rule for the means. For counts: ``"mean count"`` (of each column), ``"common level"`` (the level of
        a frame, or the last one, times the share of a column) or ``"common cycle"`` (the same, with the levels of
        earlier cycles). For all outputs: ``"column mean"`` (a rate for yes/no), or ``"neighbouring frames"`` (averages
        of discrete outputs, and straight lines between continuous ones).
    :param data: the training sequences.
    :param likelihood: the distribution of the outputs around the means, as in
        :meth:`VGPDS.from_data <pyro_vgpds.VGPDS.from_data>`. Its parameters keep their values.
    :raises ValueError: if the name is unknown, an output is not possible, or the likelihood has several functions for
        an output.

    >>> from pyro_vgpds import Sequences
    >>> from pyro_vgpds.baselines import OutputBaseline
    >>> from pyro_vgpds.likelihoods import NegativeBinomial
    >>> cases = Sequences(range(4), [[1.0, 2.0], [2.0, 4.0], [1.0, 2.0], [2.0, 4.0]])
    >>> OutputBaseline("mean count", cases, NegativeBinomial(dispersion=5.0)).forecast([4.0]).interval(0.5)
    (tensor([[0., 1.]], dtype=torch.float64), tensor([[2., 4.]], dtype=torch.float64))
    """

    fills_all = False  # forecasts have distributions that depend on the frames ahead

    def __init__(self, name: str, data: Sequences, likelihood: object) -> None:
        check_choice("name", name, tuple(OUTPUT_BASELINES))
        check_data(data)
        own = copy.deepcopy(parse_likelihood(likelihood))
        if own.num_functions > 1:
            raise ValueError(f"likelihood must have one function for each output, but it is {own!r:.80}.")
        check_outputs(own(), data)
        if name in COUNT_RULES and not all(own.has_exposure(output) for output in range(data.num_base_outputs)):
            raise ValueError(f"{name!r} is a baseline of counts, but the likelihood is {own!r:.80}.")
        own.prepare(base_outputs(data).double())
        super().__init__(lambda new: (OUTPUT_BASELINES[name](new, self.likelihood).mean(0), None), data)
        self.name, self._likelihood = name, own

    @property
    def likelihood(self) -> LikelihoodValue:
        """The distribution of the outputs, which are not Gaussian, at the exposure 1."""
        return cast("LikelihoodValue", self._likelihood()).detached()

    def _of(self, data: Sequences) -> OutputBaseline:
        return OutputBaseline(self.name, data, self._likelihood)

    def _check_new(self, new: Sequences) -> None:
        check_outputs(self.likelihood, new, "y")

    def _predict(
        self, times: Tensor, t: list[Tensor], y: list[Tensor], rows: Tensor, parts: Parts | None, seen: Tensor | None
    ) -> ComponentPrediction:
        exposure = self._exposure(t)
        means = OUTPUT_BASELINES[self.name](make_like(self.data, t, y, lags=(), exposure=exposure), self.likelihood)
        # an exposure of each output is part of its mean
        outputs = self.likelihood if exposure is None else self.likelihood.exposed(exposure[rows])
        return ComponentPrediction(times, self.data, means[:, rows], outputs, seen, parts)

    def _exposure(self, t: Sequence[Tensor]) -> Tensor | None:
        """Exposures (N, D) of sequences that continue the training ones, 1 for new frames; None if no frame has its
        own.
        """
        own = self.data.exposure
        if own is None or own.dim() == 1:
            return None
        found = [own.new_ones(len(times), own.shape[1]) for times in t]
        known = zip(self.data.times.t.split(self.data.lengths), own.split(self.data.lengths), strict=True)
        for i, (times, values) in enumerate(known):
            found[i][torch.searchsorted(t[i].contiguous(), times.contiguous())] = values
        return torch.cat(found)


def _exposed(data: Sequences, outputs: LikelihoodValue) -> LikelihoodValue:
    """The likelihood with the exposures of the frames, if each has its own."""
    return outputs if data.exposure is None or data.exposure.dim() == 1 else outputs.exposed(data.exposure)


def _column_mean(data: Sequences, outputs: LikelihoodValue) -> Tensor:
    y = base_outputs(data).cpu().double()
    means = outputs.moments(function_means(_exposed(data, outputs), y))[0]
    return means.expand(1, *y.shape)


def _neighbouring_frames(data: Sequences, outputs: LikelihoodValue) -> Tensor:
    y = base_outputs(data).cpu().double()
    means = outputs.moments(guess(_exposed(data, outputs), y, data.lengths))[0]
    discrete = outputs.is_discrete(y.shape[1])
    if not bool(discrete.all()):
        lines = torch.cat(cast("list[Tensor]", linear_interpolation(*split_outputs(data))))
        means = torch.where(discrete, means, lines.to(means))
    return means.unsqueeze(0)


#: the baselines by name: functions of sequences with NaN and the likelihood of their outputs to means (K, N, D) of K
#: components, at the exposure 1
OUTPUT_BASELINES: dict[str, Callable[[Sequences, LikelihoodValue], Tensor]] = {
    **{name: (lambda data, outputs, rule=rule: rule(data)) for name, rule in COUNT_RULES.items()},  # type: ignore[misc]
    "column mean": _column_mean,
    "neighbouring frames": _neighbouring_frames,
}
