# SPDX-License-Identifier: Apache-2.0
r"""q(U) in dual form: averages of sums over frames, from which q(U) of every output follows.

With the whitened statistics A = L⁻¹ Ψ2 L⁻ᵀ and v_d = L⁻¹ Ψ1ᵀ y_d of all frames, the optimal q(U) is

.. math:: q(u_d) = N(\beta_d B_d^{-1} v_d, B_d^{-1}), \qquad B_d = I + \beta_d A.

A natural gradient step of length ρ is a step of A and v towards the statistics of a batch times the number of all
sequences over that of the batch. Outputs that were observed in the same frames share A, whatever their noise.

The statistics belong to the kernel and the inducing inputs at which they were computed. When these move from (k, Z) to
(k', Z'), old statistics are carried along as pseudo-data at Z: Ψ2 = K Λ K becomes k'(Z', Z) Λ k'(Z, Z'), which in
whitened form is A ← P A Pᵀ and v ← P v with P = L'⁻¹ k'(Z', Z) L⁻ᵀ. The function that q(U) describes then hardly
changes; with the same A and v, each step of Z would spoil it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.frame_sums import FrameSums, common_groups, take_groups
from pyro_vgpds.mapping.inducing_gaussian import InducingGaussian, InducingPrior

__all__ = ["Dual"]


@dataclass(frozen=True)
class Dual:
    """The averages. Never changed in place.

    >>> import torch
    >>> from pyro_vgpds.mapping import Dual
    >>> empty = Dual.empty(num_inducing=4, num_outputs=3)
    >>> empty.posterior(0.1 * torch.ones(1)).variance.unique()  # nothing is known: the prior
    tensor([1.], dtype=torch.float64)
    """

    a: Tensor  #: A, (G, M, M)
    v: Tensor  #: (M, D)
    of_output: Tensor  #: the group of each output, (D,)
    factor: Tensor  #: L, (M, M), by which they are whitened
    inducing: Tensor  #: Z, (M, Q), at which they were computed
    count: int = 0  #: steps so far

    @classmethod
    def empty(
        cls, num_inducing: int, num_outputs: int, latent_dim: int = 1, device: torch.device | None = None
    ) -> Dual:
        """Before the first step.

        :param num_inducing: M.
        :param num_outputs: D.
        :param latent_dim: Q.
        :param device: of the tensors.
        """
        zeros = torch.zeros(num_inducing, num_outputs, dtype=torch.float64, device=device)
        square = zeros.new_zeros(num_inducing, num_inducing)
        where = torch.zeros(num_outputs, dtype=torch.long, device=device)
        return cls(square.unsqueeze(0), zeros, where, square, zeros.new_zeros(num_inducing, latent_dim))

    def carried(self, prior: InducingPrior) -> Dual:
        """The statistics at the kernel and inducing inputs of ``prior``.

        :param prior: p(U) at the current parameters.
        """
        factor, z = prior.factor.detach(), prior.inducing.detach()
        if not self.count or (torch.equal(factor, self.factor) and torch.equal(z, self.inducing)):
            return replace(self, factor=factor, inducing=z)
        with torch.no_grad():
            # what the factor has besides the kernel, such as jitter, belongs to each inducing variable: P = I at rest
            cross = prior.kernel.cov(z, self.inducing) + (factor @ factor.mT - prior.kernel.cov(z, z))
            half = solve_triangular(self.factor, cross.mT, upper=False)
            p = solve_triangular(factor, half.mT, upper=False)
            return Dual(p @ self.a @ p.mT, p @ self.v, self.of_output, factor, z, self.count)

    def moved(self, sums: FrameSums, scale: float, rate: float) -> Dual:
        """The statistics after a step towards those of a batch at the same parameters.

        :param sums: of the frames of the batch.
        :param scale: the number of all sequences over that of the batch.
        :param rate: ρ in [0, 1]; the first step has length 1, and one of length 0 changes nothing.
        """
        rate = rate if self.count else 1.0
        if rate == 0.0:
            return self
        with torch.no_grad():
            of_output, own, other = common_groups(self.of_output, sums.of_output)
            batch = take_groups(sums.a.detach(), other)
            a = (1.0 - rate) * self.a[own] + rate * scale * batch
            v = (1.0 - rate) * self.v + rate * scale * sums.v.detach()
            return replace(self, a=a, v=v, of_output=of_output, count=self.count + 1)

    def scaled(self, factor: float) -> Dual:
        """The statistics of more frames of the same kind.

        :param factor: how many times as many.
        """
        return replace(self, a=factor * self.a, v=factor * self.v)

    def to(self, device: torch.device) -> Dual:
        """The same on a device.

        :param device: of all tensors.
        """
        return Dual.from_tensors([part.to(device) for part in self.tensors()])

    def posterior(self, noise: Tensor) -> InducingGaussian:
        """q(U).

        :param noise: 1/β of the scaled outputs, (1,) or (D,).
        :raises NumericalError: if a statistic is not finite.
        """
        with torch.no_grad():
            if not bool(torch.isfinite(self.a).all() and torch.isfinite(self.v).all()):
                raise NumericalError("the statistics of q(U) are not finite.")
            e, u = torch.linalg.eigh(self.a)
            beta = (1.0 / noise.detach().double()).expand(self.v.shape[-1])
            shrink = 1.0 / (1.0 + beta * e.clamp_min(0.0).mT[:, self.of_output])
            if len(u) == self.v.shape[-1] > 1:  # one for each output
                own = u[self.of_output]
                inner = (beta * shrink).mT * (own.mT @ self.v.mT.unsqueeze(-1)).squeeze(-1)
                mean = (own @ inner.unsqueeze(-1)).squeeze(-1).mT
            elif len(u) == 1:
                mean = u[0] @ (beta * shrink * (u[0].mT @ self.v))
            else:
                mean = torch.empty_like(self.v)
                for g in range(len(u)):
                    own = (self.of_output == g).nonzero().squeeze(-1)
                    mean[:, own] = u[g] @ (beta[own] * shrink[:, own] * (u[g].mT @ self.v[:, own]))
            q = InducingGaussian(mean, u, shrink, self.of_output, orthogonal=True)
            q.has_seen = self.count > 0
            return q

    def tensors(self) -> list[Tensor]:
        """All numbers, for a file."""
        return [self.a, self.v, self.of_output, self.factor, self.inducing, torch.tensor(self.count)]

    @classmethod
    def from_tensors(cls, tensors: list[Tensor]) -> Dual:
        """The inverse of :meth:`tensors`.

        :param tensors: six of them.
        """
        a, v, of_output, factor, inducing, count = tensors
        return cls(a, v, of_output, factor, inducing, int(count))
