# SPDX-License-Identifier: Apache-2.0
"""Weights of an ensemble's members, from their errors on held-out data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.prediction.disagreement import mean_disagreement

__all__ = ["combine", "relative_errors", "simplex_minimum", "stack"]

_SWEEPS = 200  # at most, over all pairs of members
_CLOSE = 1e-6  # change of weights in a sweep that ends them
_LEAST = 0.05  # smaller weights become zero: each member costs time
_PSEUDO = 200.0  # held-out gaps that the average of all outputs counts for
_EQUAL = 20.0  # the larger, the more held-out gaps are needed for weights that differ much


def stack(
    members: Sequence[HeldOut],
    num_outputs: int,
    scale: Tensor,
    limit: float = math.inf,
    *,
    gap_length: float = 1.0,
    importance: Tensor | None = None,
) -> Tensor:
    r"""Weights (members, D), not negative with sum 1, that minimise the squared held-out error of each output.

    The errors of one output are few and correlated in time, so they are combined with those of all outputs. Few errors
    do not tell similar members apart, although they have a smallest sum of squares by chance, so the weights w of an
    output minimise

    .. math:: w^\top G w + \frac{20}{g} e^2 |w|^2

    with the mean products G of the members' errors, the number g of held-out gaps and the smallest mean squared error
    :math:`e^2` of a member. The second term is smallest for equal weights.

    :param scale: standard deviations of the outputs, (D,), in whose units errors are compared.
    :param limit: members whose root mean squared error is more than this times the smallest one get no weight: the
        errors of a poor member can offset those of the others by chance.
    :param gap_length: number of entries whose errors are so similar that they count as one.
    :param importance: (n,), factors of the squared errors. Default: 1.
    """
    output = members[0].output.cpu()
    errors = relative_errors(members, scale)
    if importance is not None:
        errors = errors * importance.to("cpu", torch.float64).sqrt().unsqueeze(-1)
    k = len(members)
    gram = torch.zeros(num_outputs, k * k, dtype=torch.float64)
    for i, j in itertools.product(range(k), repeat=2):
        gram[:, k * i + j].index_add_(0, output, errors[:, i] * errors[:, j])
    each = torch.ones(len(output), dtype=torch.float64) if importance is None else importance.to("cpu", torch.float64)
    count = torch.zeros(num_outputs, dtype=torch.float64).index_add_(0, output, each)
    pooled = gram.sum(0) / max(1.0, float(count.sum()))
    pseudo = _PSEUDO * gap_length
    gram = ((gram + pseudo * pooled) / (count + pseudo).unsqueeze(-1)).unflatten(-1, (k, k))
    own = pooled.unflatten(-1, (k, k)).diagonal()
    num_gaps = max(1.0, float(count.sum()) / gap_length)
    gram = gram + _EQUAL / num_gaps * own.min() * torch.eye(k, dtype=torch.float64)
    keep = own <= limit**2 * own.min() if limit < math.inf else torch.ones(k, dtype=torch.bool)
    while True:
        weights = torch.zeros(num_outputs, k, dtype=torch.float64)
        weights[:, keep] = simplex_minimum(gram[:, keep][:, :, keep])
        mean = weights.mean(0)
        small = keep & (mean < min(_LEAST, float(mean.max())))
        if not bool(small.any()):
            return weights.mT.contiguous()
        keep &= ~small


def relative_errors(members: Sequence[HeldOut], scale: Tensor) -> Tensor:
    """Errors (n, members) in units of each output's scale (D,)."""
    errors = torch.stack([(m.mean - m.truth).to("cpu", torch.float64) for m in members], 1)
    return errors / scale.to("cpu", torch.float64)[members[0].output.cpu()].unsqueeze(-1)


def simplex_minimum(gram: Tensor) -> Tensor:
    """Argmin wᵀ G w over the simplex, (D, k), by exact moves of weight between two members at a time.

    Exact moves need no step size, which would have to suit errors of very different sizes.
    """
    k = gram.shape[-1]
    if len(gram) == 1:
        return gram.new_tensor([_minimum_of_one(gram[0].tolist())])
    found = gram.new_full(gram.shape[:-1], 1.0 / k)
    left = torch.arange(len(gram))  # outputs whose weights still move
    g = gram.permute(1, 2, 0).contiguous()  # (k, k, D)
    for _ in range(_SWEEPS):
        before = found[left].mT
        weights, slope = before.clone(), (g * before).sum(1)
        for i, j in itertools.combinations(range(k), 2):
            size = g[i, i] + g[j, j]
            curvature = torch.maximum(size - 2.0 * g[i, j], 1e-12 * size).clamp_min(1e-300)
            move = ((slope[j] - slope[i]) / curvature).clamp(-weights[i], weights[j])
            weights[i] += move
            weights[j] -= move
            slope += move * (g[i] - g[j])
        found[left] = weights.mT
        moved = (weights - before).abs().amax(0) > _CLOSE
        if not bool(moved.any()):
            break
        left, g = left[moved], g[:, :, moved]
    return found


def _minimum_of_one(g: list[list[float]]) -> list[float]:
    """The same for one matrix, with numbers of Python: operations of torch take twenty times as long."""
    k = len(g)
    weights = [1.0 / k] * k
    for _ in range(_SWEEPS):
        before = weights.copy()
        slope = [math.fsum(a * b for a, b in zip(row, before, strict=True)) for row in g]
        for i, j in itertools.combinations(range(k), 2):
            size = g[i][i] + g[j][j]
            curvature = max(size - 2.0 * g[i][j], 1e-12 * size, 1e-300)
            move = min(max((slope[j] - slope[i]) / curvature, -weights[i]), weights[j])
            if move:
                weights[i] += move
                weights[j] -= move
                slope = [s + move * (a - b) for s, a, b in zip(slope, g[i], g[j], strict=True)]
        if max(abs(a - b) for a, b in zip(weights, before, strict=True)) <= _CLOSE:
            break
    return weights


def combine(
    members: Sequence[HeldOut],
    weights: Tensor,
    disagreement: float | None = None,
    scale: Tensor | None = None,
    sequence: Tensor | None = None,
) -> HeldOut:
    """The held-out prediction of an ensemble with these weights (members, D), before calibration.

    :param disagreement: as in :class:`~pyro_vgpds.prediction.Combination`.
    :param scale: standard deviations of the outputs, (D,), if the disagreement has a factor.
    :param sequence: (n,), the numbers of the sequences that it is averaged over.
    """
    first = members[0]
    w = weights.to(first.mean)[:, first.output]
    means, variances = (torch.stack([getattr(m, name) for m in members]) for name in ("mean", "variance"))
    mean = (w * means).sum(0)
    own, between = (w * variances).sum(0), (w * (means - mean).square()).sum(0)
    if disagreement is not None and scale is not None and sequence is not None:
        between = disagreement * mean_disagreement(between, scale.to(mean)[first.output], sequence)
    return HeldOut(first.truth, mean, own + between, first.output, first.ahead)
