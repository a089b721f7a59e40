# SPDX-License-Identifier: Apache-2.0
r"""The inducing variables of a mapping: function values at inducing inputs or, of a linear kernel, its weights.

A linear kernel has finitely many features, :math:`k(x, x') = \phi(x) \cdot \phi(x')` with
:math:`\phi(x) = (\sqrt{w_1} x_1, \ldots, \sqrt{w_Q} x_Q, \sqrt b)`. The functions are
:math:`f(x) = \phi(x) \cdot u` with standard normal weights u. With these as inducing variables K_MM is the identity and

.. math:: \Psi_1 = E\,\phi, \qquad \Psi_2 = \sum_n E\,\phi_n \phi_n^\top, \qquad \Psi_0 = \mathrm{tr}\,\Psi_2,

and the bound of a sparse GP is that of the exact GP: no inducing inputs and no jitter are needed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyro_vgpds.linalg import broadcast_shapes, cholesky
from pyro_vgpds.mapping.forms import LinearForm, linear_form, register_linear
from pyro_vgpds.mapping.psi import MappingValue, Psi, expect, masked_sum, observe
from pyro_vgpds.mapping.quadratic_forms import outer_sums

__all__ = ["Basis", "InducingInputs", "LinearForm", "LinearWeights", "basis_of", "linear_form", "register_linear"]


class Basis(Protocol):
    """M inducing variables of a mapping kernel, and their covariance with the function at latent points.

    Latent points are (..., N, Q); ``mean`` and ``variance`` are their moments, and ``mask`` is (C, N) as in
    :mod:`pyro_vgpds.mapping.psi`.
    """

    @property
    def kernel(self) -> MappingValue:
        """The mapping kernel."""

    @property
    def size(self) -> int:
        """M."""

    @property
    def is_exact(self) -> bool:
        """Whether the inducing variables determine the function at every point."""

    @property
    def pair_work(self) -> int:
        """Multiply-adds of Ψ2 for each frame and pair of inducing variables."""

    @property
    def has_loops(self) -> bool:
        """Whether Ψ2 is computed by compiled loops, which have their own threads."""

    def factor(self) -> Tensor:
        """L, the Cholesky factor of the covariance K_MM of the inducing variables."""

    def root(self, factor: Tensor) -> Tensor:
        """R in f = R v, where f are the functions at the inducing inputs and v = L⁻¹ u."""

    def cov(self, x: Tensor) -> Tensor:
        """Covariances of the function at points x with the inducing variables, (..., N, M)."""

    def psi1(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Ψ1, (..., N, M)."""

    def psi2(self, mean: Tensor, variance: Tensor, mask: Tensor | None) -> Tensor:
        """Ψ2, (..., C, M, M)."""

    def expect(self, x: Tensor, variance: Tensor | None, mask: Tensor | None, y: Tensor) -> Psi:
        """The statistics of latent points, known or N(x, diag variance), and outputs y (N, R)."""


class InducingInputs(NamedTuple):
    """Function values at points z (..., M, Q), with a jitter as in :class:`~pyro_vgpds.SparseGP`."""

    kernel: MappingValue
    z: Tensor
    jitter: float | None = None

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def size(self) -> int:
        return self.z.shape[-2]

    @property
    def pair_work(self) -> int:
        return self.z.shape[-1]

    @property
    def has_loops(self) -> bool:
        return self.kernel.has_loops(self.z)

    def factor(self) -> Tensor:
        return cholesky(self.kernel.inducing_cov(self.z), "the inducing covariance K_MM", self.jitter)

    def root(self, factor: Tensor) -> Tensor:
        return factor

    def cov(self, x: Tensor) -> Tensor:
        return self.kernel.cov(x, self.z)

    def psi1(self, mean: Tensor, variance: Tensor) -> Tensor:
        return self.kernel.psi1(mean, variance, self.z)

    def psi2(self, mean: Tensor, variance: Tensor, mask: Tensor | None) -> Tensor:
        return self.kernel.psi2(mean, variance, self.z, mask)

    def expect(self, x: Tensor, variance: Tensor | None, mask: Tensor | None, y: Tensor) -> Psi:
        if variance is None:
            return observe(self.kernel, x, self.z, mask, y)
        return expect(self.kernel, x, variance, self.z, mask, y)


class LinearWeights(NamedTuple):
    """The weights of the features of a kernel that is a :class:`LinearForm`; see :mod:`pyro_vgpds.mapping.basis`."""

    kernel: MappingValue
    scale: Tensor  #: the square roots of the kernel's weights and of its constant, (..., M)
    inducing: Tensor  #: the inducing inputs (..., Z, Q), of which only :meth:`root` knows

    @property
    def is_exact(self) -> bool:
        return True

    @property
    def size(self) -> int:
        return self.scale.shape[-1]

    @property
    def pair_work(self) -> int:
        return 1

    @property
    def has_loops(self) -> bool:
        return False

    def factor(self) -> Tensor:
        return torch.eye(self.size, dtype=self.scale.dtype, device=self.scale.device)

    def root(self, factor: Tensor) -> Tensor:
        return self.cov(self.inducing)

    def cov(self, x: Tensor) -> Tensor:
        return self._extended(x, 1.0) * self.scale.unsqueeze(-2)

    def psi1(self, mean: Tensor, variance: Tensor) -> Tensor:
        return self.cov(mean)

    def psi2(self, mean: Tensor, variance: Tensor | None, mask: Tensor | None) -> Tensor:
        moments = _second_moments(self._extended(mean, 1.0), mask)
        if variance is not None:
            moments = moments + torch.diag_embed(masked_sum(self._extended(variance, 0.0), mask))
        scale = self.scale.unsqueeze(-2)  # of all groups
        return scale.unsqueeze(-1) * moments * scale.unsqueeze(-2)

    def expect(self, x: Tensor, variance: Tensor | None, mask: Tensor | None, y: Tensor) -> Psi:
        psi2 = self.psi2(x, variance, mask)
        psi1_y = self.scale.unsqueeze(-1) * (self._extended(x, 1.0).mT @ y)
        return Psi(psi2.diagonal(dim1=-2, dim2=-1).sum(-1), psi1_y, psi2)

    def _extended(self, x: Tensor, last: float) -> Tensor:
        """``x`` (..., n, Q), with one more column if the kernel has a constant."""
        return x if self.size == x.shape[-1] else torch.nn.functional.pad(x, (0, 1), value=last)


def _second_moments(x: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_n mask_cn x_n x_nᵀ, (..., C, Q, Q)."""
    if mask is None:
        return (x.mT @ x).unsqueeze(-3)
    if x.dim() == 2:
        return outer_sums(x.mT, mask)
    return (x.mT.unsqueeze(-3) * mask.unsqueeze(-2)) @ x.unsqueeze(-3)


def basis_of(kernel: MappingValue, inducing: Tensor, jitter: float | None) -> Basis:
    """The inducing variables with which the bound is computed: the weights of a linear kernel, which are exact, or the
    function at the inducing inputs (..., M, Q).

    :param jitter: added to the diagonal of K_MM; ``None`` follows :func:`~pyro_vgpds.linalg.default_jitter`.
    """
    form = linear_form(kernel)
    if form is None or form.weight is None:
        return InducingInputs(kernel, inducing, jitter)
    parts = [form.weight.expand(*form.weight.shape[:-1], inducing.shape[-1])]
    if form.constant is not None:
        batch = broadcast_shapes(form.weight.shape[:-1], form.constant.shape[:-1])
        parts = [part.expand(*batch, part.shape[-1]) for part in (*parts, form.constant)]
    scale = torch.cat(parts, -1).clamp_min(torch.finfo(inducing.dtype).tiny).sqrt()  # weights may underflow
    return LinearWeights(kernel, scale, inducing)
