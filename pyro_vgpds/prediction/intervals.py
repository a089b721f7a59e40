# SPDX-License-Identifier: Apache-2.0
"""Calibration of intervals on held-out predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_kind, check_number, check_probability, check_tensor
from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.likelihoods.special import student_cdf

__all__ = ["Calibration", "calibrate_intervals"]

LEVELS = (0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)
_PSEUDO = 10.0  # held-out gaps that the average of all outputs counts for, for the factor of one output
_OWN = 30  # held-out entries of an output from which its own median tells which errors are huge
_LEAST_COUNT = 10.0  # independent errors that any held-out part is taken to have, if groups tell their number
_FEWEST = 2.0  # independent errors, if their number is known: a single one would have intervals without use
_SHAPE = 10.0  # independent errors that Student's t-distribution counts for, for the shape of the errors
_LEAST = 100  # held-out entries below which errors say nothing about the shape
_HUGE = 100.0  # squared errors in units of what is usual are cut here: a few must not decide the width of all intervals
_NORMAL = 1e3  # degrees of freedom from which quantiles of Student's t-distribution are taken to be those of a Gaussian
_REACH, _PLACES = 100.0, 2000  # up to which, and at how many places, its probabilities are computed
_EXACT = 1e-6, 1e-14  # errors in predicted standard deviations, and relative to the number, that are none


@dataclass(frozen=True)
class Calibration:
    """How wide intervals must be in units of the predicted standard deviation.

    >>> from pyro_vgpds.prediction import Calibration
    >>> round(Calibration.none(2).width(0.95), 6)
    1.959964
    """

    factor: Tensor  #: (D,), of the standard deviation of each output
    #: half widths of central intervals of the probabilities ``LEVELS``, in corrected standard deviations
    widths: Tensor

    @classmethod
    def none(cls, num_outputs: int) -> Calibration:
        """Gaussian intervals with the predicted standard deviations.

        :param num_outputs: D.
        """
        check_count("num_outputs", num_outputs)
        widths = torch.tensor([_gaussian(level) for level in LEVELS], dtype=torch.float64)
        return cls(torch.ones(num_outputs, dtype=torch.float64), widths)

    def width(self, probability: float) -> float:
        """Half width of central intervals, in corrected standard deviations, interpolated between ``LEVELS``.

        :param probability: of each interval.
        """
        check_probability(probability)
        at = _gaussian(probability)
        x = [0.0, *(_gaussian(level) for level in LEVELS)]
        y = [0.0, *self.widths.tolist()]
        if at >= x[-1]:
            return y[-1] * at / x[-1]
        i = next(i for i in range(1, len(x)) if at <= x[i])
        return y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1])


def _gaussian(probability: float) -> float:
    return NormalDist().inv_cdf(0.5 + 0.5 * probability)


def calibrate_intervals(
    held_out: HeldOut,
    num_outputs: int,
    checked: HeldOut | None = None,
    *,
    gap_length: float = 1.0,
    group: Tensor | None = None,
    num_errors: float | None = None,
) -> Calibration:
    """The calibration under which held-out numbers lie in their intervals as often as promised.

    The standard deviation of an output is corrected by the root mean square of its held-out errors in units of the
    predicted deviation, combined with that of all outputs. The widths are empirical quantiles after that correction. A
    few gaps tell the shape of errors only roughly: with groups, the widths are weighted geometric means of these
    quantiles, with the effective number of errors as weight, and of the quantiles of Student's t-distribution with as
    many degrees of freedom, with the weight 10; only the latter if there are fewer than 100 entries. With
    ``num_errors`` the effective number is known, but at least two, and Student's t-distribution is scaled by the root
    mean square of the errors. Outputs without any error, such as constant ones, do not count: they say nothing about
    the others. If no output has an error, one gap with an error of the predicted size is assumed.

    :param held_out: hidden numbers and their predictions.
    :param num_outputs: D.
    :param checked: predictions with corrected deviations that were chosen on other held-out numbers; the widths are the
        quantiles of their errors, which choices have not made smaller. Default: ``held_out``, corrected.
    :param gap_length: number of entries whose errors are so similar that they count as one.
    :param group: (n,), the number of each entry's group: errors of different groups are independent. Default: all
        entries are independent, and there are enough of them to know the quantiles.
    :param num_errors: the effective number of independent errors, if it is known. Default: what the groups tell.

    >>> from pyro_vgpds.evaluation import hold_out
    >>> from pyro_vgpds.prediction import calibrate_intervals
    >>> split = hold_out(data, "forecast", horizon=3)
    >>> calibrate_intervals(split.predict(post.condition(split.train)), num_outputs=5).factor.shape
    torch.Size([5])
    """
    check_kind("held_out", held_out, HeldOut, "a HeldOut")
    check_kind("checked", checked, HeldOut, "a HeldOut", optional=True)
    check_count("num_outputs", num_outputs)
    if len(held_out.output) and int(held_out.output.max()) >= num_outputs:
        raise ValueError(f"num_outputs must be those of held_out, which has output {int(held_out.output.max())}.")
    check_number("gap_length", gap_length, "positive", lambda value: value > 0.0)
    check_tensor("group", group, 1, optional=True)
    if num_errors is not None:
        check_number("num_errors", num_errors, "positive", lambda value: value > 0.0)
    if group is not None and group.shape != (held_out if checked is None else checked).truth.shape:
        raise ValueError(f"group must be (n,), one number for each entry, but its shape is {tuple(group.shape)}.")
    counts, n = _counts(held_out), len(held_out.truth)
    if bool(counts.any()):
        factor = _factors(held_out.take(counts), num_outputs, _PSEUDO * gap_length)
    else:  # as if one more gap had an error of the predicted size
        factor = torch.full((num_outputs,), (1.0 + n / gap_length) ** -0.5, dtype=torch.float64)
    if checked is None:
        z = _relative_errors(held_out) / factor[held_out.output.cpu()]
    else:
        z, counts = _relative_errors(checked), _counts(checked)
    z = z[counts]
    if num_errors is not None and len(z):
        size = float(z.square().clamp_max(_HUGE).mean().sqrt())
        return Calibration(factor, _quantiles(z, max(_FEWEST, float(num_errors)), size))
    count = math.inf if group is None or not len(z) else _effective_count(z, group.cpu()[counts])
    return Calibration(factor, _quantiles(z, count))


def _counts(held_out: HeldOut) -> Tensor:
    """A mask (n,) of the outputs that have an error."""
    relative, size = _EXACT
    output, rounding = held_out.output.cpu(), size * held_out.truth.abs().to("cpu", torch.float64)
    error = (held_out.mean - held_out.truth).abs().to("cpu", torch.float64)
    return torch.isin(output, output[(_relative_errors(held_out) > relative) & (error > rounding)])


def _effective_count(z: Tensor, group: Tensor) -> float:
    """The number of independent errors that would tell their mean square as well as these do (Satterthwaite).

    Groups whose mean squares differ little have many independent errors each, those that differ much have one. The few
    groups of small data do not tell: two more that have one error each are assumed, and at least ten errors in all.
    """
    _, index = group.unique(return_inverse=True)
    count = torch.bincount(index).double()
    mean = torch.zeros_like(count).index_add_(0, index, z.square().clamp_max(_HUGE)) / count
    weight, center = count / count.sum(), (count * mean).sum() / count.sum()
    groups = float(1.0 / weight.square().sum())
    spread = float((weight * (mean - center).square()).sum() / center.square()) * groups / max(groups - 1.0, 1e-3)
    extra = 2.0  # groups with the spread 2 of the square of one Gaussian
    spread = (spread * max(groups - 1.0, 0.0) + 2.0 * extra) / (max(groups - 1.0, 0.0) + extra)
    return max(_LEAST_COUNT, 2.0 * groups / spread)


def _student(count: float) -> Tensor:
    """Quantiles of Student's t-distribution for ``LEVELS``, by interpolation between probabilities at many places."""
    if count >= _NORMAL:
        return torch.tensor([_gaussian(level) for level in LEVELS], dtype=torch.float64)
    places = torch.linspace(0.0, math.asinh(_REACH), _PLACES, dtype=torch.float64).sinh()
    inside = 2.0 * student_cdf(places, torch.tensor(count, dtype=torch.float64)) - 1.0
    return torch.from_numpy(np.interp(LEVELS, inside.numpy(), places.numpy()))


def _relative_errors(held_out: HeldOut) -> Tensor:
    """Absolute errors in predicted standard deviations, (n,)."""
    z = (held_out.mean - held_out.truth).abs() / held_out.variance.clamp_min(1e-300).sqrt()
    return z.to("cpu", torch.float64)


def _factors(held_out: HeldOut, num_outputs: int, pseudo: float) -> Tensor:
    """The factor of each output's standard deviation, (D,)."""
    z2, output = _relative_errors(held_out).square(), held_out.output.cpu()
    count = torch.zeros(num_outputs, dtype=torch.float64).index_add_(0, output, torch.ones_like(z2))
    cut = torch.minimum(z2, _limits(z2, output, count.long()))
    total = torch.zeros(num_outputs, dtype=torch.float64).index_add_(0, output, cut)
    return ((total + pseudo * cut.mean()) / (count + pseudo)).sqrt().clamp_min(1e-6)


def _quantiles(z: Tensor, count: float, size: float = 1.0) -> Tensor:
    """The quantiles of ``LEVELS`` of errors, moved towards those of Student's t-distribution of this size, for this
    effective number of independent errors.

    The largest errors of a few gaps are often those of one gap, so that they say little about the next gap.
    """
    z, n, student = z.sort().values, len(z), size * _student(count)
    if n < _LEAST:
        return student
    ranks = torch.tensor([min(level * (n + 1), n) for level in LEVELS], dtype=torch.float64)
    low = ranks.floor().long().clamp(1, n)
    share = (ranks - low).clamp(0.0, 1.0)
    found = (1.0 - share) * z[low - 1] + share * z[(low + 1).clamp_max(n) - 1]
    known = 1.0 / (1.0 + _SHAPE / count)
    return found.cummax(0).values ** known * student ** (1.0 - known)


def _limits(z2: Tensor, output: Tensor, count: Tensor) -> Tensor:
    """Squared errors are cut here for the factors: a few huge ones must not decide the width of all intervals.

    The limit of an output is far above its median, or above that of all outputs if its own is smaller or unknown.
    Errors of zero do not count: steps and counts have many of them, so that the median may be zero.
    """
    order = z2.argsort()
    order = order[output[order].argsort(stable=True)]  # by output, then by size
    middle = (count.cumsum(0) - count + (count - 1).clamp_min(0) // 2).clamp_max(len(z2) - 1)
    least = z2[z2 > _EXACT[0] ** 2].median()
    median = torch.where(count >= _OWN, torch.maximum(z2[order][middle], least), least)
    return _HUGE * median[output]
