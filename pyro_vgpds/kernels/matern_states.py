# SPDX-License-Identifier: Apache-2.0
r"""The state-space form of the Matérn kernels with ν = p + ½.

The state is :math:`(f, f'/r, \dots, f^{(p)}/r^p)` with r = √(2ν)/ℓ, so that in units of time a = r dt everything except
the variance is a constant. F + I is nilpotent, hence

.. math:: A = e^{-a} \sum_{j \le p} (F + I)^j a^j / j!, \qquad
          Q = q \int_0^a g(u) g(u)^\top e^{-2u} du, \quad g = \sum_j (F + I)^j e_p\, u^j / j!,

which are regularised incomplete gamma functions of 2a. No term is a difference that cancels over short steps.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["MaternStates"]


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
