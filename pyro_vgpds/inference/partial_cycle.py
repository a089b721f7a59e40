# SPDX-License-Identifier: Apache-2.0
r"""A cycle that only some of the outputs of a single sequence have, such as the week of a few of many products.

Averages over all outputs do not show it, nor does the variance of outputs that change slowly besides. So each output
is compared with itself: a period stands out of its own periodogram, and three harmonics :math:`H` of it that are fitted
to one half of the frames predict the other half. With the output z, from which the mean over one period around each
frame is subtracted, and ridge regression :math:`β_A` on the half A, the predicted share of the variance is

.. math:: 1 - \frac{|z_B - H_B β_A|^2 + |z_A - H_A β_B|^2}{|z_A|^2 + |z_B|^2}.

A random walk has strong periods, but none that predicts the other half.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.data.filling import line_between
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.oscillations import predicted_share, refined_period
from pyro_vgpds.inference.scales import sinusoid_powers

__all__ = ["partial_cycle"]

_FRAMES, _OUTPUTS = 2000, 100  # the most that are compared
_LEAST_FRAMES = 36
_CYCLES = 6.0  # that the frames must have, three in each half
_SHORTEST = 3.0  # period in frames
_BLOCK = 64  # frequencies, eight of which are a peak, whose median power is what a peak stands out of
_STANDS_OUT = 8.0  # times that median: the highest peak of noise has about as much
_PREDICTED = 0.4  # the least share that harmonics must predict of one output
_TRIED = 3  # periods of the highest peaks, and their double and triple


def partial_cycle(data: Sequences) -> float | None:
    """The period of a cycle of some outputs; None without one, and for several sequences or very many outputs."""
    if data.num_sequences != 1 or data.num_base_outputs > _OUTPUTS:
        return None
    t, y = data.times.t[:_FRAMES].cpu().double(), data.read(0, data.num_base_outputs)[:_FRAMES].cpu().double()
    seen = torch.isfinite(y)
    y = y[:, seen.double().mean(0) >= 0.5]
    if len(t) < _LEAST_FRAMES or y.shape[1] == 0:
        return None
    y = line_between(t, y, torch.isfinite(y))
    y = y - y.mean(0)
    y = y[:, y.square().mean(0) > 0.0]
    if y.shape[1] == 0:
        return None
    y = y / y.square().mean(0).sqrt()
    t = t - t[0]
    step, span = float(t.diff().median()), float(t[-1])
    found: tuple[float, float] | None = None
    for period in _candidates(t, y, step, span):
        for tried in (period, 2.0 * period, 3.0 * period):
            if tried * _CYCLES > span:
                break
            moving = y - _mean_around(y, max(3, round(tried / step)))
            refined = refined_period(t, moving, tried)
            share = predicted_share(t, moving, refined)
            value = float((share * moving.square().mean(0))[share > 0.5 * _PREDICTED].sum())
            # the double has the harmonics of the period as well: it must be clearly better
            if float(share.max()) > _PREDICTED and (found is None or value > 1.1 * found[0]):
                found = value, refined_period(t, moving[:, share > _PREDICTED], refined)
    return None if found is None else found[1]


def _candidates(t: Tensor, y: Tensor, step: float, span: float) -> list[float]:
    """The periods that stand out most of the periodogram of an output, the highest peak first."""
    frequencies, power = sinusoid_powers(Times(t, [len(t)]), y, step, span)
    usual = _usual(power)
    height = power / usual.clamp_min(torch.finfo(power.dtype).tiny)
    inside = (frequencies * span >= _CYCLES) & (frequencies * step * _SHORTEST <= 1.0)
    height = torch.where(inside.unsqueeze(-1), height, 0.0)
    top, at = height.max(0)
    chosen: list[float] = []
    for i in top.argsort(descending=True).tolist():
        frequency = float(frequencies[at[i]])
        if float(top[i]) < _STANDS_OUT or len(chosen) == _TRIED:
            break
        if all(abs(frequency - 1.0 / other) > 1.0 / span for other in chosen):
            chosen.append(1.0 / frequency)
    return chosen


def _usual(power: Tensor) -> Tensor:
    """The median power (F, D) of the frequencies around each, interpolated between blocks."""
    blocks = [block.median(0).values for block in power.split(_BLOCK)]
    middles = torch.stack(blocks).log().mT.unsqueeze(0)  # (1, D, blocks)
    return torch.nn.functional.interpolate(middles, size=len(power), mode="linear")[0].mT.exp()


def _mean_around(y: Tensor, width: int) -> Tensor:
    """The means (n, D) of the ``width`` frames around each, of fewer at the ends."""
    total = torch.cat([torch.zeros_like(y[:1]), y.cumsum(0)])
    i = torch.arange(len(y))
    first, last = (i - width // 2).clamp_min(0), (i + (width + 1) // 2).clamp_max(len(y))
    return (total[last] - total[first]) / (last - first).unsqueeze(-1)
