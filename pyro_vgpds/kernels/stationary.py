# SPDX-License-Identifier: Apache-2.0
"""Stationary kernels of time, for the prior on the latent path: p(x_q given t) = N(0, k_x(t, t))."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from pyro_vgpds.checks import undefined
from pyro_vgpds.kernels.base import Kernel
from pyro_vgpds.kernels.stationary_states import CosineStates, MaternStates, PeriodicStates
from pyro_vgpds.kernels.values import KernelValue, lift
from pyro_vgpds.parameters import ParameterLike, TimeLike

__all__ = [
    "RBF", "Cosine", "CosineValue", "Matern12", "Matern12Value", "Matern32", "Matern32Value", "Matern52",
    "Matern52Value", "Periodic", "PeriodicValue", "RBFValue", "ScaledKernel", "ScaledValue", "StationaryValue",
]  # fmt: skip


class StationaryValue(KernelValue):
    """``variance * correlation(|t - t'|)``. A new one sets ``variance`` and writes :meth:`correlation`.

    >>> import torch
    >>> from pyro_vgpds.kernels import StationaryValue
    >>> class Hyperbolic(StationaryValue):
    ...     def __init__(self, variance):
    ...         self.variance = variance
    ...
    ...     def correlation(self, d):
    ...         return 1 / torch.cosh(d)
    >>> Hyperbolic(torch.ones(3)).gram(torch.zeros(5, 7)).shape
    torch.Size([3, 5, 7, 7])
    """

    #: (..., K)
    variance: Tensor

    def correlation(self, d: Tensor) -> Tensor:
        r"""Correlation at distances ``d`` >= 0, (..., K, \*d); it is 1 at zero. See :func:`lift` for parameters.

        :param d: distances of any shape.
        """
        raise undefined(self, "correlation(d)")

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        d = (a.unsqueeze(-1) - (a if b is None else b).unsqueeze(-2)).abs()
        return lift(self.variance, d) * self.correlation(d)

    def diag(self, a: Tensor) -> Tensor:
        return lift(self.variance, a).expand(self.variance.shape + a.shape)


class ScaledValue(StationaryValue):
    """A stationary value that measures distances in lengthscales."""

    def __init__(self, variance: Tensor, lengthscale: Tensor) -> None:
        self.variance, self.lengthscale = variance, lengthscale

    def scaled(self, d: Tensor) -> Tensor:
        """Distances in lengthscales."""
        return d / lift(self.lengthscale, d)


class RBFValue(ScaledValue):
    def correlation(self, d: Tensor) -> Tensor:
        return torch.exp(-0.5 * self.scaled(d).square())


class Matern12Value(MaternStates, ScaledValue):
    state_dim = 1

    def correlation(self, d: Tensor) -> Tensor:
        return torch.exp(-self.scaled(d))


class Matern32Value(MaternStates, ScaledValue):
    state_dim = 2

    def correlation(self, d: Tensor) -> Tensor:
        a = math.sqrt(3.0) * self.scaled(d)
        return (1.0 + a) * torch.exp(-a)


class Matern52Value(MaternStates, ScaledValue):
    state_dim = 3

    def correlation(self, d: Tensor) -> Tensor:
        a = math.sqrt(5.0) * self.scaled(d)
        return (1.0 + a + a.square() / 3.0) * torch.exp(-a)


class PeriodicValue(PeriodicStates, StationaryValue):  # type: ignore[override]
    def __init__(self, variance: Tensor, lengthscale: Tensor, period: Tensor, accuracy: float) -> None:
        self.variance, self.lengthscale, self.period, self.accuracy = variance, lengthscale, period, accuracy

    def correlation(self, d: Tensor) -> Tensor:
        turn = torch.sin(math.pi * d / lift(self.period, d))
        return torch.exp(-2.0 * (turn / lift(self.lengthscale, d)).square())


class CosineValue(CosineStates, StationaryValue):  # type: ignore[misc]
    def __init__(self, variance: Tensor, period: Tensor) -> None:
        self.variance, self.period = variance, period

    def correlation(self, d: Tensor) -> Tensor:
        return torch.cos(2.0 * math.pi * d / lift(self.period, d))


class ScaledKernel(Kernel):
    """A stationary kernel with a variance and a lengthscale."""

    #: the class of its value
    value_class: ClassVar[type[ScaledValue]]

    time_parameters = frozenset({"lengthscale"})

    def __init__(self, variance: ParameterLike = 1.0, lengthscale: TimeLike | None = None) -> None:
        super().__init__()
        self.add_parameter("variance", variance)
        self.add_parameter("lengthscale", lengthscale, default=1.0)

    def forward(self) -> ScaledValue:
        return self.value_class(self.read("variance"), self.read("lengthscale"))


class RBF(ScaledKernel):
    r"""Squared exponential: :math:`\sigma^2 \exp(-\tfrac12 d^2 / \ell^2)`.

    It has no state-space form, so a sequence of n frames costs O(n³); :class:`MarkovRBF` approximates it in O(n).

    :param variance: :math:`\sigma^2`, one for all latent dimensions or (Q,).
    :param lengthscale: :math:`\ell`, one or (Q,), a number or a duration such as ``"7d"``. Default: 1, until
        ``VGPDS.from_data`` chooses it from the data.
    :raises ValueError: if a parameter is not positive and finite.

    >>> import torch
    >>> from pyro_vgpds.kernels import RBF
    >>> t = torch.tensor([0.0, 1.0]).double()
    >>> RBF(variance=2.0, lengthscale=1.0)().gram(t).round(decimals=3).tolist()
    [[[2.0, 1.213], [1.213, 2.0]]]
    >>> RBF(lengthscale=[1.0, 5.0])().gram(t).shape  # one for each of two latent dimensions
    torch.Size([2, 2, 2])
    """

    value_class = RBFValue


class Matern12(ScaledKernel):
    r"""Matérn 1/2 (Ornstein–Uhlenbeck): :math:`\sigma^2 e^{-d/\ell}`. Parameters as in :class:`RBF`.

    >>> import torch
    >>> from pyro_vgpds.kernels import Matern12
    >>> Matern12(1.0, 2.0)().gram(torch.tensor([0.0, 2.0]).double())[0, 0, 1].item()  # exp(-1)
    0.36787944117144233
    """

    value_class = Matern12Value


class Matern32(ScaledKernel):
    r"""Matérn 3/2: :math:`\sigma^2 (1 + a) e^{-a}`, :math:`a = \sqrt3 d/\ell`. Parameters as in :class:`RBF`.

    >>> from pyro_vgpds.kernels import Matern32, White
    >>> Matern32(lengthscale=0.5).fix("variance") + White(1e-2)
    Matern32(variance=1 (fixed), lengthscale=0.5) + White(variance=0.01)
    >>> Matern32()().state_dim  # of its state-space form
    2
    """

    value_class = Matern32Value


class Matern52(ScaledKernel):
    r"""Matérn 5/2: :math:`\sigma^2 (1 + a + a^2/3) e^{-a}`, :math:`a = \sqrt5 d/\ell`. Parameters as in :class:`RBF`.

    >>> from pyro_vgpds.kernels import Matern52
    >>> Matern52()().state_dim
    3
    """

    value_class = Matern52Value


class Periodic(Kernel):
    r"""Exactly periodic: :math:`\sigma^2 \exp(-2 \sin^2(\pi d / p) / \ell^2)`.

    The period is :math:`p` itself. The paper writes :math:`\sin^2(2\pi d/T)`, whose period is T/2.

    Its state-space form, which long sequences are computed with, is its Fourier series, truncated so that its error is
    at most ``accuracy``. The number of harmonics, to which the time and memory of a frame are quadratic, is

    ===================== ==== ==== ==== ==== ====
    lengthscale           0.2  0.5  1    2    5
    ===================== ==== ==== ==== ==== ====
    accuracy 1e-3         19   8    4    3    2
    accuracy 1e-6         27   12   7    5    3
    accuracy 1e-12        39   18   12   8    5
    ===================== ==== ==== ==== ==== ====

    It follows the lengthscale in training. The weight of a harmonic is zero when it joins, so the bound has no jumps.

    :param variance: :math:`\sigma^2`, one for all latent dimensions or (Q,).
    :param lengthscale: :math:`\ell`, one or (Q,), relative to the period: the shorter, the more paths vary within one.
    :param period: :math:`p`, one or (Q,), a number or a duration such as ``"24h"``. Default: 1, until
        ``VGPDS.from_data`` sets it to the data's dominant period.
    :param accuracy: largest error of the covariance in state-space form, relative to the variance, from 1e-12 to 0.1.
    :raises ValueError: if a parameter is not positive and finite, or ``accuracy`` is out of range.

    >>> import torch
    >>> from pyro_vgpds.kernels import RBF, Periodic
    >>> k = Periodic(period=24.0)().gram(torch.tensor([0.0, 12.0, 24.0, 48.0]).double())
    >>> k[0, 0].round(decimals=6).tolist()
    [1.0, 0.135335, 1.0, 1.0]
    >>> drifting = Periodic(period=24.0) * RBF(lengthscale=100.0)  # a cycle that changes slowly
    >>> Periodic(period="24h")  # for data with dates, whose times are in seconds
    Periodic(variance=1, lengthscale=1, period=8.64e+04)
    """

    slow_parameters = time_parameters = frozenset({"period"})  # the lengthscale is relative to the period
    option_names = ("accuracy",)
    accuracy: float

    def __init__(
        self,
        variance: ParameterLike = 1.0,
        lengthscale: ParameterLike = 1.0,
        period: TimeLike | None = None,
        accuracy: float = 1e-6,
    ) -> None:
        if isinstance(accuracy, bool) or not isinstance(accuracy, (int, float)) or not 1e-12 <= accuracy <= 0.1:
            raise ValueError(f"accuracy must be a number from 1e-12 to 0.1, but got {accuracy!r}.")
        super().__init__()
        self.accuracy = float(accuracy)
        self.add_parameter("variance", variance)
        self.add_parameter("lengthscale", lengthscale)
        self.add_parameter("period", period, default=1.0)

    def forward(self) -> PeriodicValue:
        return PeriodicValue(self.read("variance"), self.read("lengthscale"), self.read("period"), self.accuracy)


class Cosine(Kernel):
    r"""A single oscillation: :math:`\sigma^2 \cos(2\pi d / p)`. Its paths are sinusoids of one period.

    Times a Matérn kernel it is a noisy oscillator, whose amplitude and phase drift. With a period for each latent
    dimension, this is a prior for motion and other data of several rhythms; a period far beyond the data leaves the
    Matérn kernel alone.

    :param variance: :math:`\sigma^2`, one for all latent dimensions or (Q,).
    :param period: :math:`p`, one or (Q,), a number or a duration such as ``"24h"``. Default: 1, until
        ``VGPDS.from_data`` chooses it from the data.
    :raises ValueError: if a parameter is not positive and finite.

    >>> import torch
    >>> from pyro_vgpds.kernels import Cosine, Matern32
    >>> Cosine(period=4.0)().gram(torch.tensor([0.0, 1.0, 2.0]).double())[0, 0].round(decimals=6).tolist()
    [1.0, 0.0, -1.0]
    >>> (Matern32() * Cosine())().state_dim  # an oscillator
    4
    """

    slow_parameters = time_parameters = frozenset({"period"})

    def __init__(self, variance: ParameterLike = 1.0, period: TimeLike | None = None) -> None:
        super().__init__()
        self.add_parameter("variance", variance)
        self.add_parameter("period", period, default=1.0)

    def forward(self) -> CosineValue:
        return CosineValue(self.read("variance"), self.read("period"))
