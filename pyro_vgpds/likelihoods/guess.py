# SPDX-License-Identifier: Apache-2.0
"""A first guess of the latent functions from the outputs, with which training starts."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.likelihoods.base import LikelihoodValue
from pyro_vgpds.likelihoods.factors import filled
from pyro_vgpds.team import ALONE, Team

__all__ = ["column_means", "function_means", "guess", "rows_of_all", "smoothed"]

_WIDTHS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of the Gaussian window, in frames; 0 has the two neighbours
_OUTLIERS = 3.0  # distances between the quartiles, beyond which an output does not count more
_REACH = 3.0  # widths after which the window ends
_ROWS = 256  # rows of a block of windows
_MOST = 1 << 24  # numbers that processes send each other for the quartiles of the outputs


def column_means(y: Tensor, exposure: Tensor | None = None, team: Team = ALONE) -> Tensor:
    """Mean of each column (N, D) with half a frame of the mean of all, (D,): never 0 unless every output is.

    :param y: outputs, NaN if they were not observed.
    :param exposure: (N, D): the means are those at the exposure 1. Default: ones.
    :param team: the processes that have the rows together.
    """
    seen = torch.isfinite(y)
    e = torch.where(seen, torch.ones_like(y) if exposure is None else exposure, 0.0)
    total, count, number = team.total(torch.stack([torch.nansum(y, -2), e.sum(-2), seen.sum(-2).to(y)]))
    every = total.sum() / count.sum() if bool(number.any()) else y.new_zeros(())
    half = 0.5 * count.sum() / number.sum().clamp_min(1)
    return (total + half * every) / (count + half)


def rows_of_all(y: Tensor, team: Team) -> Tensor:
    """The rows of all processes; if they are very many, some of them at equal distances.

    :param y: those of this process, (n, D).
    :param team: the processes.
    """
    if team.size == 1:
        return y
    numbers = sum(team.gather(y.numel()))
    return team.rows(y[:: -(-numbers // _MOST)])


def function_means(likelihood: LikelihoodValue, y: Tensor, team: Team = ALONE) -> Tensor:
    """Functions (F,) at which the outputs have the means of their columns.

    :param likelihood: the likelihood at its parameters.
    :param y: outputs (N, D), NaN if they were not observed.
    :param team: the processes that have the rows together.
    """
    width, count = y.shape[-1], likelihood.likelihood.num_functions
    f = y.new_zeros(width * count)
    for part in likelihood.parts(width):
        own, columns = likelihood.of(part), y[:, part.columns(width)]
        f[part.functions(width, count)] = own.link(_means(own, columns, _exposure(own, columns), team))
    return f


def _means(likelihood: LikelihoodValue, y: Tensor, exposure: Tensor | None, team: Team) -> Tensor:
    """The means of the columns (D,) of one likelihood. Those of continuous outputs, in units of their own, are plain:
    only a column that was never observed takes the mean of all.
    """
    means, seen = column_means(y, exposure, team), torch.isfinite(y)
    if likelihood.likelihood.is_discrete:
        return means
    count = seen.to(y) if exposure is None else torch.where(seen, exposure, 0.0)
    total, weight = team.total(torch.stack([torch.nansum(y, 0), count.sum(0)]))
    return torch.where(weight > 0.0, total / weight, means)


def _exposure(likelihood: LikelihoodValue, y: Tensor) -> Tensor | None:
    return None if likelihood.offset is None else likelihood.offset.exp().expand_as(y)


def guess(likelihood: LikelihoodValue, y: Tensor, lengths: tuple[int, ...], team: Team = ALONE) -> Tensor:
    """Function values (N, F) that explain the outputs.

    Discrete outputs are averaged over neighbouring frames first. The width of the window is that with which each
    frame's outputs are predicted best by the average of its neighbours alone.

    :param likelihood: the likelihood at its parameters.
    :param y: outputs (N, D), NaN if they were not observed.
    :param lengths: numbers of frames of the sequences.
    :param team: the processes that have sequences together, whose means, quartiles and window they share.
    """
    width, count = y.shape[-1], likelihood.likelihood.num_functions
    f = y.new_zeros(len(y), width * count)
    for part in likelihood.parts(width):
        f[:, part.functions(width, count)] = _guess(likelihood.of(part), y[:, part.columns(width)], lengths, team)
    return f


def _guess(likelihood: LikelihoodValue, y: Tensor, lengths: tuple[int, ...], team: Team) -> Tensor:
    exposure = _exposure(likelihood, y)
    means = _means(likelihood, y, exposure, team)
    seen = torch.isfinite(y)
    if not likelihood.likelihood.is_discrete:
        rate = y if exposure is None else y / exposure
        return likelihood.link(torch.where(seen, _without_outliers(rate, team), means))
    best, best_score = means.expand(y.shape), -torch.inf
    value = filled(y)
    for width in _WIDTHS:
        without = smoothed(y, lengths, width, means, own=False, exposure=exposure, team=team)
        score = torch.where(seen, likelihood.distribution(likelihood.link(without)).log_prob(value), 0.0).sum()
        score = team.total(score)
        if float(score) > best_score:
            best_score = float(score)
            best = smoothed(y, lengths, width, means, own=True, exposure=exposure, team=team)
    return likelihood.link(best)


def _without_outliers(y: Tensor, team: Team) -> Tensor:
    """Outputs (N, D) of which those far from the others of the column are moved to the edge."""
    low, high = torch.nanquantile(rows_of_all(y, team), y.new_tensor([0.25, 0.75]), 0)
    reach = _OUTLIERS * (high - low)
    return torch.where(reach > 0.0, torch.minimum(torch.maximum(y, low - reach), high + reach), y)


def smoothed(
    y: Tensor,
    lengths: tuple[int, ...],
    width: float,
    means: Tensor,
    own: bool,
    exposure: Tensor | None = None,
    team: Team = ALONE,
) -> Tensor:
    """Averages of neighbouring frames of the same sequence, (N, D), shrunk towards the column's mean by one frame.

    :param y: outputs (N, D), NaN if they were not observed.
    :param width: standard deviation of the Gaussian window, in frames; 0: the frame and its two neighbours.
    :param means: (D,).
    :param own: count the frame itself, too.
    :param exposure: (N, D): the averages are those at the exposure 1. Default: ones.
    :param team: the processes that have sequences together.
    """
    seen = torch.isfinite(y).to(y.dtype)
    usual = torch.ones_like(means)
    if exposure is not None:
        sums = team.total(torch.cat([exposure.sum(0), exposure.new_tensor([len(y)])]))
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
