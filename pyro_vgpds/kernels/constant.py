# SPDX-License-Identifier: Apache-2.0
"""Bias and white noise: the two kernels that can be both kernels of time and parts of the mapping."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.kernels.base import Kernel
from pyro_vgpds.kernels.state_space import ConstantState
from pyro_vgpds.kernels.values import KernelValue, lift
from pyro_vgpds.linalg import add_diagonal
from pyro_vgpds.mapping.forms import LinearForm, register_linear
from pyro_vgpds.mapping.psi import MappingValue, masked_sum, register_psi2
from pyro_vgpds.parameters import ParameterLike

__all__ = ["Bias", "BiasValue", "White", "WhiteValue"]


class BiasValue(ConstantState, KernelValue, MappingValue):
    def __init__(self, variance: Tensor) -> None:
        self.variance = variance  # (..., K)

    # of time

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        ones = a.new_ones(a.shape + ((a if b is None else b).shape[-1],))
        return lift(self.variance, ones) * ones

    def diag(self, a: Tensor) -> Tensor:
        return lift(self.variance, a) * torch.ones_like(a)

    # the state is the constant

    def observation_model(self, t: Tensor) -> Tensor:
        return torch.ones_like(t).unsqueeze(-1)

    # in the mapping

    def cov(self, x: Tensor, z: Tensor) -> Tensor:
        return self.variance.unsqueeze(-1) * x.new_ones(x.shape[-2], z.shape[-2])

    def cov_diag(self, x: Tensor) -> Tensor:
        return self.variance * x.new_ones(x.shape[-2])

    def psi0(self, mean: Tensor, variance: Tensor, mask: Tensor | None) -> Tensor:
        return masked_sum(mean.new_ones(mean.shape[-2], 1), mask)[..., 0] * self.variance

    def psi1(self, mean: Tensor, variance: Tensor, z: Tensor) -> Tensor:
        return self.cov(mean, z)

    def psi2(self, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
        return _bias_any(self, self, mean, variance, z, mask)


class WhiteValue(KernelValue, MappingValue):
    is_diagonal = True

    def __init__(self, variance: Tensor) -> None:
        self.variance = variance  # (..., K)

    # of time

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        if b is not None:  # other points: independent of these, even if a time is the same
            return a.new_zeros(self.variance.shape + a.shape + b.shape[-1:])
        return torch.diag_embed(self.diag(a))

    def diag(self, a: Tensor) -> Tensor:
        return lift(self.variance, a) * torch.ones_like(a)

    state_dim = 0

    def white(self, t: Tensor) -> Tensor:
        return self.diag(t)

    # in the mapping: only on the diagonal of K_MM

    def inducing_cov(self, z: Tensor) -> Tensor:
        return add_diagonal(z.new_zeros(z.shape[-2], z.shape[-2]), self.variance[..., 0])

    def cov(self, x: Tensor, z: Tensor) -> Tensor:
        return x.new_zeros(self.variance.shape[:-1] + (x.shape[-2], z.shape[-2]))

    def cov_diag(self, x: Tensor) -> Tensor:
        return x.new_zeros(self.variance.shape[:-1] + x.shape[-2:-1])

    def psi0(self, mean: Tensor, variance: Tensor, mask: Tensor | None) -> Tensor:
        return masked_sum(mean.new_zeros(mean.shape[-2], 1), mask)[..., 0] * self.variance

    def psi1(self, mean: Tensor, variance: Tensor, z: Tensor) -> Tensor:
        return self.cov(mean, z)

    def psi2(self, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
        return _white_any(self, self, mean, variance, z, mask)


@register_linear(BiasValue)
def _constant(value: BiasValue) -> LinearForm:
    return LinearForm(None, value.variance)


@register_psi2(BiasValue, MappingValue)
def _bias_any(
    bias: BiasValue, other: MappingValue, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None
) -> Tensor:
    # E[b k(x, z')] = b Ψ1(n, m'), the same in every row m
    row = masked_sum(other.psi1(mean, variance, z), mask).unsqueeze(-2)
    return (bias.variance[..., None, None] * row).expand(row.shape[:-2] + (z.shape[-2],) * 2)


@register_psi2(WhiteValue, MappingValue)
def _white_any(
    white: WhiteValue, other: MappingValue, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None
) -> Tensor:
    groups = 1 if mask is None else len(mask)
    return z.new_zeros(groups, z.shape[-2], z.shape[-2])  # a latent point is never an inducing point


class _Constant(Kernel):
    def __init__(self, variance: ParameterLike = 1.0) -> None:
        super().__init__()
        self.add_parameter("variance", variance)


class Bias(_Constant):
    r"""A constant: :math:`\sigma^2` for every pair of points.

    :param variance: :math:`\sigma^2`, one for all latent dimensions or, for a kernel of time, (Q,).
    :raises ValueError: if it is not positive and finite.

    >>> import torch
    >>> from pyro_vgpds.kernels import Bias
    >>> Bias(0.5)().gram(torch.tensor([0.0, 1.0]).double()).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """

    def forward(self) -> BiasValue:
        return BiasValue(self.read("variance"))


class White(_Constant):
    r"""White noise: :math:`\sigma^2` for a point with itself, and 0 for other pairs.

    As a kernel of time it is part of k(t, t) and not of k(t*, t). With ``White(1.0)`` as the only temporal kernel, the
    model is the Bayesian GP-LVM. In the mapping it is added to the diagonal of K_MM only.

    :param variance: :math:`\sigma^2`, one for all latent dimensions or, for a kernel of time, (Q,).
    :raises ValueError: if it is not positive and finite.

    >>> import torch
    >>> from pyro_vgpds.kernels import White
    >>> t = torch.tensor([0.0, 1.0]).double()
    >>> White(0.5)().gram(t).tolist()
    [[[0.5, 0.0], [0.0, 0.5]]]
    >>> White(0.5)().gram(t, t).tolist()  # with other frames, here at the same times
    [[[0.0, 0.0], [0.0, 0.0]]]
    """

    def forward(self) -> WhiteValue:
        return WhiteValue(self.read("variance"))
