# SPDX-License-Identifier: Apache-2.0
"""Parameters of Pyro modules, positive unless declared otherwise: each is learned, is fixed or has a prior."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam, PyroSample
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from pyro_vgpds.checks import check_kind, constrained, positive
from pyro_vgpds.data.durations import Duration
from pyro_vgpds.pyro_state import pyro_lock

__all__ = [
    "ParameterLike", "ParameterModule", "Prior", "PriorLike", "TimeLike", "is_prior", "modules_of", "parameters_of",
    "plain_value",
]  # fmt: skip

#: a distribution, or a function from the module to one
Prior: TypeAlias = (
    TorchDistributionMixin | Callable[[PyroModule], TorchDistributionMixin] | Callable[[PyroModule], Tensor]
)
#: the same, or a ``PyroSample`` of it
PriorLike: TypeAlias = Prior | PyroSample
#: a parameter: numbers (learned) or a prior
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


def modules_of(module: nn.Module) -> list[nn.Module]:
    """A module and all modules in it, in any order: a module that is part of two others comes twice.

    It takes a fraction of the time of ``module.modules()``, which matters in every evaluation of the bound.

    :param module: any module.

    >>> from pyro_vgpds.kernels import RBF, White
    >>> from pyro_vgpds.parameters import modules_of
    >>> len(modules_of(RBF() + White(0.1)))  # the sum, the list of its parts, and these
    4
    """
    found: list[nn.Module | None] = [module]
    for own in found:  # which grows
        if own is not None:
            found += vars(own)["_modules"].values()
    return [own for own in found if own is not None]


def parameters_of(module: nn.Module) -> list[Tensor]:
    """The parameters of :func:`modules_of`.

    :param module: any module.

    >>> from pyro_vgpds.kernels import RBF
    >>> from pyro_vgpds.parameters import parameters_of
    >>> [parameter.shape for parameter in parameters_of(RBF())]
    [torch.Size([]), torch.Size([])]
    """
    return [p for own in modules_of(module) for p in vars(own)["_parameters"].values() if p is not None]


def plain_value(module: PyroModule, name: str) -> Tensor | None:
    """The value of a learned parameter, as Pyro gives it, without a search for its transform; None if only Pyro can
    give it. Only a call of the module makes ``pyro.param`` statements.

    :param module: any Pyro module.
    :param name: one of its learned parameters.

    >>> from pyro_vgpds.kernels import RBF
    >>> from pyro_vgpds.parameters import plain_value
    >>> plain_value(RBF(lengthscale=2.0), "lengthscale").item()
    2.0
    """
    mine = vars(module)
    unconstrained = mine["_parameters"].get(f"{name}_unconstrained")
    constraint, _ = mine["_pyro_params"].get(name, (None, None))
    is_positive = constraint is constraints.positive
    if mine["_pyro_context"].active or unconstrained is None or not (is_positive or constraint is constraints.real):
        return None
    value: Tensor = unconstrained.exp() if is_positive else unconstrained
    value.unconstrained = weakref.ref(unconstrained)  # type: ignore[attr-defined]
    if is_positive:
        value.log_parameter = value.unconstrained  # type: ignore[attr-defined]  # gradients without autograd need it
    return value


def _sample(label: str, prior: Prior) -> PyroSample:
    """A prior as Pyro has it."""
    try:
        return PyroSample(prior)
    except (AssertionError, AttributeError, TypeError, ValueError):
        raise TypeError(
            f"{label} must be a number, a distribution or a function from the module to one, but got {prior!r:.80}."
        ) from None


class _Constrained(Messenger):
    """Adds a constraint to the ``pyro.param`` statements inside."""

    def __init__(self, constraint: constraints.Constraint) -> None:
        super().__init__()
        self.constraint = constraint

    def _pyro_param(self, msg: Message) -> None:
        msg["kwargs"]["constraint"] = self.constraint


class ParameterModule(PyroModule):
    """A ``PyroModule`` that can be asked about its parameters. Kernels and ``VGPDS`` derive from it.

    A learned parameter is a ``PyroParam``, a fixed one a buffer, and one with a prior a ``PyroSample``. Parameters are
    positive unless :meth:`~pyro_vgpds.parameters.DeclaredParameters.add_parameter` declared another constraint.

    >>> import pyro.distributions as dist
    >>> from pyro_vgpds.kernels import Periodic
    >>> kernel = Periodic(variance=[1.0, 2.0], lengthscale=dist.LogNormal(0.0, 1.0), period=24.0).fix("period")
    """

    def __init__(self) -> None:
        super().__init__()
        self._declared: dict[str, constraints.Constraint] = {}  # other than positive

    def declare(self, name: str, constraint: constraints.Constraint) -> None:
        """Set the constraint of a parameter, before its value.

        :param name: the parameter.
        :param constraint: of each of its values.
        :raises TypeError: if it is not a constraint of single numbers.

        >>> from torch.distributions import constraints
        >>> kernel.declare("phase", constraints.real)
        >>> kernel.assign("phase", -0.5)
        >>> kernel.constraint("phase")
        Real()
        """
        if not isinstance(constraint, constraints.Constraint) or constraint.event_dim:
            raise TypeError(
                f"the constraint of {type(self).__name__}.{name} must be one of single numbers, such as "
                f"torch.distributions.constraints.real, but got {constraint!r}."
            )
        if constraint is not constraints.positive:
            self._declared[name] = constraint

    def assign(self, name: str, value: ParameterLike) -> None:
        """Set a parameter, which is then learned or has a prior.

        :param name: the parameter.
        :param value: numbers that satisfy the constraint (learned), or a distribution or ``PyroSample`` (a prior).
        :raises TypeError: if the value is neither.
        :raises ValueError: if the value is not finite or does not satisfy the constraint.

        >>> kernel.assign("variance", [2.0, 1.0])
        >>> kernel.variance.tolist()
        [2.0, 1.0]
        """
        check_kind("name", name, str, "a string")
        if not name.isidentifier():
            raise ValueError(f"name must be the name of an attribute, but got {name!r:.80}.")
        if is_prior(value):
            value = value if isinstance(value, PyroSample) else _sample(f"{type(self).__name__}.{name}", value)
        elif not isinstance(value, PyroParam):
            label, other = f"{type(self).__name__}.{name}", self._declared.get(name)
            numbers = positive(label, value) if other is None else constrained(label, value, other)
            if numbers.dim() > 1:
                raise ValueError(f"{label} must be one number or (K,), but its shape is {tuple(numbers.shape)}.")
            value = PyroParam(numbers, constraints.positive if other is None else other)
        if self._has(name):
            delattr(self, name)
        setattr(self, name, value)

    def constraint(self, name: str) -> constraints.Constraint:
        """The constraint of the values of a parameter, ``constraints.positive`` by default.

        :param name: the parameter.

        >>> kernel.constraint("period")
        GreaterThan(lower_bound=0.0)
        """
        check_kind("name", name, str, "a string")
        if name in self._pyro_params:  # a PyroParam may have come with its own
            return self._pyro_params[name][0]
        return self._declared.get(name, constraints.positive)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with pyro_lock():
            return super().__call__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Pyro's statement of a module's parameter does not contain its constraint, which render_model then cannot show
        mine = self.__dict__
        own = mine.get("_pyro_params", {})
        if name not in own:
            # found here, before Pyro's longer search: tensors that are no parameters, and parts that have a name
            if name in mine.get("_buffers", {}):
                return mine["_buffers"][name]
            part = mine.get("_modules", {}).get(name)
            return part if getattr(part, "_pyro_name", "") else super().__getattr__(name)
        value = plain_value(self, name)
        if value is not None:
            return value
        with pyro_lock():  # an effect handler that is active may be another thread's
            if not mine["_pyro_context"].active:
                return super().__getattr__(name)
            with _Constrained(own[name][0]):
                return super().__getattr__(name)

    def is_learned(self, name: str) -> bool:
        """Whether training changes the parameter; False also if there is no such parameter.

        :param name: the parameter.

        >>> kernel.is_learned("variance"), kernel.is_learned("lengthscale"), kernel.is_learned("period")
        (True, False, False)
        """
        check_kind("name", name, str, "a string")
        return name in self._pyro_params

    def is_fixed(self, name: str) -> bool:
        """Whether the parameter keeps its value; False also if there is no such parameter.

        :param name: the parameter.

        >>> kernel.is_fixed("variance"), kernel.is_fixed("period")
        (False, True)
        """
        check_kind("name", name, str, "a string")
        return name in self._buffers

    def prior(self, name: str) -> Prior | None:
        """The prior of the parameter: a distribution, a function from the module to one, or None.

        :param name: the parameter.

        >>> kernel.prior("lengthscale")
        LogNormal()
        >>> kernel.prior("period") is None
        True
        """
        check_kind("name", name, str, "a string")
        return self._pyro_samples.get(name)  # type: ignore[return-value]  # Pyro annotates it as PyroSample

    def event_dim(self, name: str) -> int:
        """Number of dimensions of the parameter itself: 0 for one number, 1 for a vector.

        A draw from a prior may have more, those of the plates on its left.

        :param name: the parameter.

        >>> kernel.event_dim("variance"), kernel.event_dim("lengthscale"), kernel.event_dim("period")
        (1, 0, 0)
        """
        check_kind("name", name, str, "a string")
        if not self._has(name):
            raise ValueError(f"name must be a parameter of {type(self).__name__}, but got {name!r:.80}.")
        prior = self.prior(name)
        if prior is None:
            return int(getattr(self, name).dim())
        value = prior(self) if callable(prior) and not hasattr(prior, "sample") else prior
        return int(getattr(value, "event_dim", 0))  # a function may also return a tensor

    def _has(self, name: str) -> bool:
        """Whether there is a parameter of this name."""
        return name in self._buffers or name in self._pyro_params or name in self._pyro_samples
