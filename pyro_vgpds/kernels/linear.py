# SPDX-License-Identifier: Apache-2.0
"""The linear kernel of time."""

from __future__ import annotations

from torch import Tensor

from pyro_vgpds.kernels.base import Kernel
from pyro_vgpds.kernels.state_space import ConstantState
from pyro_vgpds.kernels.values import KernelValue, lift
from pyro_vgpds.parameters import ParameterLike

__all__ = ["Linear"]


class LinearValue(ConstantState, KernelValue):
    def __init__(self, variance: Tensor) -> None:
        self.variance = variance

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        product = a.unsqueeze(-1) * (a if b is None else b).unsqueeze(-2)
        return lift(self.variance, product) * product

    def diag(self, a: Tensor) -> Tensor:
        return lift(self.variance, a) * a.square()

    # the state is the slope, which never changes

    def observation_model(self, t: Tensor) -> Tensor:
        return t.unsqueeze(-1)


class Linear(Kernel):
    r"""Straight lines through the origin of time: :math:`\sigma^2 t t'`. Add :class:`Bias` for a free intercept.

    :param variance: :math:`\sigma^2` of the slope, one for all latent dimensions or (Q,).
    :raises ValueError: if it is not positive and finite.

    >>> import torch
    >>> from pyro_vgpds.kernels import Linear
    >>> Linear(2.0)().gram(torch.tensor([1.0, 3.0]).double()).tolist()
    [[[2.0, 6.0], [6.0, 18.0]]]
    """

    def __init__(self, variance: ParameterLike = 1.0) -> None:
        super().__init__()
        self.add_parameter("variance", variance)

    def forward(self) -> LinearValue:
        return LinearValue(self.read("variance"))
