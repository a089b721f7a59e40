# SPDX-License-Identifier: Apache-2.0
"""What a likelihood is: a distribution of the outputs given the latent functions, and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyro_vgpds.checks import undefined
from pyro_vgpds.parameters import ParameterLike, ParameterModule

__all__ = ["Likelihood", "LikelihoodValue", "Moments", "Sites", "filled", "spread"]

L = TypeVar("L", bound="Likelihood")


class Sites(NamedTuple):
    """A Gaussian factor exp(linear f − ½ weight f² + constant) for each function value, (N, F) each.

    All three are zero for entries that were not observed.
    """

    weight: Tensor
    linear: Tensor
    constant: Tensor


class Moments(NamedTuple):
    """E f and E f² of each function value, (N, F) each."""

    mean: Tensor
    square: Tensor


class Likelihood(ParameterModule):
    """p(y given f) for each output: the distribution of an output given its latent function values.

    A class of one's own defines :meth:`distribution`, and :meth:`link` for a good start of training. It declares
    parameters with :meth:`add_parameter`. The parameters reach the methods as ``p``, whose attributes are their values,
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
    num_functions: ClassVar[int] = 1
    #: what an output must be, for the error about a value that is not
    support: ClassVar[str] = "a finite number"
    #: whether a start from the outputs needs them averaged over neighbouring frames, as counts do
    is_discrete: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] = ()
        #: parameters that were not given, which :meth:`prepare` chooses
        self.unset: set[str] = set()

    def add_parameter(
        self,
        name: str,
        value: ParameterLike | None,
        default: ParameterLike | None = None,
        constraint: constraints.Constraint = constraints.positive,
    ) -> None:
        """Declare a parameter; to be called in the constructor.

        :param name: its name, which also becomes an attribute.
        :param value: a number or tensor, one for all outputs or (D,) (learned), or a prior. None: ``default``, until
            :meth:`prepare` chooses a value.
        :param default: the initial value if ``value`` is None.
        :param constraint: of each of its values. Default: positive.
        :raises ValueError: if the name is taken, or the value does not satisfy the constraint.
        """
        if hasattr(self, name):
            raise ValueError(f"{type(self).__name__} already has an attribute {name!r}; choose another parameter name.")
        self.declare(name, constraint)
        self._names += (name,)
        if value is None:
            self.unset.add(name)
            value = default
        self.assign(name, value)  # type: ignore[arg-type]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the parameters.

        >>> from pyro_vgpds.likelihoods import StudentT
        >>> StudentT().parameter_names
        ('scale', 'df')
        """
        return self._names

    def fix(self: L, *names: str) -> L:
        """Fix parameters at their current values, and return the likelihood.

        :param names: the parameters. Default: all.
        :raises ValueError: if there is no such parameter, or it has a prior.

        >>> from pyro_vgpds.likelihoods import StudentT
        >>> StudentT(df=4.0).fix("df")
        StudentT(scale=0.3, df=4 (fixed))
        """
        for name in names or self._names:
            if name not in self._names:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(self._names) or 'none'}."
                )
            if self.prior(name) is not None:
                raise ValueError(f"{type(self).__name__}.{name} has a prior; give it a number first.")
            value = getattr(self, name).detach().clone()
            delattr(self, name)
            self.register_buffer(name, value)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._pyro_context.active:  # reading it alone is harmless, and PyroModule would refuse it afterwards
            return self.forward(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def forward(self) -> LikelihoodValue:
        """Read every parameter once, and return the likelihood at these values."""
        return LikelihoodValue(self, SimpleNamespace(**{name: getattr(self, name) for name in self._names}))

    # what a likelihood defines

    def distribution(self, f: Tensor, p: Any) -> TorchDistribution:
        """The distribution of outputs, with the batch shape (..., N, D).

        :param f: function values (..., N, D), or (..., N, D, P) with P functions for each output.
        :param p: the values of the parameters.
        """
        raise undefined(self, "distribution(f, p), the distribution of the outputs")

    def link(self, mean: Tensor, p: Any) -> Tensor:
        """F at which the outputs have this mean: training starts there. Default: f is the mean.

        :param mean: (..., D).
        :param p: the values of the parameters.
        """
        return mean

    def moments(self, f: Tensor, p: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs given f, (..., N, D) each. Default: those of the distribution.

        :param f: as for :meth:`distribution`.
        :param p: the values of the parameters.
        """
        distribution = self.distribution(f, p)
        return distribution.mean, distribution.variance

    def cdf(self, y: Tensor, f: Tensor, p: Any) -> Tensor:
        """P(output ≤ y given f). Default: that of the distribution; counts add up their probabilities.

        :param y: (..., N, D).
        :param f: as for :meth:`distribution`.
        :param p: the values of the parameters.
        """
        distribution = self.distribution(f, p)
        if not self.is_discrete:
            return distribution.cdf(y)
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

    def is_valid(self, y: Tensor, p: Any) -> Tensor:
        """Whether each output (N, D) is possible. Default: whether it is finite.

        :param y: outputs; those that are not observed are never tested.
        :param p: the values of the parameters.
        """
        return torch.isfinite(y)

    def support_of(self, output: int) -> str:
        """What an output must be, for an error.

        :param output: its index.
        """
        return self.support

    def initial(self, y: Tensor, f: Tensor, p: Any) -> Tensor:
        """The first state of the sites, (2, N, F).

        :param y: outputs (N, D), NaN if they were not observed.
        :param f: a guess of the function values, (N, F).
        :param p: the values of the parameters.
        """
        raise undefined(self, "initial(y, f, p), the first state of the sites")

    def sites(self, y: Tensor, state: Tensor, p: Any) -> Sites:
        """The Gaussian factors in a state, differentiable in the parameters."""
        raise undefined(self, "sites(y, state, p), the Gaussian factors")

    def updated(self, y: Tensor, state: Tensor, moments: Moments, p: Any, rate: float) -> Tensor:
        """The next state of the sites, given the moments of the function values under q."""
        raise undefined(self, "updated(y, state, moments, p, rate), the next state of the sites")

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


class LikelihoodValue:
    """A likelihood at fixed values of its parameters.

    :param likelihood: the module, whose methods are used.
    :param parameters: the values.
    """

    def __init__(self, likelihood: Likelihood, parameters: SimpleNamespace) -> None:
        self.likelihood, self.parameters = likelihood, parameters

    def detached(self) -> LikelihoodValue:
        """The same with copies of the parameters, which an optimiser does not change."""
        copies = {name: value.detach().clone() for name, value in vars(self.parameters).items()}
        return LikelihoodValue(self.likelihood, SimpleNamespace(**copies))

    def distribution(self, f: Tensor) -> TorchDistribution:
        """The distribution of outputs given function values (..., N, F)."""
        return self.likelihood.distribution(self._unflat(f), self.parameters)

    def _unflat(self, f: Tensor) -> Tensor:
        count = self.likelihood.num_functions
        return f if count == 1 else f.unflatten(-1, (-1, count))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs given function values (..., N, F)."""
        return self.likelihood.moments(self._unflat(f), self.parameters)

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        """P(output ≤ y given f)."""
        return self.likelihood.cdf(y, self._unflat(f), self.parameters)

    def log_prob_of(self, distribution: TorchDistribution, y: Tensor) -> Tensor:
        """The log-probability of outputs, minus infinity if they are not possible."""
        possible = self.likelihood.is_valid(y, self.parameters)
        return torch.where(possible, distribution.log_prob(torch.where(possible, y, 0.0)), -torch.inf)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log p(y given f) of each entry, (..., N, D), and 0 for entries that were not observed."""
        seen = torch.isfinite(y)
        return torch.where(seen, self.distribution(f).log_prob(filled(y)), 0.0)

    def link(self, mean: Tensor) -> Tensor:
        """F (..., F) at which the outputs have this mean (..., D)."""
        return self.likelihood.link(mean, self.parameters)

    def initial(self, y: Tensor, f: Tensor) -> Tensor:
        """The first state of the sites, (2, N, F)."""
        return self.likelihood.initial(y, f, self.parameters)

    def sites(self, y: Tensor, state: Tensor) -> Sites:
        """The Gaussian factors in a state."""
        return self.likelihood.sites(y, state, self.parameters)

    def updated(self, y: Tensor, state: Tensor, moments: Moments, rate: float) -> Tensor:
        """The next state of the sites."""
        with torch.no_grad():
            return self.likelihood.updated(y, state, moments, self.parameters, rate)


def spread(y: Tensor) -> Tensor:
    """A robust standard deviation of each column (N, D), (D,), positive: the middle half of a Gaussian's values."""
    quartiles = torch.nanquantile(y, y.new_tensor([0.25, 0.75]), 0)
    robust = (quartiles[1] - quartiles[0]) / 1.349
    centred = y - y.nanmean(0)
    plain = centred.square().nanmean(0).sqrt()
    found = torch.where(robust > 1e-3 * plain, robust, plain)
    return torch.where(found > 0.0, found, 1.0)


def filled(y: Tensor) -> Tensor:
    """``y`` (N, D) with a possible value in entries that were not observed: the first that was observed in the column.

    A column in which nothing was observed gets one of another column.
    """
    seen = torch.isfinite(y)
    if bool(seen.all()):
        return y
    first = y.gather(-2, seen.to(torch.uint8).argmax(-2, keepdim=True))
    known = first[torch.isfinite(first)]
    first = torch.where(torch.isfinite(first), first, known[0] if len(known) else torch.zeros_like(first))
    return torch.where(seen, y, first)
