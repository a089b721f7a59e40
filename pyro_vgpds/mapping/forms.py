# SPDX-License-Identifier: Apache-2.0
"""Kernels of latent points with a form for which the statistics and the bound are computed in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import Tensor

__all__ = ["LinearForm", "RBFForm", "linear_form", "rbf_form", "register_linear", "register_rbf"]

F = TypeVar("F", bound=Callable[..., object])


class LinearForm(NamedTuple):
    """A kernel Σ_q w_q x_q x'_q + b."""

    weight: Tensor | None  #: w, (..., Q) or (..., 1); None for 0
    constant: Tensor | None  #: b, (..., 1); None for 0


class RBFForm(NamedTuple):
    """A kernel σ² exp(−½ Σ_q w_q (x_q − x'_q)²) + b."""

    weight: Tensor  #: w, (..., Q) or (..., 1)
    variance: Tensor  #: σ², (...)
    constant: Tensor | None  #: b, (..., 1); None for 0


#: the functions that find a form, by classes of kernel values
_LINEAR: dict[type, Callable[..., LinearForm | None]] = {}
_RBF: dict[type, Callable[..., RBFForm | None]] = {}


def register_linear(kind: type) -> Callable[[Callable[..., LinearForm | None]], Callable[..., LinearForm | None]]:
    """Register ``f(value)``, which returns the :class:`LinearForm` of kernel values of exactly this class, or None.

    :param kind: a class derived from :class:`~pyro_vgpds.mapping.MappingValue`; classes derived from it do not count,
        because they may be other functions.
    :returns: a decorator.
    """
    return _registered(_LINEAR, kind)


def register_rbf(kind: type) -> Callable[[Callable[..., RBFForm | None]], Callable[..., RBFForm | None]]:
    """The same for ``f(value)`` that returns an :class:`RBFForm`."""
    return _registered(_RBF, kind)


def _registered(forms: dict[type, F], kind: type) -> Callable[[F], F]:
    def register(function: F) -> F:
        forms[kind] = function
        return function

    return register


def linear_form(kernel: object) -> LinearForm | None:
    """The weights and the constant of a kernel value that is linear; None if it is not.

    :param kernel: a kernel value.

    >>> from pyro_vgpds.kernels import ARDLinear, ARDRBF, Bias
    >>> from pyro_vgpds.mapping.forms import linear_form
    >>> form = linear_form((ARDLinear([1.0, 2.0]) + Bias(0.5))())
    >>> form.weight.tolist(), form.constant.item()
    ([1.0, 2.0], 0.5)
    >>> linear_form((ARDLinear([1.0, 2.0]) + ARDRBF())()) is None
    True
    """
    find = _LINEAR.get(type(kernel))
    return None if find is None else find(kernel)


def rbf_form(kernel: object) -> RBFForm | None:
    """The parameters of a squared exponential kernel value, with or without a constant; None if it is another one.

    >>> from pyro_vgpds.kernels import ARDRBF, Bias
    >>> from pyro_vgpds.mapping.forms import rbf_form
    >>> rbf_form((ARDRBF(2.0, [1.0]) + Bias(0.5))()).constant.item()
    0.5
    """
    find = _RBF.get(type(kernel))
    return None if find is None else find(kernel)
