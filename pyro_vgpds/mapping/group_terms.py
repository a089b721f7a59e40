# SPDX-License-Identifier: Apache-2.0
r"""The terms of the collapsed bound for groups of outputs that were observed in the same rows, with their gradients.

With B = K_MM + β Ψ2, and in a group of D outputs with the columns v of Ψ1ᵀY:

.. math:: \tfrac12 \beta^2 \mathrm{tr}\,v^\top B^{-1} v - \tfrac{D}{2} (\log|B| - \log|K_{MM}|)
          - \tfrac{\beta D}{2} (\psi_0 - \mathrm{tr}\,K_{MM}^{-1} \Psi_2)

The gradients are computed along with the value, because they need the same inverses; :class:`ValueAndGrads` gives them
to autograd. :func:`cholesky_terms` is for groups whose outputs share one β; :func:`eigen_terms` also for one β each,
and for matrices that rounding has made indefinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular

from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping import native_inducing
from pyro_vgpds.mapping.native_inducing import Covariance, GroupStatistics, Terms, spectrum_terms, whitened
from pyro_vgpds.mapping.native_terms import GroupGradients, GroupParts, group_parts, is_compiled
from pyro_vgpds.mapping.panels import matrices_of, panels_of
from pyro_vgpds.types import Context

__all__ = [
    "LEAST_PIVOT", "Check", "ValueAndGrads", "check_finite", "cholesky_terms", "eigen_terms", "need_gradients",
    "torch_parts", "torch_terms", "whiten", "with_gradients",
]  # fmt: skip

#: is called with the slack ψ0 − tr K_MM⁻¹Ψ2 (C,), K_MM⁻¹ and Ψ2 or its panels, and raises an error if rounding
#: dominates the slack
Check = Callable[[Tensor, Tensor, Tensor], None]

#: least pivot of B relative to that of K_MM: with a larger rounding error in their squares eigenvalues are needed
LEAST_PIVOT = math.sqrt(1.0 - 1e-3)
_SIGNIFICANT = 3.0  # an eigenvalue counts if it is this many times the most negative one


def whiten(factor: Tensor, matrix: Tensor) -> Tensor:
    """L⁻¹ X L⁻ᵀ."""
    half = solve_triangular(factor, matrix, upper=False)
    return solve_triangular(factor, half.mT, upper=False).mT


def cholesky_terms(groups: GroupStatistics, covariance: Covariance, check: Check, wanted: bool) -> Terms | None:
    """The terms summed over groups whose outputs share one β; None if a pivot of B is less than that of K_MM, which
    only rounding can do, or for panels without compiled functions.

    :param covariance: K_MM.
    :param check: raises an error if rounding dominates the slack.
    :param wanted: whether gradients are.
    """
    psi2, K_inverse = groups.psi2, covariance.inverse
    compiled, packed = is_compiled(groups.v, psi2), psi2.dim() == 2
    if packed and not compiled:
        return None
    if compiled and not packed:
        groups = groups._replace(psi2=panels_of(psi2))
    parts = (group_parts if compiled else torch_parts)(groups, covariance, wanted)
    if parts is None or float(parts.least.amin()) < LEAST_PIVOT:
        return None
    check(parts.slack, K_inverse, psi2)
    value, found = parts.value.sum(), parts.gradients
    if found is None:
        return Terms(value)
    g_K = torch.addmm(found.direct, K_inverse @ found.through, K_inverse, alpha=-1.0)
    g_psi2 = matrices_of(found.psi2, len(K_inverse)) if compiled and not packed else found.psi2
    return Terms(value, found.psi0, found.v, g_psi2, g_K, found.beta)


def torch_parts(groups: GroupStatistics, covariance: Covariance, gradients: bool) -> GroupParts | None:
    """The same as :func:`~pyro_vgpds.mapping.native_terms.group_parts` with matrices (C, M, M), on any device."""
    (psi0, v, psi2, *numbers), (K, K_inverse, factor) = groups, covariance
    beta, count = (x.squeeze(-1) for x in numbers)
    rate, weight = beta[:, None, None], beta * count
    LB, failed = torch.linalg.cholesky_ex(torch.addcmul(K, psi2, rate))
    if bool(failed.any()):
        return None
    ratio = LB.diagonal(dim1=-2, dim2=-1) / factor.diagonal()
    slack = psi0 - psi2.flatten(1) @ K_inverse.flatten()
    loose = slack.clamp_min(0.0)  # or training would exploit the rounding
    b = torch.cholesky_solve(v, LB)
    product = (v * b).sum((-2, -1))
    value = 0.5 * (beta.square() * product - 2.0 * count * ratio.log().sum(-1) - weight * loose)
    parts = GroupParts(value, ratio.amin(-1), slack, None)
    if not gradients:
        return parts
    inverse, is_open = torch.cholesky_inverse(LB), (slack > 0.0).to(slack)
    g_psi2 = torch.baddbmm(
        (K_inverse * is_open[:, None, None] - inverse).mul_(0.5 * weight[:, None, None]), (-0.5 * rate.pow(3)) * b, b.mT
    )
    direct = (count @ (K_inverse - inverse).flatten(1)).view_as(K) - (rate.square() * (b @ b.mT)).sum(0)
    through = ((weight * is_open) @ psi2.flatten(1)).view_as(K)
    free, quadratic = (inverse * psi2).sum((-2, -1)), (b * (psi2 @ b)).sum((-2, -1))
    g_beta = beta * product - 0.5 * (count * (free + loose) + beta.square() * quadratic)
    g_v = rate.square() * b  # changed in place by ValueAndGrads, so that nothing else may use it
    found = GroupGradients(-0.5 * weight * is_open, g_beta.unsqueeze(-1), g_v, g_psi2, direct, through)
    return parts._replace(gradients=found)


def eigen_terms(groups: GroupStatistics, covariance: Covariance, check: Check, wanted: bool) -> Terms:
    """The same by eigenvalues of L⁻¹Ψ2L⁻ᵀ, which all outputs of a group share.

    L⁻¹ magnifies rounding errors of Ψ2 if K_MM is almost singular, as under an almost linear mapping with more inducing
    points than it needs. The matrix has negative eigenvalues only by rounding, so the most negative one shows the size
    of the errors. Eigenvalues that do not clearly exceed it are known only to be at most ``least``, three times that
    size. Their directions keep the part that decreases with e, the fit, at e = ``least``, and the part that increases,
    βe − log(1 + βe), at e = 0: so this is still a bound. The fit is part of it because v has small errors, and a
    direction of 1e-5 may contain a nat. The gradients are those of the matrices, not of the eigenvectors, so equal
    eigenvalues do no harm.

    Parameters as in :func:`cholesky_terms`, with one β for each output or for all of a group, and Ψ2 as matrices.

    :raises NumericalError: if the statistics are not finite.
    """
    psi2, L = groups.psi2, covariance.factor
    compiled = native_inducing.is_compiled(groups.v, psi2)
    A = whitened(L, psi2) if compiled else whiten(L, psi2)
    trace = A.diagonal(dim1=-2, dim2=-1).sum(-1)
    check_finite(float(A.sum()))
    check(groups.psi0 - trace, covariance.inverse, psi2)
    e, u = torch.linalg.eigh(A)
    return (spectrum_terms if compiled else torch_terms)(e, u, L, groups, wanted)


def check_finite(total: float) -> None:
    """Raise a NumericalError if the sum of the entries of L⁻¹Ψ2L⁻ᵀ is not finite."""
    if not math.isfinite(total):
        raise NumericalError("the Ψ statistics have entries that are not finite: a parameter has diverged.")


def torch_terms(e: Tensor, u: Tensor, factor: Tensor, groups: GroupStatistics, wanted: bool) -> Terms:
    """The same as :func:`~pyro_vgpds.mapping.native_inducing.spectrum_terms`, on any device."""
    psi0, v, _, beta, count = groups
    least = _SIGNIFICANT * (-e[..., :1]).clamp_min(0.0)
    kept, e = (e > least).to(e).unsqueeze(-1), torch.maximum(e, least).unsqueeze(-1)  # (C, M, 1)
    slack = psi0 - (kept * e).sum((-2, -1))
    is_open, slack = (slack > 0.0).to(slack), slack.clamp_min(0.0)
    x = solve_triangular(factor.mT, u, upper=True)  # xᵀ K x = I, xᵀ Ψ2 x = diag e
    rate, number = beta.unsqueeze(-2), count.unsqueeze(-2)
    shrink = 1.0 / (1.0 + rate * e)  # (C, M, W or 1), the diagonal of B⁻¹ in the basis x
    p = x.mT @ v
    b, number = shrink * p, kept * number  # from here on of the directions that are kept
    weight = (beta * count).sum(-1)
    terms = (rate.square() * p * b).sum((-2, -1)) + (number * shrink.log()).sum((-2, -1)) - weight * slack
    value = 0.5 * terms.sum()
    if not wanted:
        return Terms(value)
    spread = kept.squeeze(-1) * (weight * is_open)[:, None]  # (C, M)
    inner = torch.diag_embed(spread - (number * rate * shrink).sum(-1)) - (rate.pow(3) * b) @ b.mT
    inner_K = torch.diag_embed((number * (1.0 - shrink)).sum(-1) - spread * e.squeeze(-1)) - (rate.square() * b) @ b.mT
    fit = 2.0 * rate * p * b - rate.square() * e * b.square()  # (C, M, W)
    if rate.shape[-1] == 1:
        fit = fit.sum(-1, keepdim=True)
    g_beta = 0.5 * ((fit - number * e * shrink).sum(-2) - count * slack.unsqueeze(-1))
    g_psi2, g_K = 0.5 * (x @ inner @ x.mT), (x @ inner_K @ x.mT).sum(0)
    return Terms(value, -0.5 * weight * is_open, x @ (rate.square() * b), g_psi2, g_K, g_beta)


class ValueAndGrads(NamedTuple):
    """A number and its gradients in some tensors, computed together."""

    value: Tensor
    inputs: tuple[Tensor, ...] = ()
    gradients: tuple[Tensor, ...] = ()  #: in each of the inputs, which may be changed; none if they were not wanted

    def tensor(self) -> Tensor:
        """The number as a function of the inputs."""
        return _Precomputed.apply(self.value, *self.inputs, *self.gradients) if self.gradients else self.value


def with_gradients(terms: Terms, inputs: Sequence[Tensor], factor: Tensor) -> Tensor:
    """The value of terms as a function of ψ0, v, Ψ2, L and β, or what their last gradient is in; without a graph if
    they have no gradients. ``factor`` is L without a graph.
    """
    value, g_psi0, g_v, g_psi2, g_K, g_last = terms
    if g_psi0 is None or g_v is None or g_psi2 is None or g_K is None or g_last is None:
        return value
    return ValueAndGrads(value, tuple(inputs), (g_psi0, g_v, g_psi2, (g_K @ factor).tril_(), g_last)).tensor()


class _Context(Context, Protocol):
    gradients: tuple[Tensor, ...]
    scale: float


class _Precomputed(torch.autograd.Function):
    """A number whose gradients were computed with it: ``apply(value, *inputs, *gradients)``. All are arguments, so that
    a trace of ``torch.jit`` sees them.

    The first backward pass scales them in place, because new memory for those of many groups takes longer than all
    else here. Further ones, of a graph that was retained, leave what the first one returned as it is.
    """

    @staticmethod
    def forward(ctx: _Context, value: Tensor, *tensors: Tensor) -> Tensor:
        ctx.gradients, ctx.scale = tensors[len(tensors) // 2 :], 0.0
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        scale = float(grad)
        if ctx.scale == 0.0 and math.isfinite(scale) and scale != 0.0:
            ctx.scale = scale
            gradients = ctx.gradients if scale == 1.0 else tuple(g.mul_(scale) for g in ctx.gradients)
        else:
            gradients = tuple(g * (scale / (ctx.scale or 1.0)) for g in ctx.gradients)
        return (None, *gradients, *[None] * len(gradients))


def need_gradients(tensors: Sequence[Tensor]) -> bool:
    """Whether a function of these tensors needs gradients."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
