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
        own, columns = likelihood.of(part), y[:, part.columns(width)]
        exposure = _exposure(own, columns)
        f[part.functions(width, count)] = _Link(
            own, _means(own, columns, exposure, communicator), columns, exposure, communicator
        ).means
    return f


class _Link:
    """The link of a likelihood, finite also at the ends of the range of means.

    If n outputs are all zeros, or all successes, f = ∓log(2n + 1), as if there were half an event of the other kind.
    Without any output, f = 0.
    """

    def __init__(
        self, likelihood: LikelihoodValue, means: Tensor, y: Tensor, exposure: Tensor | None, communicator: Communicator
    ) -> None:
        self.link = likelihood.link
        size = communicator.all_reduce(
            torch.where(torch.isfinite(y), 1.0 if exposure is None else exposure, 0.0).to(y).sum(-2)
        )
        f = self.link(means)
        self._far = torch.log1p(2.0 * size).repeat_interleave(len(f) // len(means), -1)
        self._inside, self.means = torch.isfinite(f), self._finite(f)  #: functions (F,) of the means of columns

    def _finite(self, f: Tensor) -> Tensor:
        far = torch.where(f > 0.0, self._far, -self._far)
        return torch.where(f.isnan(), 0.0, torch.where(f.isinf(), far, f))

    def __call__(self, mean: Tensor) -> Tensor:
        """Functions (..., F) of averages (..., D). In columns at an end, averages differ from it by rounding errors."""
        return torch.where(self._inside, self._finite(self.link(mean)), self.means)


def _means(likelihood: LikelihoodValue, y: Tensor, exposure: Tensor | None, communicator: Communicator) -> Tensor:
    """The means of the columns (D,) of one likelihood. Those of continuous outputs, in units of their own, are plain:
    only a column that was never observed takes the mean of all.
    """
    means, seen = column_means(y, exposure, communicator), torch.isfinite(y)
    if likelihood.likelihood.is_discrete:
        return means
    count = seen.to(y) if exposure is None else torch.where(seen, exposure, 0.0)
    total, weight = communicator.all_reduce(torch.stack([torch.nansum(y, 0), count.sum(0)]))
    return torch.where(weight > 0.0, total / weight, means)


def _exposure(likelihood: LikelihoodValue, y: Tensor) -> Tensor | None:
    return None if likelihood.offset is None else likelihood.offset.exp().expand_as(y)


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
        f[:, part.functions(width, count)] = _guess(
            likelihood.of(part), y[:, part.columns(width)], lengths, communicator
        )
    return f


def _guess(likelihood: LikelihoodValue, y: Tensor, lengths: tuple[int, ...], communicator: Communicator) -> Tensor:
    exposure = _exposure(likelihood, y)
    means = _means(likelihood, y, exposure, communicator)
    seen, link = torch.isfinite(y), _Link(likelihood, means, y, exposure, communicator)
    if not likelihood.likelihood.is_discrete:
        rate = y if exposure is None else y / exposure
        return link(torch.where(seen, without_outliers(rate, communicator), means))
    best, best_score = means.expand(y.shape), -torch.inf
    orders = [(torch.arange(len(y), device=y.device), lengths)]
    if len(lengths) == 1 and communicator.size == 1 and (stride := _repetition(y, means, exposure)) is not None:
        orders.append(_by_phase(len(y), stride, y.device))
    for order, parts in orders:
        rows, observed, value = y[order], seen[order], filled(y)[order]
        smooth = partial(
            smoothed, rows, parts, means=means, exposure=None if exposure is None else exposure[order],
            communicator=communicator,
        )  # fmt: skip
        for width in _WIDTHS:
            log_prob = likelihood.distribution(link(smooth(width=width, own=False))).log_prob(value)
            score = float(communicator.all_reduce(torch.where(observed, log_prob, 0.0).sum()))
            if score > best_score:
                best_score, best = score, smooth(width=width, own=True)[order.argsort()]
    return link(best)


def _repetition(y: Tensor, means: Tensor, exposure: Tensor | None) -> int | None:
    """The number of frames after which the sums of outputs (N, D) of a sequence repeat, if there is one."""
    seen = torch.isfinite(y)
    expected = torch.where(seen, means if exposure is None else means * exposure, 0.0).sum(-1)
    level = torch.log((torch.nansum(y, -1) + 0.5) / (expected + 0.5))
    known = seen.any(-1)
    time = torch.arange(len(y), dtype=torch.float64)
    found = find_repeat([(time[known.cpu()], level[known].double().cpu().unsqueeze(-1))]) if known.sum() > 2 else None
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
