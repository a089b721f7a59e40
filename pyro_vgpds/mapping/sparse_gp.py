# SPDX-License-Identifier: Apache-2.0
r"""The mapping from latent points to outputs: a sparse GP, collapsed over its inducing variables.

With β = 1/noise, for one group of D outputs seen in the same N rows (the paper's eq. 14, in full eq. 32):

.. math::
    \hat F = -\tfrac{DN}{2} \log\tfrac{2\pi}{\beta} - \tfrac{D}{2} \log|B| - \tfrac{\beta}{2} \mathrm{tr}\,YY^\top
             + \tfrac12 \|c\|^2 - \tfrac{\beta D}{2} (\psi_0 - \mathrm{tr}\,A)

where L Lᵀ = K_MM, A = L⁻¹ Ψ2 L⁻ᵀ, B = I + β A = L_B L_Bᵀ and c = β L_B⁻¹ L⁻¹ Ψ1ᵀ Y. Groups add up.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular

from pyro_vgpds.data.sequences import ColumnGroups, Sequences
from pyro_vgpds.expandable import Expandable
from pyro_vgpds.linalg import NumericalError, add_diagonal, cholesky
from pyro_vgpds.mapping.psi import MappingValue, Psi, expect, observe

__all__ = ["CollapsedGP", "SparseGP", "collapsed_bound", "whiten"]

_LOST = 0.1  # nats for each observation that rounding may add to the bound before it counts as lost
_ROUNDED = 1e-3  # rounding in the pivots of B above which the inducing directions that are all rounding are left out
_STANDS_OUT = 3.0  # an eigenvalue counts where it is this many times the most negative one


def collapsed_bound(psi: Psi, factor: Tensor, noise: Tensor, groups: ColumnGroups) -> Tensor:
    r""":math:`\hat F`, (...): the data's part of the bound, q(U) at its optimum.

    :param psi: the statistics of the groups' rows.
    :param factor: L, the Cholesky factor of K_MM.
    :param noise: the noise variance 1/β, (..., 1) for all outputs or (..., D) one each.
    """
    per_output = noise.shape[-1] > 1
    a = whiten(factor.unsqueeze(-3), psi.psi2)  # (..., C, M, M)
    v = solve_triangular(factor, psi.psi1_y, upper=False)  # L⁻¹ Ψ1ᵀ Y, (..., M, R)
    slack = psi.psi0 - a.diagonal(dim1=-2, dim2=-1).sum(-1)  # (..., C): what Ψ2 leaves of Ψ0, never negative
    # Where the kernel's variance is huge beside the noise, rounding alone makes it negative and the bound too high.
    if bool((-slack / noise.amin(-1, keepdim=True) > _LOST * groups.rows).any()):
        raise NumericalError(
            f"K_MM ({factor.shape[-1]} x {factor.shape[-1]}) is so ill-conditioned that the bound has lost its digits. "
            "Try a larger `jitter`, fewer or better spread inducing inputs, or a smaller learning rate."
        )
    if per_output:
        return _bound_per_output(a, v, slack, noise, groups)
    beta = 1.0 / noise
    b = add_diagonal(beta[..., None, None] * a, 1.0)
    probe, failed = torch.linalg.cholesky_ex(b.detach())
    kept = None
    # No pivot of B is less than 1 but by rounding, which training would climb: log|B| falls as they do.
    rounded = failed.any() or bool((probe.diagonal(dim1=-2, dim2=-1).square() < 1.0 - _ROUNDED).any())
    if rounded and torch.isfinite(b).all():
        kept = _kept(a.detach())
        a = kept @ a @ kept
        slack = (psi.psi0 - a.diagonal(dim1=-2, dim2=-1).sum(-1)).clamp_min(0.0)
        b = add_diagonal(beta[..., None, None] * a, 1.0)
    b_factor = cholesky(b, "B = I + β L⁻¹ Ψ2 L⁻ᵀ")
    logdet = 2.0 * b_factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (..., C)
    counts = groups.columns * groups.rows
    terms = counts * (2.0 * math.pi * noise).log() + beta * groups.square
    terms = terms + groups.columns * (logdet + beta * slack)
    total = -0.5 * terms.sum(-1)
    for which, where, width in groups.runs():
        part = v[..., where].unflatten(-1, (-1, width)).movedim(-2, -3)  # (..., groups of this width, M, width)
        if kept is not None:
            part = kept[..., which, :, :] @ part
        c = beta[..., None, None] * solve_triangular(b_factor[..., which, :, :], part, upper=False)
        total = total + 0.5 * c.square().sum((-3, -2, -1))
    return total - groups.log_scale


def _kept(a: Tensor) -> Tensor:
    """The projection on the eigenvectors of A, (..., M, M), that stand out from its rounding errors.

    A has no negative eigenvalues but by rounding, which L⁻¹ magnifies where K_MM is all but singular, as under an
    almost linear mapping with more inducing points than it needs. The most negative one tells the size of the errors.
    The bound of A, L⁻¹ Ψ1ᵀ Y and the slack in the projection is that of fewer inducing variables: a bound all the same.
    """
    e, u = torch.linalg.eigh(a)
    level = (-e[..., :1]).clamp_min(0.0)
    return (u * (e > _STANDS_OUT * level).to(a.dtype).unsqueeze(-2)) @ u.mT


def _common(values: Tensor) -> Tensor:
    """``values`` (D,), as (1,) if all are equal."""
    return values[:1] if bool((values == values[0]).all()) else values


def whiten(factor: Tensor, matrix: Tensor) -> Tensor:
    """L⁻¹ X L⁻ᵀ."""
    half = solve_triangular(factor, matrix, upper=False)
    return solve_triangular(factor, half.mT, upper=False).mT


def _bound_per_output(a: Tensor, v: Tensor, slack: Tensor, noise: Tensor, groups: ColumnGroups) -> Tensor:
    assert groups.order is not None, "one noise for each output needs the columns themselves"
    beta = 1.0 / noise[..., groups.order]  # (..., R), in the order of the groups
    square = groups.factor.square().sum(0)
    widths = torch.tensor(groups.widths, dtype=torch.long, device=v.device)
    of_group = torch.arange(groups.num_groups, device=v.device).repeat_interleave(widths)
    rows = groups.rows[of_group]
    terms = rows * (2.0 * math.pi / beta).log() + beta * (square + slack[..., of_group])
    total = -0.5 * terms.sum(-1)
    for which, where, width in groups.runs():
        part = v[..., where].unflatten(-1, (-1, width)).movedim(-2, -3)
        rate = beta[..., where].unflatten(-1, (-1, width))
        total = total + _EigenTerms.apply(a[..., which, :, :], part, rate)
    return total - groups.log_scale


class _EigenTerms(torch.autograd.Function):
    """Σ_d ½ (β_d² v_d·B_d⁻¹v_d − log|B_d|) for B_d = I + β_d A, summed over groups.

    One eigendecomposition A = U diag(e) Uᵀ a group makes every B_d diagonal. The gradients are those of the matrices,
    not of the eigenvectors, so equal eigenvalues do no harm. A is (..., C, M, M), v (..., C, M, W), β (..., C, W).
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, v: Tensor, beta: Tensor) -> Tensor:
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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        e, u, rate, shrink, p = ctx.saved_tensors
        grad = grad[..., None, None, None]
        b = shrink * p
        inner = (rate.pow(3) * b) @ b.mT + torch.diag_embed((rate * shrink).sum(-1))
        g_a = -0.5 * grad * (u @ inner @ u.mT)
        g_v = grad * (u @ (rate.square() * b))
        g_rate = 0.5 * grad * (2.0 * rate * p * b - rate.square() * e * b.square() - e * shrink)
        return g_a, g_v, g_rate.sum(-2)


class SparseGP(Expandable):
    r"""p(y given x): D outputs :math:`y_{nd} = m_d + s_d (f_d(x_n) + \epsilon_{nd})`, event shape (N, D).

    ``log_prob`` is the variational lower bound of Titsias (2009) on the exact GP's marginal likelihood,

    .. math:: \sum_d \Big(\log N(y_d \mid m_d, s_d^2 (Q_{NN} + \beta_d^{-1} I))
              - \frac{\beta_d}{2} \mathrm{tr}(K_{NN} - Q_{NN})\Big), \qquad Q_{NN} = K_{NM} K_{MM}^{-1} K_{MN},

    so any Pyro algorithm that samples x can use it. It is exact if the inducing inputs are the points x. ``sample``
    draws from the exact GP prior at x, plus noise, in the data's units. Under :class:`~pyro_vgpds.Collapsed_ELBO` the
    site's distribution becomes :meth:`integrate` (q(x)), in which x is integrated out.

    :param x: latent points (..., N, Q).
    :param kernel: the mapping kernel's value, ``kernel()``.
    :param inducing: inducing inputs (..., M, Q).
    :param noise: noise variance of the scaled outputs: one number, (..., 1) for all outputs or (..., D) one each.
    :param mean: m, (D,).
    :param scale: s, (D,). Default: ones.
    :param data: the :class:`~pyro_vgpds.Sequences` that ``y`` comes from, whose column groups are then used; a
        ``log_prob`` of other values reads those.
    :param jitter: added to the diagonal of K_MM; ``None`` follows :func:`~pyro_vgpds.linalg.default_jitter`.
    :raises ValueError: if ``noise`` or ``scale`` has another number of outputs than ``mean``.
    :raises NumericalError: by ``log_prob``, if K_MM cannot be factorised or rounding error dominates the bound.

    >>> import torch
    >>> from pyro_vgpds import SparseGP
    >>> from pyro_vgpds.kernels import ARDRBF
    >>> x = torch.linspace(-1, 1, 6).double().unsqueeze(-1)
    >>> noise, mean, kernel = torch.tensor(0.1).double(), torch.zeros(3).double(), ARDRBF(1.0, 2.0)()
    >>> exact = SparseGP(x, kernel, inducing=x, noise=noise, mean=mean)
    >>> y = exact.sample()  # (N, D)
    >>> k = kernel.cov(x, x) + noise * torch.eye(6)
    >>> gp = torch.distributions.MultivariateNormal(torch.zeros(6).double(), k)
    >>> torch.allclose(exact.log_prob(y), gp.log_prob(y.T).sum(), rtol=1e-4)  # as Z = X
    True
    """

    arg_constraints: dict[str, Any] = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(
        self,
        x: Tensor,
        kernel: MappingValue,
        *,
        inducing: Tensor,
        noise: Tensor,
        mean: Tensor,
        scale: Tensor | None = None,
        data: Sequences | None = None,
        jitter: float | None = None,
    ) -> None:
        self.x, self.kernel, self.inducing, self.output_mean, self._scale = x, kernel, inducing, mean, scale
        self.noise = noise if noise.dim() else noise.unsqueeze(-1)  # (..., 1) or (..., D)
        self.data, self.jitter = data, jitter
        if self.noise.shape[-1] not in (1, len(mean)):
            raise ValueError(
                f"noise must be one number, (..., 1) or (..., {len(mean)}), but its shape is {tuple(noise.shape)}."
            )
        if scale is not None and scale.shape != mean.shape:
            raise ValueError(f"scale must be ({len(mean)},), one for each output, but got {tuple(scale.shape)}.")
        batch = torch.broadcast_shapes(x.shape[:-2], inducing.shape[:-2], self.noise.shape[:-1])
        super().__init__(batch, torch.Size((x.shape[-2], len(mean))), validate_args=False)

    def groups(self, value: Tensor) -> ColumnGroups:
        """The column groups of ``value``: those of the data if it is the data's own ``y``.

        :param value: outputs (N, D).
        """
        data = self.data
        if data is None or value is not data.y:
            steps = torch.arange(len(value), dtype=self.x.dtype)
            data = Sequences(steps, value, dtype=self.x.dtype, device=value.device)
        return self.groups_of(data)

    def groups_of(self, data: Sequences) -> ColumnGroups:
        """The column groups of centred and scaled outputs.

        :param data: the sequences that have them.
        """
        return data.groups(self.output_mean, self._scale, columns=self.noise.shape[-1] > 1)

    @property
    def output_scale(self) -> Tensor:
        """The scale of the outputs, (D,)."""
        return torch.ones_like(self.output_mean) if self._scale is None else self._scale

    @property
    def noise_variance(self) -> Tensor:
        """The noise variance in the data's units: (..., D), or (..., 1) if noise and scale are the same for all."""
        return self.noise * _common(self.output_scale.square())

    def replaced(self, *, noise_variance: Tensor | None = None, scale: Tensor | None = None) -> SparseGP:
        """A copy with another noise or scale.

        :param noise_variance: in the data's units, (1,) or (D,). Default: the current :attr:`noise_variance`.
        :param scale: (D,). Default: the current one.
        """
        scale = self.output_scale if scale is None else scale
        noise = self.noise_variance if noise_variance is None else noise_variance
        return SparseGP(
            self.x, self.kernel, inducing=self.inducing, noise=noise / _common(scale.square()), mean=self.output_mean,
            scale=scale, data=self.data, jitter=self.jitter,
        )  # fmt: skip

    def inducing_factor(self) -> Tensor:
        """L, the Cholesky factor of K_MM with its jitter."""
        return cholesky(self.kernel.inducing_cov(self.inducing), "the inducing covariance K_MM", self.jitter)

    def log_prob(self, value: Tensor) -> Tensor:
        if value.requires_grad:
            raise NotImplementedError("SparseGP has no gradient in y: its data enter as constants.")
        if value.dim() > 2:  # a batch of outputs: each has its own groups
            each = torch.stack([self.log_prob(v) for v in value])
            return each.diagonal() if value.shape[:-2] == self.batch_shape else each
        groups = self.groups(value)
        bound = collapsed_bound(self._psi(groups), self.inducing_factor(), self.noise, groups)
        return bound.expand(self.batch_shape)

    def _psi(self, groups: ColumnGroups) -> Psi:
        return observe(self.kernel, self.x, self.inducing, groups.mask, groups.factor)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        factor = cholesky(self.kernel.cov(self.x, self.x), "the mapping's covariance K_NN", None)
        noise = torch.randn((2, *shape), dtype=self.x.dtype, device=self.x.device)
        scaled = factor @ noise[0] + self.noise.sqrt().unsqueeze(-2) * noise[1]
        return torch.addcmul(self.output_mean, self.output_scale, scaled)

    def integrate(self, posterior: TorchDistribution) -> CollapsedGP:
        """The distribution of y with x integrated out, a :class:`~pyro_vgpds.mapping.CollapsedGP`.

        :param posterior: q(x), a distribution with a mean and a variance (..., N, Q).
        """
        return CollapsedGP(self, posterior)


class CollapsedGP(SparseGP):
    r"""``log_prob`` is :math:`\hat F`: the bound of :class:`~pyro_vgpds.SparseGP` with x integrated over q(x).

    It optimises q(U) after the integration over x, so it is a lower bound on E_q[SparseGP.log_prob], equal for a
    point q. It depends on q only through its marginal means and variances.

    :param likelihood: the :class:`~pyro_vgpds.SparseGP`.
    :param posterior: q(x), with a mean and a variance (..., N, Q).
    """

    def __init__(self, likelihood: SparseGP, posterior: TorchDistribution) -> None:
        self.__dict__.update(likelihood.__dict__)
        self.x, self.x_variance = posterior.mean, posterior.variance
        self._batch_shape = torch.broadcast_shapes(likelihood.batch_shape, posterior.batch_shape)

    def _psi(self, groups: ColumnGroups) -> Psi:
        return expect(self.kernel, self.x, self.x_variance, self.inducing, groups.mask, groups.factor)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        raise NotImplementedError("CollapsedGP is for the collapsed bound; sample the model itself.")
