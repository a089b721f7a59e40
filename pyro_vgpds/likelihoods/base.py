# SPDX-License-Identifier: Apache-2.0
"""What a likelihood is: a distribution of the outputs given the latent functions, and its parameters.

Longer than 300 lines because a likelihood and its value refer to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_vgpds.checks import undefined
from pyro_vgpds.formatting import counted
from pyro_vgpds.likelihoods.factors import Moments, Part, Sites, Values, filled
from pyro_vgpds.likelihoods.parameters import LikelihoodParameters

__all__ = ["Likelihood", "LikelihoodValue", "several_draws"]


class Likelihood(LikelihoodParameters):
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
    #: arguments of the constructor that are not parameters, which files keep: attributes that are numbers, strings,
    #: None, tensors, likelihoods, and lists and dictionaries of these
    option_names: ClassVar[tuple[str, ...]] = ()

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


class LikelihoodValue:
    """A likelihood at fixed values of its parameters, with the exposures of the outputs.

    With an exposure e the outputs have the likelihood of f + log e. Function values, factors and moments here are those
    of f.

    :param likelihood: the module, whose methods are used.
    :param parameters: the values.
    :param offset: log e, (D,) or (N, D). Default: 0.

    >>> import torch
    >>> from pyro_vgpds.likelihoods import Poisson
    >>> Poisson()().exposed(torch.tensor([2.0])).distribution(torch.zeros(1, 1).double()).mean
    tensor([[2.]], dtype=torch.float64)
    """

    def __init__(self, likelihood: Likelihood, parameters: SimpleNamespace, offset: Tensor | None = None) -> None:
        self.likelihood, self.parameters, self.offset = likelihood, parameters, offset

    def detached(self) -> LikelihoodValue:
        """The same with copies of the parameters, which an optimiser does not change."""
        copies = {name: value.detach().clone() for name, value in vars(self.parameters).items()}
        return LikelihoodValue(self.likelihood, SimpleNamespace(**copies), self.offset)

    def exposed(self, exposure: Tensor | None) -> LikelihoodValue:
        """The same for outputs with other exposures.

        :param exposure: (D,) or (N, D), positive. Default: 1.
        """
        return self._with_offset(None if exposure is None else exposure.double().log())

    def exposed_like(self, other: LikelihoodValue) -> LikelihoodValue:
        """The same with the exposures of another one.

        :param other: for the same frames.
        """
        return self._with_offset(other.offset)

    def _with_offset(self, offset: Tensor | None) -> LikelihoodValue:
        return LikelihoodValue(self.likelihood, self.parameters, offset)

    @property
    def _offset_by_frame(self) -> Tensor | None:
        """Log e, (N, D); None if it is the same in all frames."""
        return None if self.offset is None or self.offset.dim() == 1 else self.offset

    @property
    def elsewhere(self) -> LikelihoodValue:
        """The same for other frames, which have the exposure 1 if those of the data differ by frame."""
        return self if self._offset_by_frame is None else self._with_offset(None)

    def longer(self, num_frames: int) -> LikelihoodValue:
        """The same for the data and frames after them, which have the exposure 1 if those of the data differ by frame.

        :param num_frames: number of frames after those of the data.
        """
        offset = self._offset_by_frame
        if offset is None:
            return self
        return self._with_offset(torch.cat([offset, offset.new_zeros(num_frames, offset.shape[1])]))

    def rows(self, rows: slice) -> LikelihoodValue:
        """The same for some of the frames, if their exposures differ.

        :param rows: which frames.
        """
        return self if self._offset_by_frame is None else self._with_offset(self._offset_by_frame[rows])

    def parts(self, num_outputs: int) -> Sequence[Part]:
        """The likelihoods of groups of outputs, whose functions are ``outputs * num_functions`` and those after it.

        :param num_outputs: D.
        """
        return self.likelihood.parts(self.parameters, num_outputs)

    def is_discrete(self, num_outputs: int) -> Tensor:
        """Whether each output is discrete, (D,).

        :param num_outputs: D.
        """
        found = torch.zeros(num_outputs, dtype=torch.bool)
        for part in self.parts(num_outputs):
            found[part.columns(num_outputs)] = part.likelihood.is_discrete
        return found

    def of(self, part: Part) -> LikelihoodValue:
        """The value of one of the parts, with its exposures.

        :param part: one of :meth:`parts`.
        """
        offset = self.offset if part.outputs is None or self.offset is None else self.offset[..., part.outputs]
        return LikelihoodValue(part.likelihood, part.parameters, offset)

    # given function values (..., N, F)

    def distribution(self, f: Tensor) -> TorchDistribution:
        """The distribution of outputs given function values (..., N, F).

        Parameters as in :meth:`Likelihood.distribution`.
        """
        return self.likelihood.distribution(self._shaped(f), self.parameters)

    def _shaped(self, f: Tensor) -> Tensor:
        f, count = self.shifted(f), self.likelihood.num_functions
        return f if count == 1 else f.unflatten(-1, (-1, count))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs given function values (..., N, F).

        Parameters as in :meth:`Likelihood.moments`.
        """
        return self.likelihood.moments(self._shaped(f), self.parameters)

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        """P(output ≤ y given f).

        Parameters as in :meth:`Likelihood.cdf`.
        """
        return self.likelihood.cdf(y, self._shaped(f), self.parameters)

    def log_prob_of(self, distribution: TorchDistribution, y: Tensor) -> Tensor:
        """The log-probability of outputs, minus infinity if they are not possible.

        :param distribution: of the outputs.
        :param y: outputs (N, D).
        """
        possible = self.likelihood.is_valid(y, self.parameters)
        return torch.where(possible, distribution.log_prob(torch.where(possible, y, 0.0)), -torch.inf)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log p(y given f) of each entry, (..., N, D), and 0 for entries that were not observed.

        :param f: (..., N, F).
        :param y: outputs (N, D), NaN if they were not observed.
        """
        seen = torch.isfinite(y)
        return torch.where(seen, self.distribution(f).log_prob(filled(y)), 0.0)

    def link(self, mean: Tensor) -> Tensor:
        """F (..., F) at which the outputs with the exposure 1 have this mean (..., D).

        Parameters as in :meth:`Likelihood.link`.
        """
        f, count = self.likelihood.link(mean, self.parameters), self.likelihood.num_functions
        if f.dim() > mean.dim():
            return f.flatten(-2)
        return f if count == 1 else _spread_out(f, count)

    # factors

    def drawn(self, num_outputs: int) -> Sequence[Part]:
        """The parts whose bound needs draws of x.

        :param num_outputs: D.
        """
        return [part for part in self.parts(num_outputs) if part.likelihood.is_drawn]

    def initial(self, y: Tensor, f: Tensor) -> Tensor:
        """The first state of the sites, (2, N, F).

        Parameters as in :meth:`Likelihood.initial`.
        """
        return self.likelihood.initial(y, self.shifted(f), self.parameters)

    def shifted(self, f: Tensor, rows: slice = slice(None)) -> Tensor:
        """F + log e.

        :param f: function values (..., N, F).
        :param rows: the frames that they belong to, if these are not all.
        """
        if self.offset is None:
            return f
        offset = self.offset if self.offset.dim() == 1 else self.offset[rows]
        return f + _spread_out(offset, self.likelihood.num_functions)

    def sites(self, y: Tensor, state: Tensor) -> Sites:
        """The Gaussian factors in a state.

        Parameters as in :meth:`Likelihood.sites`.
        """
        found = self.likelihood.sites(y, state, self.parameters)
        if self.offset is None:
            return found
        weight, linear, constant = found
        o = _spread_out(self.offset, self.likelihood.num_functions)
        return Sites(weight, linear - weight * o, constant + o * (linear - 0.5 * weight * o))

    def updated(self, y: Tensor, state: Tensor, moments: Moments, rate: float) -> Tensor:
        """The next state of the sites.

        Parameters as in :meth:`Likelihood.updated`.
        """
        with torch.no_grad():
            if self.offset is not None:
                o = _spread_out(self.offset, self.likelihood.num_functions)
                mean, square = moments.mean + o, moments.square + o * (2.0 * moments.mean + o)
                moments = Moments(mean, square, moments.slope, moments.curvature)
            return self.likelihood.updated(y, state, moments, self.parameters, rate)


def several_draws(likelihood: Likelihood) -> ValueError:
    """The error for several draws of hyperparameters at a time."""
    return ValueError(
        f"outputs that are {type(likelihood).__name__} take one draw of the hyperparameters at a time: use "
        "Collapsed_ELBO(num_particles=...) without vectorize_particles=True, or Predictive(..., parallel=False)."
    )


def _spread_out(x: Tensor, num_functions: int) -> Tensor:
    """Values (..., D) for the first function of each output, with 0 for the others, (..., F)."""
    if num_functions == 1:
        return x
    return torch.nn.functional.pad(x.unsqueeze(-1), (0, num_functions - 1)).flatten(-2)
