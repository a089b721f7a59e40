# SPDX-License-Identifier: Apache-2.0
"""Weights of an ensemble's members, from their errors on held-out data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_vgpds.evaluation.splits import HeldOut

__all__ = ["combine", "stack"]

_STEPS = 400  # of the multiplicative updates
_LEAST = 0.02  # smaller weights become zero: each member costs time
_PSEUDO = 200.0  # held-out entries that the average of all outputs counts for


def stack(members: Sequence[HeldOut], num_outputs: int, scale: Tensor) -> Tensor:
    """Weights (members, D), not negative with sum 1, that minimise the squared held-out error of each output.

    The errors of one output are few and correlated in time, so they are combined with those of all outputs.

    :param members: held-out predictions of the same numbers.
    :param num_outputs: D.
    :param scale: standard deviations of the outputs, (D,), in whose units errors are compared.
    """
    output = members[0].output.cpu()
    errors = torch.stack([(m.mean - m.truth).to("cpu", torch.float64) for m in members], 1)
    errors = errors / scale.to("cpu", torch.float64)[output].unsqueeze(-1)
    k = len(members)
    gram = torch.zeros(num_outputs, k * k, dtype=torch.float64)
    for i, j in itertools.product(range(k), repeat=2):
        gram[:, k * i + j].index_add_(0, output, errors[:, i] * errors[:, j])
    count = torch.zeros(num_outputs, dtype=torch.float64).index_add_(0, output, torch.ones(len(output)).double())
    pooled = gram.sum(0) / max(1.0, float(count.sum()))
    gram = ((gram + _PSEUDO * pooled) / (count + _PSEUDO).unsqueeze(-1)).unflatten(-1, (k, k))
    weights = _simplex(gram)
    keep = weights.mean(0) >= _LEAST
    weights = torch.zeros_like(weights)
    weights[:, keep] = _simplex(gram[:, keep][:, :, keep])
    return weights.mT.contiguous()


def _simplex(gram: Tensor) -> Tensor:
    """Argmin wᵀ G w over the simplex, (D, k), by multiplicative updates."""
    k = gram.shape[-1]
    weights = torch.full(gram.shape[:-1], 1.0 / k, dtype=gram.dtype)
    size = gram.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True).clamp_min(1e-300)
    for step in range(_STEPS):
        slope = (gram @ weights.unsqueeze(-1)).squeeze(-1) / size
        rate = 4.0 if step < _STEPS // 2 else 8.0
        weights = weights * torch.exp(-rate * (slope - slope.amin(-1, keepdim=True)))
        weights = weights / weights.sum(-1, keepdim=True)
    return weights


def combine(members: Sequence[HeldOut], weights: Tensor) -> HeldOut:
    """The held-out prediction of an ensemble with these weights (members, D), before calibration."""
    first = members[0]
    w = weights.to(first.mean)[:, first.output]
    means, variances = (torch.stack([getattr(m, name) for m in members]) for name in ("mean", "variance"))
    mean = (w * means).sum(0)
    variance = (w * (variances + (means - mean).square())).sum(0)
    return HeldOut(first.truth, mean, variance, first.output, first.ahead)
