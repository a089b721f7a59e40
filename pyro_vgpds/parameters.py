# SPDX-License-Identifier: Apache-2.0
"""Positive parameters of Pyro modules: each is learned, is fixed or has a prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeGuard

import numpy as np
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor

from pyro_vgpds.checks import positive
from pyro_vgpds.data.durations import Duration

__all__ = ["ParameterLike", "ParameterModule", "Prior", "PriorLike", "TimeLike", "is_prior"]

#: a distribution, or a function from the module to one
Prior: TypeAlias = (
    TorchDistributionMixin | Callable[[PyroModule], TorchDistributionMixin] | Callable[[PyroModule], Tensor]
)
#: the same, or a ``PyroSample`` of it
PriorLike: TypeAlias = Prior | PyroSample
#: a positive parameter: numbers (learned) or a prior
ParameterLike: TypeAlias = float | Sequence[float] | np.ndarray | Tensor | PyroParam | PriorLike
#: the same for a parameter that is a time: also durations
TimeLike: TypeAlias = ParameterLike | Duration | Sequence[Duration]


def is_prior(value: object) -> TypeGuard[PriorLike]:
    """Whether ``value`` is a distribution, a ``PyroSample`` or a function of the module, and not a number.

    :param value: the value of a parameter.

    >>> import pyro.distributions as dist
    >>> from pyro_vgpds.parameters import is_prior
    >>> is_prior(dist.LogNormal(0.0, 1.0)), is_prior(0.5)
    (True, False)
    """
    if isinstance(value, PyroParam):  # which is callable, too
        return False
    return isinstance(value, PyroSample) or hasattr(value, "log_prob") or callable(value)


class ParameterModule(PyroModule):
    """A ``PyroModule`` that can be asked about its positive parameters. Kernels and ``VGPDS`` derive from it.

    A learned parameter is a ``PyroParam``, a fixed one a buffer, and one with a prior a ``PyroSample``.

    >>> import pyro.distributions as dist
    >>> from pyro_vgpds.kernels import Periodic
    >>> kernel = Periodic(variance=[1.0, 2.0], lengthscale=dist.LogNormal(0.0, 1.0), period=24.0).fix("period")
    """

    def assign(self, name: str, value: ParameterLike) -> None:
        """Set a parameter, which is then learned or has a prior.

        :param name: the parameter.
        :param value: positive numbers (learned), or a distribution or ``PyroSample`` (a prior).
        :raises TypeError: if the value is neither.
        :raises ValueError: if the value is not positive and finite.

        >>> kernel.assign("variance", [2.0, 1.0])
        >>> kernel.variance.tolist()
        [2.0, 1.0]
        """
        if is_prior(value):
            value = value if isinstance(value, PyroSample) else PyroSample(value)
        elif not isinstance(value, PyroParam):
            value = PyroParam(positive(f"{type(self).__name__}.{name}", value), constraints.positive)
        if name in self._buffers or name in self._pyro_params or name in self._pyro_samples:
            delattr(self, name)
        setattr(self, name, value)

    def is_learned(self, name: str) -> bool:
        """Whether training changes the parameter; False also if there is no such parameter.

        :param name: the parameter.

        >>> kernel.is_learned("variance"), kernel.is_learned("lengthscale"), kernel.is_learned("period")
        (True, False, False)
        """
        return name in self._pyro_params

    def is_fixed(self, name: str) -> bool:
        """Whether the parameter keeps its value; False also if there is no such parameter.

        :param name: the parameter.

        >>> kernel.is_fixed("variance"), kernel.is_fixed("period")
        (False, True)
        """
        return name in self._buffers

    def prior(self, name: str) -> Prior | None:
        """The prior of the parameter: a distribution, a function from the module to one, or None.

        :param name: the parameter.

        >>> kernel.prior("lengthscale")
        LogNormal()
        >>> kernel.prior("period") is None
        True
        """
        return self._pyro_samples.get(name)  # type: ignore[return-value]  # Pyro annotates it as PyroSample

    def event_dim(self, name: str) -> int:
        """Number of dimensions of the parameter itself: 0 for one number, 1 for a vector.

        A draw from a prior may have more, those of the plates on its left.

        :param name: the parameter.

        >>> kernel.event_dim("variance"), kernel.event_dim("lengthscale"), kernel.event_dim("period")
        (1, 0, 0)
        """
        prior = self.prior(name)
        if prior is None:
            return int(getattr(self, name).dim())
        value = prior(self) if callable(prior) and not hasattr(prior, "sample") else prior
        return int(getattr(value, "event_dim", 0))  # a function may also return a tensor

    @property
    def is_attached(self) -> bool:
        """Whether the module is already part of a model, whose names its parameters carry."""
        return bool(self._pyro_name)
