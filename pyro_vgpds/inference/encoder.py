# SPDX-License-Identifier: Apache-2.0
"""The default network of the amortised guide, and its inputs."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.moments import middle
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.columns import ByColumn
from pyro_vgpds.likelihoods.value import LikelihoodValue

__all__ = ["Encoder", "encoder_inputs", "function_inputs", "middle_likelihood"]

_PRECISION = 10.0  # initial λ, as that of AutoOpperArchambeau for a model made from data
_RIDGE = 1e-2  # of the regression that the network starts from, relative to the mean variance of its inputs


def encoder_inputs(data: Sequences, mean: Tensor, scale: Tensor) -> Tensor:
    """Centred and scaled outputs with 0 for missing ones, and which of them are observed, (N, 2D)."""
    y = data.read()
    seen = torch.isfinite(y)
    return torch.cat([torch.where(seen, (y - mean) / scale, 0.0), seen.to(y.dtype)], -1)


def function_inputs(data: Sequences, likelihood: LikelihoodValue, mean: Tensor, scale: Tensor) -> Tensor:
    """The same for outputs that are not Gaussian, (N, 2F): functions, scaled by ``scale`` (F,), that explain each
    output alone.

    An output is averaged with its ``mean`` (D,) first, because a count of 0 alone has no finite logarithm.
    """
    y = data.read()
    seen = torch.isfinite(y)
    f = likelihood.link(torch.where(seen, 0.5 * (y + mean), mean)) - likelihood.link(mean)
    seen = seen.repeat_interleave(likelihood.likelihood.num_functions, -1)
    return torch.cat([torch.where(seen, f / scale, 0.0), seen.to(y.dtype)], -1)


def middle_likelihood(likelihood: Likelihood) -> LikelihoodValue:
    """A likelihood at its current parameters; those with priors are at the medians of these."""
    members = enumerate(likelihood.likelihoods) if isinstance(likelihood, ByColumn) else [("", likelihood)]
    values = vars(likelihood().parameters)
    for place, member in members:
        for name in member.parameter_names:
            prior = member.prior(name)
            fn = prior(member) if callable(prior) and not hasattr(prior, "sample") else prior
            found = None if fn is None else middle(fn)  # type: ignore[arg-type]
            if found is not None:
                values[f"{place}.{name}".lstrip(".")] = found
    return LikelihoodValue(likelihood, SimpleNamespace(**values)).detached()


class Encoder(nn.Module):
    """A linear map of 2D inputs to 2Q numbers, plus a network with one hidden layer. Its last layer starts at zero."""

    def __init__(self, num_inputs: int, num_hidden: int, latent_dim: int) -> None:
        super().__init__()
        self.num_hidden = num_hidden
        self.linear = nn.Linear(num_inputs, 2 * latent_dim)
        self.inner = nn.Linear(num_inputs, num_hidden)
        self.outer = nn.Linear(num_hidden, 2 * latent_dim)
        for layer in (self.linear, self.outer):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.linear.weight[:latent_dim, : num_inputs // 2].normal_(0.0, (2.0 / num_inputs) ** 0.5)
            self.linear.bias[latent_dim:] = math.log(_PRECISION)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) + self.outer(torch.tanh(self.inner(inputs)))

    def regress(self, inputs: Tensor, x: Tensor, hidden: bool = False) -> None:
        """Start the linear map at the ridge regression of latent points x (N, Q) on inputs (N, 2D).

        :param hidden: regress on the hidden units, too, as they are; otherwise they are not used.
        """
        with torch.no_grad():
            self.to(inputs)
            known = torch.cat([inputs, torch.tanh(self.inner(inputs))], -1) if hidden else inputs
            centre, target = known.mean(0), x.to(inputs)
            a, b = known - centre, target - target.mean(0)
            ridge = _RIDGE * a.square().sum() / max(1, a.shape[1]) + torch.finfo(a.dtype).tiny
            small = a.shape[0] < a.shape[1]  # the smaller of the two equal systems
            gram = a @ a.mT if small else a.mT @ a
            gram.diagonal().add_(ridge)
            weight = a.mT @ torch.linalg.solve(gram, b) if small else torch.linalg.solve(gram, a.mT @ b)  # (2D, Q)
            latent, count = x.shape[1], inputs.shape[1]
            self.linear.weight[:latent] = weight[:count].mT
            self.outer.weight[:latent] = weight[count:].mT if hidden else 0.0
            self.linear.bias[:latent] = target.mean(0) - centre @ weight

    def draw_hidden(self, generator: torch.Generator) -> None:
        """Hidden units of all directions of the outputs, which bend within their spread."""
        with torch.no_grad():
            half = self.inner.in_features // 2  # outputs, and then which of them were observed
            self.inner.weight.zero_()
            self.inner.weight[:, :half].normal_(0.0, max(1, half) ** -0.5, generator=generator)
            self.inner.bias.normal_(generator=generator)

    def set_precision(self, precision: Tensor) -> None:
        """Set the precision (Q,) of the sites, in all frames the same."""
        with torch.no_grad():
            self.linear.bias[len(precision) :] = precision.log().to(self.linear.bias)
