# SPDX-License-Identifier: Apache-2.0
"""The temporal prior of training and new frames together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.linalg import cholesky, default_jitter
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.gaussian import GaussianPosterior, PathPosterior

__all__ = ["conditional", "kl_of", "merge"]


def merge(t: Tensor, old: list[slice], fresh: list[slice], belongs: Sequence[int | None], free: bool) -> list[Tensor]:
    """Rows of each active sequence, in the order of time."""
    joined: dict[int, list[slice]] = {i: [rows] for i, rows in enumerate(old) if free or i in belongs}
    alone: list[list[slice]] = []
    for rows, sequence in zip(fresh, belongs, strict=True):
        if sequence is None:
            alone.append([rows])
        else:
            joined[sequence].append(rows)
    merged = []
    for parts in [*joined.values(), *alone]:
        index = torch.cat([torch.arange(s.start, s.stop, device=t.device) for s in parts])
        merged.append(index[t[index].argsort(stable=True)])
    return merged


def conditional(q: PathPosterior, times: Times, belongs: Sequence[int | None]) -> tuple[TemporalGP, Tensor, float]:
    r"""p(X* given X) with X at its mean, its mean, and the remainder of E_q(X)[KL(q(X*), p(X* given X))].

    With C the conditional covariance and V that of the forecast, which includes the uncertainty of X, the remainder
    is ½ tr(C⁻¹(V − C)). C is the forecast's covariance for sites so precise that only the jitter of K_t is left.
    """
    certain: PathPosterior
    if isinstance(q, GaussianPosterior):
        certain = q.certain()
    else:
        precision = torch.full_like(q.lam, 1.0 / default_jitter(q.lam.dtype)) / q.prior.variance.mean()
        certain = OpperArchambeau(q.prior, q.mean_bar, precision)
    covariance = q.mean.new_zeros(q.event_shape[-1], len(times), len(times))
    shift = q.mean.new_zeros(len(times), q.event_shape[-1])
    rest = 0.0
    for rows, sequence in zip(times.slices(), belongs, strict=True):
        block = certain.forecast(times.t[rows], sequence).covariance_matrix
        covariance[:, rows, rows] = block
        if sequence is not None:
            forecast = q.forecast(times.t[rows], sequence)
            shift[rows] = forecast.mean
            factor = cholesky(block, "the covariance of new frames given the training frames", None)
            excess = forecast.covariance_matrix - block
            trace = torch.cholesky_solve(excess, factor.expand_as(excess)).diagonal(dim1=-2, dim2=-1).sum()
            rest += 0.5 * float(trace.clamp_min(0.0))
    return TemporalGP(_Given(covariance), times.t, q.event_shape[-1]), shift, rest


class _Given(KernelValue):
    """Covariances (Q, T, T) of one sequence, as a kernel value."""

    def __init__(self, covariance: Tensor) -> None:
        self.covariance = covariance

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return self.covariance.unsqueeze(-3)

    def diag(self, a: Tensor) -> Tensor:
        return self.covariance.diagonal(dim1=-2, dim2=-1)


def kl_of(q: PathPosterior, sequences: list[int]) -> float:
    """KL(q, p) of a subset of the training sequences."""
    if isinstance(q, GaussianPosterior):
        return float(q.kl(sequences))
    if not sequences:
        return 0.0
    times, chosen = q.prior.times, set(sequences)
    if len(chosen) == len(times.lengths):  # the moments of q are known
        return float(kl_divergence(q, q.prior))
    rows = torch.cat([torch.arange(s.start, s.stop, device=times.t.device)
                      for i, s in enumerate(times.slices()) if i in chosen])  # fmt: skip
    some = Times(times.t[rows], [times.lengths[i] for i in sequences])
    prior = TemporalGP(q.prior.kernel, some, q.event_shape[-1], structure=q.prior.requested_structure)
    return float(kl_divergence(OpperArchambeau(prior, q.mean_bar[rows], q.lam[rows]), prior))
