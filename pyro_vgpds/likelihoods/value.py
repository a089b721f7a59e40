# SPDX-License-Identifier: Apache-2.0
"""A likelihood at values of its parameters, with the exposures of the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_vgpds.likelihoods.factors import Moments, Part, Sites, filled

__all__ = ["LikelihoodValue", "several_draws"]


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

    def __init__(self, likelihood: Any, parameters: SimpleNamespace, offset: Tensor | None = None) -> None:
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

        Parameters as in :meth:`~pyro_vgpds.likelihoods.Likelihood.distribution`.
        """
        return self.likelihood.distribution(self._shaped(f), self.parameters)

    def _shaped(self, f: Tensor) -> Tensor:
        f, count = self.shifted(f), self.likelihood.num_functions
        return f if count == 1 else f.unflatten(-1, (-1, count))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs given function values (..., N, F).

        Parameters as in :meth:`~pyro_vgpds.likelihoods.Likelihood.moments`.
        """
        return self.likelihood.moments(self._shaped(f), self.parameters)

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        """P(output ≤ y given f).

        Parameters as in :meth:`~pyro_vgpds.likelihoods.Likelihood.cdf`.
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

        Parameters as in :meth:`~pyro_vgpds.likelihoods.Likelihood.link`.
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

        Parameters as in :meth:`~pyro_vgpds.likelihoods.Likelihood.initial`.
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

        Parameters as in :meth:`~pyro_vgpds.likelihoods.Likelihood.sites`.
        """
        found = self.likelihood.sites(y, state, self.parameters)
        if self.offset is None:
            return found
        weight, linear, constant = found
        o = _spread_out(self.offset, self.likelihood.num_functions)
        return Sites(weight, linear - weight * o, constant + o * (linear - 0.5 * weight * o))

    def updated(self, y: Tensor, state: Tensor, moments: Moments, rate: float) -> Tensor:
        """The next state of the sites.

        Parameters as in :meth:`~pyro_vgpds.likelihoods.Likelihood.updated`.
        """
        with torch.no_grad():
            if self.offset is not None:
                o = _spread_out(self.offset, self.likelihood.num_functions)
                mean, square = moments.mean + o, moments.square + o * (2.0 * moments.mean + o)
                moments = Moments(mean, square, moments.slope, moments.curvature)
            return self.likelihood.updated(y, state, moments, self.parameters, rate)


def several_draws(likelihood: object) -> ValueError:
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
