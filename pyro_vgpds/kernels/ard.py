# SPDX-License-Identifier: Apache-2.0
"""Kernels of latent points, whose expectations under a Gaussian are known in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.kernels.base import Kernel
from pyro_vgpds.linalg import broadcast_shapes
from pyro_vgpds.mapping.exp_sums import exp_sum
from pyro_vgpds.mapping.forms import LinearForm, RBFForm, register_linear, register_rbf
from pyro_vgpds.mapping.psi import MappingValue, masked_sum, midpoint_sum, register_psi2
from pyro_vgpds.mapping.rbf_psi import has_loops, rbf_statistics
from pyro_vgpds.parameters import ParameterLike
from pyro_vgpds.parameters.gradients import view_of

__all__ = ["ARDRBF", "ARDLinear", "ARDLinearValue", "ARDRBFValue"]


class ARDRBFValue(MappingValue):
    """The value of :class:`ARDRBF`.

    :param variance: (..., 1); its attribute is (...).
    :param weight: (..., Q), also an attribute.

    >>> from pyro_vgpds.kernels import ARDRBF
    >>> ARDRBF(weight=[1.0, 2.0])().weight.shape
    torch.Size([2])
    """

    def __init__(self, variance: Tensor, weight: Tensor) -> None:
        self.variance, self.weight = view_of(variance[..., 0], variance), weight

    def cov(self, x: Tensor, z: Tensor) -> Tensor:
        return self.psi1(x, torch.zeros_like(x), z)

    def inducing_cov(self, z: Tensor) -> Tensor:
        z = z - z.detach().mean(-2, keepdim=True)
        return self.variance[..., None, None] * torch.exp(-0.5 * _apart(self.weight, z))

    def cov_diag(self, x: Tensor) -> Tensor:
        return self.variance.unsqueeze(-1).expand(broadcast_shapes(self.variance.shape + (1,), x.shape[:-1]))

    def psi0(self, mean: Tensor, variance: Tensor, mask: Tensor | None) -> Tensor:
        return masked_sum(mean.new_ones(mean.shape[-2], 1), mask)[..., 0] * self.variance.unsqueeze(-1)

    def psi1(self, mean: Tensor, variance: Tensor, z: Tensor) -> Tensor:
        left, right = self._exponent(mean, variance, z)
        # never above the variance: huge weights magnify the rounding errors of squared distances
        return torch.exp(torch.minimum(left @ right.mT, self.variance.log()[..., None, None]))

    def psi1_y(self, mean: Tensor, variance: Tensor, z: Tensor, y: Tensor) -> Tensor:
        return exp_sum(*self._exponent(mean, variance, z), y.mT).mT

    def has_loops(self, z: Tensor) -> bool:
        return has_loops(z, z, z, None, (self.weight, self.variance))

    def psi1_y_psi2(
        self, mean: Tensor, variance: Tensor, z: Tensor, y: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if has_loops(mean, variance, z, mask, (self.weight, self.variance)):
            return rbf_statistics(mean, variance, z, self.weight, self.variance, mask, y)
        return super().psi1_y_psi2(mean, variance, z, y, mask)

    def _exponent(self, mean: Tensor, variance: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        centre = z.detach().mean(-2, keepdim=True)
        return _left(mean - centre, variance, self.weight), _right(z - centre, 0.0, self.variance.log())

    def psi2(self, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
        # k(x, z) k(x, z') = σ⁴ exp(−¼ Σ w (z − z')²) exp(−Σ w (x − z̄)²) with z̄ = (z + z')/2
        centre = z.detach().mean(-2, keepdim=True)
        mean, z = mean - centre, z - centre
        w = self.weight.unsqueeze(-2)
        spread = 1.0 + 2.0 * w * variance
        sums = midpoint_sum(-0.5 * spread.log().sum(-1), w / spread, mean, z, mask)
        decay = self.variance.square()[..., None, None] * torch.exp(-0.25 * _apart(self.weight, z))
        return decay.unsqueeze(-3) * sums


def _apart(w: Tensor, z: Tensor) -> Tensor:
    """Σ_q w_q (z_q − z'_q)², (..., M, M), without negative values of rounding errors, which huge weights magnify."""
    scaled = w.unsqueeze(-2) * z
    size = (scaled * z).sum(-1)
    return (size.unsqueeze(-1) + size.unsqueeze(-2) - 2.0 * scaled @ z.mT).clamp_min(0.0)


def _left(mean: Tensor, variance: Tensor, w: Tensor) -> Tensor:
    """The factor that depends on the points in log E[exp(−½ Σ w (x − z)²)] = left · right, (..., N, 2Q + 2).

    The expectation is Π (1 + w s)^−½ exp(−½ Σ r (μ − z)²) with r = w / (1 + w s). The last column is 1.
    """
    w = w.unsqueeze(-2)
    spread = 1.0 + w * variance
    r = w / spread
    constant = -0.5 * (spread.log() + r * mean.square()).sum(-1, keepdim=True)
    return torch.cat([constant, r * mean, -0.5 * r, torch.ones_like(constant)], -1)


def _right(z: Tensor, offset: Tensor | float, log_scale: Tensor) -> Tensor:
    """The factor that depends on the inducing inputs, (..., M, 2Q + 2)."""
    last = (
        (offset + log_scale.unsqueeze(-1)).expand(broadcast_shapes(log_scale.shape + (1,), z.shape[:-1])).unsqueeze(-1)
    )
    z = z.expand(last.shape[:-1] + z.shape[-1:])
    return torch.cat([torch.ones_like(last), z, z.square(), last], -1)


class ARDLinearValue(MappingValue):
    """The value of :class:`ARDLinear`.

    :param weight: (..., Q), also an attribute.

    >>> from pyro_vgpds.kernels import ARDLinear
    >>> ARDLinear([1.0, 2.0])().weight.shape
    torch.Size([2])
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def cov(self, x: Tensor, z: Tensor) -> Tensor:
        return x @ (z * self.weight.unsqueeze(-2)).mT

    def cov_diag(self, x: Tensor) -> Tensor:
        return (x.square() * self.weight.unsqueeze(-2)).sum(-1)

    def psi0(self, mean: Tensor, variance: Tensor, mask: Tensor | None) -> Tensor:
        second = masked_sum(mean.square() + variance, mask)
        return (second * self.weight.unsqueeze(-2)).sum(-1)

    def psi1(self, mean: Tensor, variance: Tensor, z: Tensor) -> Tensor:
        return self.cov(mean, z)

    def psi2(self, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
        return _linear_linear(self, self, mean, variance, z, mask)


@register_linear(ARDLinearValue)
def _linear(value: ARDLinearValue) -> LinearForm:
    return LinearForm(value.weight, None)


@register_psi2(ARDRBFValue, ARDRBFValue)
def _rbf_rbf(
    first: ARDRBFValue, second: ARDRBFValue, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None
) -> Tensor:
    # With w = w₁ + w₂ and z̄ the mean of z and z' weighted by w₁ and w₂, the product of the two kernels is
    # σ₁²σ₂² exp(−½ Σ (w₁w₂/w) (z − z')²) exp(−½ Σ w (x − z̄)²): another squared exponential in x.
    m = z.shape[-2]
    centre = z.detach().mean(-2, keepdim=True)
    w = first.weight + second.weight
    share = (first.weight / w.clamp_min(torch.finfo(w.dtype).tiny)).unsqueeze(-2)
    one, other = (z - centre).repeat_interleave(m, -2), (z - centre).repeat((1,) * (z.dim() - 2) + (m, 1))
    apart = (share * second.weight.unsqueeze(-2) * (one - other).square()).sum(-1)
    middle = share * one + (1.0 - share) * other
    scale = first.variance.log() + second.variance.log()
    pairs = exp_sum(_left(mean - centre, variance, w), _right(middle, -0.5 * apart, scale), mask)
    return pairs.unflatten(-1, (m, m))


@register_psi2(ARDLinearValue, ARDLinearValue)
def _linear_linear(
    first: ARDLinearValue, second: ARDLinearValue, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None
) -> Tensor:
    # Σ_n E[x xᵀ] = Σ_n (μ μᵀ + diag s)
    q = mean.shape[-1]
    outer = masked_sum((mean.unsqueeze(-1) * mean.unsqueeze(-2)).flatten(-2), mask).unflatten(-1, (q, q))
    moment = outer + torch.diag_embed(masked_sum(variance, mask))
    left, right = z * first.weight.unsqueeze(-2), z * second.weight.unsqueeze(-2)
    return left.unsqueeze(-3) @ moment @ right.mT.unsqueeze(-3)


@register_psi2(ARDRBFValue, ARDLinearValue)
def _rbf_linear(
    rbf: ARDRBFValue, linear: ARDLinearValue, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None
) -> Tensor:
    # Under the tilted Gaussian ∝ k(x, z_m) q(x) the mean of x is (μ + w s z_m) / (1 + w s); its weight is Ψ1(n, m).
    psi1 = rbf.psi1(mean, variance, z)
    spread = 1.0 + rbf.weight.unsqueeze(-2) * variance
    own = _pair_sum(psi1, mean / spread, mask)
    pull = _pair_sum(psi1, 1.0 - 1.0 / spread, mask)
    tilted = own + pull * z.unsqueeze(-3)  # (..., C, M, Q)
    return tilted @ (z * linear.weight.unsqueeze(-2)).mT.unsqueeze(-3)


def _pair_sum(a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_n mask_cn a_ni b_nj, (..., C, I, J)."""
    if mask is None:
        return (a.mT @ b).unsqueeze(-3)
    return (a.mT.unsqueeze(-3) * mask.unsqueeze(-2)) @ b.unsqueeze(-3)


class ARDRBF(Kernel):
    r"""Squared exponential with a weight for each latent dimension (the paper's mapping kernel):
    :math:`\sigma^2 \exp(-\tfrac12 \sum_q w_q (x_q - x'_q)^2)`.

    Training drives the weights of unneeded dimensions to zero: automatic relevance determination.

    :param variance: :math:`\sigma^2`.
    :param weight: :math:`w`, (Q,), or one number for all dimensions.
    :raises ValueError: if a parameter is not positive and finite, or ``variance`` is not one number.

    >>> import torch
    >>> from pyro_vgpds.kernels import ARDRBF
    >>> kernel = ARDRBF(variance=1.0, weight=[4.0, 1e-6])  # the second dimension is off
    >>> x, z = torch.zeros(1, 2).double(), torch.tensor([[0.0, 9.0], [1.0, 0.0]]).double()
    >>> kernel().cov(x, z).round(decimals=3).tolist()
    [[1.0, 0.135]]
    """

    shared_parameters = frozenset({"variance"})

    def __init__(self, variance: ParameterLike = 1.0, weight: ParameterLike = 1.0) -> None:
        super().__init__()
        self.add_parameter("variance", variance)
        if self.is_learned("variance") and self.variance.dim():
            raise ValueError(f"ARDRBF.variance must be one number, but its shape is {tuple(self.variance.shape)}.")
        self.add_parameter("weight", weight)

    def forward(self) -> ARDRBFValue:
        return ARDRBFValue(self.read("variance"), self.read("weight"))


class ARDLinear(Kernel):
    r"""Linear with a weight for each latent dimension: :math:`\sum_q w_q x_q x'_q`.

    :param weight: :math:`w`, (Q,), or one number for all dimensions.
    :raises ValueError: if a weight is not positive and finite.

    >>> import torch
    >>> from pyro_vgpds.kernels import ARDLinear
    >>> ARDLinear([1.0, 2.0])().cov(torch.ones(1, 2).double(), torch.ones(1, 2).double()).item()
    3.0
    """

    def __init__(self, weight: ParameterLike = 1.0) -> None:
        super().__init__()
        self.add_parameter("weight", weight)

    def forward(self) -> ARDLinearValue:
        return ARDLinearValue(self.read("weight"))


@register_rbf(ARDRBFValue)
def _rbf(value: ARDRBFValue) -> RBFForm:
    return RBFForm(value.weight, value.variance, None)
