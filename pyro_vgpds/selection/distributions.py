# SPDX-License-Identifier: Apache-2.0
"""Held-out numbers and the distributions that were predicted for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import cast

import torch
from torch import Tensor

from pyro_vgpds.evaluation.splits import HeldOut, Predictor, Split
from pyro_vgpds.prediction.outputs import Outputs

__all__ = ["LEVEL", "covered", "describe_distribution", "predict_distribution", "with_gaussian"]

LEVEL = 0.95  #: probability of the intervals that are drawn


def predict_distribution(split: Split, predictor: Predictor) -> HeldOut:
    """The hidden numbers, their predictions, and the probabilities of what is below them."""
    return describe_distribution(split, cast("list[Outputs]", split.outputs(predictor)))


def describe_distribution(split: Split, found: Sequence[Outputs]) -> HeldOut:
    """The same from predictions of all frames, as of :meth:`Split.outputs`."""
    truth = torch.cat(split.truth)
    density, cdf, intervals = [], [], []
    for part, y in zip(found, truth.split([len(part.mean) for part in found]), strict=True):
        density.append(part.log_probs(y))
        upto, whole = part.cdf(y), part.is_whole.to(y)
        cdf.append(torch.stack([part.cdf(y - whole) if bool(whole.any()) else upto, upto], -1))
        intervals.append(torch.stack(part.interval(LEVEL), -1))
    held_out = split.select(*(torch.cat([getattr(part, name) for part in found]) for name in ("mean", "variance")))
    hidden = truth.isfinite()
    own = (torch.cat(each)[hidden] for each in (density, cdf, intervals))
    return replace(held_out, **dict(zip(("log_density", "cdf", "ends"), own, strict=True)))


def with_gaussian(found: HeldOut) -> HeldOut:
    """Held-out predictions with the log-densities and probabilities of Gaussians with their moments."""
    deviation = found.variance.clamp_min(1e-300).sqrt()
    z = (found.truth - found.mean) / deviation
    below = torch.special.ndtr(z)
    density = -0.5 * (z.square() + math.log(2.0 * math.pi)) - deviation.log()
    reach = NormalDist().inv_cdf(0.5 + 0.5 * LEVEL) * deviation
    ends = torch.stack([found.mean - reach, found.mean + reach], -1)
    return replace(found, log_density=density, cdf=torch.stack([below, below], -1), ends=ends)


def covered(found: HeldOut, level: float) -> Tensor:
    """Whether the numbers (n,) are in their central intervals, whose ends are the quantiles of their distributions."""
    assert found.cdf is not None
    below, upto = found.cdf.unbind(-1)
    tail = 0.5 * (1.0 - level)
    return (upto >= tail) & (below < 1.0 - tail)
