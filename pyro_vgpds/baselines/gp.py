# SPDX-License-Identifier: Apache-2.0
"""An independent Gaussian process over time for every output."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import FilledPair, Gaps
from pyro_vgpds.checks import check_flags
from pyro_vgpds.data.filling import patterns
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.kernels import RBF, KernelValue, Matern12, Matern32, Matern52
from pyro_vgpds.types import DataLike

__all__ = ["gp_interpolation"]

_LENGTHSCALES = 28  # from half the typical step to _LONGEST
_LONGEST = 10.0  # lengthscale, in units of the longest span
_COARSE = 3  # every third of them is tried for all outputs, the others only next to the best of these
_RATIOS = 10.0 ** torch.linspace(-6.0, 2.0, 25, dtype=torch.float64)  # noise variance / signal variance
_BLOCK = 4096  # outputs per block
_NUMBERS = 1 << 21  # size of the arrays of one batch of patterns
_KERNELS = (RBF, Matern12, Matern32, Matern52)
StationaryKernel: TypeAlias = type[RBF] | type[Matern12] | type[Matern32] | type[Matern52]


def gp_interpolation(
    t: DataLike | Sequences,
    y: DataLike | None = None,
    kernel: StationaryKernel | None = None,
    return_variance: bool = False,
) -> FilledPair:
    """Fill by exact Gaussian process regression over time, for each output separately; sequences are independent.

    Every output has its own variance, lengthscale and noise, and an unknown mean with a flat prior. For a lengthscale ℓ
    and a ratio ρ of noise to signal, with R_ℓ = U Λ Uᵀ the correlations of the n observed times, p = Uᵀy, a = Uᵀ1 and
    w = 1 / (λ + ρ), the mean is μ = Σ w a p / Σ w a², with the variance σ² / Σ w a². The restricted likelihood is
    maximal at σ² = Σ w (p − μ a)² / (n − 1), with the value −½ ((n − 1) log σ² − Σ log w + log Σ w a²) + constant. So
    one eigendecomposition for each ℓ serves all ρ and all outputs that were observed at the same times. ℓ and ρ are the
    best of a 28 x 25 grid with factors of about 1.5 and 2 between points; ℓ is searched on every third point first,
    then next to the best of these. ℓ can be ten times the longest span, with which the process is a random walk, whose
    forecasts the mean of the observed values would draw back.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param kernel: a class of ``pyro_vgpds.kernels`` with a variance and a lengthscale: ``RBF``, ``Matern12``,
        ``Matern32`` or ``Matern52``. Default: ``Matern12`` or ``Matern32``, whichever is more likely for an output.
    :param return_variance: also return the predictive variances (noise included), zero for observed entries.
    :returns: float64 (N, D) without NaN, or a list of them; with ``return_variance`` a pair of those.
    :raises ValueError: as ``Sequences``, and if a column was never observed.
    :raises TypeError: if ``kernel`` is not one of these classes.

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
    check_flags(return_variance=return_variance)
    if kernel is not None and (not isinstance(kernel, type) or kernel not in _KERNELS):
        names = ", ".join(known.__name__ for known in _KERNELS)
        raise TypeError(f"kernel must be one of the classes {names}, but got {kernel!r}.")
    gaps = Gaps(t, y)
    values, variances, best = _best_processes(kernel or Matern32, gaps)
    if kernel is None:
        rough = _best_processes(Matern12, gaps)
        chosen = rough[2] > best
        values, variances = torch.where(chosen, rough[0], values), torch.where(chosen, rough[1], variances)
    return gaps.fill_pair(values, variances, return_variance)


def _best_processes(kernel: StationaryKernel, gaps: Gaps) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variances (N, D) of the processes with the largest evidence of each output, (D,)."""
    values, variances = gaps.means.expand_as(gaps.y).clone(), torch.zeros_like(gaps.y)
    every = torch.zeros_like(gaps.means)
    scales, unit = _lengthscales(gaps), kernel(1.0, 1.0)()
    with torch.no_grad():
        for masks, columns in _batches(gaps):
            evidence = torch.full(columns.shape, -math.inf, dtype=torch.float64)
            coarse = torch.zeros(columns.shape, dtype=torch.long)
            order = sorted(range(len(scales)), key=lambda i: (i % _COARSE > 0, i))
            for i in order:
                near = (coarse - i).abs().min(1).values < _COARSE
                if i % _COARSE == 0:
                    near[:] = True
                if not bool(near.any()):
                    continue
                processes, own = _Processes(unit, scales[i], gaps, masks[near]), evidence[near]
                for block, best in zip(columns[near].split(_BLOCK, 1), own.split(_BLOCK, 1), strict=True):
                    processes.improve(block, best, values, variances)
                if i % _COARSE == 0:
                    coarse[near] = torch.where(own > evidence[near], i, coarse[near])
                evidence[near] = own
            every[columns] = evidence
    return values, variances, every


def _lengthscales(gaps: Gaps) -> Tensor:
    span = max(float(gaps.t[rows][-1] - gaps.t[rows][0]) for rows in gaps.rows)
    if span == 0.0:  # single frames: the lengthscale has no effect
        return torch.ones(1, dtype=torch.float64)
    low, high = math.log10(0.5 * float(gaps.step)), math.log10(_LONGEST * span)
    return 10.0 ** torch.linspace(low, high, _LENGTHSCALES, dtype=torch.float64)


def _batches(gaps: Gaps) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of missing-data patterns (G, N) with the outputs that share each, (G, C).

    A pattern with fewer than C outputs is padded with its first output, which changes nothing.
    """
    masks, group_of = patterns(gaps.seen.mT.contiguous())
    sizes = group_of.bincount(minlength=len(masks))
    members = group_of.argsort(stable=True).split(sizes.tolist())
    longest = max(rows.stop - rows.start for rows in gaps.rows)
    order = sorted(range(len(masks)), key=lambda g: (int(sizes[g]), int(masks[g].sum())))
    order = [g for g in order if not bool(masks[g].all())]
    while order:
        first = int(sizes[order[0]])
        together = max(1, _NUMBERS // (longest * longest + 2 * first * (len(gaps.t) + len(_RATIOS))))
        batch = [g for g in order[:together] if int(sizes[g]) <= 2 * first]
        order = order[len(batch) :]
        width = int(sizes[batch[-1]])
        columns = [torch.cat([members[g], members[g][:1].expand(width - len(members[g]))]) for g in batch]
        yield masks[batch], torch.stack(columns)


class _Processes:
    """The processes with the lengthscale ``scale``, for outputs observed in the rows ``masks`` (G, N).

    ``unit`` is the kernel with the lengthscale 1, which serves all lengthscales: to make a kernel takes as long as to
    evaluate it for a few frames.

    The observations of each sequence are padded to the largest number m in the batch with zeros that are uncorrelated
    with everything: their eigenvalue is 1.
    """

    def __init__(self, unit: KernelValue, scale: Tensor, gaps: Gaps, masks: Tensor) -> None:
        self.gaps, self.masks = gaps, masks
        self.least = 1e-12 * float((gaps.y - gaps.means).square().nanmean()) or 1e-300
        self.rows, self.places, self.real, self.eigenvalues, self.project, self.cross = [], [], [], [], [], []
        for rows in gaps.rows:
            seen, times = masks[:, rows], gaps.t[rows] / scale
            most = int(seen.sum(-1).max())
            if most == 0:
                continue
            places = seen.int().argsort(dim=-1, descending=True, stable=True)[:, :most]  # (G, m)
            real = seen.gather(-1, places)
            cross = unit.gram(times).squeeze(0)[:, places].transpose(0, 1) * real.unsqueeze(1)  # (G, n, m)
            own = cross.gather(1, places.unsqueeze(-1).expand(-1, -1, most)) * real.unsqueeze(-1)
            eigenvalues, vectors = torch.linalg.eigh(own + torch.diag_embed((~real).to(own)))
            self.rows.append(rows)
            self.places.append(places)
            self.real.append(real)
            self.eigenvalues.append(eigenvalues.clamp_min(0.0))
            self.project.append(vectors.mT)
            self.cross.append(cross @ vectors)
        every = torch.cat(self.eigenvalues, -1)  # (G, sum of m)
        self.ones = [
            (u @ real.to(u).unsqueeze(-1)).squeeze(-1) for u, real in zip(self.project, self.real, strict=True)
        ]
        self.weights = 1.0 / (every.unsqueeze(-2) + _RATIOS.unsqueeze(-1))  # (G, R, m)
        padded = every.shape[-1] - masks.sum(-1).unsqueeze(-1)
        self.information = (self.weights * torch.cat(self.ones, -1).square().unsqueeze(-2)).sum(-1)  # (G, R)
        self.logdet = -self.weights.log().sum(-1) - padded * _RATIOS.log1p() + self.information.log()

    def improve(self, columns: Tensor, best: Tensor, means: Tensor, variances: Tensor) -> None:
        """Where the evidence exceeds ``best``, update evidence and predictions of the outputs (G, C) in place."""
        centre, count = self.gaps.means[columns], self.masks.sum(-1, keepdim=True)  # (G, C), (G, 1)
        projected, square = [], torch.zeros_like(centre)
        for rows, places, real, u in zip(self.rows, self.places, self.real, self.project, strict=True):
            y = self.gaps.y[rows][places.unsqueeze(-1), columns.unsqueeze(1)] - centre.unsqueeze(1)  # (G, m, C)
            y = torch.where(real.unsqueeze(-1), y, 0.0)
            projected.append(u @ y)
            square += y.square().sum(1)
        # constant outputs: any parameters fit, but the logarithm of a variance of zero is infinite
        floor = 1e-12 * (square / count).clamp_min(self.least)
        every = torch.cat(projected, 1)
        mean = self.weights @ (torch.cat(self.ones, -1).unsqueeze(-1) * every) / self.information.unsqueeze(-1)
        total = self.weights @ every.square() - mean.square() * self.information.unsqueeze(-1)  # (G, R, C)
        free = (count - 1).clamp_min(1).unsqueeze(-1)
        variance = torch.maximum(total / free, floor.unsqueeze(1))
        evidence, ratio = (-0.5 * (free * variance.log() + self.logdet.unsqueeze(-1))).max(1)
        mine = evidence > best
        best[mine] = evidence[mine]
        g, c = mine.any(1).nonzero().squeeze(-1), mine.any(0).nonzero().squeeze(-1)
        part = (g.unsqueeze(-1), c)  # contains all that improve; exactly those if there is one pattern or one output
        variance, mean = (x.gather(1, ratio.unsqueeze(1)).squeeze(1)[part] for x in (variance, mean))
        unsure = variance / self.information.gather(1, ratio)[part]  # variance of the mean
        mine, at, noise = mine[part], columns[part], _RATIOS[ratio[part]]
        at = at[mine]
        means[:, at] = self.gaps.means[at] + mean[mine]
        variances[:, at] = (variance * (1.0 + noise) + unsure)[mine]
        for rows, values, cross, ones, p in zip(
            self.rows, self.eigenvalues, self.cross, self.ones, projected, strict=True
        ):
            weights = 1.0 / (values[g].unsqueeze(-1) + noise.unsqueeze(1))  # (G, m, C)
            one = ones[g].unsqueeze(-1)
            shift = cross[g] @ (weights * (p[g][:, :, c] - one * mean.unsqueeze(1)))  # (G, n, C)
            known = cross[g] @ (weights * one)
            less = variance.unsqueeze(1) * (cross[g].square() @ weights)
            less = less - unsure.unsqueeze(1) * (known.square() - 2.0 * known)  # unsure (1 - known)² is left
            means[rows, at] += shift.transpose(0, 1)[:, mine]
            variances[rows, at] = (variances[rows, at] - less.transpose(0, 1)[:, mine]).clamp_min(0.0)
