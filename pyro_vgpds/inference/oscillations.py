# SPDX-License-Identifier: Apache-2.0
r"""Parts of the default temporal kernel: a slow path, and oscillations if evidence on other frames is for them.

The principal components of any slow path resemble sinusoids over the frames from which they come: those of a random
walk are cosines with half a cycle, a whole cycle, and so on. An oscillation of each component is then most likely under
the same frames, also if nothing oscillates, and forecasts continue it. So the frames are divided into two halves, A and
B. With the loadings :math:`V_A` of A and the scales that are most likely for its components, a kernel k has on B the
log-evidence

.. math:: E_k = \sum_q w_q \max_σ \log N\big(Y_B V_{A,q} \mid 0, σ^2 (k_q(t_B, t_B) + ν I)\big) / n_B,

with the share :math:`w_q` of each component in the variance of A. Fixed directions of a random walk are random walks,
which no oscillation predicts. The sum of both directions, A to B and B to A, is compared.

Single counts are noise for the most part, so that no cycle is clear in the components of many outputs. The average of
their functions has less noise. Its strongest period is a cycle if harmonics of it that are fitted to one half of the
frames predict the other half, better than the mean of the first half does. Times that are dates have a calendar: a
year, a week or a day is then tried first. Few seasons come earlier and later by chance, so that the period that fits
them best is up to several percent from a year.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_vgpds.data.durations import UNITS
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.scales import choose_scales, evidence, head, main_cycle
from pyro_vgpds.kernels import Bias, Cosine, Kernel, Matern12, Matern32, Sum, White

__all__ = [
    "average_cycle", "harmonics", "oscillates", "oscillator", "predicted_share", "refined_period", "slow_path",
    "smooth_path",
]  # fmt: skip

_LEAST_FRAMES = 16  # fewer cannot distinguish an oscillation from a slow path
_LEAST_GAIN = 0.015  # nats: slow oscillations and paths differ by less, and the path is the better guess
_FRAMES = 240  # frames that the comparison uses
_CYCLES = 7.0  # periods over which a cycle changes, at first
_HARMONICS = 3
# Share of the variance of one half that harmonics of the other must predict. One of 150 slow paths of counts without a
# cycle had more; periods are those that fit both halves best, so that their shares are not near 0.
_PREDICTED = 0.4
_RIDGE = 0.01  # of the harmonics' coefficients, for each frame
_NEAR, _TRIED = 0.04, 41  # largest relative change of a period of the periodogram's grid; periods compared
_CALENDAR = [UNITS[unit] for unit in "ywd"]  # seconds
_FEWEST = 1.9  # cycles of the calendar that must be seen: two of them end one frame before the next begins
_APART = 0.25  # cycles by which periods must differ over all frames to be different ones
_VARIANCE = 0.95  # share of the variance that the compared components have


def smooth_path() -> Kernel:
    """The kernel of a path that does not oscillate; its variance is fixed, because the mapping has weights."""
    return Matern32().fix("variance")


def slow_path(span: float) -> Kernel:
    """The kernel of a level, almost a random walk, and of a trend, which hardly return to their means within the data.

    Without it a forecast returns to the mean of the data as soon as the path does so. The lengthscales are fixed,
    because training shortens them: the components of a random walk vary around their mean within the data.
    """
    level, trend = Matern12(lengthscale=span), Matern32(lengthscale=span)
    return level.fix("lengthscale") + trend.fix("lengthscale")


def oscillator() -> Kernel:
    """The kernel of a noisy oscillation."""
    return Matern32().fix("variance") * Cosine().fix("variance")


def harmonics(period: float, is_fixed: bool = False) -> Kernel:
    """The kernel of a cycle that changes over several periods; with ``is_fixed``, training does not change the period,
    so that the harmonics stay those of one cycle.
    """
    cosines = [Cosine(1.0 / k**2, period / k) for k in range(1, _HARMONICS + 1)]
    if is_fixed:
        cosines = [cosine.fix("period") for cosine in cosines]
    return Matern32(lengthscale=_CYCLES * period).fix("variance") * Sum(*cosines)


def average_cycle(times: Times, x: Tensor, is_dated: bool = False) -> float | None:
    """The period of a cycle in the average (N,) of many outputs of a single sequence, NaN in frames without any; None
    if one half of the frames does not predict the other.

    :param is_dated: whether times are seconds between dates, so that a period of the calendar is likely.
    """
    seen = torch.isfinite(x)
    t, x = times.t[seen], x[seen].unsqueeze(-1)
    if len(x) < _LEAST_FRAMES or not bool((x != x[0]).any()):
        return None
    tried = _of_calendar(t) if is_dated else []
    period = main_cycle(Times(t, [len(x)]), x, 0.0)
    if period is not None:
        period = refined_period(t, x, period)
        span = float(t[-1] - t[0])
        if not any(abs(span / period - span / known) < _APART for known in tried):
            tried.append(period)
    shares = [float(predicted_share(t, x, period)) for period in tried]
    best = max(shares, default=0.0)
    return tried[shares.index(best)] if best > _PREDICTED else None


def _of_calendar(t: Tensor) -> list[float]:
    """The periods of the calendar that are seen for two cycles, with enough frames in each for their harmonics."""
    step, span = float(t.diff().median()), float(t[-1] - t[0])
    return [period for period in _CALENDAR if 2.0 * _HARMONICS * step <= period <= span / _FEWEST]


def refined_period(t: Tensor, x: Tensor, period: float) -> float:
    """The period near that of the periodogram, whose grid is coarse, with the harmonics that fit points (N, Q) best."""
    near = torch.linspace(1.0 - _NEAR, 1.0 + _NEAR, _TRIED, dtype=t.dtype, device=t.device) * period
    errors = [_residual(_waves(t, float(tried)), x).square().sum() for tried in near]
    return float(near[int(torch.stack(errors).argmin())])


def _waves(t: Tensor, period: float) -> Tensor:
    """Cosines and sines of the harmonics, (N, 6)."""
    angle = (2.0 * math.pi / period) * t.unsqueeze(-1) * torch.arange(1, _HARMONICS + 1).to(t)
    return torch.cat([angle.cos(), angle.sin()], -1)


def _weights(basis: Tensor, x: Tensor) -> Tensor:
    """Coefficients of centred functions (N, 6) that fit the centred points (N, Q), by ridge regression."""
    normal = basis.mT @ basis + _RIDGE * len(basis) * torch.eye(basis.shape[1]).to(basis)
    return torch.linalg.solve(normal, basis.mT @ x)


def _residual(basis: Tensor, x: Tensor) -> Tensor:
    basis, x = basis - basis.mean(0), x - x.mean(0)
    return x - basis @ _weights(basis, x)


def predicted_share(t: Tensor, x: Tensor, period: float) -> Tensor:
    """The share (Q,) of the variance of one half of the points (N, Q) that harmonics fitted to the other half predict.

    Each half is centred, as for :func:`oscillates`: a level that changes is no argument against a cycle.
    """
    basis = _waves(t, period)
    n, error, total = len(x), torch.zeros_like(x[0]), torch.zeros_like(x[0])
    for known, new in ((slice(0, n // 2), slice(n // 2, n)), (slice(n // 2, n), slice(0, n // 2))):
        here, there = (basis[rows] - basis[rows].mean(0) for rows in (known, new))
        own, other = (x[rows] - x[rows].mean(0) for rows in (known, new))
        error += (other - there @ _weights(here, own)).square().sum(0)
        total += other.square().sum(0)
    return 1.0 - error / total.clamp_min(torch.finfo(x.dtype).tiny)


def oscillates(times: Times, x: Tensor) -> bool:
    """Whether an oscillation of each component predicts the other half of the frames of a single sequence better than a
    smooth path, for points (N, Q) with the variance that each component has in the outputs.
    """
    if len(x) < _LEAST_FRAMES:
        return False
    times, x = head(times, x, _FRAMES)
    n = len(x)
    halves = (slice(0, n // 2), slice(n // 2, n))
    with torch.no_grad():
        return sum(_gain(times.t, x, a, b) for a, b in (halves, halves[::-1])) > _LEAST_GAIN


def _gain(t: Tensor, x: Tensor, a: slice, b: slice) -> float:
    """Evidence of the oscillator minus that of the smooth path for the frames ``b``, with the scales of ``a``."""
    known, new = x[a] - x[a].mean(0), x[b] - x[b].mean(0)
    u, s, v = torch.linalg.svd(known, full_matrices=False)
    power = s.square() / s.square().sum().clamp_min(torch.finfo(s.dtype).tiny)
    count = min(len(s), int((power.cumsum(0) < _VARIANCE).sum()) + 1)
    power = power[:count]
    points = u[:, :count] * math.sqrt(len(known))
    apart = (new @ v.mT[:, :count]) / s[:count].clamp_min(torch.finfo(s.dtype).eps * s[0]) * math.sqrt(len(known))
    total = []
    for path in (oscillator(), smooth_path()):
        kernel = (path + White(1e-2) + Bias(0.1)).to(dtype=x.dtype, device=x.device)
        choose_scales(kernel, Times(t[a], [len(known)]), points, power)
        kernel.per_dimension(count)
        total.append(float((power * evidence(kernel, Times(t[b], [len(new)]), apart, free_variance=True)).sum()))
    return total[0] - total[1]
