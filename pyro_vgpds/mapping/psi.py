# SPDX-License-Identifier: Apache-2.0
r"""The expectations of the mapping kernel under a Gaussian q(X), which are all that the bound needs of the kernel:

.. math:: \Psi_0 = \sum_n E[k(x_n, x_n)], \quad \Psi_1 = E[K_{NM}], \quad \Psi_2 = E[K_{MN} K_{NM}].

Sums over n run over the rows in which a group of outputs was observed. ``mask`` (C, N) holds a 0/1 row for each of C
groups, and ``None`` stands for one group that has every row. Ψ0 is (..., C), Ψ1 (..., N, M) and Ψ2 (..., C, M, M).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.checks import undefined
from pyro_vgpds.mapping import native_psi2
from pyro_vgpds.mapping.exp_sums import exp_sum
from pyro_vgpds.mapping.forms import rbf_form
from pyro_vgpds.mapping.rbf_weighted import rbf_weighted

__all__ = [
    "MappingValue", "Psi", "cross_psi2", "expect", "masked_sum", "midpoint_sum", "observe", "register_psi2",
]  # fmt: skip


@dataclass(frozen=True)
class Psi:
    """Ψ0 (..., C), Ψ1ᵀY (..., M, R), which is all that the bound needs of Ψ1, and Ψ2 (..., C, M, M)."""

    psi0: Tensor
    psi1_y: Tensor
    psi2: Tensor

    def __add__(self, other: Psi) -> Psi:
        """The statistics of two sets of frames together."""
        return Psi(self.psi0 + other.psi0, self.psi1_y + other.psi1_y, self.psi2 + other.psi2)


class MappingValue:
    """A kernel of latent points with analytic Ψ statistics, for x_n ~ N(mean_n, diag variance_n).

    A new kernel implements all methods that raise ``NotImplementedError``; :func:`masked_sum` does the sums over n.
    To be part of a sum it also needs its cross terms with each other kind in the sum, by :func:`register_psi2`;
    ``Bias`` and ``White`` have theirs with every kind already.

    :param x: points (..., n, Q).
    :param z: points (..., m, Q); the inducing inputs (..., M, Q) in the Ψ statistics.
    :param mean: means (..., N, Q) of the latent points.
    :param variance: their variances (..., N, Q).
    :param mask: (C, N) of 0 and 1, the rows of each group; None for one group that has every row. Outputs that are not
        Gaussian have weights in its place, with respect to which the sums must be differentiable.

    >>> import torch
    >>> from pyro_vgpds.kernels import ARDRBF
    >>> kernel, mean, variance = ARDRBF(1.0, 2.0)(), torch.zeros(4, 2).double(), torch.ones(4, 2).double()
    >>> z = torch.ones(3, 2).double()
    >>> kernel.psi1(mean, variance, z).shape, kernel.psi2(mean, variance, z, None).shape
    (torch.Size([4, 3]), torch.Size([1, 3, 3]))
    """

    def cov(self, x: Tensor, z: Tensor) -> Tensor:
        """The covariance of the points x and z, (..., n, m). Parameters as in :class:`MappingValue`."""
        raise undefined(self, "cov(x, z)")

    def cov_diag(self, x: Tensor) -> Tensor:
        """The diagonal of ``cov(x, x)``, (..., n). Parameters as in :class:`MappingValue`."""
        raise undefined(self, "cov_diag(x)")

    def inducing_cov(self, z: Tensor) -> Tensor:
        """K_MM, (..., M, M): ``cov(z, z)`` unless overridden. Parameters as in :class:`MappingValue`."""
        return self.cov(z, z)

    def psi0(self, mean: Tensor, variance: Tensor, mask: Tensor | None) -> Tensor:
        """Ψ0, (..., C). Parameters as in :class:`MappingValue`."""
        raise undefined(self, "psi0(mean, variance, mask)")

    def psi1(self, mean: Tensor, variance: Tensor, z: Tensor) -> Tensor:
        """Ψ1, (..., N, M). Parameters as in :class:`MappingValue`."""
        raise undefined(self, "psi1(mean, variance, z)")

    def psi1_y(self, mean: Tensor, variance: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """Ψ1ᵀ y, (..., M, R); to be overridden if it can be computed without all of Ψ1.

        :param y: (N, R). Other parameters as in :class:`MappingValue`.
        """
        return self.psi1(mean, variance, z).mT @ y

    def psi2(self, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
        """Ψ2, (..., C, M, M). Parameters as in :class:`MappingValue`."""
        raise undefined(self, "psi2(mean, variance, z, mask)")

    def has_loops(self, z: Tensor) -> bool:
        """Whether Ψ2 is computed by compiled loops, which have their own threads. Parameters as in
        :class:`MappingValue`.
        """
        return False

    def psi1_y_psi2(
        self, mean: Tensor, variance: Tensor, z: Tensor, y: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Both of :meth:`psi1_y` and :meth:`psi2`; to be overridden if they can share work.

        :param y: (N, R). Other parameters as in :class:`MappingValue`.
        """
        return self.psi1_y(mean, variance, z, y), self.psi2(mean, variance, z, mask)


def expect(kernel: MappingValue, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None, y: Tensor) -> Psi:
    """Ψ statistics for independent x_n ~ N(mean_n, diag variance_n); ``mean`` and ``variance`` are (..., N, Q)."""
    if mask is not None and mask.requires_grad and (form := rbf_form(kernel)) is not None:
        constant = torch.zeros_like(form.variance) if form.constant is None else form.constant
        found = rbf_weighted(mean, variance, z, (form.weight, form.variance, constant), mask, y)
        if found is not None:
            return Psi(*found)
    return Psi(kernel.psi0(mean, variance, mask), *kernel.psi1_y_psi2(mean, variance, z, y, mask))


def observe(kernel: MappingValue, x: Tensor, z: Tensor, mask: Tensor | None, y: Tensor) -> Psi:
    """The same for known x (..., N, Q), where Ψ2 is K_MN K_NM."""
    k_mn = (k_nm := kernel.cov(x, z)).mT.unsqueeze(-3)
    psi2 = (k_mn if mask is None else k_mn * mask.unsqueeze(-2)) @ k_nm.unsqueeze(-3)
    return Psi(masked_sum(kernel.cov_diag(x).unsqueeze(-1), mask)[..., 0], k_nm.mT @ y, psi2)


def masked_sum(a: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_n mask_cn a_nj, (..., C, J).

    :param a: (..., N, J).
    :param mask: (C, N) of 0 and 1; None for one group that has every row.

    >>> import torch
    >>> from pyro_vgpds.mapping.psi import masked_sum
    >>> mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    >>> masked_sum(torch.tensor([[1.0], [2.0], [4.0]]), mask).tolist()
    [[5.0], [6.0]]
    """
    return a.sum(-2, keepdim=True) if mask is None else mask @ a


_CROSS: dict[tuple[type, type], Callable[..., Tensor]] = {}


def register_psi2(first: type, second: type) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register ``f(first, second, mean, variance, z, mask)``, the cross term of two kinds of kernel in a sum:
    Σ_n mask_cn E[k_first(z_m, x_n) k_second(x_n, z_m')], (..., C, M, M). The transposed order follows from it.

    :param first: a class derived from :class:`MappingValue`.
    :param second: another, or the same.
    :returns: a decorator.
    :raises TypeError: if one is not, such as the kernel module instead of its value.

    >>> import torch
    >>> from pyro_vgpds.mapping import MappingValue, register_psi2
    >>> class Zero(MappingValue):
    ...     "A kernel that is zero everywhere."
    >>> @register_psi2(Zero, MappingValue)
    ... def _zero(first, second, mean, variance, z, mask):
    ...     return torch.zeros(1 if mask is None else len(mask), len(z), len(z))
    """
    for name, kind in (("first", first), ("second", second)):
        if not (isinstance(kind, type) and issubclass(kind, MappingValue)):
            raise TypeError(f"{name} must be a class derived from MappingValue, but got {kind!r:.80}.")

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        _CROSS[first, second] = function
        return function

    return register


def cross_psi2(first: object, second: object) -> Callable[..., Tensor]:
    """``f(mean, variance, z, mask)`` for the cross term of two kernel values.

    :raises TypeError: if none is registered.
    """
    for a, b, turned in ((first, second, False), (second, first, True)):
        for kind_a in type(a).__mro__:
            for kind_b in type(b).__mro__:
                if (found := _CROSS.get((kind_a, kind_b))) is not None:
                    if turned:
                        return lambda *args, f=found, a=a, b=b: f(a, b, *args).mT
                    return lambda *args, f=found, a=a, b=b: f(a, b, *args)
    names = " and ".join(type(value).__name__ for value in (first, second))
    raise TypeError(
        f"the cross term of {names} in a sum is not registered. See pyro_vgpds.mapping.register_psi2 (docs: 'A mapping "
        "kernel')."
    )


def midpoint_sum(log_scale: Tensor, rate: Tensor, mean: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_n mask_cn exp(log_scale_n − Σ_q rate_nq (mean_nq − z̄_q)²) for each midpoint z̄ = (z_m + z_m')/2, (..., C, M, M).

    This takes most of the time, so it has a compiled version for float64 on a CPU
    (:mod:`pyro_vgpds.mapping.native_psi2`), which has no gradient in the mask.

    :param log_scale: (..., N). :param rate: (..., N, Q). :param mean: (..., N, Q). :param z: (..., M, Q).
    """
    plain = max(log_scale.dim() - 1, rate.dim() - 2, mean.dim() - 2, z.dim() - 2) == 0
    if plain and _is_native(mean) and (mask is None or (len(mask) > 0 and not mask.requires_grad)):
        return _MidpointSum.apply(log_scale, rate, mean, z, mask)
    m = z.shape[-2]
    rows, columns = torch.triu_indices(m, m, device=z.device)  # symmetric, so only the pairs m <= m'
    place = torch.zeros(m, m, dtype=torch.long, device=z.device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=z.device)
    middle = 0.5 * (z.index_select(-2, rows) + z.index_select(-2, columns))
    constant = log_scale.unsqueeze(-1) - (rate * mean.square()).sum(-1, keepdim=True)
    left = torch.cat([constant, 2.0 * rate * mean, -rate, torch.ones_like(constant)], -1)
    ones = torch.ones_like(middle[..., :1])
    right = torch.cat([ones, middle, middle.square(), torch.zeros_like(ones)], -1)
    return exp_sum(left, right, mask).index_select(-1, place.flatten()).unflatten(-1, (m, m))


def _is_native(x: Tensor) -> bool:
    return x.dtype == torch.float64 and x.device.type == "cpu" and native_psi2.available()


class _MidpointSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: native_psi2.SumContext, *inputs: Tensor | None) -> Tensor:
        ctx.save_for_backward(*(given := [None if x is None else x.contiguous() for x in inputs]))
        ctx.single = native_psi2.is_single()
        return native_psi2.forward(*given)  # type: ignore[arg-type]

    @staticmethod
    @once_differentiable
    def backward(ctx: native_psi2.SumContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        with native_psi2.single_sums(ctx.single):
            return (*native_psi2.backward(grad, *ctx.saved_tensors), None)
