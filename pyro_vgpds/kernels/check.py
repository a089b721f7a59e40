# SPDX-License-Identifier: Apache-2.0
"""Checks that a kernel can do what its place in the model asks of it."""

from __future__ import annotations

import itertools
from typing import Any

from pyro_vgpds.kernels.base import Kernel, KernelValue, Product, SumValue
from pyro_vgpds.mapping.psi import MappingValue, cross_psi2

__all__ = ["check_mapping", "check_temporal"]

_HOW = (
    "ARDRBF, ARDLinear, Bias, White and their sums have analytic Psi statistics. To add another, see "
    "pyro_vgpds.mapping.MappingValue and register_psi2 (docs: 'A mapping kernel of your own')."
)


def check_temporal(kernel: Any) -> None:
    """Raise a TypeError unless ``kernel`` can be the kernel of time."""
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"temporal must be a kernel of pyro_vgpds.kernels, but got {type(kernel).__name__}. "
            "A pyro.contrib.gp kernel goes in as from_pyro(kernel)."
        )
    for leaf in kernel.leaves():
        if not isinstance(leaf(), KernelValue):
            raise TypeError(f"temporal holds {type(leaf).__name__}, which is a kernel of latent points, not of time.")


def check_mapping(kernel: Any) -> None:
    """Raise a TypeError unless ``kernel`` has the Ψ statistics that the mapping needs, cross terms included."""
    if not isinstance(kernel, Kernel):
        raise TypeError(f"mapping must be a kernel of pyro_vgpds.kernels, but got {type(kernel).__name__}. {_HOW}")
    if isinstance(kernel, Product):
        raise TypeError(f"mapping is a product of kernels ({kernel}), which has no analytic Psi statistics. {_HOW}")
    value = kernel()
    parts = value.parts if isinstance(value, SumValue) else [value]
    for part, module in zip(parts, kernel if isinstance(value, SumValue) else [kernel], strict=True):
        if not isinstance(part, MappingValue):
            raise TypeError(f"mapping kernel {type(module).__name__} has no analytic Psi statistics. {_HOW}")
    for first, second in itertools.combinations(parts, 2):
        if cross_psi2(first, second) is None:
            names = " and ".join(type(part).__name__ for part in (first, second))
            raise TypeError(f"the cross term of {names} in the mapping's sum is not registered. {_HOW}")
