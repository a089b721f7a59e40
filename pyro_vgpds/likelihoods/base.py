# SPDX-License-Identifier: Apache-2.0
"""What a likelihood is: a distribution of the outputs given the latent functions, and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyro_vgpds.checks import check_flags, undefined
from pyro_vgpds.formatting import counted
from pyro_vgpds.likelihoods.factors import Moments, Part, Sites, Values
from pyro_vgpds.likelihoods.value import LikelihoodValue, several_draws
from pyro_vgpds.parameters import ParameterLike, TimeLike
from pyro_vgpds.parameters.declared import DeclaredParameters

__all__ = ["Likelihood"]


class Likelihood(DeclaredParameters):
    """p(y given f) for each output: the distribution of an output given its latent function values.

    A subclass defines :meth:`distribution`, and :meth:`link` for a good start of training. It declares
    parameters with ``add_parameter``. The parameters reach the methods as ``p``, whose attributes are their values,
    so that parameters with priors are drawn once for each run of the model.

    >>> import pyro.distributions as dist
    >>> from pyro_vgpds.likelihoods import SiteLikelihood
    >>> class Exponential(SiteLikelihood):
    ...     "Positive outputs with the mean exp(f)."
    ...     def distribution(self, f, p):
    ...         return dist.Exponential((-f).exp())
    ...     def link(self, mean, p):
    ...         return mean.log()
    >>> Exponential()
    Exponential()
    """

    #: latent functions for each output; with more than one, ``f`` has a last axis of this size
    num_functions: int = 1
    #: what an output must be, for the error about a value that is not
    support: ClassVar[str] = "a finite number"
    #: whether a start from the outputs needs them averaged over neighbouring frames, as counts do
    is_discrete: bool = False
    #: whether the scale of each function is learned. If f is the mean of the output, it has the scale of the data.
    learns_scale: bool = True
    #: whether f is a log rate, to which the log of an exposure can be added
    takes_exposure: ClassVar[bool] = False
    #: parameters that are standard deviations: training moves their logs half as far as those of variances
    deviations: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        #: parameters that are one number, or one for each output
        self.per_output: set[str] = set()

    def add_parameter(
        self,
        name: str,
        value: TimeLike | None,
        default: ParameterLike | None = None,
        constraint: constraints.Constraint = constraints.positive,
        per_output: bool = True,
    ) -> None:
        """As :meth:`~pyro_vgpds.parameters.DeclaredParameters.add_parameter`, for one number or (D,), one for each
        output. A value that is not given is chosen by :meth:`prepare`.

        :param per_output: whether a vector has a value for each output. If False, it may have any size.
        """
        check_flags(per_output=per_output)
        super().add_parameter(name, value, default, constraint)
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

    def forward(self) -> LikelihoodValue:
        """Read every parameter once, and return the likelihood at these values.

        :raises ValueError: for several draws at a time of parameters with priors.
        """
        values = {name: getattr(self, name) for name in self.parameter_names}
        for name, value in values.items():
            prior = self.prior(name)
            if prior is not None and hasattr(prior, "shape") and value.dim() > len(prior.shape()):
                raise several_draws(self)
        return LikelihoodValue(self, SimpleNamespace(**values))

    # what a likelihood defines

    def distribution(self, f: Tensor, p: Values) -> TorchDistribution:
        """The distribution of outputs, with the batch shape (..., N, D).

        :param f: function values (..., N, D), or (..., N, D, P) with P functions for each output.
        :param p: the values of the parameters.
        """
        raise undefined(self, "distribution(f, p), the distribution of the outputs")

    def link(self, mean: Tensor, p: Values) -> Tensor:
        """F at which the outputs have this mean: training starts there. Default: f is the mean.

        :param mean: (..., D).
        :param p: the values of the parameters.
        :returns: (..., D), or (..., D, P) with P functions for each output. (..., D) is then the first function, and
            the others start at 0.
        """
        return mean

    def meet(self, num_outputs: int, columns: Sequence[str] | None = None) -> None:
        """Check that the parameters suit this number of outputs.

        :param num_outputs: D.
        :param columns: names of the outputs.
        :raises ValueError: if a parameter has values for another number of outputs.
        """
        for name in self.per_output:
            value = getattr(self, name) if self.prior(name) is None else None
            if value is not None and value.dim() and len(value) not in (1, num_outputs):
                outputs = counted(num_outputs, "output")
                raise ValueError(
                    f"{type(self).__name__}.{name} has {len(value)} values, but there are {outputs}. Give one number, "
                    "or one for each output."
                )

    def parts(self, p: Values, num_outputs: int) -> Sequence[Part]:
        """The likelihoods of groups of outputs. Default: itself, for all outputs.

        :param p: the values of the parameters.
        :param num_outputs: D.
        """
        return [Part(self, p, None)]

    def moments(self, f: Tensor, p: Values) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs given f, (..., N, D) each. Default: those of the distribution.

        :param f: as for :meth:`distribution`.
        :param p: the values of the parameters.
        """
        distribution = self.distribution(f, p)
        return distribution.mean, distribution.variance

    def cdf(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        """P(output ≤ y given f). Default: that of the distribution; counts add up their probabilities.

        :param y: (..., N, D).
        :param f: as for :meth:`distribution`.
        :param p: the values of the parameters.
        """
        distribution = self.distribution(f, p)
        if not self.is_discrete:  # what is not possible lies below all that is, or above it
            possible, mean = self.is_valid(y, p), distribution.mean
            return torch.where(possible, distribution.cdf(torch.where(possible, y, mean)), (y > mean).to(mean))
        total, most = torch.zeros(distribution.batch_shape, dtype=f.dtype, device=f.device), int(y.max())
        for count in range(most + 1):
            value = torch.full_like(y, float(count))
            possible = (y >= count) & self.is_valid(value, p)
            chance = distribution.log_prob(torch.where(possible, value, 0.0)).exp()
            total = total + torch.where(possible, chance, 0.0)
        return total

    def prepare(self, y: Tensor) -> None:
        """Choose the parameters that were not given from the outputs. Default: they keep their defaults.

        :param y: (N, D), NaN if they were not observed.
        """

    def is_valid(self, y: Tensor, p: Values) -> Tensor:
        """Whether each output (N, D) is possible. Default: whether it is finite.

        :param y: outputs; those that are not observed are never tested.
        :param p: the values of the parameters.
        """
        return torch.isfinite(y)

    def kind_of(self, output: int) -> str:
        """What an output is: ``"continuous"``, ``"count"`` or ``"yes/no"``, for plots and tables.

        :param output: its index.
        """
        return "count" if self.is_discrete else "continuous"

    def name_of(self, output: int) -> str:
        """The name of the likelihood of an output, for an error.

        :param output: its index.
        """
        return type(self).__name__

    def has_exposure(self, output: int) -> bool:
        """Whether an output may have an exposure.

        :param output: its index.
        """
        return self.takes_exposure

    def support_of(self, output: int) -> str:
        """What an output must be, for an error.

        :param output: its index.
        """
        return self.support

    #: whether the bound needs E log p(y given f) by draws of x
    is_drawn: bool = False

    def initial(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        """The first state of the sites, (2, N, F).

        :param y: outputs (N, D), NaN if they were not observed.
        :param f: a guess of the function values, (N, F).
        :param p: the values of the parameters.
        """
        raise undefined(self, "initial(y, f, p), the first state of the sites")

    def sites(self, y: Tensor, state: Tensor, p: Values) -> Sites:
        """The Gaussian factors in a state, differentiable in the parameters.

        :param y: outputs (N, D), NaN if they were not observed.
        :param state: (2, N, F).
        :param p: the values of the parameters.
        """
        raise undefined(self, "sites(y, state, p), the Gaussian factors")

    def updated(self, y: Tensor, state: Tensor, moments: Moments, p: Values, rate: float) -> Tensor:
        """The next state of the sites, given the moments of the function values under q.

        :param y: outputs (N, D), NaN if they were not observed.
        :param state: (2, N, F).
        :param moments: of the function values, (N, F) each.
        :param p: the values of the parameters.
        :param rate: length of the step, if there is no exact update.
        """
        raise undefined(self, "updated(y, state, moments, p, rate), the next state of the sites")
