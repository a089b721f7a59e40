# SPDX-License-Identifier: Apache-2.0
r"""Likelihoods of any form, with Gaussian factors that follow natural gradients.

The bound needs E log p(y given f) under q, which has no closed form: f is Gaussian given x, but not after x is
integrated out. So the expectation is a sum over a few draws of x, which are fixed, of Gauss–Hermite sums over f given
x.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.factors import Moments, Sites, Values, filled
from pyro_vgpds.likelihoods.quadrature import hermite_nodes, usual_nodes

__all__ = ["SiteLikelihood", "expected"]

_DRAWS, _DRAWS_OF_MANY, _MANY = 8, 4, 50  # draws of each latent point, with few and with many outputs
_SPREAD = 0.1  # first variance of a function value
_LEAST_VARIANCE = 1e-10  # of a function value: its square root must have a derivative
_LEAST_WEIGHT = 1e-4  # of a factor: below it the output has hardly any information, or log p is not concave
_MOST_GROWTH = 10.0  # of a factor's weight in one step
_MOST_MOVE = 5.0  # of a factor's mean in one step, in its standard deviations


class SiteLikelihood(Likelihood):
    r"""A likelihood of any form. A subclass defines ``distribution``, and ``link`` for a good start.

    Training maximises

    .. math:: F_\text{factors} + \sum_{nd} E_q[\log p(y_{nd} \mid f_{nd}) - \log \text{factor}_{nd}(f_{nd})],

    the bound of the Gaussian factors plus a correction. The correction is **an estimate, not a bound**: an average over
    ``num_draws`` fixed quasi-random draws of each latent point, the same in every evaluation, so that it has exact
    gradients. :func:`~pyro_vgpds.inference.bound_with_spread` estimates its standard error. With more draws it is
    closer, at a cost that grows with their number. The state of a factor is its linear part and its weight:

    .. math:: w \leftarrow (1 - \rho) w + \rho \max(-E[\log p''], \epsilon), \quad
              h \leftarrow (1 - \rho) h + \rho (E[\log p'] + w\, E f).

    The derivatives are those of :meth:`expected_log_prob` in the mean and the variance, so nothing else is needed.

    :cvar num_draws: draws of each latent point, an even number. Default: 8, or 4 with 50 outputs or more, which tell
        the latent points so well that fewer draws are as exact.
    :cvar num_nodes: Gauss–Hermite nodes of each function value. Default: 15, or 9 with several functions per output.
        A density that is much narrower than f given x needs more; the spread of the bound does not show this error.

    >>> import pyro.distributions as dist
    >>> from pyro_vgpds.likelihoods import SiteLikelihood
    >>> class Exponential(SiteLikelihood):
    ...     "Positive outputs with the mean exp(f)."
    ...     support = "a positive number"
    ...     def distribution(self, f, p):
    ...         return dist.Exponential((-f).exp())
    ...     def link(self, mean, p):
    ...         return mean.log()
    ...     def is_valid(self, y, p):
    ...         return y > 0
    >>> Exponential()
    Exponential()
    """

    is_drawn = True
    num_draws: ClassVar[int | None] = None
    num_nodes: ClassVar[int | None] = None

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, p: Values) -> Tensor:
        """E log p(y given f) for f ~ N(mean, variance), (..., N, D). Default: Gauss–Hermite quadrature.

        To be overridden if there is a closed form.

        :param y: outputs (N, D), all possible.
        :param mean: (..., N, D), or (..., N, D, P) with P functions for each output.
        :param variance: the same shape.
        :param p: the values of the parameters.
        """
        count = self.num_functions
        nodes, weights = (part.to(mean) for part in hermite_nodes(self._nodes(), count))
        nodes = nodes.reshape(-1, *(1,) * (mean.dim() - (count > 1)), *(count,) * (count > 1))
        f = torch.addcmul(mean, variance.clamp_min(_LEAST_VARIANCE).sqrt(), nodes)
        return torch.tensordot(weights, self.distribution(f, p).log_prob(y), 1)

    @property
    def num_evaluations(self) -> int:
        """Number of densities that an expectation needs: 1 if it has a closed form."""
        own = type(self).expected_log_prob is SiteLikelihood.expected_log_prob
        return self._nodes() ** self.num_functions if own else 1

    def draws_for(self, num_outputs: int) -> int:
        """The number of draws of each latent point.

        :param num_outputs: D, of all.
        """
        return self.num_draws or (_DRAWS if num_outputs < _MANY else _DRAWS_OF_MANY)

    def _nodes(self) -> int:
        return self.num_nodes or usual_nodes(self.num_functions)

    def initial(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        moments = Moments(f, f.square() + _SPREAD)
        return self.updated(y, torch.zeros(2, *f.shape, dtype=f.dtype, device=f.device), moments, p, 1.0)

    def sites(self, y: Tensor, state: Tensor, p: Values) -> Sites:
        return Sites(state[1], state[0], torch.zeros_like(state[0]))

    def updated(self, y: Tensor, state: Tensor, moments: Moments, p: Values, rate: float) -> Tensor:
        mean, slope, curvature = moments.mean, moments.slope, moments.curvature
        if slope is None or curvature is None:  # as if f were Gaussian: good enough for a step
            slope, curvature = _derivatives(self, filled(y), mean, moments.square - mean.square(), p)
        seen = torch.isfinite(y).repeat_interleave(self.num_functions, -1)
        linear, weight = state
        fresh = weight <= 0.0
        target = -curvature
        target = torch.where(fresh, target, target.minimum(_MOST_GROWTH * weight))
        target = target.nan_to_num(nan=_LEAST_WEIGHT).clamp_min(_LEAST_WEIGHT)
        # a factor's mean moves by a Newton step of at most a few of its standard deviations
        move = slope.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
        limit = _MOST_MOVE * target.sqrt()
        move = torch.where(move.abs() > limit, limit * move.sign(), move)
        rates = torch.where(fresh, 1.0, rate)
        new = torch.stack([linear + rates * (move + target * mean - linear), weight + rates * (target - weight)])
        return torch.where(seen, new, 0.0)


def _derivatives(
    likelihood: SiteLikelihood, y: Tensor, mean: Tensor, variance: Tensor, p: Values
) -> tuple[Tensor, Tensor]:
    """E (log p)' and E (log p)'' in each function value, (..., N, F) each, for f ~ N(mean, variance).

    These are the derivative of E log p in the mean, and twice that in the variance.

    """
    with torch.enable_grad():
        mean, variance = mean.detach().requires_grad_(), variance.detach().clamp_min(_LEAST_VARIANCE).requires_grad_()
        total = expected(likelihood, y, mean, variance, p).sum()
        slope, half = torch.autograd.grad(total, (mean, variance))
    return slope, 2.0 * half


def expected(likelihood: SiteLikelihood, y: Tensor, mean: Tensor, variance: Tensor, p: Values) -> Tensor:
    """:meth:`SiteLikelihood.expected_log_prob` of function values (..., N, F)."""
    if likelihood.num_functions > 1:
        mean, variance = (part.unflatten(-1, (-1, likelihood.num_functions)) for part in (mean, variance))
    return likelihood.expected_log_prob(y, mean, variance, p)
