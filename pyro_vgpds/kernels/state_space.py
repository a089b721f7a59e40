# SPDX-License-Identifier: Apache-2.0
r"""State-space forms of kernels of time, and those of sums and products.

A Markov kernel is the covariance of :math:`x(t) = h(t) \cdot z(t)` plus white noise, where z is the stationary solution
of dz = F z dt + noise. Between two frames at a distance ``dt``,

.. math:: z_k = A z_{k-1} + w_k, \qquad A = e^{F\,dt}, \qquad w_k \sim N(0, P - A P A^\top), \qquad z \sim N(0, P).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.checks import undefined
from pyro_vgpds.linalg import broadcast_shapes

__all__ = ["ConstantState", "StateSpace", "StateSpaceProduct", "StateSpaceSum", "block_diagonal", "matrix"]


class StateSpace:
    r"""The state-space form of a kernel value; parameters are (..., K), as in ``KernelValue``.

    A kernel has one if ``state_dim`` is a number, d. It then defines :meth:`stationary_covariance`,
    :meth:`observation_model`, and :meth:`design_matrix` or (faster) :meth:`transition_matrix`. If P − A P Aᵀ has large
    rounding errors over short steps, it also defines :meth:`process_noise`.

    >>> import torch
    >>> from pyro_vgpds.kernels import Matern32
    >>> Matern32(lengthscale=[1.0, 2.0])().transition_matrix(torch.ones(5)).shape  # (K, n, d, d)
    torch.Size([2, 5, 2, 2])
    """

    #: d, the size of the state; None if the kernel has no state-space form
    state_dim: int | None = None

    def design_matrix(self) -> Tensor:
        """F, (..., K, d, d)."""
        raise undefined(self, "design_matrix()")

    def stationary_covariance(self) -> Tensor:
        """P, (..., K, d, d)."""
        raise undefined(self, "stationary_covariance()")

    def observation_model(self, t: Tensor) -> Tensor:
        """The vectors h, (n, d). They depend on no parameter: scales belong in P.

        :param t: times (n,).
        """
        raise undefined(self, "observation_model(t)")

    def transition_matrix(self, dt: Tensor) -> Tensor:
        """A, (..., K, n, d, d).

        :param dt: time steps (n,).
        """
        return torch.linalg.matrix_exp(self.design_matrix().unsqueeze(-3) * dt[:, None, None])

    def process_noise(self, dt: Tensor) -> Tensor:
        """The covariance P − A P Aᵀ of the noise w, (..., K, n, d, d).

        :param dt: time steps (n,).
        """
        a = self.transition_matrix(dt)
        p = self.stationary_covariance().to(a.dtype).unsqueeze(-3)
        return p - a @ p @ a.mT

    def state_blocks(self) -> list[int]:
        """The number of the block of each state, d of them. A and P couple no states of different blocks.

        Default: a single block. With blocks of at most 4 states, a large state costs O(d²) per frame, not O(d³).
        """
        return [0] * (self.state_dim or 0)

    def white(self, t: Tensor) -> Tensor | float:
        """The variance of the white noise, (..., K, n).

        :param t: times (n,).
        """
        return 0.0


class _Combined(StateSpace):
    """Base of the sum and the product of state-space forms."""

    parts: Sequence[Any]  # of KernelValue, or of kernels of latent points, which have no form

    def _smooth(self) -> list[StateSpace]:
        return [part for part in self.parts if part.state_dim]

    def _dims(self) -> list[int | None]:
        # white noise has a state of size 0
        return [getattr(part, "state_dim", None) for part in self.parts]


class ConstantState(StateSpace):
    """A constant state of size 1, with the kernel's ``variance`` (..., K)."""

    variance: Tensor
    state_dim = 1

    def design_matrix(self) -> Tensor:
        return torch.zeros_like(self.variance)[..., None, None]

    def stationary_covariance(self) -> Tensor:
        return self.variance[..., None, None]

    def transition_matrix(self, dt: Tensor) -> Tensor:
        return torch.ones_like(dt)[:, None, None]

    def process_noise(self, dt: Tensor) -> Tensor:
        return torch.zeros_like(dt)[:, None, None]


class StateSpaceSum(_Combined):
    """The states, concatenated."""

    @property
    def state_dim(self) -> int | None:  # type: ignore[override]
        dims = self._dims()
        return None if None in dims else sum(d for d in dims if d is not None)

    def design_matrix(self) -> Tensor:
        return block_diagonal([part.design_matrix() for part in self._smooth()])

    def stationary_covariance(self) -> Tensor:
        return block_diagonal([part.stationary_covariance() for part in self._smooth()])

    def observation_model(self, t: Tensor) -> Tensor:
        return torch.cat([part.observation_model(t) for part in self._smooth()], -1)

    def transition_matrix(self, dt: Tensor) -> Tensor:
        return block_diagonal([part.transition_matrix(dt) for part in self._smooth()])

    def process_noise(self, dt: Tensor) -> Tensor:
        return block_diagonal([part.process_noise(dt) for part in self._smooth()])

    def state_blocks(self) -> list[int]:
        blocks: list[int] = []
        for part in self._smooth():
            first = max(blocks, default=-1) + 1
            blocks += [first + block for block in part.state_blocks()]
        return blocks

    def white(self, t: Tensor) -> Tensor | float:
        return sum((part.white(t) for part in self.parts), 0.0)


class StateSpaceProduct(_Combined):
    """The Kronecker product of the states: the product of independent x₁(t) x₂(t) has the product as covariance."""

    @property
    def state_dim(self) -> int | None:  # type: ignore[override]
        dims = self._dims()
        return None if None in dims else reduce(lambda a, b: a * b, [d for d in dims if d is not None], 1)

    def design_matrix(self) -> Tensor:
        def both(first: Tensor, second: Tensor) -> Tensor:  # F₁ ⊗ I + I ⊗ F₂
            return kron(first, _eye(second)) + kron(_eye(first), second)

        return reduce(both, [part.design_matrix() for part in self.parts])

    def stationary_covariance(self) -> Tensor:
        return reduce(kron, [part.stationary_covariance() for part in self.parts])

    def observation_model(self, t: Tensor) -> Tensor:
        parts = [part.observation_model(t) for part in self.parts]
        return reduce(lambda a, b: (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2), parts)

    def transition_matrix(self, dt: Tensor) -> Tensor:
        return reduce(kron, [part.transition_matrix(dt) for part in self.parts])

    def process_noise(self, dt: Tensor) -> Tensor:
        # P₁⊗P₂ − (P₁ − Q₁)⊗(P₂ − Q₂) = Q₁⊗P₂ + (P₁ − Q₁)⊗Q₂, a sum without cancellation
        first, *others = self.parts
        q, p = first.process_noise(dt), first.stationary_covariance().unsqueeze(-3)
        for part in others:
            q_new, p_new = part.process_noise(dt), part.stationary_covariance().unsqueeze(-3)
            q, p = kron(q, p_new) + kron(p - q, q_new), kron(p, p_new)
        return q

    def state_blocks(self) -> list[int]:
        def both(first: list[int], second: list[int]) -> list[int]:
            count = max(second, default=0) + 1
            return [count * a + b for a in first for b in second]

        return reduce(both, [part.state_blocks() for part in self.parts])

    def white(self, t: Tensor) -> Tensor | float:
        # (s₁ + ω₁)(s₂ + ω₂) − s₁s₂ = ω₁ (s₂ + ω₂) + s₁ω₂ with s the smooth and ω the white part of a variance
        total: Tensor | float = 0.0
        smooth: Tensor | float = 1.0
        for part in self.parts:
            white, diag = part.white(t), part.diag(t)
            total, smooth = total * diag + smooth * white, smooth * (diag - white)
        return total


def block_diagonal(parts: Sequence[Tensor]) -> Tensor:
    """The block-diagonal matrix (..., Σd_i, Σd_i) of matrices (..., d_i, d_i)."""
    if len(parts) == 1:
        return parts[0]
    batch = broadcast_shapes(*[part.shape[:-2] for part in parts])
    dtype = reduce(torch.promote_types, [part.dtype for part in parts])
    size = sum(part.shape[-1] for part in parts)
    out, at = parts[0].new_zeros(batch + (size, size), dtype=dtype), 0
    for part in parts:
        end = at + part.shape[-1]
        out[..., at:end, at:end] = part
        at = end
    return out


def kron(first: Tensor, second: Tensor) -> Tensor:
    """The Kronecker product over the last two axes, batched over the others."""
    both = first[..., :, None, :, None] * second[..., None, :, None, :]
    return both.flatten(-4, -3).flatten(-2, -1)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def matrix(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """A matrix (..., d, d) from its entries (...)."""
    return torch.stack([torch.stack(list(row), -1) for row in rows], -2)
