# SPDX-License-Identifier: Apache-2.0
"""What every kernel is made of: a module that owns parameters, and the value that a call of it returns."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from functools import reduce
from typing import Any, ClassVar, TypeVar

import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor

from pyro_vgpds.checks import positive
from pyro_vgpds.formatting import describe_prior, numbers
from pyro_vgpds.kernels.statespace import StateSpace, StateSpaceProduct, StateSpaceSum
from pyro_vgpds.mapping.psi import MappingValue, cross_psi2

__all__ = ["Kernel", "KernelValue", "Product", "ProductValue", "Sum", "SumValue"]

K = TypeVar("K", bound="Kernel")


class KernelValue(StateSpace):
    r"""A covariance function of time at given parameters: a few tensors and the algebra on them.

    Parameters are (..., K): the last axis runs over the latent dimensions, and K is 1 where all share them and Q
    where each has its own. Times ``t`` are (\*b, n) and ``gram(t)`` is (..., K, \*b, n, n), so that sequences go in
    batches. Kernels of latent points are :class:`~pyro_vgpds.mapping.MappingValue`. A Markov kernel has a state-space
    form too (:class:`~pyro_vgpds.kernels.statespace.StateSpace`), by which everything costs O(N).

    >>> import torch
    >>> from pyro_vgpds.kernels import Matern32
    >>> value = Matern32(variance=[1.0, 2.0, 3.0])()
    >>> t = torch.zeros(5, 7)  # five sequences of seven frames
    >>> value.gram(t).shape, value.diag(t).shape
    (torch.Size([3, 5, 7, 7]), torch.Size([3, 5, 7]))
    """

    #: k(t, t') is zero for t != t'
    is_diagonal: bool = False

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        r"""Covariance of points with themselves or with others, (..., K, \*b, n, m).

        :param a: times (\*b, n).
        :param b: other times (\*b, m); left out, ``a`` itself, and white noise is included.
        """
        raise NotImplementedError

    def diag(self, a: Tensor) -> Tensor:
        r"""The diagonal of ``gram(a)``, (..., K, \*b, n), without making it.

        :param a: times (\*b, n).
        """
        raise NotImplementedError


class Kernel(PyroModule):
    """Base of all kernel modules.

    Each parameter is positive and is given as a number or tensor (learned, as a ``PyroParam``), a distribution or
    ``PyroSample`` (a prior), or is held with :meth:`fix`. Calling the module reads every parameter once and
    returns a :class:`KernelValue`, so one trace sees one value of each. ``+`` and ``*`` combine kernels.

    A kernel of your own: subclass, call ``self._add(name, value)`` for each parameter, and write ``forward``, which
    reads them by ``self._read(name)`` and returns your ``KernelValue``.

    >>> import pyro.distributions as dist
    >>> from pyro_vgpds.kernels import RBF
    >>> kernel = RBF(lengthscale=0.5)
    >>> kernel.fix("variance")
    RBF(variance=1 (fixed), lengthscale=0.5)
    >>> kernel.set("lengthscale", dist.LogNormal(0.0, 1.0))
    RBF(variance=1 (fixed), lengthscale~LogNormal(loc=0, scale=1))
    """

    #: parameters in which the bound has many peaks, such as a period: training moves them slowly
    slow_parameters: ClassVar[frozenset[str]] = frozenset()
    #: names of settings that the constructor takes besides parameters
    _options: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        #: parameters that were not given, which ``VGPDS.from_data`` chooses
        self.unset: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # PyroModule refuses to adopt a child that was called on its own. Reading a kernel alone is harmless, so
        # outside of a model it does not enter the Pyro context.
        if not self._pyro_context.active:
            return self.forward(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _add(self, name: str, value: Any, default: float | None = None) -> None:
        """Register the positive parameter ``name``; ``None`` means ``default``, to be chosen from the data."""
        self._names.append(name)
        if value is None:
            self.unset.add(name)
            value = default
        self.set(name, value)

    def set(self: K, name: str, value: Any) -> K:
        """Give a parameter another value or a prior, and return the kernel.

        :param name: the parameter.
        :param value: a number or tensor (learned), or a distribution or ``PyroSample`` (a prior).
        :raises ValueError: where there is no such parameter, or the value is not positive and finite.
        """
        self._check_names((name,))
        if isinstance(value, PyroSample):
            _clear(self, name)
            setattr(self, name, value)
        elif hasattr(value, "log_prob") or callable(value):
            _clear(self, name)
            setattr(self, name, PyroSample(value))
        else:
            if not isinstance(value, PyroParam):
                value = PyroParam(positive(f"{type(self).__name__}.{name}", value), constraints.positive)
            _clear(self, name)
            setattr(self, name, value)
        return self

    def fix(self: K, *names: str) -> K:
        """Hold parameters at what they are now, and return the kernel.

        :param names: the parameters; where none is named, all.
        :raises ValueError: where there is no such parameter, or it has a prior.
        """
        for name in self._check_names(names):
            if name in self._pyro_samples:
                raise ValueError(f"{type(self).__name__}.{name} has a prior; give it a number with .set() first.")
            value = getattr(self, name).detach().clone()
            _clear(self, name)
            self.register_buffer(name, value)
        return self

    def learn(self: K, *names: str) -> K:
        """Undo :meth:`fix`, and return the kernel.

        :param names: as in :meth:`fix`.
        """
        for name in self._check_names(names):
            if name in self._buffers:
                self.set(name, getattr(self, name))
        return self

    def _check_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in self._names:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(self._names) or 'none'}."
                )
        return names or tuple(self._names)

    def _read(self, name: str) -> Tensor:
        """The parameter with a last axis for the latent dimensions, of size 1 where they share it."""
        value = getattr(self, name)
        return value if event_dim(self, name) else value.unsqueeze(-1)

    def leaves(self) -> Iterator[Kernel]:
        """The kernels that this one is made of, in the order written."""
        yield self

    def __add__(self, other: Kernel) -> Sum:
        return Sum(self, other)

    def __mul__(self, other: Kernel) -> Product:
        return Product(self, other)

    def __repr__(self) -> str:
        def show(name: str) -> str:
            if name in self._pyro_samples:
                return f"{name}~{describe_prior(self._pyro_samples[name])}"
            return f"{name}={numbers(getattr(self, name))}" + (" (fixed)" if name in self._buffers else "")

        options = [f"{name}={getattr(self, name)}" for name in self._options]
        return f"{type(self).__name__}({', '.join([*map(show, self._names), *options])})"


def event_dim(module: PyroModule, name: str) -> int:
    """Dimensions of the parameter ``name`` itself; a random one may have those of plates on its left."""
    if name in module._pyro_samples:
        prior: Any = module._pyro_samples[name]
        prior = prior if hasattr(prior, "sample") else prior(module)
        return 0 if isinstance(prior, Tensor) else int(prior.event_dim)
    return int(getattr(module, f"{name}_unconstrained" if name in module._pyro_params else name).dim())


def _clear(module: PyroModule, name: str) -> None:
    """Forget the attribute ``name``, whichever of the ways to hold a parameter it was."""
    if name in module._buffers:
        del module._buffers[name]
    elif name in module._pyro_params or name in module._pyro_samples:
        delattr(module, name)


class _Combination(Kernel):
    """Kernels joined by one operation; nested joins of the same kind are flattened."""

    _symbol: ClassVar[str]
    parts: Any

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        parts: list[Kernel] = []
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise TypeError(f"kernels combine with kernels, but got {type(kernel).__name__}: {kernel!r}.")
            parts += kernel.parts if type(kernel) is type(self) else [kernel]
        if len({id(part) for part in parts}) < len(parts):
            raise ValueError("the same kernel object stands twice in a sum or product; make two.")
        self.parts = PyroModule[torch.nn.ModuleList](parts)  # type: ignore[arg-type]

    def leaves(self) -> Iterator[Kernel]:
        for part in self.parts:
            yield from part.leaves()

    def fix(self: K, *names: str) -> K:
        """Hold every parameter of every part."""
        return self._each("fix", names)

    def learn(self: K, *names: str) -> K:
        return self._each("learn", names)

    def _each(self: K, method: str, names: tuple[str, ...]) -> K:
        if names:
            raise ValueError(f"name parameters on a part: kernel[0].{method}({', '.join(map(repr, names))}).")
        for part in self.parts:
            getattr(part, method)()
        return self

    def __getitem__(self, index: int) -> Kernel:
        return self.parts[index]

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.parts)

    def __repr__(self) -> str:
        return f" {self._symbol} ".join(f"({p})" if isinstance(p, Sum) else repr(p) for p in self.parts)


class Sum(_Combination):
    """``k1 + k2 + …``; the parts are ``kernel[0]``, ``kernel[1]``, …

    :param kernels: the parts; sums among them are flattened.
    :raises TypeError: where a part is not a kernel.
    :raises ValueError: where the same kernel object stands twice.

    >>> from pyro_vgpds.kernels import RBF, Bias, White
    >>> kernel = RBF() + White(1e-2) + Bias(0.1)
    >>> len(kernel), kernel[1]
    (3, White(variance=0.01))
    """

    _symbol = "+"

    def forward(self) -> SumValue:
        return SumValue([part() for part in self.parts])


class Product(_Combination):
    """``k1 * k2 * …``, as in :class:`Sum`. It has no Ψ statistics, so it is a kernel of time only.

    >>> import torch
    >>> from pyro_vgpds.kernels import Bias, Linear
    >>> (Linear(2.0) * Linear(1.0))().gram(torch.tensor([2.0]).double()).item()  # 2·2·2 times 1·2·2
    32.0
    """

    _symbol = "*"

    def forward(self) -> ProductValue:
        return ProductValue([part() for part in self.parts])


class SumValue(StateSpaceSum, KernelValue, MappingValue):
    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.is_diagonal = all(getattr(part, "is_diagonal", False) for part in parts)

    def _total(self, method: str, *args: Any) -> Tensor:
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
            term = cross_psi2(first, second)(mean, variance, z, mask)  # type: ignore[misc]
            total = total + term + term.mT
        return total


class ProductValue(StateSpaceProduct, KernelValue):
    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.is_diagonal = any(part.is_diagonal for part in parts)

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return reduce(operator.mul, [part.gram(a, b) for part in self.parts])

    def diag(self, a: Tensor) -> Tensor:
        return reduce(operator.mul, [part.diag(a) for part in self.parts])
