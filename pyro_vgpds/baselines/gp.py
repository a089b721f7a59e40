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
    at the same times and all ρ; ℓ and ρ are the best of a grid of 24 x 25, about a factor of 1.5 and of 2 apart.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param kernel: a class of :mod:`pyro_vgpds.kernels` with a variance and a lengthscale: ``RBF``, ``Matern12``,
        ``Matern32`` or ``Matern52``.
    :param return_variance: also return the predictive variances (noise included), zero where y was observed.
    :returns: float64 (N, D) without NaN, or a list of them; with ``return_variance`` a pair of those.
    :raises ValueError: as ``Sequences`` does, and where a column was never observed.
    :raises TypeError: where ``kernel`` is not such a class.
    """
    if kernel not in _KERNELS:
        names = ", ".join(known.__name__ for known in _KERNELS)
        raise TypeError(f"kernel must be one of the classes {names}, but got {kernel!r}.")
    gaps = Gaps(t, y)
    values, variances = gaps.y.clone(), torch.zeros_like(gaps.y)
    scales = _lengthscales(gaps)
    masks, group_of = patterns(gaps.seen.mT.contiguous())
    with torch.no_grad():
        for group, mask in enumerate(masks):
            if bool(mask.all()):
                continue
            columns = (group_of == group).nonzero().squeeze(-1)
            process = _Process(kernel, gaps, mask, scales)
            for block in columns.split(_BLOCK):
                values[:, block], variances[:, block] = process.predict(gaps.y[:, block], gaps.means[block])
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
    """The processes of outputs that were observed in the same rows, at every lengthscale of the grid."""

    def __init__(self, kernel: _Kernel, gaps: Gaps, mask: Tensor, scales: Tensor) -> None:
        value = kernel(1.0, scales)()
        self.mask = mask
        self.least = 1e-12 * float((gaps.y - gaps.means).square().nanmean()) or 1e-300
        self.rows = [rows for rows in gaps.rows if bool(mask[rows].any())]
        self.parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # rows, eigenvalues, vectors, to every row
        for rows in self.rows:
            seen = mask[rows].nonzero().squeeze(-1)
            times = gaps.t[rows]
            cross = value.gram(times, times[seen])  # (L, n, n_seen)
            eigenvalues, vectors = torch.linalg.eigh(cross[:, seen])
            self.parts.append((seen + rows.start, eigenvalues.clamp_min(0.0), vectors, cross @ vectors))

    def predict(self, y: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Predictive means and variances (N, D) at every row, of outputs y (N, D) with means (D,)."""
        count = int(self.mask.sum())
        projected = [vectors.mT @ (y[rows] - mean) for rows, _, vectors, _ in self.parts]  # (L, n, D) each
        square = torch.stack([self._square(projected, ratio) for ratio in _RATIOS], 1) / count  # (L, R, D)
        spread = (y[self.mask] - mean).square().mean(0)
        # constant outputs: any parameters will do, but a variance of zero would have no logarithm
        square = square.clamp_min(1e-12 * spread.clamp_min(self.least))
        logdet = sum(
            torch.log(values.unsqueeze(1) + _RATIOS.unsqueeze(-1)).sum(-1) for _, values, _, _ in self.parts
        )  # (L, R)
        evidence = -0.5 * (count * square.log() + torch.as_tensor(logdet).unsqueeze(-1))
        best = evidence.flatten(0, 1).argmax(0)
        scale, ratio = best // len(_RATIOS), _RATIOS[best % len(_RATIOS)]
        variance = square.flatten(0, 1).gather(0, best.unsqueeze(0)).squeeze(0)
        means, variances = mean.expand_as(y).clone(), (variance * (1.0 + ratio)).expand_as(y).clone()
        for at in scale.unique():
            mine = (scale == at).nonzero().squeeze(-1)
            for rows, (_, values, _, cross), p in zip(self.rows, self.parts, projected, strict=True):
                weight = 1.0 / (values[at].unsqueeze(-1) + ratio[mine])  # (n, D)
                means[rows, mine] += cross[at] @ (weight * p[at][:, mine])
                variances[rows, mine] -= variance[mine] * (cross[at].square() @ weight)
        return means, variances.clamp_min(0.0)

    def _square(self, projected: list[Tensor], ratio: Tensor) -> Tensor:
        """Σ p²/(λ + ρ) over all sequences, (L, D)."""
        total = [
            (p.square() / (values + ratio).unsqueeze(-1)).sum(1)
            for (_, values, _, _), p in zip(self.parts, projected, strict=True)
        ]
        return torch.stack(total).sum(0)
