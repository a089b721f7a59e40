# SPDX-License-Identifier: Apache-2.0
"""Checks that a kernel can be the temporal or the mapping kernel of a model."""

from __future__ import annotations

import itertools

from pyro_vgpds.kernels.ard import ARDRBF
from pyro_vgpds.kernels.base import Kernel, Product
from pyro_vgpds.kernels.constant import Bias, White
from pyro_vgpds.kernels.values import KernelValue, SumValue
from pyro_vgpds.mapping.psi import MappingValue, cross_psi2

__all__ = ["check_mapping", "check_pair", "check_temporal"]

_HOW = (
    "ARDRBF, ARDLinear, Bias, White and their sums have analytic Psi statistics. To add another, see "
    "pyro_vgpds.mapping.MappingValue and register_psi2 (docs: 'A mapping kernel')."
)


def check_temporal(kernel: object) -> None:
    """Raise a TypeError unless ``kernel`` can be the kernel of time."""
    if not isinstance(kernel, Kernel):
        how = (
            "Read text with pyro_vgpds.kernels.parse_kernel(text)."
            if isinstance(kernel, str)
            else "Convert a pyro.contrib.gp kernel with from_pyro(kernel)."
        )
        raise TypeError(f"temporal must be a kernel of pyro_vgpds.kernels, but got {type(kernel).__name__}. {how}")
    for leaf in kernel.leaves():
        if not isinstance(leaf(), KernelValue):
            raise TypeError(f"temporal contains {type(leaf).__name__}, a kernel of latent points, not of time.")


def check_mapping(kernel: object) -> None:
    """Raise a TypeError unless ``kernel`` has the Ψ statistics that the mapping needs, including cross terms."""
    if not isinstance(kernel, Kernel):
        how = "Read text with pyro_vgpds.kernels.parse_mapping(text)." if isinstance(kernel, str) else _HOW
        raise TypeError(f"mapping must be a kernel of pyro_vgpds.kernels, but got {type(kernel).__name__}. {how}")
    if isinstance(kernel, Product):
        raise TypeError(f"mapping is a product of kernels ({kernel}), which has no analytic Psi statistics. {_HOW}")
    for leaf in kernel.leaves():
        if isinstance(leaf, (ARDRBF, Bias, White)) and leaf.event_dim("variance"):
            raise ValueError(f"in the mapping a variance must be one number, but got {leaf}.")
    value = kernel()
    parts = value.parts if isinstance(value, SumValue) else [value]
    for part, module in zip(parts, kernel if isinstance(value, SumValue) else [kernel], strict=True):
        if not isinstance(part, MappingValue):
            raise TypeError(f"mapping kernel {type(module).__name__} has no analytic Psi statistics. {_HOW}")
    for first, second in itertools.combinations(parts, 2):
        cross_psi2(first, second)  # raises an error if it is not registered


def check_pair(temporal: Kernel, mapping: Kernel, latent_dim: int) -> None:
    """Raise a ValueError if two kernels share a part, or the mapping's weights do not fit ``latent_dim``."""
    mine = {id(leaf) for leaf in temporal.leaves()}
    for leaf in mapping.leaves():
        if id(leaf) in mine:
            raise ValueError(f"temporal and mapping are or contain the same kernel object, {leaf}; make two kernels.")
    for leaf in mapping.leaves():
        known = "weight" in leaf.parameter_names and leaf.prior("weight") is None
        if known and leaf.weight.numel() not in (1, latent_dim):
            raise ValueError(
                f"the mapping's weight must be one number or {latent_dim}, one for each latent dimension, "
                f"but it has {leaf.weight.numel()}."
            )
