# SPDX-License-Identifier: Apache-2.0
"""Gradients of learned parameters, many of them logarithms of values, from those of the values, without autograd."""

from __future__ import annotations

from torch import Tensor

__all__ = ["add_to_parameter", "has_hooks", "log_parameter_of", "view_of"]


def view_of(view: Tensor, value: Tensor) -> Tensor:
    """A view of the whole value of a parameter, which remembers the parameter as the value does.

    :param view: of any shape.
    :param value: the value.

    >>> from pyro_vgpds.kernels import RBF
    >>> from pyro_vgpds.parameters.gradients import view_of
    >>> kernel = RBF()
    >>> value = kernel.variance
    >>> view_of(value.unsqueeze(-1), value).log_parameter() is kernel.variance_unconstrained
    True
    """
    if hasattr(value, "log_parameter"):
        view.log_parameter = value.log_parameter  # type: ignore[attr-defined]
    return view


def log_parameter_of(value: Tensor) -> Tensor | None:
    """The learned parameter of which a value is the exponential."""
    reference = getattr(value, "log_parameter", None)
    return None if reference is None else reference()


def add_to_parameter(value: Tensor, gradient: Tensor) -> bool:
    """Add the gradient in a value to that of the learned parameter which it is, or of which it is the exponential, or
    that plus a constant. False if only autograd can do that.
    """
    own = getattr(value, "above_least", value).detach()
    parameter = log_parameter_of(getattr(value, "above_least", value))
    if parameter is None and value.is_leaf:
        parameter, change = value, gradient
    elif parameter is not None:
        change = gradient * own.view(gradient.shape)
    else:
        return False
    if has_hooks(parameter):
        return False
    change = change.view(parameter.shape)
    parameter.grad = change if parameter.grad is None else parameter.grad + change
    return True


def has_hooks(parameter: Tensor) -> bool:
    """Whether a hook watches the gradient of a parameter, a leaf of autograd."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
