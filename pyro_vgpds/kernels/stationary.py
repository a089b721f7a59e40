# SPDX-License-Identifier: Apache-2.0
"""Kernels of time, for the prior on the latent path: p(x_q given t) = N(0, k_x(t, t))."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_vgpds.kernels.base import Kernel, KernelValue
from pyro_vgpds.kernels.matern_states import MaternStates
from pyro_vgpds.kernels.periodic_states import PeriodicStates
from pyro_vgpds.kernels.statespace import ConstantState

__all__ = ["RBF", "Linear", "Matern12", "Matern32", "Matern52", "Periodic"]


def _lift(parameter: Tensor, t: Tensor, extra: int) -> Tensor:
    """A parameter (..., K) as (..., K, 1, …): one axis for each of ``t`` and ``extra`` more behind them."""
    return parameter.reshape(parameter.shape + (1,) * (t.dim() - 1 + extra))


class StationaryValue(KernelValue):
    """``variance * correlation(t - t')``."""

    variance: Tensor

    def correlation(self, d: Tensor, lift: int) -> Tensor:
        """Correlation at distances ``d`` >= 0, with parameters lifted by ``lift`` axes; 1 at zero."""
        raise NotImplementedError

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        d = (a.unsqueeze(-1) - (a if b is None else b).unsqueeze(-2)).abs()
        return _lift(self.variance, a, 2) * self.correlation(d, a.dim() + 1)

    def diag(self, a: Tensor) -> Tensor:
        return _lift(self.variance, a, 1).expand(self.variance.shape + a.shape)


class _ScaledValue(StationaryValue):
    def __init__(self, variance: Tensor, lengthscale: Tensor) -> None:
        self.variance, self.lengthscale = variance, lengthscale

    def _scaled(self, d: Tensor, lift: int) -> Tensor:
        return d / self.lengthscale.reshape(self.lengthscale.shape + (1,) * lift)


class RBFValue(_ScaledValue):
    def correlation(self, d: Tensor, lift: int) -> Tensor:
        return torch.exp(-0.5 * self._scaled(d, lift).square())


class Matern12Value(MaternStates, _ScaledValue):
    state_dim = 1

    def correlation(self, d: Tensor, lift: int) -> Tensor:
        return torch.exp(-self._scaled(d, lift))


class Matern32Value(MaternStates, _ScaledValue):
    state_dim = 2

    def correlation(self, d: Tensor, lift: int) -> Tensor:
        a = math.sqrt(3.0) * self._scaled(d, lift)
        return (1.0 + a) * torch.exp(-a)


class Matern52Value(MaternStates, _ScaledValue):
    state_dim = 3

    def correlation(self, d: Tensor, lift: int) -> Tensor:
        a = math.sqrt(5.0) * self._scaled(d, lift)
        return (1.0 + a + a.square() / 3.0) * torch.exp(-a)


class PeriodicValue(PeriodicStates, StationaryValue):  # type: ignore[override]
    def __init__(self, variance: Tensor, lengthscale: Tensor, period: Tensor) -> None:
        self.variance, self.lengthscale, self.period = variance, lengthscale, period

    def correlation(self, d: Tensor, lift: int) -> Tensor:
        axes = (1,) * lift
        turn = torch.sin(math.pi * d / self.period.reshape(self.period.shape + axes))
        return torch.exp(-2.0 * (turn / self.lengthscale.reshape(self.lengthscale.shape + axes)).square())


class LinearValue(ConstantState, KernelValue):
    def __init__(self, variance: Tensor) -> None:
        self.variance = variance

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return _lift(self.variance, a, 2) * (a.unsqueeze(-1) * (a if b is None else b).unsqueeze(-2))

    def diag(self, a: Tensor) -> Tensor:
        return _lift(self.variance, a, 1) * a.square()

    # the state is the slope, which never changes

    def observation_model(self, t: Tensor) -> Tensor:
        return t.unsqueeze(-1)


class _Scaled(Kernel):
    """A stationary kernel with a variance and a lengthscale."""

    _value: ClassVar[type[_ScaledValue]]

    def __init__(self, variance: Any = 1.0, lengthscale: Any = None) -> None:
        super().__init__()
        self._add("variance", variance)
        self._add("lengthscale", lengthscale, default=1.0)

    def forward(self) -> _ScaledValue:
        return self._value(self._read("variance"), self._read("lengthscale"))


class RBF(_Scaled):
    r"""Squared exponential: :math:`\sigma^2 \exp(-\tfrac12 d^2 / \ell^2)`.

    It has no state-space form, so a sequence of n frames costs O(n³); :class:`MarkovRBF` is nearly the same at O(n).

    :param variance: :math:`\sigma^2`; one for all latent dimensions, or (Q,).
    :param lengthscale: :math:`\ell`, likewise; left out, ``VGPDS.from_data`` chooses it (and 1 stands until then).
    :raises ValueError: where a parameter is not positive and finite.

    >>> import torch
    >>> from pyro_vgpds.kernels import RBF
    >>> t = torch.tensor([0.0, 1.0]).double()
    >>> RBF(variance=2.0, lengthscale=1.0)().gram(t).round(decimals=3).tolist()
    [[[2.0, 1.213], [1.213, 2.0]]]
    >>> RBF(lengthscale=[1.0, 5.0])().gram(t).shape  # one for each of two latent dimensions
    torch.Size([2, 2, 2])
    """

    _value = RBFValue


class Matern12(_Scaled):
    r"""Matérn 1/2 (Ornstein–Uhlenbeck): :math:`\sigma^2 e^{-d/\ell}`. Parameters as in :class:`RBF`.

    >>> import torch
    >>> from pyro_vgpds.kernels import Matern12
    >>> Matern12(1.0, 2.0)().gram(torch.tensor([0.0, 2.0]).double())[0, 0, 1].item()  # exp(-1)
    0.36787944117144233
    """

    _value = Matern12Value


class Matern32(_Scaled):
    r"""Matérn 3/2: :math:`\sigma^2 (1 + a) e^{-a}`, :math:`a = \sqrt3 d/\ell`. Parameters as in :class:`RBF`.

    >>> from pyro_vgpds.kernels import Matern32, White
    >>> Matern32(lengthscale=0.5).fix("variance") + White(1e-2)
    Matern32(variance=1 (fixed), lengthscale=0.5) + White(variance=0.01)
    >>> Matern32()().state_dim  # of its state-space form
    2
    """

    _value = Matern32Value


class Matern52(_Scaled):
    r"""Matérn 5/2: :math:`\sigma^2 (1 + a + a^2/3) e^{-a}`, :math:`a = \sqrt5 d/\ell`. Parameters as in :class:`RBF`.

    >>> from pyro_vgpds.kernels import Matern52
    >>> Matern52()().state_dim
    3
    """

    _value = Matern52Value


class Periodic(Kernel):
    r"""Exactly periodic: :math:`\sigma^2 \exp(-2 \sin^2(\pi d / p) / \ell^2)`.

    The period is :math:`p` itself. The paper writes :math:`\sin^2(2\pi d/T)`, whose period is T/2.

    Its state-space form is its Fourier series, with as many harmonics as leave out at most 1e-12 of the variance (11
    for a lengthscale of 1, more for a shorter one).

    :param variance: :math:`\sigma^2`; one for all latent dimensions, or (Q,).
    :param lengthscale: :math:`\ell`, likewise, relative to the period: paths wiggle more within one where it is short.
    :param period: :math:`p`; left out, ``VGPDS.from_data`` takes the strongest frequency of the data.
    :raises ValueError: where a parameter is not positive and finite.

    >>> import torch
    >>> from pyro_vgpds.kernels import RBF, Periodic
    >>> k = Periodic(period=24.0)().gram(torch.tensor([0.0, 12.0, 24.0, 48.0]).double())
    >>> k[0, 0].round(decimals=6).tolist()
    [1.0, 0.135335, 1.0, 1.0]
    >>> drifting = Periodic(period=24.0) * RBF(lengthscale=100.0)  # a cycle that changes slowly
    """

    slow_parameters = frozenset({"period"})

    def __init__(self, variance: Any = 1.0, lengthscale: Any = 1.0, period: Any = None) -> None:
        super().__init__()
        self._add("variance", variance)
        self._add("lengthscale", lengthscale)
        self._add("period", period, default=1.0)

    def forward(self) -> PeriodicValue:
        return PeriodicValue(self._read("variance"), self._read("lengthscale"), self._read("period"))


class Linear(Kernel):
    r"""Straight lines through the origin of time: :math:`\sigma^2 t t'`. Add :class:`Bias` for a free intercept.

    :param variance: :math:`\sigma^2`, of the slope; one for all latent dimensions, or (Q,).

    >>> import torch
    >>> from pyro_vgpds.kernels import Linear
    >>> Linear(2.0)().gram(torch.tensor([1.0, 3.0]).double()).tolist()
    [[[2.0, 6.0], [6.0, 18.0]]]
    """

    def __init__(self, variance: Any = 1.0) -> None:
        super().__init__()
        self._add("variance", variance)

    def forward(self) -> LinearValue:
        return LinearValue(self._read("variance"))
