# SPDX-License-Identifier: Apache-2.0
"""Temporal lengthscales and periods under which the principal components are most likely."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_vgpds.communication import Communicator
from pyro_vgpds.data.repeats import find_repeat
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import Cosine, Kernel, KernelValue
from pyro_vgpds.linalg import add_diagonal, cholesky, in_double
from pyro_vgpds.temporal.distributions import TemporalGP

__all__ = [
    "choose_scales", "dominant_period", "evidence", "head", "longest", "main_cycle", "repeated_cycle",
    "sinusoid_powers",
]  # fmt: skip

_FRAMES = 240  # frames that the search uses
_NUMBERS = 1 << 20  # size of the arrays of covariance matrices
_NOISE = 0.05  # white noise of the points, as a share of their variance
_FAR = 20.0  # a period of this many spans is no oscillation within the data
_LEAST_FRAMES, _CYCLE_FRAMES = 24, 2000  # in which a clear cycle is looked for
_CLEAR_CYCLES, _CLEAR = 3.0, 0.2  # cycles and share of the variance of a clear one
# Of fewer cycles: the largest mismatch one period apart, and the least effective number of dimensions. One of a hundred
# random walks or slow paths of three dimensions, and a sixth of those of one dimension, repeat as well by chance.
_REPEATED, _DIMENSIONS = 0.5, 3.0
_MULTIPLE = 0.1  # by which a cycle differs from a multiple of the oscillation in it, at most
_THIN = 400  # frames in which it is looked for, at most
# power at twice the strongest period: relative to the strongest, to that around it, and cycles that must be seen
_HALF, _STANDS_OUT, _HALF_CYCLES = 0.1, 8.0, 5.0
_CYCLES = 2.0  # cycles of an oscillation within the longest sequence, at the least: a smooth path resembles part of one


def choose_scales(kernel: Kernel, times: Times, x: Tensor, share: Tensor) -> None:
    """Set the lengthscales and periods that ``kernel`` leaves open to those under which the points are most likely.

    The points x (N, Q) are unit-variance paths with a share (Q,) of the outputs' variance. Each latent dimension gets a
    lengthscale of its own, and a period of its own if the kernel is a cosine; a periodic kernel has one period for all.
    An oscillation must be seen for at least two cycles.
    The search uses the first frames of the longest sequences and a grid from the typical step to the span of the times.
    """
    open_leaves = [leaf for leaf in kernel.leaves() if leaf.unset]
    if not open_leaves or max(times.lengths) < 3:
        return
    first, points = head(times, x, _FRAMES)
    step, span = _range(first)
    scaled = [leaf for leaf in open_leaves if "lengthscale" in leaf.unset]
    turning = [leaf for leaf in open_leaves if "period" in leaf.unset and isinstance(leaf, Cosine)]
    fixed = [(leaf, name) for leaf in open_leaves for name in leaf.unset if leaf.is_fixed(name)]
    for leaf in open_leaves:
        if "period" in leaf.unset and leaf not in turning:
            leaf.set("period", x.new_tensor(dominant_period(first, points * share.sqrt(), step, span)))
    tried = []
    for period in _periods(first, points * share.sqrt(), step, span) if turning else [math.inf]:
        # an oscillation that fades within a third of its period is none
        scales = [s for s in _grid(step, 4.0 * span, 12) if s > period / 3.0 or period > span * 2.0]
        tried += [(scale, period) for scale in (scales if scaled else [1.0])]
    with torch.no_grad():
        each = kernel().diag(first.t[:1]).numel() > 1  # the kernel has other parameters for each dimension
    size, values = 1 if each else max(1, _NUMBERS // max(first.lengths) ** 2), []
    for i in range(0, len(tried), size):
        part = x.new_tensor(tried[i : i + size])
        for leaves, name, value in ((scaled, "lengthscale", part[:, 0]), (turning, "period", part[:, 1])):
            for leaf in leaves:
                leaf.set(name, value.squeeze(0))
        values.append(evidence(kernel, first, points).unsqueeze(0) if each else _evidences(kernel, first, points))
    best = torch.cat(values).argmax(0).tolist()
    for leaf in scaled:
        leaf.set("lengthscale", x.new_tensor([tried[b][0] for b in best]))
    for leaf in turning:
        leaf.set("period", x.new_tensor([tried[b][1] for b in best]))
    for leaf, name in fixed:  # setting a parameter frees it
        leaf.fix(name)
    for leaf in open_leaves:
        leaf.unset.clear()


def longest(times: Times, x: Tensor, communicator: Communicator) -> tuple[Times, Tensor]:
    """The longest sequences of all processes, and their points (N, Q): as many as the search of :func:`choose_scales`
    uses. One process alone gets its own times and points.
    """
    if communicator.size == 1:
        return times, x
    parts, left = [], _FRAMES
    for part in sorted(times.slices(), key=lambda s: s.start - s.stop):
        if left > 0:
            parts.append(part)
            left -= part.stop - part.start
    kept = [slice(part.start, min(part.stop, part.start + _FRAMES)) for part in parts]
    full = [part.stop - part.start for part in parts]
    lengths = [pair for own in communicator.all_gather([[n, min(n, _FRAMES)] for n in full]) for pair in own]
    t, points = (communicator.all_gather_rows(torch.cat([values[rows] for rows in kept])) for values in (times.t, x))
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i][0])  # the order of one process
    sizes = [size for _, size in lengths]
    t_parts, x_parts = t.split(sizes), points.split(sizes)
    return Times(torch.cat([t_parts[i] for i in order]), [sizes[i] for i in order]), torch.cat(
        [x_parts[i] for i in order]
    )


def _periods(times: Times, x: Tensor, step: float, span: float) -> list[float]:
    """None, a grid, and the dominant period with its half, which the grid would miss by several percent."""
    found = [_FAR * span, *_grid(3.0 * step, span / _CYCLES, 24)]
    main = dominant_period(times, x, step, span)
    return found + [period for period in (main, 0.5 * main) if 3.0 * step <= period <= span / _CYCLES]


def _range(times: Times) -> tuple[float, float]:
    """The typical step and the longest span of the times."""
    parts = [times.t[rows] for rows in times.slices()]
    return float(torch.cat([part.diff() for part in parts]).median()), float(max(part[-1] - part[0] for part in parts))


def _grid(first: float, last: float, count: int) -> list[float]:
    return torch.logspace(math.log10(first), math.log10(max(last, 2.0 * first)), count, dtype=torch.float64).tolist()


def evidence(kernel: Kernel, times: Times, x: Tensor, *, free_variance: bool = False) -> Tensor:
    """Log-likelihood (Q,) of the points (N, Q) as observations of the prior with more noise, up to a constant.

    :param free_variance: each component has the variance that is most likely for it, and the result is for each frame.
    """
    square, logdet = TemporalGP(_PlusNoise(kernel(), _NOISE), times, x.shape[1]).covariance.whiten(x)
    if not free_variance:
        return -0.5 * (square + logdet)
    n = len(x)
    return -0.5 * ((square / n).clamp_min(torch.finfo(x.dtype).tiny).log() + logdet / n)


def _evidences(kernel: Kernel, times: Times, x: Tensor) -> Tensor:
    """The same for G kernels at once, (G, Q): each of the G values of the parameters for all points."""
    with torch.no_grad():
        value = in_double(kernel())
        total = x.new_zeros((), dtype=torch.float64)
        for rows in times.slices():
            gram = add_diagonal(value.gram(times.t[rows].double()), _NOISE)
            factor = cholesky(gram, "the covariance of principal components", None)
            white = torch.linalg.solve_triangular(factor, x[rows].double(), upper=False)
            logdet = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            total = total - 0.5 * (white.square().sum(-2) + logdet.unsqueeze(-1))
        return total


class _PlusNoise(KernelValue):
    """A kernel value with more white noise."""

    def __init__(self, value: KernelValue, noise: float) -> None:
        self.value, self.noise = value, noise

    def gram(self, t: Tensor, other: Tensor | None = None) -> Tensor:
        return self.value.gram(t, other) + self.noise * torch.eye(t.shape[-1], dtype=t.dtype, device=t.device)


def head(times: Times, x: Tensor, most: int) -> tuple[Times, Tensor]:
    """The first frames of the longest sequences, and their points (N, Q), at most ``most`` in all."""
    rows, lengths, left = [], [], most
    for part in sorted(times.slices(), key=lambda s: s.start - s.stop):
        take = min(left, part.stop - part.start)
        if take < 2:
            break
        rows.append(torch.arange(part.start, part.start + take, device=x.device))
        lengths.append(take)
        left -= take
    index = torch.cat(rows)
    return Times(times.t[index], lengths), x[index]


def dominant_period(times: Times, x: Tensor, step: float, span: float) -> float:
    """The period of the sinusoid that fits the components of the longest sequence best (least squares)."""
    frequencies, power = _periodogram(times, x, step, span)
    return float(1.0 / frequencies[power.argmax()])


def main_cycle(times: Times, x: Tensor, least_share: float = _CLEAR) -> float | None:
    """The dominant period of the points (N, Q), if it is clear: a sinusoid that is seen for several cycles explains at
    least ``least_share`` of their variance, that of each component in the outputs. None if no period is clear.
    """
    if max(times.lengths) < _LEAST_FRAMES:
        return None
    first, points = head(times, x, _CYCLE_FRAMES)
    step, span = _range(first)
    frequencies, power = _periodogram(first, points, step, span)
    power = torch.where(frequencies * span >= _CLEAR_CYCLES, power, 0.0)
    best = int(power.argmax())
    rows = first.slices()[0]
    total = (points[rows] - points[rows].mean(0)).square().sum()
    if not bool(power[best] > least_share * total):
        return None
    below = _peak_at_half(frequencies, power, best, span)
    return float(1.0 / frequencies[best if below is None else below])


def repeated_cycle(times: Times, x: Tensor, part: float | None = None) -> float | None:
    """The period of points that are seen for few cycles, so that :func:`main_cycle` finds none or a part of one; None
    if they do not repeat, or if they have so few dimensions that they may do so by chance.

    :param times: of the points.
    :param x: (N, Q), with the variance that each component has in the outputs.
    :param part: the period that :func:`main_cycle` finds. The result is then a cycle of two or three of these, such as
        a stride of two steps, after which the points are more alike than after one: oscillations are no chance, so that
        the number of dimensions does not matter.
    """
    if max(times.lengths) < _LEAST_FRAMES:
        return None
    first, points = head(times, x, _CYCLE_FRAMES)
    rows = first.slices()[0]
    thin = slice(None, None, -(-len(points[rows]) // _THIN))  # such a cycle has a fifth of them or more
    t, y = first.t[rows].cpu()[thin].contiguous(), points[rows].cpu()[thin]  # torch warns if times are not contiguous
    found, span = find_repeat([(t, y)]), float(t[-1] - t[0])
    if found is None or found.mismatch > _REPEATED:
        return None
    if part is None:
        variance = y.var(0, correction=0)
        is_rich = bool(variance.sum().square() >= _DIMENSIONS * variance.square().sum())
        return found.period if is_rich and _CLEAR_CYCLES * found.period > span else None
    is_multiple = any(abs(found.period / (count * part) - 1.0) < _MULTIPLE for count in (2, 3))
    return found.period if is_multiple and _HALF_CYCLES * found.period > span else None


def _peak_at_half(frequencies: Tensor, power: Tensor, best: int, span: float) -> int | None:
    """The index of the peak at half of the highest peak's frequency; None if it has no peak.

    Days with two peaks, or steps of two legs, repeat after two of the strongest oscillations. A mapping can make
    oscillations of twice a path's frequency, but not of half of it. The power there must be a tenth of the highest and
    stand out from frequencies around it, since slow changes without a cycle have power at all low frequencies.
    """
    half, width = 0.5 * frequencies[best], 1.0 / span  # about the width of a peak
    distance = (frequencies - half).abs()
    near, around = distance <= 0.5 * width, (distance > width) & (distance <= half / 3.0)
    if half * span < _HALF_CYCLES or not bool(near.any()) or not bool(around.any()):
        return None
    found = int(torch.where(near, power, -1.0).argmax())
    enough = power[found] > _HALF * power[best] and power[found] > _STANDS_OUT * power[around].median()
    return found if bool(enough) else None


def _periodogram(times: Times, x: Tensor, step: float, span: float) -> tuple[Tensor, Tensor]:
    """Frequencies (F,), and the sum of squares (F,) that a sinusoid of each explains in the longest sequence."""
    frequencies, power = sinusoid_powers(times, x, step, span)
    return frequencies, power.sum(-1)


def sinusoid_powers(times: Times, x: Tensor, step: float, span: float) -> tuple[Tensor, Tensor]:
    """Frequencies (F,), and the sum of squares (F, Q) that a sinusoid of each explains in each component of the longest
    sequence of points (N, Q).

    :param step: about the time between frames, half of the shortest period.
    :param span: of the sequence, the longest period.
    """
    rows = times.slices()[0]
    t, y = times.t[rows] - times.t[rows][0], x[rows] - x[rows].mean(0)
    frequencies = torch.linspace(1.0 / span, 0.5 / step, max(8, min(2000, 4 * len(t))), dtype=t.dtype, device=t.device)
    angle = 2.0 * math.pi * frequencies.unsqueeze(-1) * t
    basis = torch.stack([angle.cos(), angle.sin()], -1)  # (F, n, 2)
    normal = basis.mT @ basis + 1e-6 * len(t) * torch.eye(2, dtype=t.dtype, device=t.device)
    explained = basis.mT @ y
    return frequencies, (explained * torch.linalg.solve(normal, explained)).sum(-2)
