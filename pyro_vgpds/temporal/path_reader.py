# SPDX-License-Identifier: Apache-2.0
"""q(X) at other values of a kernel's parameters, without reading the kernel again.

To read a kernel, a tree of modules with a parameter or two each, takes longer than a pass over a hundred frames.
Between steps of training only the values of its parameters change.
"""

from __future__ import annotations

from operator import is_
from typing import Protocol

import torch
from torch import Tensor, nn

from pyro_vgpds.parameters import modules_of
from pyro_vgpds.parameters.gradients import log_parameter_of
from pyro_vgpds.temporal.markov_autograd import Frames
from pyro_vgpds.temporal.path_gradients import DiagonalPath, MarkovPath, PathSource, diagonal_path, markov_path

__all__ = ["DiagonalReader", "KernelReader", "PathReader", "diagonal_reader", "path_reader"]


class KernelReader(PathSource, Protocol):
    """A kernel of time as it was read."""

    def is_current(self, kernel: nn.Module) -> bool:
        """Whether a kernel is the one that was read, except for values that are read again."""
        ...


class PathReader:
    """A kernel of time as it was read. :func:`path_reader` makes it.

    :param parts: the modules of the kernel, and their tensors.
    :param frames: of its program.
    :param sources: for each value the tensor that it is the exponential of, or the value itself.
    :param is_log: for each of them whether it is the log of the value.
    """

    def __init__(self, parts: list[object], frames: Frames, sources: list[Tensor], is_log: list[bool]) -> None:
        self._parts, self._frames, self._sources = parts, frames, sources
        self._addresses = [x.data_ptr() for x in sources]
        count = max(x.numel() for x in sources)
        self._rows = [x.detach().reshape(-1).expand(count) for x in sources]  # which share the memory of the sources
        self._is_log = torch.tensor(is_log).unsqueeze(-1)
        self._log_parameters = [x if own else None for x, own in zip(sources, is_log, strict=True)]

    def is_current(self, kernel: nn.Module) -> bool:
        """Whether a kernel consists of the modules and tensors that were read."""
        return _are_same(_parts(kernel), self._parts) and [x.data_ptr() for x in self._sources] == self._addresses

    def markov_path(self, eta: Tensor, lam: Tensor) -> MarkovPath | None:
        """q(X) with sites η and λ (N, Q) at the current values; None if its gradients need autograd."""
        given = torch.stack(self._rows)
        return markov_path(self._frames, eta, lam, torch.where(self._is_log, given.exp(), given), self._log_parameters)

    def diagonal_path(self, mean_bar: Tensor, log_lam: Tensor) -> None:
        """None: K_t is not diagonal."""


def path_reader(kernel: nn.Module, frames: Frames, tensors: list[Tensor]) -> PathReader | None:
    """A reader; None if the values that were read, each (1,) or (K,), are not the buffers and exponentials of the
    parameters of the library's own kernels.
    """
    parts = _parts(kernel)
    if not _are_own(parts):
        return None
    addresses = {part.data_ptr() for part in parts if isinstance(part, Tensor)}
    log_parameters = [log_parameter_of(x) for x in tensors]
    sources = [x if log is None else log for x, log in zip(tensors, log_parameters, strict=True)]
    if any(x.data_ptr() not in addresses for x in sources):
        return None
    return PathReader(parts, frames, sources, [log is not None for log in log_parameters])


class DiagonalReader:
    """A fixed kernel of white noise as it was read. :func:`diagonal_reader` makes it.

    :param parts: the modules of the kernel, and their tensors.
    :param k: the diagonal of K_t.
    """

    def __init__(self, parts: list[object], k: Tensor) -> None:
        self._parts, self._k = parts, k
        self._tensors = [part for part in parts if isinstance(part, Tensor)]
        self._values = [x.detach().clone() for x in self._tensors]

    def is_current(self, kernel: nn.Module) -> bool:
        """Whether a kernel consists of the modules and tensors that were read, with the same values."""
        return _are_same(_parts(kernel), self._parts) and all(
            x.dtype is old.dtype and x.device == old.device and not x.requires_grad and torch.equal(x, old)
            for x, old in zip(self._tensors, self._values, strict=True)
        )

    def markov_path(self, eta: Tensor, lam: Tensor) -> None:
        """None: K_t has no states."""

    def diagonal_path(self, mean_bar: Tensor, log_lam: Tensor) -> DiagonalPath | None:
        """q(X); None if its gradients need autograd."""
        return diagonal_path(self._k, mean_bar, log_lam)


def diagonal_reader(kernel: nn.Module, k: Tensor) -> DiagonalReader | None:
    """A reader; None if the kernel is trained, or is not made of the library's own kernels."""
    parts = _parts(kernel)
    trained = k.requires_grad or any(isinstance(part, Tensor) and part.requires_grad for part in parts)
    return None if trained or not _are_own(parts) else DiagonalReader(parts, k)


def _are_same(parts: list[object], others: list[object]) -> bool:
    return len(parts) == len(others) and all(map(is_, parts, others))


def _are_own(parts: list[object]) -> bool:
    """Whether all modules are of classes whose values depend on their tensors only."""
    own = [type(part).__module__ for part in parts if isinstance(part, nn.Module)]
    return all(name.startswith(("pyro_vgpds.kernels.", "pyro.nn.", "torch.nn.")) for name in own)


def _parts(kernel: nn.Module) -> list[object]:
    """The modules of a kernel, and their tensors."""
    modules = modules_of(kernel)
    found: list[object] = list(modules)
    for module in modules:
        own = vars(module)
        found += own["_parameters"].values()
        found += own["_buffers"].values()
    return found
