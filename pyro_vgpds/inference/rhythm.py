# SPDX-License-Identifier: Apache-2.0
r"""Whether a single sequence oscillates, by evidence on frames that the components do not come from.

The principal components of any slow path resemble sinusoids over the frames from which they come: those of a random
walk are cosines with half a cycle, a whole cycle, and so on. An oscillation of each component is then most likely under
the same frames, also if nothing oscillates, and forecasts continue it. So the frames are divided into two halves, A and
B. With the loadings :math:`V_A` of A and the scales that are most likely for its components, a kernel k has on B the
log-evidence

.. math:: E_k = \sum_q w_q \max_σ \log N\big(Y_B V_{A,q} \mid 0, σ^2 (k_q(t_B, t_B) + ν I)\big) / n_B,

with the share :math:`w_q` of each component in the variance of A. Fixed directions of a random walk are random walks,
which no oscillation predicts. The mean over both directions, A to B and B to A, is compared.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.scales import choose_scales, evidence, head
from pyro_vgpds.kernels import Bias, Cosine, Kernel, Matern32, White

__all__ = ["oscillates", "oscillator", "smooth_path"]

_LEAST_FRAMES = 16  # fewer cannot distinguish an oscillation from a slow path
_FRAMES = 240  # frames that the comparison uses
_VARIANCE = 0.95  # share of the variance that the compared components have


def smooth_path() -> Kernel:
    """The kernel of a path that does not oscillate; its variance is fixed, because the mapping has weights."""
    return Matern32().fix("variance")


def oscillator() -> Kernel:
    """The kernel of a noisy oscillation."""
    return Matern32().fix("variance") * Cosine().fix("variance")


def oscillates(times: Times, x: Tensor) -> bool:
    """Whether an oscillation of each component predicts the other half of the frames better than a smooth path.

    :param times: of a single sequence.
    :param x: points (N, Q), with the variance that each component has in the outputs.
    """
    if len(x) < _LEAST_FRAMES:
        return False
    times, x = head(times, x, _FRAMES)
    n = len(x)
    halves = (slice(0, n // 2), slice(n // 2, n))
    with torch.no_grad():
        return sum(_gain(times.t, x, a, b) for a, b in (halves, halves[::-1])) > 0.0


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
