# SPDX-License-Identifier: Apache-2.0
"""Baselines for counts: means by simple rules, and a negative binomial distribution around them.

The counts of a frame are taken as a level of the frame times a share of each column. Frames of which nothing is
observed get their level from other frames: the last one, or the same part of earlier cycles. Each earlier cycle is one
component of the predictive distribution, so that its spread is that of the cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.baselines.predictor import BaselinePosterior
from pyro_vgpds.checks import check_choice, check_count, check_number, check_probability
from pyro_vgpds.data.parts import base_outputs, check_data, make_like
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.outputs_start import check_outputs
from pyro_vgpds.inference.rhythm import average_cycle
from pyro_vgpds.kinds import check_flags
from pyro_vgpds.likelihoods.base import LikelihoodValue
from pyro_vgpds.likelihoods.factors import filled
from pyro_vgpds.likelihoods.families import NegativeBinomial
from pyro_vgpds.likelihoods.guess import column_means
from pyro_vgpds.prediction.arguments import OneSequence, SequenceLike, read_new_data
from pyro_vgpds.prediction.outputs import Outputs, Parts
from pyro_vgpds.prediction.quantiles import mixture_quantiles
from pyro_vgpds.training.progress import CountLike
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["COUNT_BASELINES", "CountBaseline", "CountPrediction", "common_period", "fit_dispersion"]

_SWEEPS = 50  # of levels and shares
_LEAST = 1e-12  # mean count
_CYCLES = 10  # earlier cycles that are used, at most
_DISPERSIONS = np.exp(np.linspace(-5.0, 5.0, 101))  # that are compared


class CountPrediction(Outputs):
    """Counts at T times, (T, D): an equal mixture of negative binomial distributions.

    :param t: the times, (T,).
    :param data: the sequences that it was made from.
    :param means: of the components, (K, T, D), positive.
    :param dispersion: r: the variance of a component is mean + mean²/r.
    :param observed: (T, D), known numbers that are returned unchanged, NaN elsewhere. Default: none.
    :param parts: the sequences that the frames belong to. Default: one.
    """

    is_gaussian = False

    def __init__(
        self,
        t: Tensor,
        data: Sequences,
        means: Tensor,
        dispersion: float,
        observed: Tensor | None = None,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(t, data, True, parts)
        self.means, self.outputs, self.observed = means.double(), _likelihood(dispersion), observed
        self._f = self.outputs.link(self.means)
        self._weight = means.new_full((len(means),), 1.0 / len(means), dtype=torch.float64)

    @property
    def is_whole(self) -> Tensor:
        return torch.ones(self.shape[1], dtype=torch.bool, device=self.t.device)

    def kind_of(self, output: int) -> str:
        super().kind_of(output)
        return "count"

    def _known(self, value: Tensor, known: Tensor | float | None = None) -> Tensor:
        """``value``, with observed numbers, or with ``known``, in its place if they are observed."""
        if self.observed is not None:
            put = self.observed.to(value) if known is None else torch.as_tensor(known).to(value)
            value = torch.where(self.observed.isfinite(), put, value)
        return value.to(self.t.dtype)

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        mean, (means, variances) = self.means.mean(0), self.outputs.moments(self._f)
        return self._known(mean), self._known((variances + (means - mean).square()).mean(0), 0.0)

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        check_probability(probability)
        levels = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
        low, high = mixture_quantiles(self.outputs, self._f, self._weight, levels)
        return self._known(low), self._known(high)

    def sample(self, num_samples: int = 1) -> Tensor:
        """Draws (num_samples, T, D), each of one component."""
        check_count("num_samples", num_samples)
        which = torch.randint(len(self.means), (num_samples,), device=self._f.device)
        return self._known(self.outputs.distribution(self._f[which]).sample())

    def log_probs(self, y: ArrayLike) -> Tensor:
        value = self.checked(y).double()
        if self.observed is not None:
            value = value.masked_fill(self.observed.isfinite(), torch.nan)
        terms = self.outputs.log_prob_of(self.outputs.distribution(self._f), filled(value))
        found = torch.logsumexp(terms + self._weight.log()[:, None, None], 0)
        return torch.where(value.isfinite(), found, torch.nan).to(self.t.dtype)

    def log_prob(self, y: ArrayLike) -> Tensor:
        return torch.nansum(self.log_probs(y))

    def cdf(self, y: ArrayLike) -> Tensor:
        value = self.checked(y).double()
        found = self.outputs.cdf(filled(value), self._f).mean(0)
        if self.observed is not None:
            found = self._known(found, (self.observed <= value).to(found))
        return torch.where(value.isfinite(), found, torch.nan).to(self.t.dtype)


class CountBaseline(BaselinePosterior):
    """A baseline of counts with the methods of :class:`~pyro_vgpds.Posterior`.

    :param name: ``"mean count"`` (of each column), ``"common level"`` (the level of a frame, or the last one, times the
        share of a column) or ``"common cycle"`` (the same, with the levels of earlier cycles).
    :param data: the training sequences of counts.
    :param dispersion: r of the negative binomial distributions around the means: their variance is mean + mean²/r.
    :raises ValueError: if the name is unknown, an output is not a count, or ``dispersion`` is not positive.

    >>> import torch
    >>> from pyro_vgpds import Sequences
    >>> from pyro_vgpds.baselines import CountBaseline
    >>> cases = Sequences(range(4), [[1.0, 2.0], [2.0, 4.0], [1.0, 2.0], [2.0, 4.0]])
    >>> CountBaseline("mean count", cases, dispersion=5.0).forecast([4.0]).interval(0.5)
    (tensor([[0., 1.]], dtype=torch.float64), tensor([[2., 4.]], dtype=torch.float64))
    """

    def __init__(self, name: str, data: Sequences, dispersion: float = 1.0) -> None:
        check_choice("name", name, tuple(COUNT_BASELINES))
        check_data(data)
        check_number("dispersion", dispersion, "positive", lambda value: value > 0.0)
        check_outputs(_likelihood(1.0), data)
        super().__init__(lambda own: (COUNT_BASELINES[name](own).mean(0), None), data)
        self.name, self.dispersion = name, float(dispersion)

    @property
    def likelihood(self) -> LikelihoodValue:
        """The distribution of the outputs, which are not Gaussian."""
        return _likelihood(self.dispersion)

    def condition(self, data: Sequences, sequences: Sequence[OneSequence] | None = None) -> CountBaseline:
        super().condition(data, sequences)
        return CountBaseline(self.name, data, self.dispersion)

    def impute(self, *, fill: bool = True) -> CountPrediction:  # type: ignore[override]
        return self._filled(super().impute(fill=fill), base_outputs(self.data) if fill else None)

    def reconstruct(  # type: ignore[override]
        self,
        t: DataLike,
        y: DataLike,
        sequence: SequenceLike = None,
        *,
        fill: bool = False,
        progress: CountLike = False,
    ) -> CountPrediction:
        """As :meth:`Posterior.reconstruct <pyro_vgpds.Posterior.reconstruct>`."""
        check_flags(fill=fill)
        new = read_new_data(t, y, self.data)
        check_outputs(self.likelihood, new, "y")
        found = super().reconstruct(t, y, sequence, progress=progress)
        return self._filled(found, base_outputs(new) if fill else None)

    def _filled(self, found: Outputs, seen: Tensor | None) -> CountPrediction:
        assert isinstance(found, CountPrediction)
        if seen is None:
            return found
        return CountPrediction(found.t, self.data, found.means, self.dispersion, seen, found.parts)

    def _predict(  # type: ignore[override]
        self,
        times: Tensor,
        t: Sequence[Tensor],
        y: Sequence[Tensor],
        rows: Sequence[Tensor],
        parts: Parts | None = None,
    ) -> CountPrediction:
        means = COUNT_BASELINES[self.name](make_like(self.data, t, y, lags=()))
        return CountPrediction(times, self.data, means[:, torch.cat(list(rows))], self.dispersion, None, parts)


def fit_dispersion(counts: Tensor, means: Tensor) -> float:
    """The dispersion under which counts are most likely.

    :param counts: (n,).
    :param means: of the components of their distributions, (K, n).
    """
    found = []
    for dispersion in _DISPERSIONS:
        outputs = _likelihood(float(dispersion))
        terms = outputs.distribution(outputs.link(means.double())).log_prob(counts.double())
        found.append(float(torch.logsumexp(terms, 0).sum()))
    return float(_DISPERSIONS[int(np.argmax(found))])


def common_period(data: Sequences) -> float | None:
    """The period of a cycle in the levels of the frames; None if there are several sequences, or no clear cycle."""
    if data.num_sequences > 1:
        return None
    level, _, seen = _levels(base_outputs(data))
    level = torch.where(seen, level.log(), torch.nan)
    return average_cycle(Times(data.times.t.cpu().double(), [len(level)]), level)


def _likelihood(dispersion: float) -> LikelihoodValue:
    return NegativeBinomial(dispersion=dispersion)().detached()


def _levels(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Levels (N,) and shares (D,) whose products are the most likely means of Poisson counts, and the frames with any.

    Each frame has half a count more, and each column half a count at the mean rate of all: no product is 0.
    """
    y = y.detach().cpu().double()
    seen = y.isfinite()
    values, known = y.nan_to_num(0.0), seen.double()
    share, level = column_means(y).clamp_min(_LEAST), torch.ones(len(y), dtype=y.dtype)
    for _ in range(_SWEEPS):
        level = (values.sum(1) + 0.5) / (known @ share).clamp_min(_LEAST)
        expected = level @ known
        mean = (values.sum() / expected.sum()).clamp_min(_LEAST)
        share = (values.sum(0) + 0.5) / (expected + 0.5 / mean)
    return level, share, seen.any(1)


def _mean_count(data: Sequences) -> Tensor:
    y = base_outputs(data).cpu().double()
    return column_means(y).clamp_min(_LEAST).expand(1, *y.shape)


def _from_levels(data: Sequences, fill: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Tensor:
    """Means (K, N, D), with levels (K, n) of the frames of which nothing is observed by ``fill(t, level, t_new)``."""
    y = base_outputs(data)
    level, share, seen = _levels(y)
    every = []
    for rows in data.times.slices():
        t, own, known = data.times.t[rows].cpu().numpy(), level[rows].numpy(), seen[rows].numpy()
        found = np.full((1, len(t)), float(level[seen].mean()))  # if nothing is observed
        if known.any():
            new = fill(t[known], own[known], t[~known])
            found = np.tile(own, (len(new), 1))
            found[:, ~known] = new
        every.append(torch.from_numpy(found))
    count = max(len(part) for part in every)
    levels = torch.cat([part if len(part) == count else part[:1].expand(count, -1) for part in every], 1)
    return (levels.unsqueeze(-1) * share).clamp_min(_LEAST)


def _common_level(data: Sequences) -> Tensor:
    return _from_levels(data, lambda t, level, new: np.interp(new, t, level)[None])


def _common_cycle(data: Sequences) -> Tensor:
    period = common_period(data)
    if period is None:
        return _common_level(data)

    def earlier(t: np.ndarray, level: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Levels (K, n) of the same part of other cycles, averaged with the frames next to it."""
        step, found = float(np.median(np.diff(t))), []
        for at in new:
            cycles = [at + k * period for k in (*range(-1, -_CYCLES - 1, -1), *range(1, _CYCLES + 1))]
            inside = [place for place in cycles if t[0] <= place - step and place + step <= t[-1]]
            near = [np.interp([place - step, place, place + step], t, level).mean() for place in inside[:_CYCLES]]
            found.append(near or [np.interp(at, t, level)])
        most = max((len(part) for part in found), default=1)
        return np.array([[part[k % len(part)] for part in found] for k in range(most)]).reshape(most, len(new))

    return _from_levels(data, earlier)


#: the baselines of counts by name: functions of sequences with NaN to means (K, N, D) of K components
COUNT_BASELINES: dict[str, Callable[[Sequences], Tensor]] = {
    "mean count": _mean_count,
    "common level": _common_level,
    "common cycle": _common_cycle,
}
