# SPDX-License-Identifier: Apache-2.0
"""Where training starts: principal components, k-means centres, and scales read off the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyro.nn import PyroParam
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels.ard import ARDRBF, ARDLinear
from pyro_vgpds.kernels.base import Kernel, KernelValue
from pyro_vgpds.kernels.constant import Bias, White
from pyro_vgpds.temporal.distributions import TemporalGP

if TYPE_CHECKING:
    from pyro_vgpds.model import VGPDS

__all__ = ["Start", "kmeans", "pca", "split_pca", "start_model"]

_NOISE = 0.01  # of the outputs' variance is noise to begin with, as in the authors' code
_SITE_PRECISION = 10.0  # of the latent start: q(X) is the temporal prior's posterior of it at this precision
_SWEEPS = 30  # of alternating least squares, where data are missing
_SCALE_FRAMES = 400  # frames that the choice of temporal lengthscales looks at
_KMEANS_POINTS = 20_000  # or 100 for each centre: more would only make the start slow


@dataclass
class Start:
    """Latent points (N, Q) that q(X) starts from, at these times."""

    x: Tensor
    times: Times

    def posterior(self, model: VGPDS) -> tuple[Tensor, Tensor]:
        """mean_bar and lam (N, Q) of the temporal prior's posterior given noisy observations of the points.

        With sites of precision λ at x the mean is μ = S λ x, so mean_bar = K⁻¹ μ = λ (x − μ): no inverse of K_t.
        """
        with torch.no_grad():
            x = self.x.to(model.inducing)
            lam = torch.full_like(x, _SITE_PRECISION)
            prior = TemporalGP(model.temporal(), self.times.to(x), x.shape[1], structure=model.structure)
            return lam * (x - prior.covariance.gain(lam, lam.sqrt() * x)), lam


def start_model(model: VGPDS, data: Sequences, default_mapping: bool, static_dim: int = 0) -> None:
    """Give ``model`` the start that :meth:`VGPDS.from_data` describes."""
    with torch.no_grad():
        scale = model.output_scale
        if static_dim:
            x, share = split_pca(data, model.latent_dim, static_dim, scale)
        else:
            x, share = pca(data, model.latent_dim, scale)
        variances = data.output_variances / scale.square()
        spread = float(variances.mean()) or 1.0
        model.inducing = PyroParam(kmeans(x, model.num_inducing), event_dim=2)
        per_output = model.noise.dim() == 1
        model.set_noise(_NOISE * (variances if per_output else x.new_tensor(spread)))
        _start_mapping(model.mapping, share, spread, default_mapping)
        moving = model.latent_dim - static_dim
        choose_scales(model.temporal, data.times, x[:, :moving], share[:moving])
        if static_dim:
            _slow_down(model.temporal, data.times, moving, static_dim)
        model.start = Start(x, data.times)


def _start_mapping(kernel: Kernel, share: Tensor, spread: float, default: bool) -> None:
    """Scales of a mapping kernel that the user left to us; of a kernel that was given, only the weights' shape."""
    for leaf in kernel.leaves():
        if default and isinstance(leaf, ARDRBF):
            leaf.set("variance", share.new_tensor(spread)).set("weight", share)
        elif isinstance(leaf, (ARDRBF, ARDLinear)) and "weight" in leaf._pyro_params and leaf.weight.dim() == 0:
            leaf.set("weight", leaf.weight.detach().expand(len(share)).to(share))


def pca(data: Sequences, latent_dim: int, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Principal components of what was observed: points (N, Q) of unit variance, and the variance of each component
    relative to the first, (Q,).

    Where data are missing they are those of a low-rank fit by alternating ridge regressions; a frame with nothing
    observed is interpolated in time.
    """
    groups = data.groups(data.output_means, scale)
    if groups.mask is None:
        u, s, _ = torch.linalg.svd(groups.factor, full_matrices=False)
        u, s = u[:, :latent_dim], s[:latent_dim]
    else:
        u, s, _ = torch.linalg.svd(_fit_low_rank(data, latent_dim, scale), full_matrices=False)
    short = latent_dim - u.shape[1]
    if short > 0:  # fewer frames than latent dimensions
        u, s = torch.nn.functional.pad(u, (0, short)), torch.nn.functional.pad(s, (0, short))
    return _whiten(u, s)


def _whiten(u: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors (N, Q) as points of unit variance, and their singular values as shares of the largest variance."""
    biggest = u.abs().argmax(0, keepdim=True)
    u = u * u.gather(0, biggest).sign()  # the sign of a component is free: make it reproducible
    share = (s / s.max().clamp_min(torch.finfo(s.dtype).tiny)).square().clamp_min(1e-3)
    return (u * math.sqrt(len(u))).contiguous(), share


def split_pca(data: Sequences, latent_dim: int, static_dim: int, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As :func:`pca`, with the components within sequences first, and then ``static_dim`` of the sequences' means.

    Within, every sequence is centred, so that all share one space whatever sets them apart; what does is left to the
    last dimensions, which are constant in each sequence.
    """
    groups = data.groups(data.output_means, scale)
    scores = groups.factor if groups.mask is None else _fit_low_rank(data, latent_dim, scale)
    between = torch.cat([scores[s].mean(0, keepdim=True).expand(s.stop - s.start, -1) for s in data.times.slices()])
    parts = []
    for matrix, rank in ((scores - between, latent_dim - static_dim), (between, static_dim)):
        u, s, _ = torch.linalg.svd(matrix, full_matrices=False)
        short = rank - u.shape[1]
        parts.append(torch.nn.functional.pad(torch.cat([u, s.unsqueeze(0)]), (0, max(0, short)))[:, :rank])
    joined = torch.cat(parts, 1)
    return _whiten(joined[:-1], joined[-1])


def _slow_down(kernel: Kernel, times: Times, moving: int, static: int) -> None:
    """Give each latent dimension its own temporal parameters, those of the last ``static`` for paths that hardly move:
    the longest lengthscale, most of the variance in a bias, little white noise.
    """
    span = max(float(times.t[s][-1] - times.t[s][0]) for s in times.slices())
    for leaf in kernel.leaves():
        for name in list(leaf._pyro_params):
            value = getattr(leaf, name).detach()
            if value.dim():
                continue  # the user gave one for each dimension
            last = value
            if name == "lengthscale":
                last = torch.maximum(value, value.new_tensor(span))
            elif isinstance(leaf, Bias):
                last = torch.maximum(value, torch.ones_like(value))
            elif isinstance(leaf, White):
                last = 0.1 * value
            leaf.set(name, torch.cat([value.expand(moving), last.expand(static)]))


def _fit_low_rank(data: Sequences, rank: int, scale: Tensor | None = None) -> Tensor:
    """Points times loadings' scale, (N, rank), of X Wᵀ fitted to the observed part of the centred data."""
    n, mean = data.num_frames, data.output_means
    divisor = torch.ones_like(mean) if scale is None else scale
    ridge = 0.05 * float((data.output_variances / divisor.square()).mean())
    eye = torch.eye(rank, dtype=data.dtype, device=data.device)

    def blocks() -> Iterator[tuple[Tensor, Tensor]]:  # read again for every sweep: the data may be larger than memory
        for where, block in data.blocks():
            scaled = (block - mean[where]).div_(divisor[where])
            yield torch.isfinite(block).to(data.dtype), torch.nan_to_num(scaled, nan=0.0)

    # start from the components of the data with zeros for what is missing
    if data.num_outputs < n:
        filled = torch.cat([y for _, y in blocks()], 1)
        x = torch.linalg.svd(filled, full_matrices=False)[0][:, :rank] * math.sqrt(n)
        del filled
    else:
        gram = torch.zeros(n, n, dtype=data.dtype, device=data.device)
        for _, y in blocks():
            gram.addmm_(y, y.mT)
        x = torch.linalg.eigh(gram)[1][:, -rank:].flip(-1) * math.sqrt(n)
    if x.shape[1] < rank:
        x = torch.nn.functional.pad(x, (0, rank - x.shape[1]))
    for _ in range(_SWEEPS):
        pairs = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)  # (N, Q²)
        left, right = x.new_zeros(n, rank * rank), x.new_zeros(n, rank)
        for seen, y in blocks():
            normal = (seen.mT @ pairs).unflatten(-1, (rank, rank))
            loadings = torch.linalg.solve(normal + 1e-3 * n * eye, (y.mT @ x).unsqueeze(-1)).squeeze(-1)
            left.addmm_(seen, (loadings.unsqueeze(-1) * loadings.unsqueeze(-2)).flatten(-2))
            right.addmm_(y, loadings)
        x = torch.linalg.solve(left.unflatten(-1, (rank, rank)) + ridge * eye, right.unsqueeze(-1)).squeeze(-1)
        x = x / x.square().mean(0).sqrt().clamp_min(1e-12)
    size = left.unflatten(-1, (rank, rank)).mean(0).diagonal().clamp_min(0.0).sqrt()
    empty = sum((seen.sum(1) for seen, _ in blocks()), start=x.new_zeros(n)) == 0
    return _interpolate(x * size, data.times, empty) if bool(empty.any()) else x * size


def _interpolate(x: Tensor, times: Times, empty: Tensor) -> Tensor:
    """Rows that are ``empty`` from their neighbours in the same sequence, or zero where it has none."""
    x = x.clone()
    for rows in times.slices():
        gaps, t = empty[rows].cpu().numpy(), times.t[rows].cpu().numpy()
        if gaps.any() and not gaps.all():
            part = x[rows].cpu().numpy()
            filled = [np.interp(t[gaps], t[~gaps], column[~gaps]) for column in part.T]
            part[gaps] = np.stack(filled, 1)
            x[rows] = torch.from_numpy(part).to(x)
    return x


def kmeans(x: Tensor, num_centres: int, sweeps: int = 50) -> Tensor:
    """Centres (M, Q) of the points x (N, Q) by Lloyd's algorithm, from a random choice of points (k-means++).

    Of a great many points it looks at a random part.
    """
    if num_centres >= len(x):
        return x.clone()
    most = max(_KMEANS_POINTS, 100 * num_centres)
    if len(x) > most:
        x = x[torch.randperm(len(x), device=x.device)[:most]]
    centres = x[torch.randint(len(x), (1,), device=x.device)]
    distance = torch.cdist(x, centres).square().squeeze(-1)
    for _ in range(num_centres - 1):
        weights = distance if bool(distance.sum() > 0) else torch.ones_like(distance)
        new = x[torch.multinomial(weights, 1)]
        centres = torch.cat([centres, new])
        distance = torch.minimum(distance, (x - new).square().sum(-1))
    for _ in range(sweeps):
        nearest = torch.cdist(x, centres).argmin(1)
        count = torch.bincount(nearest, minlength=num_centres)
        total = torch.zeros_like(centres).index_add_(0, nearest, x)
        moved = torch.where(count.unsqueeze(-1) > 0, total / count.clamp_min(1).unsqueeze(-1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def choose_scales(kernel: Kernel, times: Times, x: Tensor, share: Tensor) -> None:
    """Set the lengthscales and periods that ``kernel`` leaves open to those under which the points are most likely.

    The points x (N, Q) are unit-variance paths, and each counts by its share (Q,) of the outputs' variance: the last
    of them are often noise. The search looks at the first frames of the longest sequences and at a grid from the
    typical step to the span of the times. One lengthscale serves all that are open.
    """
    open_leaves = [leaf for leaf in kernel.leaves() if leaf.unset]
    longest = max(times.lengths)
    if not open_leaves or longest < 3:
        return
    head, points = _head(times, x)
    steps = torch.cat([head.t[rows].diff() for rows in head.slices()])
    step, span = float(steps.median()), float(max(head.t[rows][-1] - head.t[rows][0] for rows in head.slices()))
    periodic = [leaf for leaf in open_leaves if "period" in leaf.unset]
    scaled = [leaf for leaf in open_leaves if "lengthscale" in leaf.unset]
    for leaf in periodic:
        _choose(leaf, "period", _dominant_period(head, points * share.sqrt(), step, span), x)
    grid = torch.logspace(math.log10(step), math.log10(max(span, 2.0 * step)), 12, dtype=torch.float64)
    if scaled:
        best = max(grid.tolist(), key=lambda scale: _evidence(kernel, scaled, scale, head, points, share))
        _set_lengthscales(scaled, best, x)
    for leaf in open_leaves:
        leaf.unset.clear()


def _set_lengthscales(leaves: list[Kernel], scale: float, like: Tensor) -> None:
    for leaf in leaves:
        _choose(leaf, "lengthscale", scale, like)


def _choose(leaf: Kernel, name: str, value: float, like: Tensor) -> None:
    """Set a parameter that was left open; one that is held stays held, at this value."""
    held = name in leaf._buffers
    leaf.set(name, like.new_tensor(value))
    if held:
        leaf.fix(name)


def _evidence(kernel: Kernel, leaves: list[Kernel], scale: float, times: Times, x: Tensor, share: Tensor) -> float:
    """Weighted log-likelihood of the points as observations of the prior with a tenth of their variance as noise."""
    _set_lengthscales(leaves, scale, x)
    square, logdet = TemporalGP(_PlusNoise(kernel(), 0.1), times, x.shape[1]).covariance.whiten(x)
    return -float((share * (square + logdet)).sum())


class _PlusNoise(KernelValue):
    """A kernel value with more white noise."""

    def __init__(self, value: Any, noise: float) -> None:
        self.value, self.noise = value, noise

    def gram(self, t: Tensor, other: Tensor | None = None) -> Tensor:
        return self.value.gram(t, other) + self.noise * torch.eye(t.shape[-1], dtype=t.dtype, device=t.device)


def _head(times: Times, x: Tensor) -> tuple[Times, Tensor]:
    """The first frames of the longest sequences, at most ``_SCALE_FRAMES`` in all."""
    rows, lengths, left = [], [], _SCALE_FRAMES
    for part in sorted(times.slices(), key=lambda s: s.start - s.stop):
        take = min(left, part.stop - part.start)
        if take < 2:
            break
        rows.append(torch.arange(part.start, part.start + take, device=x.device))
        lengths.append(take)
        left -= take
    index = torch.cat(rows)
    return Times(times.t[index], lengths), x[index]


def _dominant_period(times: Times, x: Tensor, step: float, span: float) -> float:
    """The period of the sinusoid that fits the components of the longest sequence best (least squares)."""
    rows = times.slices()[0]
    t, y = times.t[rows] - times.t[rows][0], x[rows] - x[rows].mean(0)
    frequencies = torch.linspace(1.0 / span, 0.5 / step, max(8, min(2000, 4 * len(t))), dtype=t.dtype, device=t.device)
    angle = 2.0 * math.pi * frequencies.unsqueeze(-1) * t
    basis = torch.stack([angle.cos(), angle.sin()], -1)  # (F, n, 2)
    normal = basis.mT @ basis + 1e-6 * len(t) * torch.eye(2, dtype=t.dtype, device=t.device)
    explained = basis.mT @ y
    power = (explained * torch.linalg.solve(normal, explained)).sum((-2, -1))
    return float(1.0 / frequencies[power.argmax()])
