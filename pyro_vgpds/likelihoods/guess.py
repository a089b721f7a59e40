# SPDX-License-Identifier: Apache-2.0
"""A first guess of the latent functions from the outputs, with which training starts."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.likelihoods.base import LikelihoodValue, filled

__all__ = ["column_means", "guess", "smoothed"]

_WIDTHS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of the Gaussian window, in frames; 0 has the two neighbours
_REACH = 3.0  # widths after which the window ends


def column_means(y: Tensor) -> Tensor:
    """Mean of each column (N, D) with half a frame of the mean of all, (D,): never 0 unless every output is.

    :param y: outputs, NaN if they were not observed.
    """
    count = torch.isfinite(y).sum(-2)
    every = y.nanmean() if bool(torch.isfinite(y).any()) else y.new_zeros(())
    return (torch.nansum(y, -2) + 0.5 * every) / (count + 0.5)


def guess(likelihood: LikelihoodValue, y: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Function values (N, F) that explain the outputs.

    Discrete outputs are averaged over neighbouring frames first. The width of the window is that with which each
    frame's outputs are predicted best by the average of its neighbours alone.

    :param likelihood: the likelihood at its parameters.
    :param y: outputs (N, D), NaN if they were not observed.
    :param lengths: numbers of frames of the sequences.
    """
    means = column_means(y)
    if not likelihood.likelihood.is_discrete:
        return likelihood.link(torch.where(torch.isfinite(y), y, means))
    best, best_score = means.expand(y.shape), -torch.inf
    value = filled(y)
    seen = torch.isfinite(y)
    for width in _WIDTHS:
        without = smoothed(y, lengths, width, means, own=False)
        score = torch.where(seen, likelihood.distribution(likelihood.link(without)).log_prob(value), 0.0).sum()
        if float(score) > best_score:
            best, best_score = smoothed(y, lengths, width, means, own=True), float(score)
    return likelihood.link(best)


def smoothed(y: Tensor, lengths: tuple[int, ...], width: float, means: Tensor, own: bool) -> Tensor:
    """Averages of neighbouring frames of the same sequence, (N, D), shrunk towards the column's mean by one frame.

    :param y: outputs (N, D), NaN if they were not observed.
    :param width: standard deviation of the Gaussian window, in frames; 0: the frame and its two neighbours.
    :param means: (D,).
    :param own: count the frame itself, too.
    """
    seen = torch.isfinite(y).to(y.dtype)
    y = torch.nan_to_num(y, nan=0.0)
    reach = max(1, round(_REACH * width))
    parts = []
    for a, count in zip(y.split(lengths), seen.split(lengths), strict=True):
        total, weight = (a, count) if own else (torch.zeros_like(a), torch.zeros_like(a))
        total, weight = total + means, weight + 1.0
        for shift in range(1, min(reach, len(a) - 1) + 1):
            w = 0.5 if width == 0.0 else float(torch.exp(torch.tensor(-0.5 * (shift / width) ** 2)))
            for source, target in (
                (slice(None, -shift), slice(shift, None)),
                (slice(shift, None), slice(None, -shift)),
            ):
                total = total.index_add(0, _rows(target, a), w * a[source])
                weight = weight.index_add(0, _rows(target, a), w * count[source])
        parts.append(total / weight)
    return torch.cat(parts)


def _rows(part: slice, a: Tensor) -> Tensor:
    return torch.arange(len(a), device=a.device)[part]
