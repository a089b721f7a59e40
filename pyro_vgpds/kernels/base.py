# SPDX-License-Identifier: Apache-2.0
"""Kernel modules: they own parameters, and a call returns their value. Sums and products are modules, too."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeVar

import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.checks import check_count, undefined
from pyro_vgpds.data.durations import has_unit, in_seconds
from pyro_vgpds.formatting import describe_prior, numbers
from pyro_vgpds.kernels.owners import release
from pyro_vgpds.kernels.values import KernelValue, ProductValue, SumValue
from pyro_vgpds.mapping.psi import MappingValue
from pyro_vgpds.parameters import TimeLike
from pyro_vgpds.parameters.declared import DeclaredParameters
from pyro_vgpds.parameters.gradients import view_of

__all__ = ["Kernel", "Product", "Sum"]

K = TypeVar("K", bound="Kernel")


class Kernel(DeclaredParameters):
    """Base of all kernel modules.

    Each parameter is positive, unless the kernel declares another constraint. It is given as a number or tensor
    (learned), or as a distribution or ``PyroSample`` (a prior);
    :meth:`~pyro_vgpds.parameters.DeclaredParameters.fix` stops it from being learned. If the data have dates, times
    such as a period can be durations: ``"24h"``, ``"7d"``, ``"1y"``, ``numpy.timedelta64``, ``datetime.timedelta`` or
    ``pandas.Timedelta``. A call of the module reads every parameter once and returns the kernel's value, so that one
    trace sees one draw of each. ``+`` and ``*`` combine kernels.

    To write a kernel, derive from this class, call :meth:`~pyro_vgpds.parameters.DeclaredParameters.add_parameter` in
    the constructor, and write ``forward``, which passes what :meth:`read` gives to your :class:`KernelValue`.

    >>> import pyro.distributions as dist
    >>> from pyro_vgpds.kernels import RBF
    >>> kernel = RBF(lengthscale=0.5)
    >>> kernel.fix("variance")
    RBF(variance=1 (fixed), lengthscale=0.5)
    >>> kernel.set("lengthscale", dist.LogNormal(0.0, 1.0))
    RBF(variance=1 (fixed), lengthscale~LogNormal(loc=0, scale=1))
    """

    #: parameters in which the bound has many local maxima, such as a period: training moves them slowly
    slow_parameters: ClassVar[frozenset[str]] = frozenset()
    #: parameters that are times, in the unit of the data: they also take durations such as ``"24h"``
    time_parameters: ClassVar[frozenset[str]] = frozenset()
    #: parameters that are always one number, never one for each latent dimension
    shared_parameters: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        #: parameters that were given as durations, which are in seconds and need data with dates
        self.durations: set[str] = set()

    def forward(self) -> KernelValue | MappingValue:
        """Read every parameter once, and return the kernel's value."""
        raise undefined(self, "forward(), which returns its value")

    def _give(self, name: str, value: TimeLike) -> None:
        self.durations.discard(name)
        if has_unit(value):
            wanted = "positive number" if self.constraint(name) is constraints.positive else "number"
            value = in_seconds(f"{type(self).__name__}.{name}", value, name in self.time_parameters, wanted)
            self.durations.add(name)
        super()._give(name, value)

    def read(self, name: str) -> Tensor:
        """The current value of a parameter, or a draw from its prior, (..., K).

        The last axis runs over the latent dimensions and has size 1 if they share the parameter.

        :param name: the parameter.

        >>> RBF(variance=2.0).read("variance").shape, RBF(variance=[1.0, 2.0, 3.0]).read("variance").shape
        (torch.Size([1]), torch.Size([3]))
        """
        if not isinstance(name, str) or name not in self._names:
            self._check_names((name,))
        value = getattr(self, name)
        own_dim = self.event_dim(name) if name in self._pyro_samples else value.dim()
        if own_dim:
            return value
        return view_of(value.unsqueeze(-1), value)

    def set(self: K, name: str, value: TimeLike) -> K:
        """Give a parameter another value or a prior, and return the kernel. ``VGPDS.from_data`` then keeps it.

        :param name: the parameter.
        :param value: a number or tensor (learned), or a distribution or ``PyroSample`` (a prior). One of the
            ``time_parameters`` can be a duration, such as ``"24h"``.
        :raises ValueError: if there is no such parameter, or the value does not satisfy its constraint.
        :raises TypeError: if the value is neither a number nor a prior, or is a duration and the parameter not a time.
        """
        self._check_names((name,))
        self._give(name, value)
        self.unset.discard(name)
        return self

    def learn(self: K, *names: str) -> K:
        """Undo :meth:`~pyro_vgpds.parameters.DeclaredParameters.fix`, and return the kernel.

        :param names: the parameters. Default: all.
        :raises ValueError: if there is no such parameter.
        """
        for name in self._check_names(names):
            if self.is_fixed(name):
                self.assign(name, getattr(self, name))
        return self

    def per_dimension(self: K, latent_dim: int, *names: str) -> K:
        """Give learned parameters that are one number a value for each latent dimension, and return the kernel.

        Each starts from the shared value. Vectors, fixed parameters, those with a prior and ``shared_parameters`` stay.
        Call it after ``VGPDS.from_data``, which chooses one value for a parameter that was not given.

        :param latent_dim: Q.
        :param names: the parameters. Default: all.
        :raises ValueError: if there is no such parameter.

        >>> RBF(lengthscale=0.5).fix("variance").per_dimension(3)
        RBF(variance=1 (fixed), lengthscale=[0.5, 0.5, 0.5])
        """
        check_count("latent_dim", latent_dim)
        for name in self._check_names(names):
            if name not in self.shared_parameters and self.is_learned(name) and not self.event_dim(name):
                self.assign(name, getattr(self, name).detach().expand(latent_dim))
        return self

    def leaves(self) -> Iterator[Kernel]:
        """The kernels that this one is made of, in the order written."""
        yield self

    def __add__(self, other: Kernel) -> Sum:
        return Sum(self, other)

    def __mul__(self, other: Kernel) -> Product:
        return Product(self, other)

    def __repr__(self) -> str:
        def show(name: str) -> str:
            if (prior := self.prior(name)) is not None:
                return f"{name}~{describe_prior(prior)}"
            return f"{name}={numbers(getattr(self, name))}" + (" (fixed)" if self.is_fixed(name) else "")

        usual = inspect.signature(type(self)).parameters
        shown = [name for name in self.option_names if getattr(self, name) != usual[name].default]
        options = [f"{name}={getattr(self, name)}" for name in shown]
        return f"{type(self).__name__}({', '.join([*map(show, self._names), *options])})"


class _Combination(Kernel):
    """Kernels joined by one operation; nested joins of the same kind are flattened."""

    _symbol: ClassVar[str]
    parts: Sequence[Kernel]

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        parts: list[Kernel] = []
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise TypeError(f"a kernel combines only with kernels, but got {type(kernel).__name__}: {kernel!r}.")
            parts += kernel.parts if isinstance(kernel, _Combination) and type(kernel) is type(self) else [kernel]
        leaves = [leaf for part in parts for leaf in part.leaves()]
        if len({id(leaf) for leaf in leaves}) < len(leaves):
            raise ValueError("the same kernel object occurs twice in a sum or product; make two kernels.")
        for part in parts:
            release(f"a part of a {type(self).__name__.lower()}", part, part.leaves())
        self.parts = PyroModule[torch.nn.ModuleList](parts)  # type: ignore[arg-type, assignment]

    def leaves(self) -> Iterator[Kernel]:
        for part in self.parts:
            yield from part.leaves()

    def fix(self: K, *names: str) -> K:
        """Fix every parameter of every part."""
        return self._each("fix", names)

    def learn(self: K, *names: str) -> K:
        return self._each("learn", names)

    def per_dimension(self: K, latent_dim: int, *names: str) -> K:
        return self._each("per_dimension", names, latent_dim)

    def _each(self: K, method: str, names: tuple[str, ...], *args: int) -> K:
        if names:
            call = ", ".join(map(repr, [*args, *names]))
            raise ValueError(f"a sum or product has no parameters of its own; use a part: kernel[0].{method}({call}).")
        for leaf in self.leaves():
            getattr(leaf, method)(*args)
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
    :raises TypeError: if a part is not a kernel.
    :raises ValueError: if the same kernel object occurs twice.

    >>> from pyro_vgpds.kernels import RBF, Bias, White
    >>> kernel = RBF() + White(1e-2) + Bias(0.1)
    >>> len(kernel), kernel[1]
    (3, White(variance=0.01))
    """

    _symbol = "+"

    def forward(self) -> SumValue:
        return SumValue([part() for part in self.parts])


class Product(_Combination):
    """``k1 * k2 * …``, as in :class:`Sum`. It has no Ψ statistics, so it can only be a kernel of time.

    >>> import torch
    >>> from pyro_vgpds.kernels import Linear
    >>> (Linear(2.0) * Linear(1.0))().gram(torch.tensor([2.0]).double()).item()  # 2·2·2 times 1·2·2
    32.0
    """

    _symbol = "*"

    def forward(self) -> ProductValue:
        return ProductValue([part() for part in self.parts])
