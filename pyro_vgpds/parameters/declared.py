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

    #: names of constructor arguments that are no parameters, such as an order; each is also an attribute
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

    def _add(
        self, name: str, value: TimeLike | None, default: ParameterLike | None, constraint: constraints.Constraint
    ) -> None:
        """Declare a parameter, with its default if no value was given."""
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
