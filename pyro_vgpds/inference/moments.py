# SPDX-License-Identifier: Apache-2.0
"""Mean, variance and covariance of the latent path, read from the distributions that guides have."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    TransformedDistribution,
)
from torch.distributions.transforms import ComposeTransform, IndependentTransform, Transform

__all__ = ["GuideMoments", "middle", "moments_of", "pick_moments"]


class GuideMoments(NamedTuple):
    """The moments of a distribution of latent paths."""

    mean: Tensor  #: (N, Q)
    variance: Tensor  #: (N, Q)
    covariance: Callable[[Tensor], Tensor] | None  #: frames (n,) ↦ (Q, n, n); None if frames are independent


def moments_of(fn: Distribution) -> GuideMoments | None:
    """The moments of a distribution of event shape (N, Q), as copies; None if it has no mean or no variance.

    Its covariance is its ``covariance_matrix``, if that is (Q, N, N). Otherwise frames count as independent.
    """
    fn = _plain(fn)
    try:
        mean, variance = fn.mean.detach().clone(), fn.variance.detach().clone()
    except (AttributeError, NotImplementedError):
        return None
    matrix = None if isinstance(fn, Independent) else getattr(fn, "covariance_matrix", None)
    if matrix is None or mean.dim() != 2 or matrix.shape != (mean.shape[1], mean.shape[0], mean.shape[0]):
        return GuideMoments(mean, variance, None)
    kept = matrix.detach().clone()
    return GuideMoments(mean, variance, lambda rows: kept[:, rows][..., rows])


def pick_moments(fn: Distribution, mean: Tensor, index: Tensor, scale: Tensor) -> GuideMoments | None:
    """The moments of x = shift + scale ∘ z[index], for z with distribution ``fn``; None if that has no variance.

    The mean of x, the scale, and the positions in z, flattened, are (N, Q).
    """
    fn = _plain(fn)
    try:
        variance = fn.variance.detach().flatten()
    except (AttributeError, NotImplementedError):
        return None
    index_t, scale_t = index.mT, scale.mT.unsqueeze(-1)  # (Q, N)
    covariance: Callable[[Tensor], Tensor] | None = None
    if isinstance(fn, (MultivariateNormal, LowRankMultivariateNormal)):
        rest: Tensor | None = None
        if isinstance(fn, LowRankMultivariateNormal):
            factor, rest = fn.cov_factor.detach().clone(), fn.cov_diag.detach().clone()
        else:
            factor = fn.scale_tril.detach().clone()

        def covariance(rows: Tensor) -> Tensor:
            own, size = index_t[:, rows], scale_t[:, rows]
            half = size * factor[own]
            full = half @ half.mT
            return full if rest is None else full + torch.diag_embed(size.squeeze(-1).square() * rest[own])

    return GuideMoments(mean.detach().clone(), scale.square() * variance[index], covariance)


def middle(fn: Distribution) -> Tensor | None:
    """The median of a distribution, its mean if the median is not known, or None."""
    if isinstance(fn, dist.Delta):
        return fn.v
    if isinstance(fn, Independent):
        return middle(fn.base_dist)
    if isinstance(fn, TransformedDistribution):
        value = middle(fn.base_dist)
        for transform in fn.transforms if value is not None else ():
            value = transform(value)
        return value
    half = torch.tensor(0.5)
    for read in (lambda: fn.icdf(half), lambda: fn.mean):
        try:
            value = read()
        except (AttributeError, NotImplementedError, TypeError):
            continue
        if isinstance(value, Tensor) and value.shape == fn.batch_shape + fn.event_shape:
            return value
    return None


def _plain(fn: Distribution) -> Distribution:
    """The distribution without transforms that change nothing, which Pyro's ``AutoNormalMessenger`` adds."""
    while isinstance(fn, TransformedDistribution) and all(map(_is_identity, fn.transforms)):
        fn = fn.base_dist
    return fn


def _is_identity(transform: Transform) -> bool:
    if isinstance(transform, IndependentTransform):
        return _is_identity(transform.base_transform)
    return isinstance(transform, ComposeTransform) and all(map(_is_identity, transform.parts))
