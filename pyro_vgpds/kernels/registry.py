# SPDX-License-Identifier: Apache-2.0
"""Names of kernels in files. A name that is read from a file is looked up here, and never imported or run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from pyro_vgpds.kernels.base import Kernel, Product, Sum
from pyro_vgpds.registry import Registry

__all__ = ["KERNELS", "register_kernel"]

K = TypeVar("K", bound=Kernel)

#: all that files can hold, besides sums and products
KERNELS = Registry(Kernel, "register_kernel", {"Sum": Sum, "Product": Product})


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
    return KERNELS.decorate(kernel, name)
