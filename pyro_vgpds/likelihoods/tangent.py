# SPDX-License-Identifier: Apache-2.0
r"""Likelihoods with a Gaussian lower bound, for which the collapsed bound stays a bound and needs no draws.

.. math:: \log p(y \mid f) = \kappa f + \varphi((f - a)^2) + \text{const}, \qquad \varphi \text{ convex and decreasing.}

A convex function is above its tangents, so for every r

.. math:: \varphi((f - a)^2) \ge \varphi(r) - \tfrac{\omega}{2} \big((f - a)^2 - r\big), \qquad \omega = -2 \varphi'(r),

a Gaussian factor in f. The bound is largest for r = E(f − a)² under q, which the gradients of the bound give: so the
update of r is exact coordinate ascent, and the bound never falls. Pólya–Gamma augmentation (Bernoulli, binomial,
negative binomial) and the scale mixture of a Student-t are both of this form.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.checks import undefined
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.factors import Moments, Sites, Values

__all__ = ["LEAST", "Curve", "TangentLikelihood", "Terms"]

LEAST = 1e-12  # of r: the derivative of φ may be infinite at 0
_SPREAD = 0.1  # first variance of a function value


class Terms(NamedTuple):
    """κ, a, and the constant of log p(y given f), (N, D) each or broadcast to that."""

    slope: Tensor
    centre: Tensor
    constant: Tensor


class Curve(NamedTuple):
    """φ and its derivative, (N, D) each."""

    value: Tensor
    slope: Tensor


class TangentLikelihood(Likelihood):
    """A likelihood of the form above. Derived classes define :meth:`terms` and :meth:`curve`.

    The state of a site is E f and E f² where the tangent touches.

    >>> import pyro.distributions as dist
    >>> import torch
    >>> from pyro_vgpds.likelihoods import TangentLikelihood
    >>> from pyro_vgpds.likelihoods.tangent import Curve, Terms
    >>> class Laplace(TangentLikelihood):
    ...     "log p = −|y − f| − log 2: φ(r) = −√r."
    ...     def distribution(self, f, p):
    ...         return dist.Laplace(f, 1.0)
    ...     def terms(self, y, p):
    ...         return Terms(torch.zeros_like(y), y, torch.full_like(y, 0.5).log())
    ...     def curve(self, y, r, p):
    ...         return Curve(-r.sqrt(), -0.5 / r.sqrt())
    >>> one = torch.ones(1, 1)
    >>> Laplace()().sites(0.0 * one, torch.stack([one, 4.0 * one])).weight
    tensor([[0.5000]])
    """

    def terms(self, y: Tensor, p: Values) -> Terms:
        """κ, a and the constant.

        :param y: outputs (N, D), all possible.
        :param p: the values of the parameters.
        """
        raise undefined(self, "terms(y, p)")

    def curve(self, y: Tensor, r: Tensor, p: Values) -> Curve:
        """φ(r) and φ'(r).

        :param y: outputs (N, D), all possible.
        :param r: (N, D), positive.
        :param p: the values of the parameters.
        """
        raise undefined(self, "curve(y, r, p)")

    def initial(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        return torch.stack([f, f.square() + _SPREAD])

    def sites(self, y: Tensor, state: Tensor, p: Values) -> Sites:
        seen, y = torch.isfinite(y), torch.nan_to_num(y, nan=0.0)
        slope, centre, constant = self.terms(y, p)
        r = (state[1] - 2.0 * centre * state[0] + centre.square()).clamp_min(LEAST)
        value, derivative = self.curve(y, r, p)
        weight = -2.0 * derivative
        constant = constant + value + 0.5 * weight * (r - centre.square())
        return Sites(*(torch.where(seen, part, 0.0) for part in (weight, slope + weight * centre, constant)))

    def updated(self, y: Tensor, state: Tensor, moments: Moments, p: Values, rate: float) -> Tensor:
        return torch.stack([moments.mean, moments.square])  # the maximum: a shorter step would only be slower
