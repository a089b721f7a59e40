# SPDX-License-Identifier: Apache-2.0
"""A Gaussian process over time for every output on its own: what can be had with nothing shared between outputs."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Gaps, patterns
from pyro_vgpds.kernels import RBF, Matern12, Matern32, Matern52

__all__ = ["gp_interpolation"]

_LENGTHSCALES = 24  # from half the typical step to twice the longest span
_RATIOS = 10.0 ** torch.linspace(-6.0, 2.0, 25, dtype=torch.float64)  # of the noise's variance to the function's
_BLOCK = 4096  # outputs that are computed at once
_KERNELS = (RBF, Matern12, Matern32, Matern52)
_Kernel: TypeAlias = type[RBF] | type[Matern12] | type[Matern32] | type[Matern52]


def gp_interpolation(
    t: Any, y: Any = None, kernel: _Kernel = Matern32, return_variance: bool = False
) -> Tensor | list[Tensor] | tuple[Tensor | list[Tensor], Tensor | list[Tensor]]:
    """Fill by exact Gaussian process regression over time, each output on its own, sequences independent.

    Every output has its own mean (that of what was observed), variance, lengthscale and noise. For a lengthscale ℓ and
    a ratio ρ of noise to signal, with R_ℓ = U Λ Uᵀ the correlations of the observed times and p = Uᵀ(y − μ), the
    marginal likelihood is greatest at the variance σ² = Σ p²/(λ + ρ) / n, where it is
    −½ (n log σ² + Σ log(λ + ρ)) + constant. So one eigendecomposition for each ℓ serves all outputs that were observed
    at the same times, and all ρ; ℓ and ρ are the best of a grid of 24 x 25, about a factor of 1.5 and of 2 apart.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param kernel: a class of ``pyro_vgpds.kernels`` with a variance and a lengthscale: ``RBF``, ``Matern12``,
        ``Matern32`` or ``Matern52``.
    :param return_variance: also return the predictive variances (noise included), zero where y was observed.
    :returns: float64 (N, D) without NaN, or a list of them; with ``return_variance`` a pair of those.
    :raises ValueError: as ``Sequences`` does, and where a column was never observed.
    :raises TypeError: where ``kernel`` is not such a class.

    >>> import numpy as np
    >>> from pyro_vgpds.baselines import gp_interpolation
    >>> from pyro_vgpds.kernels import RBF
    >>> t = np.linspace(0, 6, 40)
    >>> y = np.sin(t)[:, None]
    >>> y[20] = np.nan
    >>> mean, variance = gp_interpolation(t, y, kernel=RBF, return_variance=True)
    >>> bool(abs(mean[20, 0] - np.sin(t[20])) < 1e-2), variance[19, 0].item()
    (True, 0.0)
    """
    if kernel not in _KERNELS:
        names = ", ".join(known.__name__ for known in _KERNELS)
        raise TypeError(f"kernel must be one of the classes {names}, but got {kernel!r}.")
    gaps = Gaps(t, y)
    values, variances = gaps.means.expand_as(gaps.y).clone(), torch.zeros_like(gaps.y)
    masks, group_of = patterns(gaps.seen.mT.contiguous())
    scales = _lengthscales(gaps)
    with torch.no_grad():
        for group, mask in enumerate(masks):
            if bool(mask.all()):
                continue
            columns = (group_of == group).nonzero().squeeze(-1)
            evidence = torch.full((len(columns),), -math.inf, dtype=torch.float64)
            for scale in scales:
                process = _Process(kernel, scale, gaps, mask)
                for block, best in zip(columns.split(_BLOCK), evidence.split(_BLOCK), strict=True):
                    process.improve(block, best, values, variances)
    variances = torch.where(gaps.seen, 0.0, variances)
    return (gaps.fill(values), gaps.shape(variances)) if return_variance else gaps.fill(values)


def _lengthscales(gaps: Gaps) -> Tensor:
    steps = torch.cat([gaps.t[rows].diff() for rows in gaps.rows])
    if len(steps) == 0:  # single frames: any will do
        return torch.ones(1, dtype=torch.float64)
    span = max(float(gaps.t[rows][-1] - gaps.t[rows][0]) for rows in gaps.rows)
    low, high = math.log10(0.5 * float(steps.median())), math.log10(2.0 * span)
    return 10.0 ** torch.linspace(low, high, _LENGTHSCALES, dtype=torch.float64)


class _Process:
    """The processes with one lengthscale of outputs that were observed in the same rows, ``mask`` (N,)."""

    def __init__(self, kernel: _Kernel, scale: Tensor, gaps: Gaps, mask: Tensor) -> None:
        value = kernel(1.0, scale)()
        self.gaps, self.mask = gaps, mask
        self.least = 1e-12 * float((gaps.y - gaps.means).square().nanmean()) or 1e-300
        self.rows = [rows for rows in gaps.rows if bool(mask[rows].any())]
        self.eigenvalues, self.project, self.cross = [], [], []
        for rows in self.rows:
            seen, times = mask[rows], gaps.t[rows]
            cross = value.gram(times, times[seen]).squeeze(0)  # (n, n_seen)
            eigenvalues, vectors = torch.linalg.eigh(cross[seen])
            self.eigenvalues.append(eigenvalues.clamp_min(0.0))
            self.project.append(vectors.mT)
            self.cross.append(cross @ vectors)
        every = torch.cat(self.eigenvalues)
        self.weights = 1.0 / (every + _RATIOS.unsqueeze(-1))  # (R, n_seen)
        self.logdet = -self.weights.log().sum(-1, keepdim=True)  # (R, 1)

    def improve(self, columns: Tensor, best: Tensor, means: Tensor, variances: Tensor) -> None:
        """Outputs more likely under this lengthscale than ``best`` (D,) get its evidence and predictions, in place."""
        centre, count = self.gaps.means[columns], int(self.mask.sum())
        y = self.gaps.y[:, columns] - centre
        projected = [u @ y[rows][self.mask[rows]] for u, rows in zip(self.project, self.rows, strict=True)]
        # constant outputs: any parameters will do, but a variance of zero would have no logarithm
        floor = 1e-12 * y[self.mask].square().mean(0).clamp_min(self.least)
        variance = torch.maximum(self.weights @ torch.cat(projected).square() / count, floor)  # (R, D)
        evidence, ratio = (-0.5 * (count * variance.log() + self.logdet)).max(0)
        mine = evidence > best
        best[mine] = evidence[mine]
        at, ratio = columns[mine], ratio[mine]
        variance = variance[ratio, torch.arange(len(columns))[mine]]
        means[:, at] = centre[mine]
        variances[:, at] = variance * (1.0 + _RATIOS[ratio])
        for rows, values, cross, p in zip(self.rows, self.eigenvalues, self.cross, projected, strict=True):
            weights = 1.0 / (values.unsqueeze(-1) + _RATIOS[ratio])  # (n_seen, D)
            means[rows, at] += cross @ (weights * p[:, mine])
            variances[rows, at] = (variances[rows, at] - variance * (cross.square() @ weights)).clamp_min(0.0)
