# SPDX-License-Identifier: Apache-2.0
"""The parameters of a likelihood: each is learned, is fixed or has a prior."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributions import constraints

from pyro_vgpds.checks import check_flags
from pyro_vgpds.parameters import ParameterLike
from pyro_vgpds.parameters.declared import DeclaredParameters

__all__ = ["LikelihoodParameters"]


class LikelihoodParameters(DeclaredParameters):
    """A module whose parameters are declared by :meth:`add_parameter`."""

    def __init__(self) -> None:
        super().__init__()
        #: parameters that are one number, or one for each output
        self.per_output: set[str] = set()

    def add_parameter(
        self,
        name: str,
        value: ParameterLike | None,
        default: ParameterLike | None = None,
        constraint: constraints.Constraint = constraints.positive,
        per_output: bool = True,
    ) -> None:
        """Declare a parameter; to be called in the constructor.

        :param name: its name, which also becomes an attribute.
        :param value: a number or (D,) for each output (learned), or a prior. None: ``default``, until
            ``prepare`` chooses a value.
        :param default: the initial value if ``value`` is None.
        :param constraint: of each of its values. Default: positive.
        :param per_output: whether a vector has a value for each output. If False, it may have any size.
        :raises ValueError: if the name is taken, or the value does not satisfy the constraint.
        """
        check_flags(per_output=per_output)
        self._add(name, value, default, constraint)
        if per_output:
            self.per_output.add(name)

    def choose(self, name: str, value: ParameterLike) -> None:
        """Set a parameter that was not given; to be called in ``prepare``. One that is fixed stays fixed.

        :param name: the parameter. If it was given, nothing changes.
        :param value: as in :meth:`add_parameter`, or a ``PyroParam`` with a constraint of its own.
        :raises ValueError: if there is no such parameter, or the value does not satisfy its constraint.

        >>> from pyro_vgpds.likelihoods import StudentT
        >>> likelihood = StudentT(scale=0.5)
        >>> likelihood.choose("scale", 2.0)
        >>> likelihood
        StudentT(scale=0.5, df=10)
        """
        self._check_names((name,))
        if name in self.unset:
            fixed = self.is_fixed(name)
            self.assign(name, value)
            if fixed:
                self.fix(name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._described())})"

    def _described(self) -> Sequence[str]:
        shown = []
        for name in self._names:
            prior = self.prior(name)
            if prior is not None:
                shown.append(f"{name}={prior}")
                continue
            value, fixed = getattr(self, name).detach(), " (fixed)" if self.is_fixed(name) else ""
            text = f"{float(value):.4g}" if not value.dim() else f"({len(value)} values)"
            shown.append(f"{name}={text}{fixed}")
        return shown
