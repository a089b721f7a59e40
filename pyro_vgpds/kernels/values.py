# SPDX-License-Identifier: Apache-2.0
"""Kernel values: a few tensors and the algebra on them. Values add and multiply, as kernels do."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from functools import reduce

from torch import Tensor

from pyro_vgpds.checks import check_tensor, undefined
from pyro_vgpds.kernels.state_space import StateSpace, StateSpaceProduct, StateSpaceSum
from pyro_vgpds.mapping.forms import LinearForm, RBFForm, linear_form, rbf_form, register_linear, register_rbf
from pyro_vgpds.mapping.psi import MappingValue, cross_psi2

__all__ = ["KernelValue", "ProductValue", "SumValue", "lift"]


class KernelValue(StateSpace):
    r"""A covariance function of time at given parameters: a few tensors and the algebra on them.

    Parameters are (..., K): the last axis runs over the latent dimensions. K is 1 if all share the parameter and Q if
    each has its own. Times ``t`` are (\*b, n) and ``gram(t)`` is (..., K, \*b, n, n), so that sequences can be
    batched. Kernels of latent points are :class:`~pyro_vgpds.mapping.MappingValue`. A Markov kernel also has a
    state-space form (:class:`~pyro_vgpds.kernels.StateSpace`), with which everything costs O(N).

    >>> import torch
    >>> from pyro_vgpds.kernels import Matern32
    >>> value = Matern32(variance=[1.0, 2.0, 3.0])()
    >>> t = torch.zeros(5, 7)  # five sequences of seven frames
    >>> value.gram(t).shape, value.diag(t).shape
    (torch.Size([3, 5, 7, 7]), torch.Size([3, 5, 7]))
    """

    #: True if k(t, t') is zero for t != t'
    is_diagonal: bool = False

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        r"""Covariance matrix of points with themselves or with others, (..., K, \*b, n, m).

        :param a: times (\*b, n).
        :param b: other times (\*b, m). Default: ``a`` itself, with its white noise.
        """
        raise undefined(self, "gram(a, b=None)")

    def diag(self, a: Tensor) -> Tensor:
        r"""The diagonal of ``gram(a)``, (..., K, \*b, n), without computing the matrix.

        :param a: times (\*b, n).
        """
        raise undefined(self, "diag(a)")


def lift(parameter: Tensor, like: Tensor) -> Tensor:
    """A parameter (..., K) with an axis of size 1 for each axis of ``like``, so that the two broadcast.

    :param parameter: (..., K).
    :param like: times, or distances between them.

    >>> import torch
    >>> from pyro_vgpds.kernels import lift
    >>> lift(torch.ones(3), torch.zeros(5, 7)).shape
    torch.Size([3, 1, 1])
    """
    check_tensor("parameter", parameter)
    check_tensor("like", like)
    return parameter.reshape(parameter.shape + (1,) * like.dim())


class SumValue(StateSpaceSum, KernelValue, MappingValue):
    def __init__(self, parts: Sequence[KernelValue | MappingValue]) -> None:
        self.parts = parts
        self.is_diagonal = all(getattr(part, "is_diagonal", False) for part in parts)

    def _total(self, method: str, *args: Tensor | None) -> Tensor:
        return reduce(operator.add, [getattr(part, method)(*args) for part in self.parts])

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return self._total("gram", a, b)

    def diag(self, a: Tensor) -> Tensor:
        return self._total("diag", a)

    def cov(self, x: Tensor, z: Tensor) -> Tensor:
        return self._total("cov", x, z)

    def cov_diag(self, x: Tensor) -> Tensor:
        return self._total("cov_diag", x)

    def inducing_cov(self, z: Tensor) -> Tensor:
        return self._total("inducing_cov", z)

    def psi0(self, mean: Tensor, variance: Tensor, mask: Tensor | None) -> Tensor:
        return self._total("psi0", mean, variance, mask)

    def psi1(self, mean: Tensor, variance: Tensor, z: Tensor) -> Tensor:
        return self._total("psi1", mean, variance, z)

    def psi1_y(self, mean: Tensor, variance: Tensor, z: Tensor, y: Tensor) -> Tensor:
        return self._total("psi1_y", mean, variance, z, y)

    def psi2(self, mean: Tensor, variance: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
        total = self._total("psi2", mean, variance, z, mask)
        for first, second in itertools.combinations(self.parts, 2):
            term = cross_psi2(first, second)(mean, variance, z, mask)
            total = total + term + term.mT
        return total


def _without_constants(
    parts: Sequence[KernelValue | MappingValue],
) -> tuple[list[Tensor], list[KernelValue | MappingValue]]:
    """The constants among kernels, and the other kernels."""
    constants, others = [], []
    for part in parts:
        form = linear_form(part)
        if form is not None and form.weight is None and form.constant is not None:
            constants.append(form.constant)
        else:
            others.append(part)
    return constants, others


def _sum_of(terms: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of the tensors among the terms; None if all terms are None."""
    given = [term for term in terms if term is not None]
    return reduce(operator.add, given) if given else None


@register_linear(SumValue)
def _linear_sum(value: SumValue) -> LinearForm | None:
    """The sum of the forms, if every part has one."""
    forms = [form for part in value.parts if (form := linear_form(part)) is not None]
    if len(forms) < len(value.parts):
        return None
    return LinearForm(*map(_sum_of, zip(*forms, strict=True)))


@register_rbf(SumValue)
def _rbf_sum(value: SumValue) -> RBFForm | None:
    """One squared exponential kernel and constants."""
    constants, others = _without_constants(value.parts)
    form = rbf_form(others[0]) if len(others) == 1 else None
    return None if form is None else form._replace(constant=_sum_of([*constants, form.constant]))


class ProductValue(StateSpaceProduct, KernelValue):
    def __init__(self, parts: Sequence[KernelValue]) -> None:
        self.parts = parts
        self.is_diagonal = any(part.is_diagonal for part in parts)

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return reduce(operator.mul, [part.gram(a, b) for part in self.parts])

    def diag(self, a: Tensor) -> Tensor:
        return reduce(operator.mul, [part.diag(a) for part in self.parts])
