# SPDX-License-Identifier: Apache-2.0
"""From values of parameters, most of which are exponentials, to the learned parameters: gradients without autograd."""

from __future__ import annotations

from torch import Tensor

__all__ = ["add_to_parameter", "exponent_of", "is_watched", "viewed"]


def viewed(view: Tensor, value: Tensor) -> Tensor:
    """A view of the whole value of a parameter, which remembers the parameter as the value does.

    :param view: of any shape.
    :param value: the value.

    >>> from pyro_vgpds.kernels import RBF
    >>> from pyro_vgpds.exponents import viewed
    >>> kernel = RBF()
    >>> value = kernel.variance
    >>> viewed(value.unsqueeze(-1), value).exponent() is kernel.variance_unconstrained
    True
    """
    if hasattr(value, "exponent"):
        view.exponent = value.exponent  # type: ignore[attr-defined]
    return view


def exponent_of(value: Tensor) -> Tensor | None:
    """The learned parameter of which a value is the exponential."""
    reference = getattr(value, "exponent", None)
    return None if reference is None else reference()


def add_to_parameter(value: Tensor, gradient: Tensor) -> bool:
    """Add the gradient in a value to that of the learned parameter which it is, or of which it is the exponential, or
    that plus a constant. False if only autograd can do that.
    """
    own = getattr(value, "above_least", value).detach()
    parameter = exponent_of(getattr(value, "above_least", value))
    if parameter is None and value.is_leaf:
        parameter, change = value, gradient
    elif parameter is not None:
        change = gradient * own.view(gradient.shape)
    else:
        return False
    if is_watched(parameter):
        return False
    change = change.view(parameter.shape)
    parameter.grad = change if parameter.grad is None else parameter.grad + change
    return True


def is_watched(parameter: Tensor) -> bool:
    """Whether a hook watches the gradient of a parameter, a leaf of autograd."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
