# SPDX-License-Identifier: Apache-2.0
r"""The collapsed bound: the data's part of the evidence lower bound, with q(U) at its optimum.

With β = 1/noise, for one group of D outputs observed in the same N rows, Y centred and scaled (the paper's eq. 14, in
full eq. 32):

.. math::
    \hat F = \tfrac{\beta^2}{2} \mathrm{tr}\,Y^\top \Psi_1 B^{-1} \Psi_1^\top Y - \tfrac{DN}{2} \log\tfrac{2\pi}{\beta}
             - \tfrac{D}{2} \log\tfrac{|B|}{|K_{MM}|} - \tfrac{\beta}{2} \mathrm{tr}\,YY^\top
             - \tfrac{\beta D}{2} (\psi_0 - \mathrm{tr}\,K_{MM}^{-1} \Psi_2) - \log J

with B = K_MM + β Ψ2 (:mod:`~pyro_vgpds.mapping.group_terms`). Groups add up. J is the Jacobian of the scaling: log J is
the sum of log s_d over all observed entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.communication import Communicator
from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.linalg import NumericalError, broadcast_shapes, default_jitter
from pyro_vgpds.mapping.group_terms import Check, cholesky_terms, eigen_terms, need_gradients, with_gradients
from pyro_vgpds.mapping.native_inducing import Covariance, GroupStatistics, Terms
from pyro_vgpds.mapping.panels import matrices_of, panels_norm, panels_of
from pyro_vgpds.mapping.psi import Psi

__all__ = [
    "SiteLimits", "bound_terms", "ceiling", "check_ceiling", "check_noise", "check_rounding", "check_slack",
    "collapsed_bound", "site_bound", "site_limits", "site_terms", "strict_rounding",
]  # fmt: skip

_MAX_ERROR = 0.4  # nats per observation that rounding may add to the bound before it is an error
_MARGIN = 4.0  # expected rounding errors between a point that training accepts and that limit
_strict = ContextVar("_strict", default=False)
_TOO_HIGH = (
    "the bound exceeds the largest log density that outputs with this noise can have: it is dominated by rounding "
    "error. Try a smaller learning rate, a larger `jitter`, fewer inducing inputs, or float64."
)
_NO_NOISE = "the noise variance of an output has become 0: a parameter has diverged. Try a smaller learning rate."
_ILL_CONDITIONED = (
    "K_MM ({0} x {0}) is so ill-conditioned that the bound is dominated by rounding error. Try a larger `jitter`, "
    "fewer or better spread inducing inputs, or a smaller learning rate."
)


def collapsed_bound(psi: Psi, factor: Tensor, noise: Tensor, groups: ColumnGroups) -> Tensor:
    r""":math:`\hat F`, (...), of all groups.

    :param psi: the statistics of the groups' rows.
    :param factor: L, the Cholesky factor of K_MM.
    :param noise: the noise variance 1/β of the scaled outputs, (..., 1) for all outputs or (..., D) one each.
    :param groups: the column groups of the centred and scaled outputs.
    :raises NumericalError: if rounding error dominates the bound, or it exceeds its :func:`ceiling`.
    """
    batch = broadcast_shapes(psi.psi2.shape[:-3], factor.shape[:-2], noise.shape[:-1])
    if batch:
        parts = (psi.psi0, psi.psi1_y, psi.psi2, factor, noise)
        dims = (1, 2, 3, 2, 1)  # of each without the batch
        rows = [
            x.expand(batch + x.shape[x.dim() - d :]).flatten(0, len(batch) - 1)
            for x, d in zip(parts, dims, strict=True)
        ]
        bounds = [collapsed_bound(Psi(*row[:3]), row[3], row[4], groups) for row in zip(*rows, strict=True)]
        return torch.stack(bounds).view(batch)
    inputs, factor = (psi.psi0, psi.psi1_y, psi.psi2, factor, noise), factor.detach()
    wanted = need_gradients(inputs)
    with torch.no_grad():
        terms = bound_terms(psi, Covariance.of(factor), noise, groups, wanted)
    return with_gradients(terms, inputs, factor)


def bound_terms(psi: Psi, covariance: Covariance, noise: Tensor, groups: ColumnGroups, wanted: bool) -> Terms:
    r""":math:`\hat F` and its gradients, those in the noise in place of β, without a graph.

    :param psi: the statistics of the groups' rows, without batches. Ψ2 and the gradient in it may be panels (C, S).
    :param wanted: whether gradients are. Others as in :func:`collapsed_bound`.
    :raises NumericalError: if rounding error dominates the bound, or it exceeds its :func:`ceiling`.
    """
    shared = noise.shape[-1] == 1
    assert shared or groups.order is not None, "one noise for each output needs the columns themselves"
    order = None if shared or groups.is_ordered else groups.order
    least = float(noise) if shared else float(noise.amin())
    check_noise(least)
    beta = (noise if order is None else noise[order]).reciprocal()  # in the groups' order
    found = []
    for (which, columns, width), (_, v) in zip(groups.runs(), groups.split(psi.psi1_y), strict=True):
        whole = which.stop - which.start == groups.num_groups
        own = (psi.psi0, psi.psi2, groups.rows, groups.columns)
        psi0, psi2, rows, number_of = own if whole else (x[which] for x in own)
        rate = beta.expand(len(psi0), 1) if shared else beta[columns].view(-1, width)
        count = number_of.unsqueeze(-1) if shared else torch.ones_like(rate)
        check = partial(check_slack, unit=least * rows)
        found.append(_group_terms(GroupStatistics(psi0, v, psi2, rate, count), covariance, check, wanted))
    entries, total = groups.totals
    if shared:  # numbers of Python: operations of torch take longer
        most = -0.5 * entries * math.log(2.0 * math.pi * least) - float(groups.log_scale)
        rest = total / least
    else:
        most, rest = float(ceiling(noise, groups)), float(groups.squares @ beta)
    value = sum((terms.value for terms in found), noise.new_zeros(())) + (most - 0.5 * rest)
    check_ceiling(float(value), most, least, groups)
    if not wanted:
        return Terms(value)
    if not found:  # nothing was observed
        return Terms(value, *map(torch.zeros_like, (psi.psi0, psi.psi1_y, psi.psi2, covariance.K, noise)))
    g_psi0, g_v, g_psi2, g_K, g_beta = zip(*(terms[1:] for terms in found), strict=True)
    columns_of = [x.movedim(0, 1).flatten(1) for x in g_v]  # (M, groups * width)
    # the gradient in β, and dβ/dnoise = −β²
    if shared:
        g_noise = (0.5 * (total - entries * least) - _joined(g_beta).sum(0)) / least**2
    else:
        in_beta = _joined([x.flatten() for x in g_beta])
        g_noise = (0.5 * (groups.squares - groups.rows_of_columns / beta) - in_beta) * beta.square()
    if order is not None:
        g_noise = torch.zeros_like(noise).index_copy_(0, order, g_noise)
    return Terms(value, _joined(g_psi0), _joined(columns_of, 1), _joined(g_psi2), sum(g_K[1:], g_K[0]), g_noise)


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _group_terms(groups: GroupStatistics, covariance: Covariance, check: Check, wanted: bool) -> Terms:
    """The terms of groups with the same number of columns."""
    if groups.beta.shape[-1] == 1:
        found = cholesky_terms(groups, covariance, check, wanted)
        if found is not None:
            return found
    if groups.psi2.dim() > 2:
        return eigen_terms(groups, covariance, check, wanted)
    matrices = groups._replace(psi2=matrices_of(groups.psi2, groups.v.shape[1]))
    terms = eigen_terms(matrices, covariance, check, wanted)
    return terms if terms.psi2 is None else terms._replace(psi2=panels_of(terms.psi2))


class SiteLimits(NamedTuple):
    """What limits the bound of Gaussian factors; the limits of several sets of frames add up."""

    seen: Tensor  #: number of frames with a factor, (D,)
    size: int  #: number of entries
    most: Tensor  #: the sum of the logs of the factors at their maxima

    def joined(self, other: SiteLimits) -> SiteLimits:
        """The limits of the frames of both."""
        return SiteLimits(self.seen + other.seen, self.size + other.size, self.most + other.most)

    def of_all(self, communicator: Communicator) -> SiteLimits:
        """The limits of the frames of all processes."""
        if communicator.size == 1:
            return self
        most = self.most.reshape(1)
        sums = communicator.all_reduce(torch.cat([self.seen.to(most), most.new_tensor([self.size]), most]))
        return SiteLimits(sums[:-2], int(sums[-2]), sums[-1])


@torch.no_grad()
def site_limits(weight: Tensor, linear: Tensor) -> SiteLimits:
    """The limits of factors exp(linear f − ½ weight f²), (N, D) each."""
    most = 0.5 * linear.square().div_(weight.clamp_min(1e-300)).sum()
    return SiteLimits((weight > 0).sum(0), weight.numel(), most)


def site_bound(psi: Psi, factor: Tensor, limits: SiteLimits) -> Tensor:
    r"""The same for outputs with a Gaussian factor exp(linear f − ½ weight f²) for each entry:

    .. math:: \sum_d \tfrac12 v_d^\top B_d^{-1} v_d - \tfrac12 \log\tfrac{|B_d|}{|K_{MM}|}
              - \tfrac12 (\psi_{0d} - \mathrm{tr}\,K_{MM}^{-1} \Psi_{2d}),
              \qquad B_d = K_{MM} + \Psi_{2d}, \quad v_d = \Psi_1^\top \mathrm{linear}_d.

    :param psi: the statistics with ``weight`` (transposed) in place of the mask, and ``linear`` in place of Y.
    :param factor: L, the Cholesky factor of K_MM.
    :param limits: of the factors.
    :raises NumericalError: if rounding error dominates the bound, or it exceeds the maximum of the factors.
    """
    inputs, factor = (psi.psi0, psi.psi1_y, psi.psi2, factor), factor.detach()
    wanted = need_gradients(inputs)
    with torch.no_grad():
        terms = site_terms(psi, Covariance.of(factor), limits, wanted)
    ones = psi.psi0.new_ones(len(psi.psi0), 1)
    return with_gradients(terms, (*inputs, ones), factor)


def site_terms(psi: Psi, covariance: Covariance, limits: SiteLimits, wanted: bool) -> Terms:
    """:func:`site_bound` and its gradients, without a graph; that in Ψ1ᵀY takes the place of that in v.

    :param psi: the statistics; Ψ2 and the gradient in it may be panels (C, S).
    :param covariance: K_MM.
    :param wanted: whether gradients are. Others as in :func:`site_bound`.
    """
    ones, check = torch.ones_like(psi.psi0).unsqueeze(-1), partial(check_slack, unit=limits.seen)
    groups = GroupStatistics(psi.psi0, psi.psi1_y.mT.unsqueeze(-1), psi.psi2, ones, ones)
    terms = _group_terms(groups, covariance, check, wanted)
    most = limits.most + default_jitter(terms.value.dtype) * (limits.size + limits.most)
    if bool((terms.value > most).any()):
        raise NumericalError(_TOO_HIGH)
    return terms if terms.v is None else terms._replace(v=terms.v.squeeze(-1).mT)


@contextmanager
def strict_rounding() -> Iterator[None]:
    """A context in which bounds keep a distance from the limit of rounding errors, so that no lucky error passes.

    The same point in other parameters, after a file or in a posterior, has other rounding errors of the same size.
    Training takes the best of many points, and so finds those whose errors are lucky.
    """
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


def ceiling(noise: Tensor, groups: ColumnGroups) -> Tensor:
    r"""The largest log density that outputs with this noise can have, which no bound exceeds, except by rounding:

    .. math:: -\sum_d \frac{N_d}{2} \log 2\pi\sigma_d^2

    :param noise: the noise variance of the scaled outputs, (..., 1) for all outputs or (..., D) one each.
    :param groups: the column groups of the centred and scaled outputs; σ_d² is the noise in the units of the data.
    """
    counts = groups.totals[0] if noise.shape[-1] == 1 else groups.counts
    return -0.5 * (counts * (2.0 * math.pi * noise).log()).sum(-1) - groups.log_scale


@torch.no_grad()
def trace_error(inverse: Tensor, psi2: Tensor) -> Tensor:
    """The expected rounding error of tr K_MM⁻¹Ψ2, (..., C), from one of a unit in each last digit, for Ψ2 as matrices
    (..., C, M, M) or panels (C, S).
    """
    size = panels_norm(inverse, psi2) if psi2.dim() == 2 else torch.linalg.vector_norm(inverse * psi2, dim=(-2, -1))
    return torch.finfo(psi2.dtype).eps * size


def check_slack(slack: Tensor, inverse: Tensor, psi2: Tensor, unit: Tensor) -> None:
    """Raise a NumericalError if rounding alone makes the slack clearly negative; ``unit`` is one of the noise each."""
    check_rounding(slack, trace_error(inverse, psi2) if _strict.get() else 0.0, unit, len(inverse))


def check_rounding(slack: Tensor | float, error: Tensor | float, unit: Tensor | float, size: int) -> None:
    """The same with a known :func:`trace_error`, which only matters in :func:`strict_rounding`, and M."""
    if _strict.get():
        slack = slack - _MARGIN * error
    lost = slack + _MAX_ERROR * unit < 0.0
    if bool(lost.any()) if isinstance(lost, Tensor) else lost:
        raise NumericalError(_ILL_CONDITIONED.format(size))


def check_noise(least: float) -> None:
    """Raise a NumericalError if the least noise variance is 0."""
    if least == 0.0:
        raise NumericalError(_NO_NOISE)


def check_ceiling(value: float, most: float, least: float, groups: ColumnGroups) -> None:
    """Raise a NumericalError if a bound exceeds its :func:`ceiling`, for the least noise variance, beyond rounding."""
    entries, total = groups.totals
    if value > most + default_jitter(torch.float64) * (entries + total / least):
        raise NumericalError(_TOO_HIGH)
