# SPDX-License-Identifier: Apache-2.0
"""Kernels of ``pyro.contrib.gp`` as temporal kernels."""

from __future__ import annotations

import torch
from pyro.contrib.gp.kernels import Kernel as PyroGPKernel
from torch import Tensor

from pyro_vgpds.kernels.base import Kernel
from pyro_vgpds.kernels.values import KernelValue

__all__ = ["from_pyro"]


class _PyroGPValue(KernelValue):
    """It reads the kernel's parameters at each call: use it only within the run of the model that made it."""

    def __init__(self, kernel: PyroGPKernel) -> None:
        self.kernel = kernel

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        # pyro.contrib.gp rejects batched inputs, and adds white noise if Z is None
        if a.dim() == 1:
            return self.kernel(a.unsqueeze(-1), None if b is None else b.unsqueeze(-1)).unsqueeze(0)
        rows = [self.gram(a[i], None if b is None else b[i]) for i in range(len(a))]
        return torch.stack(rows, dim=1)

    def diag(self, a: Tensor) -> Tensor:
        if a.dim() == 1:
            return self.kernel(a.unsqueeze(-1), diag=True).unsqueeze(0)
        return torch.stack([self.diag(row) for row in a], dim=1)


class _PyroGP(Kernel):
    def __init__(self, kernel: PyroGPKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self) -> _PyroGPValue:
        return _PyroGPValue(self.kernel)

    def __repr__(self) -> str:
        return f"from_pyro({type(self.kernel).__name__})"


def from_pyro(kernel: PyroGPKernel) -> Kernel:
    """A ``pyro.contrib.gp`` kernel of one input as a temporal kernel, shared by all latent dimensions.

    It keeps its parameters, priors and constraints.

    :param kernel: the kernel.
    :raises TypeError: if ``kernel`` is not a ``pyro.contrib.gp`` kernel.
    :raises ValueError: if it takes more than one input.

    >>> import pyro.contrib.gp.kernels as gp
    >>> from pyro_vgpds.kernels import White, from_pyro
    >>> from_pyro(gp.RationalQuadratic(input_dim=1)) + White(1e-2)
    from_pyro(RationalQuadratic) + White(variance=0.01)
    """
    if not isinstance(kernel, PyroGPKernel):
        raise TypeError(f"kernel must be a pyro.contrib.gp kernel, but got {type(kernel).__name__}.")
    if kernel.input_dim != 1:
        raise ValueError(f"kernel must take one input, time, but its input_dim is {kernel.input_dim}.")
    return _PyroGP(kernel)
