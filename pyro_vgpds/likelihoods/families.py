# SPDX-License-Identifier: Apache-2.0
"""Likelihoods with a Gaussian lower bound: Gaussian, Student-t, Bernoulli, binomial and negative binomial."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_vgpds.checks import as_numbers, undefined
from pyro_vgpds.likelihoods.factors import Sites, Values, observed, spread
from pyro_vgpds.likelihoods.native_tangents import (
    different_counts,
    is_compiled,
    logistic,
    negative_binomial_sites,
    student_sites,
)
from pyro_vgpds.likelihoods.special import incomplete_beta, student_cdf
from pyro_vgpds.likelihoods.tangent import LEAST, Curve, TangentLikelihood, Terms
from pyro_vgpds.parameters import ParameterLike

__all__ = ["Bernoulli", "Binomial", "Gaussian", "NegativeBinomial", "StudentT"]


_SCALE = 0.1  # first scale of the noise, in standard deviations of an output
_DISPERSION = 5.0


class _WithScale(TangentLikelihood):
    """y = f + σ ε."""

    learns_scale = False
    deviations = frozenset({"scale"})

    def prepare(self, y: Tensor) -> None:
        self.choose("scale", _SCALE * spread(y))


class Gaussian(_WithScale):
    """y = f + ε, the default. The model then has no site ``f``, and its noise is ``VGPDS.noise``.

    With other likelihoods in one model (:class:`~pyro_vgpds.likelihoods.ByColumn`) it has a noise of its own.

    :param scale: standard deviation of ε in the data's units, one for all outputs or (D,) (learned), or a prior.
        Default: 0.1 standard deviations of each output.

    >>> from pyro_vgpds.likelihoods import Gaussian
    >>> Gaussian()
    Gaussian(scale=0.1)
    """

    def __init__(self, scale: ParameterLike | None = None) -> None:
        super().__init__()
        self.add_parameter("scale", scale, default=_SCALE)

    def distribution(self, f: Tensor, p: Values) -> dist.Normal:
        return dist.Normal(f, p.scale)

    def terms(self, y: Tensor, p: Values) -> Terms:
        return Terms(y.new_zeros(()), y, -p.scale.log() - 0.5 * math.log(2.0 * math.pi))

    def curve(self, y: Tensor, r: Tensor, p: Values) -> Curve:
        precision = p.scale.pow(-2).expand_as(r)
        return Curve(-0.5 * precision * r, -0.5 * precision)


class StudentT(_WithScale):
    r"""y = f + σ ε with ε from a Student-t distribution: outputs with outliers.

    :param scale: σ in the data's units, one for all outputs or (D,) (learned), or a prior. Default: 0.1 standard
        deviations of each output.
    :param df: degrees of freedom ν, one for all outputs or (D,) (learned), or a prior.

    >>> from pyro_vgpds.likelihoods import StudentT
    >>> StudentT(df=4.0).fix("df")
    StudentT(scale=0.1, df=4 (fixed))
    """

    def __init__(self, scale: ParameterLike | None = None, df: ParameterLike = 10.0) -> None:
        super().__init__()
        self.add_parameter("scale", scale, default=_SCALE)
        self.add_parameter("df", df)

    def distribution(self, f: Tensor, p: Values) -> dist.StudentT:
        return dist.StudentT(p.df, f, p.scale)

    def moments(self, f: Tensor, p: Values) -> tuple[Tensor, Tensor]:
        variance = torch.where(p.df > 2.0, p.scale.square() * p.df / (p.df - 2.0).clamp_min(1e-12), torch.inf)
        return f, variance.expand_as(f)  # f is the median if there is no mean

    def cdf(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        return student_cdf((y - f) / p.scale, p.df)

    def terms(self, y: Tensor, p: Values) -> Terms:
        nu = p.df
        constant = torch.lgamma(0.5 * (nu + 1.0)) - torch.lgamma(0.5 * nu) - 0.5 * (math.pi * nu).log() - p.scale.log()
        return Terms(y.new_zeros(()), y, constant)

    def curve(self, y: Tensor, r: Tensor, p: Values) -> Curve:
        width, power = _shape(p)
        return Curve(power * torch.log1p(r / width), power / (width + r))

    def sites(self, y: Tensor, state: Tensor, p: Values) -> Sites:
        if not is_compiled(y, state):
            return super().sites(y, state, p)
        return student_sites(y, state, LEAST, *_shape(p), self.terms(y, p).constant)  # the same in fewer operations


def _shape(p: Values) -> tuple[Tensor, Tensor]:
    """νσ² and −(ν + 1)/2."""
    return p.df * p.scale.square(), -0.5 * (p.df + 1.0)


class _Logistic(TangentLikelihood):
    """log p(y given f) = κ f − b log 2cosh(f/2) + const, the family of Pólya–Gamma augmentation."""

    is_discrete = True

    def size(self, y: Tensor, p: Values) -> Tensor:
        """b, (N, D) or broadcast to that."""
        raise undefined(self, "size(y, p)")

    def curve(self, y: Tensor, r: Tensor, p: Values) -> Curve:
        c, b = r.sqrt(), self.size(y, p)
        half = 0.5 * c
        return Curve(-b * (half + torch.log1p((-c).exp())), -0.25 * b * half.tanh() / c)

    def sites(self, y: Tensor, state: Tensor, p: Values) -> Sites:
        """As above, in fewer operations: weight and constant are multiples of b, and the tangents have no gradient."""
        weight, value = self.tangents(y, state)
        seen, y = observed(y)
        slope, _, constant = self.terms(y, p)
        b = self.size(y, p)
        return Sites(b * weight, seen * slope, torch.addcmul(seen * constant, b, value))

    @torch.no_grad()
    def tangents(self, y: Tensor, state: Tensor) -> Tensor:
        """Weight and constant for b = 1, without κ, (2, N, D): 0 for outputs that were not observed.

        :param y: outputs (N, D), NaN if they were not observed.
        :param state: (2, N, D).
        """
        if is_compiled(y, state):
            return logistic(y, state, LEAST)
        r = state[1].clamp_min(LEAST)
        c, seen = r.sqrt(), observed(y)[0]
        below = torch.expm1(-c)
        above = below + 2.0  # 1 + exp(−c)
        weight = below.div_(above).div_(c).mul_(seen).mul_(-0.5)  # tanh(c/2) / 2c
        value = above.log_().add_(c, alpha=0.5).mul_(seen).neg_().addcmul_(weight, r, value=0.5)
        return torch.stack([weight, value])


class Bernoulli(_Logistic):
    """Yes or no: y is 1 with probability 1 / (1 + exp(−f)), else 0.

    >>> import torch
    >>> from pyro_vgpds.likelihoods import Bernoulli
    >>> Bernoulli()().distribution(torch.zeros(1)).mean
    tensor([0.5000])
    """

    support: ClassVar[str] = "0 or 1"

    def distribution(self, f: Tensor, p: Values) -> dist.Bernoulli:
        return dist.Bernoulli(logits=f)

    def link(self, mean: Tensor, p: Values) -> Tensor:
        return torch.logit(mean)

    def cdf(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        below = torch.sigmoid(-f)
        return torch.where(y >= 1.0, 1.0, torch.where(y >= 0.0, below, 0.0))

    def is_valid(self, y: Tensor, p: Values) -> Tensor:
        return (y == 0.0) | (y == 1.0)

    def kind_of(self, output: int) -> str:
        return "yes/no"

    def sites(self, y: Tensor, state: Tensor, p: Values) -> Sites:
        weight, value = self.tangents(y, state)
        return Sites(weight, y.nan_to_num(nan=0.5).sub_(0.5), value)  # b is 1, and the constant 0

    def size(self, y: Tensor, p: Values) -> Tensor:
        return y.new_ones(())

    def terms(self, y: Tensor, p: Values) -> Terms:
        zero = y.new_zeros(())
        return Terms(y - 0.5, zero, zero)


class Binomial(_Logistic):
    """The number of successes in ``total`` trials, each with probability 1 / (1 + exp(−f)).

    :param total: number of trials of every output, or (D,) one each.
    :raises ValueError: if it is not a whole number of at least 1.

    >>> from pyro_vgpds.likelihoods import Binomial
    >>> Binomial(total=10)
    Binomial(total=10)
    """

    support: ClassVar[str] = "a whole number from 0 to total"
    option_names: ClassVar[tuple[str, ...]] = ("total",)
    total: Tensor

    def __init__(self, total: Any) -> None:
        super().__init__()
        numbers = torch.from_numpy(as_numbers("total", total))
        if numbers.dim() > 1 or not bool(((numbers >= 1) & (numbers == numbers.round())).all()):
            raise ValueError(f"total must be a whole number of at least 1, or (D,) of them, but got {total!r:.80}.")
        self.register_buffer("total", numbers)
        self.per_output.add("total")

    def distribution(self, f: Tensor, p: Values) -> dist.Binomial:
        return dist.Binomial(self.total.to(f).expand(f.shape), logits=f)

    def link(self, mean: Tensor, p: Values) -> Tensor:
        return torch.logit(mean / self.total)

    def cdf(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        total = self.total.to(f)
        k = torch.minimum(y.floor().clamp_min(0.0), total - 1.0)
        found = incomplete_beta(total - k, k + 1.0, torch.sigmoid(-f))
        return torch.where(y < 0.0, 0.0, torch.where(y.floor() >= total, 1.0, found))

    def is_valid(self, y: Tensor, p: Values) -> Tensor:
        return (y >= 0.0) & (y <= self.total) & (y == y.round())

    def support_of(self, output: int) -> str:
        total = self.total[output] if self.total.dim() else self.total
        return f"a whole number from 0 to {int(total)}"

    def size(self, y: Tensor, p: Values) -> Tensor:
        return self.total.expand_as(y)

    def terms(self, y: Tensor, p: Values) -> Terms:
        n = self.total
        ways = torch.lgamma(n + 1.0) - torch.lgamma(y + 1.0) - torch.lgamma((n - y).clamp_min(0.0) + 1.0)
        return Terms(y - 0.5 * n, y.new_zeros(()), ways)

    def _described(self) -> list[str]:
        total = f"{int(self.total)}" if not self.total.dim() else f"({len(self.total)} values)"
        return [f"total={total}"]


class NegativeBinomial(_Logistic):
    """Counts with the mean r exp(f), times their exposure, and the variance mean + mean²/r.

    :param dispersion: r, one for all outputs or (D,) (learned), or a prior. Large values are close to a Poisson
        distribution, for which :class:`~pyro_vgpds.likelihoods.Poisson` has the tighter bound. Default: one for each
        output.

    >>> from pyro_vgpds.likelihoods import NegativeBinomial
    >>> NegativeBinomial(dispersion=3.0)
    NegativeBinomial(dispersion=3)
    """

    support: ClassVar[str] = "a count: a whole number of 0 or more"
    takes_exposure: ClassVar[bool] = True

    def __init__(self, dispersion: ParameterLike | None = None) -> None:
        super().__init__()
        self.add_parameter("dispersion", dispersion, default=_DISPERSION)

    def prepare(self, y: Tensor) -> None:
        self.choose("dispersion", torch.full(y.shape[-1:], _DISPERSION, dtype=y.dtype, device=y.device))

    def distribution(self, f: Tensor, p: Values) -> dist.NegativeBinomial:
        return dist.NegativeBinomial(p.dispersion.expand(f.shape), logits=f)

    def link(self, mean: Tensor, p: Values) -> Tensor:
        return mean.log() - p.dispersion.log()

    def cdf(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        found = incomplete_beta(p.dispersion.to(f), y.floor().clamp_min(0.0) + 1.0, torch.sigmoid(-f))
        return torch.where(y < 0.0, 0.0, found)

    def is_valid(self, y: Tensor, p: Values) -> Tensor:
        return (y >= 0.0) & (y == y.round())

    def size(self, y: Tensor, p: Values) -> Tensor:
        return y + p.dispersion

    def terms(self, y: Tensor, p: Values) -> Terms:
        r, k = p.dispersion, different_counts(y)
        ways = torch.lgamma(k + r) - torch.lgamma(r) - torch.lgamma(k + 1.0)
        if k.shape != y.shape:
            ways = ways.expand(-1, y.shape[-1]).gather(0, y.long())
        return Terms(0.5 * (y - r), y.new_zeros(()), ways)

    def sites(self, y: Tensor, state: Tensor, p: Values) -> Sites:
        if not is_compiled(y, state):
            return super().sites(y, state, p)
        return negative_binomial_sites(y, self.tangents(y, state), p.dispersion)  # the same in fewer operations
