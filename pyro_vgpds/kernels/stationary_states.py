# SPDX-License-Identifier: Apache-2.0
r"""State-space forms of stationary kernels: Matérn, periodic and cosine.

**Matérn kernels with ν = p + ½.** The state is :math:`(f, f'/r, \dots, f^{(p)}/r^p)` with r = √(2ν)/ℓ, so that in units
of time a = r dt everything except the variance is a constant. F + I is nilpotent, hence

.. math:: A = e^{-a} \sum_{j \le p} (F + I)^j a^j / j!, \qquad
          Q = q \int_0^a g(u) g(u)^\top e^{-2u} du, \quad g = \sum_j (F + I)^j e_p\, u^j / j!,

which are regularised incomplete gamma functions of 2a. No term is a difference that cancels over short steps.

**The periodic kernel** is its Fourier series, with a rotating pair of states per harmonic.

.. math:: e^{-2 \sin^2(\pi d/p)/\ell^2} = \sum_j c_j \cos(2\pi j d/p), \qquad
          c_j = (2 - \delta_{j0})\, e^{-1/\ell^2} I_j(1/\ell^2) \ge 0

(Solin and Särkkä 2014). The states are deterministic, so there is no process noise.

The series is truncated. With the share :math:`T_j = \sum_{i \ge j} c_i` of a harmonic and all higher ones, a harmonic
has full weight if :math:`T_j \ge e` and none below e/2. In between its weight changes smoothly, so that the kernel has
no jumps as its lengthscale changes in training. The sum is scaled to the variance. Less than e of it is omitted, and so
the error of the kernel is less than 2e at any distance.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.kernels.state_space import block_diagonal, matrix

__all__ = ["CosineStates", "MaternStates", "PeriodicStates"]

_FADING = 0.5  # a harmonic's weight fades between e and this fraction of it
_MOST = 64  # harmonics; a kernel that needs more has a short lengthscale, and is faster in dense form


@functools.cache
def _constants(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """F, P of unit variance, (F + I)^j / j! (d, d, d), and the coefficients of γ(m + 1, 2a) in Q (2d − 1, d, d)."""
    design = np.diag(np.ones(d - 1), 1)
    design[-1] = [-math.comb(d, j) for j in range(d)]  # (s + 1)^d
    powers = np.stack([np.linalg.matrix_power(design + np.eye(d), j) / math.factorial(j) for j in range(d)])
    impulse = powers[:, :, -1]  # coefficients of g in powers of u
    terms = np.zeros((2 * d - 1, d, d))
    for j in range(d):
        for k in range(d):
            m = j + k
            terms[m] += np.outer(impulse[j], impulse[k]) * math.factorial(m) / 2.0 ** (m + 1)
    total = terms.sum(0)  # Q after infinite time is P, and P[0, 0] is the variance
    return design, total / total[0, 0], powers, terms / total[0, 0]


def _gammas(x: Tensor, count: int) -> list[Tensor]:
    """Regularised incomplete gamma functions γ(1, x), …, γ(count, x), each to full relative accuracy."""
    if count == 1:
        return [-torch.expm1(-x)]
    last = torch.special.gammainc(torch.full((), float(count), dtype=x.dtype, device=x.device), x)
    values, decay = [last], torch.exp(-x)
    for m in range(count - 1, 0, -1):  # downwards, so that all terms are added
        values.append(values[-1] + decay * x.pow(m) / math.factorial(m))
    return values[::-1]


class MaternStates:
    """Mixin: the state-space form of a Matérn kernel value with ν = ``state_dim`` − ½."""

    variance: Tensor
    lengthscale: Tensor
    state_dim: int

    def _time(self, dt: Tensor) -> Tensor:
        return dt * self._rate().unsqueeze(-1)

    def _rate(self) -> Tensor:
        return math.sqrt(2 * self.state_dim - 1) / self.lengthscale

    def _constant(self, which: int, like: Tensor) -> Tensor:
        return torch.from_numpy(_constants(self.state_dim)[which]).to(like)

    def design_matrix(self) -> Tensor:
        return self._rate()[..., None, None] * self._constant(0, self.variance)

    def stationary_covariance(self) -> Tensor:
        return self.variance[..., None, None] * self._constant(1, self.variance)

    def observation_model(self, t: Tensor) -> Tensor:
        return torch.nn.functional.pad(torch.ones_like(t).unsqueeze(-1), (0, self.state_dim - 1))

    def transition_matrix(self, dt: Tensor) -> Tensor:
        a = self._time(dt)
        terms = torch.stack([torch.exp(-a) * a.pow(j) for j in range(self.state_dim)], -1)
        return torch.tensordot(terms, self._constant(2, a), 1)

    def process_noise(self, dt: Tensor) -> Tensor:
        gammas = torch.stack(_gammas(2.0 * self._time(dt), 2 * self.state_dim - 1), -1)
        return self.variance[..., None, None, None] * torch.tensordot(gammas, self._constant(3, gammas), 1)


def _coefficients(lengthscale: Tensor, count: int) -> Tensor:
    """c_0, …, c_{count−1}, (..., count): the trapezoidal rule on a circle, which is exact up to rounding."""
    points = max(4 * count, 64)
    angle = 2.0 * math.pi / points * torch.arange(points, dtype=torch.float64, device=lengthscale.device)
    order = torch.arange(count, dtype=torch.float64, device=lengthscale.device)
    # e^{x (cos θ − 1)} = e^{−2x sin²(θ/2)}, with x = 1/ℓ²
    density = torch.exp(-2.0 * (torch.sin(0.5 * angle) / lengthscale.double().unsqueeze(-1)).square())
    weight = torch.where(order == 0, 1.0, 2.0) / points
    return (density @ torch.cos(angle.unsqueeze(-1) * order) * weight).clamp_min(0.0)


def _shares(coefficients: Tensor) -> Tensor:
    """T_j, (..., count)."""
    return coefficients.flip(-1).cumsum(-1).flip(-1)


class PeriodicStates:
    """Mixin of the periodic kernel's value."""

    variance: Tensor
    lengthscale: Tensor
    period: Tensor
    accuracy: float
    _harmonics: int | None = None

    @property
    def harmonics(self) -> int:
        """Number of harmonics besides the constant, at the shortest lengthscale."""
        if self._harmonics is None:
            share = _shares(_coefficients(self.lengthscale.detach().min(), _MOST + 1))
            self._harmonics = max(1, int((share > _FADING * 0.5 * self.accuracy).sum()) - 1)
        return self._harmonics

    @property
    def state_dim(self) -> int | None:
        return None if self.harmonics >= _MOST else 2 * self.harmonics + 1

    def state_blocks(self) -> list[int]:
        return [0] + [j for j in range(1, self.harmonics + 1) for _ in range(2)]

    def _weights(self) -> Tensor:
        """The share of the variance of the constant and each harmonic, (..., K, 1 + J); they add up to 1."""
        # beyond the omitted harmonics there is nothing but rounding errors
        c = _coefficients(self.lengthscale, self.harmonics + 4)
        least = _FADING * 0.5 * self.accuracy
        fade = ((_shares(c) / least).clamp_min(1.0).log() / -math.log(_FADING)).clamp_max(1.0)
        fade = torch.cat([torch.ones_like(fade[..., :2]), fade[..., 2:]], -1)  # there always is one harmonic
        weight = (fade.square() * (3.0 - 2.0 * fade) * c)[..., : self.harmonics + 1]
        return weight / weight.sum(-1, keepdim=True)

    def _angle(self, dt: Tensor) -> Tensor:
        """The rotation angle of each harmonic, (..., K, J, n)."""
        order = torch.arange(1, self.harmonics + 1, dtype=dt.dtype, device=dt.device)
        return 2.0 * math.pi * order.unsqueeze(-1) * (dt / self.period.unsqueeze(-1)).unsqueeze(-2)

    def design_matrix(self) -> Tensor:
        rate = 2.0 * math.pi / self.period
        zero = torch.zeros_like(rate)
        turns = [matrix([[zero, -j * rate], [j * rate, zero]]) for j in range(1, self.harmonics + 1)]
        return block_diagonal([zero[..., None, None], *turns])

    def stationary_covariance(self) -> Tensor:
        c = self.variance.unsqueeze(-1) * self._weights()
        return torch.diag_embed(torch.cat([c[..., :1], c[..., 1:].repeat_interleave(2, -1)], -1))

    def observation_model(self, t: Tensor) -> Tensor:
        return t.new_tensor([1.0] + [1.0, 0.0] * self.harmonics).expand(len(t), -1)

    def transition_matrix(self, dt: Tensor) -> Tensor:
        angle = self._angle(dt)
        c, s = angle.cos(), angle.sin()
        turns = matrix([[c, -s], [s, c]])  # (..., K, J, n, 2, 2)
        one = torch.ones_like(c[..., 0, :])[..., None, None]
        return block_diagonal([one, *turns.unbind(-4)])

    def process_noise(self, dt: Tensor) -> Tensor:
        size = 2 * self.harmonics + 1
        return dt.new_zeros(len(dt), size, size)


class CosineStates:
    """Mixin of the cosine kernel's value: one rotating pair of states."""

    variance: Tensor
    period: Tensor
    state_dim = 2

    def design_matrix(self) -> Tensor:
        rate = 2.0 * math.pi / self.period
        zero = torch.zeros_like(rate)
        return matrix([[zero, -rate], [rate, zero]])

    def stationary_covariance(self) -> Tensor:
        return torch.diag_embed(self.variance.unsqueeze(-1).expand(*self.variance.shape, 2))

    def observation_model(self, t: Tensor) -> Tensor:
        return t.new_tensor([1.0, 0.0]).expand(len(t), -1)

    def transition_matrix(self, dt: Tensor) -> Tensor:
        angle = 2.0 * math.pi * dt / self.period.unsqueeze(-1)
        c, s = angle.cos(), angle.sin()
        return matrix([[c, -s], [s, c]])

    def process_noise(self, dt: Tensor) -> Tensor:
        return dt.new_zeros(len(dt), 2, 2)
