# SPDX-License-Identifier: Apache-2.0
"""A first guess of the latent functions from the outputs, with which training starts.

In all functions y (N, D) are outputs, NaN if they were not observed, and ``exposure`` is (N, D): means and averages are
those at the exposure 1, by default that of all outputs. The processes of ``communicator`` have the rows together.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.repeats import find_repeat
from pyro_vgpds.likelihoods.factors import filled, without_outliers
from pyro_vgpds.likelihoods.value import LikelihoodValue

__all__ = ["column_means", "function_means", "guess", "smoothed"]

_WIDTHS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of the Gaussian window, in frames; 0 has the two neighbours
_REACH = 3.0  # widths after which the window ends
_ROWS = 256  # rows of a block of windows


def column_means(y: Tensor, exposure: Tensor | None = None, communicator: Communicator = SINGLE_PROCESS) -> Tensor:
    """Mean of each column (N, D) with half a frame of the mean of all, (D,): never 0 unless every output is."""
    seen = torch.isfinite(y)
    e = torch.where(seen, torch.ones_like(y) if exposure is None else exposure, 0.0)
    total, count, number = communicator.all_reduce(torch.stack([torch.nansum(y, -2), e.sum(-2), seen.sum(-2).to(y)]))
    every = total.sum() / count.sum() if bool(number.any()) else y.new_zeros(())
    half = 0.5 * count.sum() / number.sum().clamp_min(1)
    return (total + half * every) / (count + half)


def function_means(likelihood: LikelihoodValue, y: Tensor, communicator: Communicator = SINGLE_PROCESS) -> Tensor:
    """Functions (F,) at which the outputs have the means of their columns."""
    width, count = y.shape[-1], likelihood.likelihood.num_functions
    f = y.new_zeros(width * count)
    for part in likelihood.parts(width):
        own = _Columns(likelihood.of(part), y[:, part.columns(width)], communicator)
        f[part.functions(width, count)] = own.functions
    return f


def guess(
    likelihood: LikelihoodValue, y: Tensor, lengths: tuple[int, ...], communicator: Communicator = SINGLE_PROCESS
) -> Tensor:
    """Function values (N, F) that explain the outputs.

    Discrete outputs are averaged over neighbouring frames first, or over the same phase of neighbouring cycles, such as
    the Sundays around a Sunday. These, and the width of the window, are those with which each frame's outputs are
    predicted best by the average of its neighbours alone.

    :param lengths: numbers of frames of the sequences.
    :param communicator: the processes, which share their means, quartiles and window.
    """
    width, count = y.shape[-1], likelihood.likelihood.num_functions
    f = y.new_zeros(len(y), width * count)
    for part in likelihood.parts(width):
        own = _Columns(likelihood.of(part), y[:, part.columns(width)], communicator)
        f[:, part.functions(width, count)] = own.guess(lengths)
    return f


class _Columns:
    """The outputs (N, D) of one likelihood, the means of their columns, and the functions (F,) at these.

    Functions are finite also at the ends of the range of means: if n outputs are all zeros, or all successes,
    f = ∓log(2n + 1), as if there were half an event of the other kind. Without any output, f = 0.
    """

    def __init__(self, likelihood: LikelihoodValue, y: Tensor, communicator: Communicator) -> None:
        self.likelihood, self.y, self.communicator = likelihood, y, communicator
        self.is_discrete, self.seen = likelihood.likelihood.is_discrete, torch.isfinite(y)
        self.exposure = None if likelihood.offset is None else likelihood.offset.exp().expand_as(y)
        size = self.seen.to(y) if self.exposure is None else torch.where(self.seen, self.exposure, 0.0).to(y)
        total, size = communicator.all_reduce(torch.stack([torch.nansum(y, 0), size.sum(0)]))
        self.means = column_means(y, self.exposure, communicator)
        if not self.is_discrete:  # in units of their own: only a column that was never observed takes the mean of all
            self.means = torch.where(size > 0.0, total / size, self.means)
        f = likelihood.link(self.means)
        self._far = torch.log1p(2.0 * size).repeat_interleave(likelihood.likelihood.num_functions, -1)
        self._inside, self.functions = torch.isfinite(f), self._finite(f)

    def _finite(self, f: Tensor) -> Tensor:
        far = torch.where(f > 0.0, self._far, -self._far)
        return torch.where(f.isnan(), 0.0, torch.where(f.isinf(), far, f))

    def _link(self, mean: Tensor) -> Tensor:
        """Functions (N, F) of averages (N, D). In columns at an end, averages differ from it by rounding errors."""
        return torch.where(self._inside, self._finite(self.likelihood.link(mean)), self.functions)

    def guess(self, lengths: tuple[int, ...]) -> Tensor:
        """:func:`guess` of these columns."""
        y, exposure, communicator = self.y, self.exposure, self.communicator
        if not self.is_discrete:
            rate = y if exposure is None else y / exposure
            return self._link(torch.where(self.seen, without_outliers(rate, communicator), self.means))
        best, best_score = self.means.expand(y.shape), -torch.inf
        orders = [(torch.arange(len(y), device=y.device), lengths)]
        if len(lengths) == 1 and communicator.size == 1 and (stride := self._repetition()) is not None:
            orders.append(_by_phase(len(y), stride, y.device))
        for order, parts in orders:
            observed, value = self.seen[order], filled(y)[order]
            smooth = partial(
                smoothed, y[order], parts, means=self.means, exposure=None if exposure is None else exposure[order],
                communicator=communicator,
            )  # fmt: skip
            for width in _WIDTHS:
                outputs = self.likelihood.distribution(self._link(smooth(width=width, own=False)))
                score = float(communicator.all_reduce(torch.where(observed, outputs.log_prob(value), 0.0).sum()))
                if score > best_score:
                    best_score, best = score, smooth(width=width, own=True)[order.argsort()]
        return self._link(best)

    def _repetition(self) -> int | None:
        """The number of frames after which the sums of the outputs of a sequence repeat, if there is one."""
        usual = self.means if self.exposure is None else self.means * self.exposure
        expected = torch.where(self.seen, usual, 0.0).sum(-1)
        level = torch.log((torch.nansum(self.y, -1) + 0.5) / (expected + 0.5))
        known = self.seen.any(-1).cpu()
        if known.sum() <= 2:
            return None
        time = torch.arange(len(level), dtype=torch.float64)
        found = find_repeat([(time[known], level.cpu()[known].double().unsqueeze(-1))])
        return None if found is None or found.period < 1.5 else round(found.period)


def _by_phase(count: int, stride: int, device: torch.device) -> tuple[Tensor, tuple[int, ...]]:
    """The order of frames in which those of the same phase of a cycle are together, and the number of each phase."""
    phases = [torch.arange(phase, count, stride, device=device) for phase in range(min(stride, count))]
    return torch.cat(phases), tuple(map(len, phases))


def smoothed(
    y: Tensor,
    lengths: tuple[int, ...],
    width: float,
    means: Tensor,
    own: bool,
    exposure: Tensor | None = None,
    communicator: Communicator = SINGLE_PROCESS,
) -> Tensor:
    """Averages of neighbouring frames of the same sequence, (N, D), shrunk towards the column's mean by one frame.

    :param width: standard deviation of the Gaussian window, in frames; 0: the frame and its two neighbours.
    :param means: (D,).
    :param own: count the frame itself, too.
    """
    seen = torch.isfinite(y).to(y.dtype)
    usual = torch.ones_like(means)
    if exposure is not None:
        sums = communicator.all_reduce(torch.cat([exposure.sum(0), exposure.new_tensor([len(y)])]))
        seen, usual = seen * exposure, sums[:-1] / sums[-1]
    y = torch.nan_to_num(y, nan=0.0)
    reach = max(1, round(_REACH * width))
    both = torch.cat([y, seen], -1)
    sums = torch.cat([_window_sums(part, width, reach, own) for part in both.split(lengths)])
    total, weight = sums.tensor_split(2, -1)
    return (total + usual * means) / (weight + usual)


def _window_sums(a: Tensor, width: float, reach: int, own: bool) -> Tensor:
    """Sums of neighbouring rows (T, D) with the weights of the window, a block of rows at a time."""
    parts = []
    for start in range(0, len(a), _ROWS):
        stop = min(start + _ROWS, len(a))
        first, last = max(0, start - reach), min(len(a), stop + reach)
        here, there = (torch.arange(*ends, dtype=a.dtype, device=a.device) for ends in ((start, stop), (first, last)))
        distance = (here.unsqueeze(-1) - there).abs()
        window = torch.full_like(distance, 0.5) if width == 0.0 else torch.exp(-0.5 * (distance / width).square())
        window = torch.where(distance > 0.0, window, float(own))
        parts.append(torch.where(distance <= reach, window, 0.0) @ a[first:last])
    return torch.cat(parts)
