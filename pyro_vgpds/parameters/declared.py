# SPDX-License-Identifier: Apache-2.0
"""Modules that declare their parameters by name, in the constructor: kernels and likelihoods."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, cast

from torch.distributions import constraints

from pyro_vgpds.checks import check_kind
from pyro_vgpds.parameters.module import ParameterLike, ParameterModule, TimeLike

__all__ = ["DeclaredParameters"]

P = TypeVar("P", bound="DeclaredParameters")


class DeclaredParameters(ParameterModule):
    """What kernels and likelihoods have in common: a list of parameters, some of which the data choose."""

    #: arguments of the constructor that are not parameters, such as an order, which files keep: attributes that are
    #: numbers, strings, None, tensors, likelihoods, and lists and dictionaries of these
    option_names: ClassVar[tuple[str, ...]] = ()
    _names: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        #: parameters that were not given, which are chosen from the data
        self.unset: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # PyroModule refuses to adopt a child that was called on its own. Reading one alone is harmless, so outside of a
        # model it does not enter the Pyro context.
        if not self._pyro_context.active:
            return self.forward(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def add_parameter(
        self,
        name: str,
        value: TimeLike | None,
        default: ParameterLike | None = None,
        constraint: constraints.Constraint = constraints.positive,
    ) -> None:
        """Declare a parameter; to be called in the constructor.

        :param name: its name, which also becomes an attribute.
        :param value: a number or tensor (learned), or a distribution or ``PyroSample`` (a prior). Those of kernels that
            are ``time_parameters`` also take durations, such as ``"24h"``. None: ``default``, until a value is chosen
            from the data, as ``VGPDS.from_data`` does for parameters of kernels named ``lengthscale`` and ``period``.
        :param default: the initial value if ``value`` is None.
        :param constraint: of each of its values, such as ``constraints.real`` or ``constraints.interval(-1, 1)`` of
            ``torch.distributions``. Default: positive.
        :raises ValueError: if the name is taken, or the value is not finite or does not satisfy the constraint.
        :raises TypeError: if the value is neither a number nor a prior, or the constraint is not one of single numbers.

        >>> from pyro_vgpds.kernels import Kernel
        >>> class Decay(Kernel):
        ...     def __init__(self, rate=None):
        ...         super().__init__()
        ...         self.add_parameter("rate", rate, default=1.0)
        >>> Decay(rate=2.0), Decay().unset
        (Decay(rate=2), {'rate'})
        """
        check_kind("name", name, str, "a string")
        if hasattr(self, name):
            raise ValueError(f"{type(self).__name__} already has an attribute {name!r}; choose another parameter name.")
        self.declare(name, constraint)
        self._names += (name,)
        if value is None:
            self.unset.add(name)
        self._give(name, default if value is None else value)  # type: ignore[arg-type]

    def _give(self, name: str, value: TimeLike) -> None:
        """Set a parameter to what a user gave."""
        self.assign(name, cast("ParameterLike", value))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the parameters; a sum or product of kernels has none besides those of its parts.

        >>> from pyro_vgpds.kernels import RBF
        >>> RBF().parameter_names
        ('variance', 'lengthscale')
        """
        return self._names

    def fix(self: P, *names: str) -> P:
        """Fix parameters at their current values, and return the kernel or likelihood.

        :param names: the parameters. Default: all.
        :raises ValueError: if there is no such parameter, or it has a prior.

        >>> from pyro_vgpds.likelihoods import StudentT
        >>> StudentT(df=4.0).fix("df")
        StudentT(scale=0.1, df=4 (fixed))
        """
        for name in self._check_names(names):
            if self.prior(name) is not None:
                raise ValueError(
                    f"{type(self).__name__}.{name} has a prior; give it a number first, with .assign({name!r}, number)."
                )
            value = getattr(self, name).detach().clone()
            delattr(self, name)
            self.register_buffer(name, value)
        return self

    def _check_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names, or all parameters if no name is given; a ValueError for an unknown name."""
        for name in names:
            if not isinstance(name, str) or name not in self._names:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(self._names) or 'none'}."
                )
        return names or self._names
