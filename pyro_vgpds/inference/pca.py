# SPDX-License-Identifier: Apache-2.0
"""Principal components and k-means centres, from which training starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.filling import patterns, regress_windows
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.shards import total_sizes
from pyro_vgpds.data.times import Times

__all__ = ["components", "kmeans", "pca", "split_pca", "wide_components"]

_SWEEPS = 30  # of alternating least squares, if data are missing
_LAGS = (-1, 1)  # neighbouring frames by which missing entries are filled
_PENALTY = 0.01  # of the regression, relative to the number of frames
_WINDOW = 400  # entries of a window of frames, at most
_PATTERNS = 1000  # of missing entries in a frame: each has a matrix of its own
_WIDE = 4096  # columns of a wide matrix that are sent to the other processes at once
_KMEANS_POINTS = 20_000  # or 100 for each centre: more would only make the start slow


def pca(data: Sequences, latent_dim: int, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Principal components of the observed ``(y - mean) / scale``: points (N, Q) of unit variance, and the variance of
    each component relative to the first, (Q,).

    If data are missing, they are those of a low-rank fit by alternating ridge regressions. If there are as many
    components as outputs, such a fit says nothing about missing entries, which are filled by regression on all others
    in the same and the neighbouring frames instead. A frame with nothing observed is interpolated in time.
    """
    scores, columns = _scores(data, latent_dim, mean, scale)
    u, s = components(scores, data, columns)
    u, s = u[:, :latent_dim], s[:latent_dim]
    short = latent_dim - u.shape[1]
    if short > 0:  # there are fewer frames than latent dimensions
        u, s = torch.nn.functional.pad(u, (0, short)), torch.nn.functional.pad(s, (0, short))
    return _whiten(u, s, data)


def _whiten(u: Tensor, s: Tensor, data: Sequences) -> tuple[Tensor, Tensor]:
    """Unit vectors (N, Q) as points of unit variance, and their singular values as shares of the largest variance."""
    biggest = u.gather(0, u.abs().argmax(0, keepdim=True))
    biggest = data.frame_communicator.all_gather_rows(biggest)  # one of each process
    sign = biggest.gather(0, biggest.abs().argmax(0, keepdim=True)).sign()
    u = u * sign  # the sign of a component is free: make it reproducible
    share = (s / s.max().clamp_min(torch.finfo(s.dtype).tiny)).square().clamp_min(1e-3)
    return (u * math.sqrt(total_sizes(data)[0])).contiguous(), share


def split_pca(data: Sequences, latent_dim: int, static_dim: int, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`pca`, with the components within sequences first, and then ``static_dim`` of the sequences' means.

    Every sequence is centred for the components within, so that all share one space. The differences between
    sequences are left to the last dimensions, which are constant in each sequence.
    """
    scores, columns = _scores(data, latent_dim, mean, scale)
    between = torch.cat([scores[s].mean(0, keepdim=True).expand(s.stop - s.start, -1) for s in data.times.slices()])
    parts = []
    for matrix, rank in ((scores - between, latent_dim - static_dim), (between, static_dim)):
        u, s = components(matrix, data, columns)
        short = rank - u.shape[1]
        parts.append(torch.nn.functional.pad(torch.cat([u, s.unsqueeze(0)]), (0, max(0, short)))[:, :rank])
    joined = torch.cat(parts, 1)
    return _whiten(joined[:-1], joined[-1], data)


def _scores(data: Sequences, rank: int, mean: Tensor, scale: Tensor) -> tuple[Tensor, Communicator]:
    """Columns with the components of the scaled data, (N, R), and the processes that have other columns of them."""
    groups, communicator = data.groups(mean, scale), data.column_communicator
    if not communicator.any(groups.mask is not None):
        return groups.factor, communicator
    if (
        rank >= data.num_outputs
        and data.communicator.size == 1
        and (filled := _regressed(data, mean, scale)) is not None
    ):
        return filled, SINGLE_PROCESS
    return _fit_low_rank(data, rank, mean, scale), SINGLE_PROCESS


def _regressed(data: Sequences, mean: Tensor, scale: Tensor) -> Tensor | None:
    """The scaled data (N, D) with missing entries filled by regression.

    None if that would take long, or if no frame has both missing and observed entries.
    """
    if data.num_outputs * (1 + len(_LAGS)) > _WINDOW:
        return None
    y = ((data.read() - mean) / scale).to("cpu", torch.float64)
    seen = y.isfinite()
    lost = ~seen.any(1)
    if bool((seen.all(1) | lost).all()) or len(patterns(seen)[0]) > _PATTERNS:
        return None
    size = y.square().nanmean(0).sqrt()  # not 1 if the outputs are not scaled
    size = torch.where(size > 0.0, size, 1.0)
    found, _ = regress_windows(y / size, seen, data.times.t.to(y), data.times.slices(), _LAGS, _PENALTY)
    filled = torch.where(seen, y, found * size).to(mean)
    return _interpolate(filled, data.times, lost)


def components(matrix: Tensor, data: Sequences, columns: Communicator = SINGLE_PROCESS) -> tuple[Tensor, Tensor]:
    """Left singular vectors (n, R) and singular values (R,) of a matrix whose rows the processes have together.

    The rows (n, D) of this process belong to its sequences ``data``. Other processes may have other ``columns`` of
    them.
    """
    communicator = data.frame_communicator
    if columns.size > 1:
        return wide_components([matrix], data, columns)
    if communicator.size == 1:
        u, s, _ = torch.linalg.svd(matrix, full_matrices=False)
        return u, s
    if matrix.shape[1] > total_sizes(data)[0]:
        return wide_components(matrix.split(_WIDE, 1), data)
    e, v = torch.linalg.eigh(communicator.all_reduce(matrix.mT @ matrix))
    both = communicator.broadcast(torch.cat([e.unsqueeze(0), v]))  # other machines might turn them
    s, v = both[0].clamp_min(0.0).sqrt().flip(-1), both[1:].flip(-1)
    return matrix @ v / s.clamp_min(torch.finfo(s.dtype).eps * s.max()), s


def wide_components(
    blocks: Iterable[Tensor], data: Sequences, columns: Communicator = SINGLE_PROCESS
) -> tuple[Tensor, Tensor]:
    """The same for blocks of columns (n, block) of a matrix with more columns than all processes have rows."""
    communicator, n = data.frame_communicator, total_sizes(data)[0]
    gram = torch.zeros(n, n, dtype=data.dtype, device=data.device)
    for block in blocks:
        every = communicator.all_gather_rows(block)
        gram.addmm_(every, every.mT)
    e, u = torch.linalg.eigh(columns.all_reduce(gram))
    both = columns.broadcast(communicator.broadcast(torch.cat([e.unsqueeze(0), u])))
    return both[1 + data.offset :][: data.num_frames].flip(-1), both[0].clamp_min(0.0).sqrt().flip(-1)


def _fit_low_rank(data: Sequences, rank: int, mean: Tensor, scale: Tensor) -> Tensor:
    """Points times loadings' scale, (N, rank), of X Wᵀ fitted to the observed part of the scaled data."""
    n, communicator, columns = total_sizes(data)[0], data.frame_communicator, data.column_communicator
    ridge = 0.05 * float((data.output_variances / scale.square()).mean())
    eye = torch.eye(rank, dtype=data.dtype, device=data.device)

    def blocks() -> Iterator[tuple[Tensor, Tensor]]:  # read in every sweep: the data may be larger than memory
        for where, block in data.blocks():
            scaled = (block - mean[where]).div_(scale[where])
            yield torch.isfinite(block).to(data.dtype), torch.nan_to_num(scaled, nan=0.0)

    # start from the components of the data with zeros for missing entries
    if data.num_outputs < n and columns.size == 1:
        filled = torch.cat([y for _, y in blocks()], 1)
        x = components(filled, data)[0][:, :rank] * math.sqrt(n)
        del filled
    else:
        x = wide_components((y for _, y in blocks()), data, columns)[0][:, :rank] * math.sqrt(n)
    if x.shape[1] < rank:
        x = torch.nn.functional.pad(x, (0, rank - x.shape[1]))
    for _ in range(_SWEEPS):
        pairs = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)  # (N, Q²)
        left, right = x.new_zeros(len(x), rank * rank), x.new_zeros(len(x), rank)
        for seen, y in blocks():
            sums = communicator.all_reduce(torch.cat([seen.mT @ pairs, y.mT @ x], 1))
            normal, target = sums[:, :-rank].unflatten(-1, (rank, rank)), sums[:, -rank:].unsqueeze(-1)
            loadings = torch.linalg.solve(normal + 1e-3 * n * eye, target).squeeze(-1)
            left.addmm_(seen, (loadings.unsqueeze(-1) * loadings.unsqueeze(-2)).flatten(-2))
            right.addmm_(y, loadings)
        left, right = columns.all_reduce(torch.cat([left, right], 1)).split([rank * rank, rank], 1)
        x = torch.linalg.solve(left.unflatten(-1, (rank, rank)) + ridge * eye, right.unsqueeze(-1)).squeeze(-1)
        x = x / (communicator.all_reduce(x.square().sum(0)) / n).sqrt().clamp_min(1e-12)
    size = (communicator.all_reduce(left.sum(0)) / n).view(rank, rank).diagonal().clamp_min(0.0).sqrt()
    empty = columns.all_reduce(sum((seen.sum(1) for seen, _ in blocks()), start=x.new_zeros(len(x)))) == 0
    return _interpolate(x * size, data.times, empty) if bool(empty.any()) else x * size


def _interpolate(x: Tensor, times: Times, empty: Tensor) -> Tensor:
    """Replaces rows that are ``empty`` by interpolation within their sequence, if that has other rows."""
    x = x.clone()
    for rows in times.slices():
        gaps, t = empty[rows].cpu().numpy(), times.t[rows].cpu().numpy()
        if gaps.any() and not gaps.all():
            part = x[rows].cpu().numpy()
            filled = [np.interp(t[gaps], t[~gaps], column[~gaps]) for column in part.T]
            part[gaps] = np.stack(filled, 1)
            x[rows] = torch.from_numpy(part).to(x)
    return x


def kmeans(x: Tensor, num_centres: int, sweeps: int = 50, communicator: Communicator = SINGLE_PROCESS) -> Tensor:
    """Centres (M, Q) of the points x (N, Q) by Lloyd's algorithm, from a random choice of points (k-means++).

    It uses a random subset if there are very many points.

    :param communicator: the processes that have the points together. The draws are those of the first one.
    """
    if communicator.size > 1:
        most, every = max(_KMEANS_POINTS, 100 * num_centres), sum(communicator.all_gather(len(x)))
        own = x if every <= most else x[torch.randperm(len(x), device=x.device)[: -(-most * len(x) // every)]]
        points = communicator.all_gather_rows(own)
        first = kmeans(points, num_centres, sweeps) if communicator.rank == 0 else x.new_zeros(num_centres, x.shape[1])
        return communicator.broadcast(first)
    if num_centres >= len(x):
        return x.clone()
    most = max(_KMEANS_POINTS, 100 * num_centres)
    if len(x) > most:
        x = x[torch.randperm(len(x), device=x.device)[:most]]
    centres = x[torch.randint(len(x), (1,), device=x.device)]
    distance = torch.cdist(x, centres).square().squeeze(-1)
    for _ in range(num_centres - 1):
        weights = distance if bool(distance.sum() > 0) else torch.ones_like(distance)
        new = x[torch.multinomial(weights.double(), 1)]  # float32 would draw other points in some versions of torch
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
