# SPDX-License-Identifier: Apache-2.0
r"""A Markov kernel that approximates the squared exponential kernel.

The spectral density of the RBF is :math:`e^{-x}` with :math:`x = \omega^2\ell^2/2`. With the exponential series
truncated after p terms, :math:`1 / \sum_{n \le p} x^n/n!` is a rational function of ω² (Hartikainen and Särkkä 2010).
Its p stable poles :math:`s_j` give the kernel :math:`\mathrm{Re} \sum_j w_j e^{s_j d/\ell}`, scaled to 1 at d = 0, with
a state of size p.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import is_whole
from pyro_vgpds.kernels.stationary import ScaledKernel, ScaledValue
from pyro_vgpds.parameters import ParameterLike, TimeLike

__all__ = ["MarkovRBF"]

_ORDERS = range(1, 13)


@functools.cache
def _poles(order: int) -> tuple[np.ndarray, np.ndarray]:
    """The poles s (p,) in the left half plane for ℓ = 1, and their weights w (p,), which add up to 1."""
    series = np.zeros(2 * order + 1, dtype=np.longdouble)
    series[::2] = [np.longdouble(-0.5) ** n / math.factorial(n) for n in range(order + 1)]  # in s, with ω² = −s²
    slope = np.polynomial.polynomial.polyder(series)
    value = np.polynomial.polynomial.polyval
    s = np.polynomial.polynomial.polyroots(series.astype(np.float64)).astype(np.clongdouble)
    for _ in range(6):  # Newton steps: the eigenvalues of a companion matrix are not accurate to the last digits
        s = s - value(s, series) / value(s, slope)
    s = s[s.real < 0]
    w = 1.0 / value(s, slope)
    return s, w / w.sum()


@functools.cache
def _design(order: int) -> np.ndarray:
    """F (p, p) for ℓ = 1 in Schwarz's form, a damped chain of springs: f is the first state, and P = I.

    In it the state is as well-conditioned as it can be: every A is a contraction. Its entries are square roots of
    ratios in the first column of the Routh array of ∏ (s − s_j).
    """
    polynomial: np.ndarray = np.ones(1, dtype=np.clongdouble)
    for s in _poles(order)[0]:
        polynomial = np.convolve(polynomial, [1.0, -s])
    rows = [list(polynomial.real[0::2]), list(polynomial.real[1::2])]
    while len(rows) <= order:
        above, row = rows[-2], rows[-1] + [np.longdouble(0.0)]
        rows.append([(row[0] * above[i + 1] - above[0] * row[i + 1]) / row[0] for i in range(len(above) - 1)])
    first = [row[0] for row in rows]
    spring = np.array([math.sqrt(first[k] / first[k - 2]) for k in range(order, 1, -1)])
    design = np.diag(spring, 1) - np.diag(spring, -1)
    design[-1, -1] = -first[1]
    return design


class MarkovRBFValue(ScaledValue):
    state_dim: int

    def __init__(self, variance: Tensor, lengthscale: Tensor, order: int) -> None:
        super().__init__(variance, lengthscale)
        self.state_dim = order

    def correlation(self, d: Tensor) -> Tensor:
        scaled = self.scaled(d)
        total = torch.zeros_like(scaled)
        for s, w in zip(*(x.astype(np.complex128) for x in _poles(self.state_dim)), strict=True):
            angle = s.imag * scaled
            total = total + torch.exp(s.real * scaled) * (w.real * angle.cos() - w.imag * angle.sin())
        return total

    def design_matrix(self) -> Tensor:
        return torch.from_numpy(_design(self.state_dim)).to(self.variance) / self.lengthscale[..., None, None]

    def stationary_covariance(self) -> Tensor:
        eye = torch.eye(self.state_dim, dtype=self.variance.dtype, device=self.variance.device)
        return self.variance[..., None, None] * eye

    def observation_model(self, t: Tensor) -> Tensor:
        return torch.nn.functional.pad(torch.ones_like(t).unsqueeze(-1), (0, self.state_dim - 1))

    def transition_matrix(self, dt: Tensor) -> Tensor:
        time = (dt / self.lengthscale.unsqueeze(-1))[..., None, None]
        design = torch.from_numpy(_design(self.state_dim)).to(time)
        with torch.no_grad():
            a = torch.linalg.matrix_exp(design * time)
        # dA = F A dt. torch's gradient of matrix_exp serves any direction and is five times slower.
        return a + (design @ a) * (time - time.detach())


class MarkovRBF(ScaledKernel):
    r"""Almost the squared exponential :math:`\sigma^2 \exp(-\tfrac12 d^2/\ell^2)`, in O(N) instead of O(N³).

    It is a valid kernel, made from the truncated series of the RBF's spectral density: paths have ``order`` − 1
    derivatives. The largest difference from the RBF, in units of the variance, is

    ===== ===== ===== ===== ===== =====
    order 2     4     6     8     10
    ===== ===== ===== ===== ===== =====
    error 0.13  0.022 4e-3  9e-4  2e-4
    ===== ===== ===== ===== ===== =====

    :param variance: :math:`\sigma^2`, one for all latent dimensions or (Q,).
    :param lengthscale: :math:`\ell`, one or (Q,), a number or a duration such as ``"7d"``. Default: 1, until
        ``VGPDS.from_data`` chooses it from the data.
    :param order: p, from 1 to 12. The cost of a frame grows with its cube.
    :raises ValueError: if ``order`` is out of range, or a parameter is not positive and finite.

    >>> import torch
    >>> from pyro_vgpds.kernels import RBF, MarkovRBF
    >>> t = torch.linspace(0, 3, 50).double()
    >>> bool((MarkovRBF(1.0, 1.0, order=6)().gram(t) - RBF(1.0, 1.0)().gram(t)).abs().max() < 5e-3)
    True
    """

    option_names = ("order",)
    order: int

    def __init__(self, variance: ParameterLike = 1.0, lengthscale: TimeLike | None = None, order: int = 6) -> None:
        if not is_whole(order) or order not in _ORDERS:
            raise ValueError(f"order must be a whole number from 1 to {_ORDERS[-1]}, but got {order!r}.")
        super().__init__(variance, lengthscale)
        self.order = int(order)

    def forward(self) -> MarkovRBFValue:
        return MarkovRBFValue(self.read("variance"), self.read("lengthscale"), self.order)
