# SPDX-License-Identifier: Apache-2.0
"""Names of kernels in files. A name that is read from a file is looked up here, and never imported or run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from pyro_vgpds.kernels.base import Kernel, Product, Sum
from pyro_vgpds.registry import Registry, check_arguments

__all__ = ["check_storable", "kernel_name", "register_kernel", "registered_kernel", "registered_names"]

K = TypeVar("K", bound=Kernel)

_REGISTRY = Registry(Kernel, "register_kernel", {"Sum": Sum, "Product": Product})


@overload
def register_kernel(kernel: type[K]) -> type[K]: ...


@overload
def register_kernel(kernel: None = None, *, name: str) -> Callable[[type[K]], type[K]]: ...


def register_kernel(
    kernel: type[K] | None = None, *, name: str | None = None
) -> type[K] | Callable[[type[K]], type[K]]:
    """Give a kernel class the name under which files keep it, so that models with it can be saved and loaded.

    A file holds this name, the parameters and the options (``option_names``) of the kernel. To load it, import the
    module that registers the kernel first: files never name modules and nothing in them is run. The constructor must
    take each parameter and option by its name. Use it as a decorator, with or without a name.

    :param kernel: a class that derives from :class:`Kernel`.
    :param name: the name in files. Default: that of the class. Choose one that other people's kernels do not have,
        and keep it when you rename the class.
    :returns: the class.
    :raises TypeError: if ``kernel`` is not such a class, or ``name`` is not a string.
    :raises ValueError: if another class has the name already.

    >>> from pyro_vgpds.kernels import Kernel, KernelValue, register_kernel
    >>> @register_kernel(name="mylab.Brownian")
    ... class Brownian(Kernel):
    ...     def __init__(self, variance=1.0):
    ...         super().__init__()
    ...         self.add_parameter("variance", variance)
    >>> Brownian(2.0)
    Brownian(variance=2)
    """
    return _REGISTRY.decorate(kernel, name)


def kernel_name(kernel: type[Kernel]) -> str | None:
    """The name of a class in files; None if it is not registered."""
    return _REGISTRY.name_of(kernel)


def registered_kernel(name: str) -> type[Kernel] | None:
    """The class of a name, or None."""
    return _REGISTRY.find(name)


def registered_names() -> list[str]:
    """All names."""
    return _REGISTRY.names()


def check_storable(kernel: Kernel) -> None:
    """Raise a TypeError if the kernel could not be made again from its parameters and options."""
    check_arguments(type(kernel), (*kernel.parameter_names, *kernel.option_names))
    for name in kernel.option_names:
        value = getattr(kernel, name)
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise TypeError(
                f"{type(kernel).__name__} cannot be saved: its option {name} must be a number, a string or None, but "
                f"it is {value!r:.80}."
            )
