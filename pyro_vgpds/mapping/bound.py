# SPDX-License-Identifier: Apache-2.0
r"""The collapsed bound: the data's part of the evidence lower bound, with q(U) at its optimum.

With β = 1/noise, for one group of D outputs observed in the same N rows, Y centred and scaled (the paper's eq. 14, in
full eq. 32):

.. math::
    \hat F = \tfrac12 \|c\|^2 - \tfrac{DN}{2} \log\tfrac{2\pi}{\beta} - \tfrac{D}{2} \log|B|
             - \tfrac{\beta}{2} \mathrm{tr}\,YY^\top - \tfrac{\beta D}{2} (\psi_0 - \mathrm{tr}\,A) - \log J

where L Lᵀ = K_MM, A = L⁻¹ Ψ2 L⁻ᵀ, B = I + β A = L_B L_Bᵀ and c = β L_B⁻¹ L⁻¹ Ψ1ᵀ Y. Groups add up. J is the Jacobian of
the scaling: log J is the sum of log s_d over all observed entries.

Longer than 300 lines because the bounds of all kinds of outputs have parts in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular

from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.linalg import NumericalError, add_diagonal, cholesky, default_jitter
from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.types import Context

__all__ = ["ceiling", "collapsed_bound", "site_bound", "strict_rounding", "whiten"]

_MAX_ERROR = 0.4  # nats per observation that rounding may add to the bound before it is an error
_MARGIN = 4.0  # expected rounding errors between a point that training accepts and that limit
_strict = ContextVar("_strict", default=False)
_PIVOT_ERROR = 1e-3  # rounding error in the pivots of B above which inducing directions of pure rounding are removed
_SIGNIFICANT = 3.0  # an eigenvalue counts if it is this many times the most negative one
_TOO_HIGH = (
    "the bound exceeds the largest log density that outputs with this noise can have: it is dominated by rounding "
    "error. Try a smaller learning rate, a larger `jitter`, fewer inducing inputs, or float64."
)
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
    A, v, slack = _whitened(psi, factor, noise, groups)
    if noise.shape[-1] > 1:
        bound = _bound_per_output(A, v, slack, noise, groups)
    else:
        bound = _shared_bound(A, v, slack, psi.psi0, noise, groups)
    with torch.no_grad():
        error = default_jitter(bound.dtype) * (groups.rows * groups.columns + groups.square / noise.amin(-1, True))
        if bool((bound > ceiling(noise, groups) + error.sum(-1)).any()):
            raise NumericalError(_TOO_HIGH)
    return bound


def site_bound(psi: Psi, factor: Tensor, weight: Tensor, linear: Tensor) -> Tensor:
    r"""The same for outputs with a Gaussian factor exp(linear f − ½ weight f²) for each entry, (...):

    .. math:: \sum_d \tfrac12 v_d^\top B_d^{-1} v_d - \tfrac12 \log|B_d| - \tfrac12 (\psi_{0d} - \mathrm{tr}\,A_d),
              \qquad B_d = I + A_d, \quad v_d = L^{-1} \Psi_1^\top \mathrm{linear}_d.

    :param psi: the statistics with ``weight`` (transposed) in place of the mask, and ``linear`` in place of Y.
    :param factor: L, the Cholesky factor of K_MM.
    :param weight: (N, D).
    :param linear: (N, D).
    :raises NumericalError: if rounding error dominates the bound, or it exceeds the maximum of the factors.
    """
    A = whiten(factor.unsqueeze(-3), psi.psi2)
    v = solve_triangular(factor, psi.psi1_y, upper=False)
    slack = psi.psi0 - _trace(A)
    _check_slack(slack, factor, psi, (weight > 0).sum(0))
    ones = torch.ones_like(slack).unsqueeze(-1)
    bound = _output_terms(A, v.mT.unsqueeze(-1), ones) - 0.5 * slack.clamp_min(0.0).sum(-1)
    with torch.no_grad():
        most = torch.where(weight > 0, 0.5 * linear.square() / weight.clamp_min(1e-300), 0.0).sum()
        if bool((bound > most + default_jitter(bound.dtype) * (weight.numel() + most)).any()):
            raise NumericalError(_TOO_HIGH)
    return bound


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
    if noise.shape[-1] == 1:
        counts = (groups.rows * groups.columns).sum()
    else:
        counts = torch.nn.functional.pad(groups.rows, (0, 1))[groups.of_column]  # (D,): an output never seen has -1
    return -0.5 * (counts * (2.0 * math.pi * noise).log()).sum(-1) - groups.log_scale


def _shared_bound(A: Tensor, v: Tensor, slack: Tensor, psi0: Tensor, noise: Tensor, groups: ColumnGroups) -> Tensor:
    """The bound with one noise for all outputs."""
    beta, D, N = 1.0 / noise, groups.columns, groups.rows
    LB, v, slack = _factorised(A, v, slack, psi0, beta, groups)
    log_det = 2.0 * LB.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (..., C)
    cost = D * N * (2.0 * math.pi * noise).log() + D * log_det + beta * groups.square + beta * D * slack
    fit = cost.new_zeros(())
    for which, part in groups.split(v):
        c = beta[..., None, None] * solve_triangular(LB[..., which, :, :], part, upper=False)
        fit = fit + c.square().sum((-3, -2, -1))
    return 0.5 * fit - 0.5 * cost.sum(-1) - groups.log_scale


def _bound_per_output(A: Tensor, v: Tensor, slack: Tensor, noise: Tensor, groups: ColumnGroups) -> Tensor:
    """The same with one noise for each output."""
    assert groups.order is not None, "one noise for each output needs the columns themselves"
    beta = 1.0 / noise[..., groups.order]  # (..., R), in the order of the groups
    widths = torch.tensor(groups.widths, dtype=torch.long, device=v.device)
    group = torch.arange(groups.num_groups, device=v.device).repeat_interleave(widths)
    N, square = groups.rows[group], groups.factor.square().sum(0)
    cost = N * (2.0 * math.pi / beta).log() + beta * (square + slack[..., group])
    total = -0.5 * cost.sum(-1)
    for (which, part), (_, rate) in zip(groups.split(v), groups.split(beta.unsqueeze(-2)), strict=True):
        total = total + _output_terms(A[..., which, :, :], part, rate.squeeze(-2))
    return total - groups.log_scale


def _output_terms(a: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Σ_d ½ (β_d² v_d·B_d⁻¹v_d − log|B_d|) for B_d = I + β_d A, summed over groups.

    Several outputs of a group share one eigendecomposition; for a single one a Cholesky factorisation is faster.

    :param a: A, (..., C, M, M).
    :param v: (..., C, M, W), W outputs in each of C groups.
    :param beta: (..., C, W).
    """
    if v.shape[-1] == 1:
        LB, failed = torch.linalg.cholesky_ex(add_diagonal(beta.detach().unsqueeze(-1) * a.detach(), 1.0))
        if not bool((_low_pivots(LB) | failed.unsqueeze(-1).bool()).any()):
            return _CholeskyTerms.apply(a, v, beta, LB)
    return _EigenTerms.apply(a, v, beta)


class _Whitened(NamedTuple):
    """The statistics in the basis of L."""

    A: Tensor  #: L⁻¹ Ψ2 L⁻ᵀ, (..., C, M, M)
    v: Tensor  #: L⁻¹ Ψ1ᵀ Y, (..., M, R)
    slack: Tensor  #: ψ0 − tr A, (..., C), never negative


def _whitened(psi: Psi, factor: Tensor, noise: Tensor, groups: ColumnGroups) -> _Whitened:
    """The whitened statistics.

    :raises NumericalError: if rounding alone makes the slack clearly negative, and so the bound too high; in
        :func:`strict_rounding` also if it could.
    """
    A = whiten(factor.unsqueeze(-3), psi.psi2)
    v = solve_triangular(factor, psi.psi1_y, upper=False)
    slack = psi.psi0 - _trace(A)
    _check_slack(slack, factor, psi, noise.amin(-1, keepdim=True) * groups.rows)
    return _Whitened(A, v, slack.clamp_min(0.0))  # or training would exploit the rounding


def _factorised(
    A: Tensor, v: Tensor, slack: Tensor, psi0: Tensor, beta: Tensor, groups: ColumnGroups
) -> tuple[Tensor, Tensor, Tensor]:
    """L_B, v and the slack, free of rounding errors that would raise the bound.

    L⁻¹ magnifies rounding errors if K_MM is almost singular, as under an almost linear mapping with more inducing
    points than it needs. No pivot of B is less than 1 except by such errors, which training would exploit because
    log|B| falls with the pivots. Then A, v and the slack are projected: the bound of the projection is that of fewer
    inducing variables, hence still a bound.
    """
    B = add_diagonal(beta[..., None, None] * A, 1.0)
    LB, failed = torch.linalg.cholesky_ex(B)
    if not bool(_low_pivots(LB).any() | failed.any()):
        return LB, v, slack
    if bool(torch.isfinite(B).all()):  # otherwise the factorisation below raises the error for that
        projection = _significant(A.detach())
        A = projection @ A @ projection
        parts = [projection[..., which, :, :] @ part for which, part in groups.split(v)]
        v = torch.cat([part.movedim(-3, -2).flatten(-2) for part in parts], -1)
        B, slack = add_diagonal(beta[..., None, None] * A, 1.0), (psi0 - _trace(A)).clamp_min(0.0)
    return cholesky(B, "B = I + β L⁻¹ Ψ2 L⁻ᵀ"), v, slack


def _low_pivots(factor: Tensor) -> Tensor:
    """The pivots of B, (..., M), that only rounding errors can make less than 1."""
    return factor.detach().diagonal(dim1=-2, dim2=-1).square() < 1.0 - _PIVOT_ERROR


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


@torch.no_grad()
def _trace_error(factor: Tensor, psi2: Tensor) -> Tensor:
    """The expected rounding error of tr A = Σ_ij (K_MM⁻¹)_ij Ψ2_ij, (..., C), from one of a unit in each last digit."""
    terms = torch.cholesky_inverse(factor).unsqueeze(-3) * psi2
    return torch.finfo(psi2.dtype).eps * torch.linalg.matrix_norm(terms)


@torch.no_grad()
def _check_slack(slack: Tensor, factor: Tensor, psi: Psi, unit: Tensor) -> None:
    """Raise a NumericalError if rounding alone makes the slack clearly negative; ``unit`` is one of the noise each."""
    if _strict.get():
        slack = slack - _MARGIN * _trace_error(factor, psi.psi2)
    if bool((-slack > _MAX_ERROR * unit).any()):
        raise NumericalError(_ILL_CONDITIONED.format(factor.shape[-1]))


def _significant(A: Tensor) -> Tensor:
    """The projection on the eigenvectors of A, (..., M, M), that exceed its rounding errors.

    A has negative eigenvalues only by rounding, so the most negative one tells the size of the errors.
    """
    e, u = torch.linalg.eigh(A)
    level = (-e[..., :1]).clamp_min(0.0)
    return (u * (e > _SIGNIFICANT * level).to(A.dtype).unsqueeze(-2)) @ u.mT


def whiten(factor: Tensor, matrix: Tensor) -> Tensor:
    """L⁻¹ X L⁻ᵀ."""
    half = solve_triangular(factor, matrix, upper=False)
    return solve_triangular(factor, half.mT, upper=False).mT


class _CholeskyTerms(torch.autograd.Function):
    """:func:`_output_terms` of groups with one output, with the Cholesky factor of B.

    With b = B⁻¹ v and A = (B − I)/β, the gradient in β is v·b β − ½ β (b·v − b·b) − ½ (M − tr B⁻¹)/β.
    """

    @staticmethod
    def forward(ctx: Context, a: Tensor, v: Tensor, beta: Tensor, factor: Tensor) -> Tensor:
        b = torch.cholesky_solve(v, factor)  # (..., C, M, 1)
        ctx.save_for_backward(v, beta, factor, b)
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 0.5 * (beta.square().squeeze(-1) * (v * b).sum((-2, -1)) - log_det).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        v, beta, factor, b = ctx.saved_tensors
        inverse, rate, grad = torch.cholesky_inverse(factor), beta.unsqueeze(-1), grad[..., None, None, None]
        g_a = -0.5 * grad * rate * (rate.square() * b @ b.mT + inverse)
        square, product = (b * b).sum(-2), (v * b).sum(-2)  # (..., C, 1)
        free = factor.shape[-1] - _trace(inverse).unsqueeze(-1)
        g_beta = 0.5 * grad.squeeze(-1) * (beta * (product + square) - free / beta)
        return g_a, grad * rate.square() * b, g_beta, None


class _EigenTerms(torch.autograd.Function):
    """:func:`_output_terms` of groups with several outputs.

    One eigendecomposition A = U diag(e) Uᵀ per group makes every B_d diagonal. The gradients are those of the matrices,
    not of the eigenvectors, so equal eigenvalues do no harm.
    """

    @staticmethod
    def forward(ctx: Context, a: Tensor, v: Tensor, beta: Tensor) -> Tensor:
        e, u = torch.linalg.eigh(a)
        e = e.clamp_min(0.0).unsqueeze(-1)  # (..., C, M, 1)
        rate = beta.unsqueeze(-2)
        shrink = 1.0 / (1.0 + rate * e)  # diag of B⁻¹ in the basis u
        p = u.mT @ v
        ctx.save_for_backward(e, u, rate, shrink, p)
        terms = rate.square() * p.square() * shrink + shrink.log()
        return 0.5 * terms.sum((-3, -2, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        e, u, rate, shrink, p = ctx.saved_tensors
        grad = grad[..., None, None, None]
        b = shrink * p
        inner = (rate.pow(3) * b) @ b.mT + torch.diag_embed((rate * shrink).sum(-1))
        g_a = -0.5 * grad * (u @ inner @ u.mT)
        g_v = grad * (u @ (rate.square() * b))
        g_rate = 0.5 * grad * (2.0 * rate * p * b - rate.square() * e * b.square() - e * shrink)
        return g_a, g_v, g_rate.sum(-2)
