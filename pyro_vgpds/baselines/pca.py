# SPDX-License-Identifier: Apache-2.0
"""Principal component analysis with missing data, plain and probabilistic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Filled, Gaps
from pyro_vgpds.checks import check_count, check_not_negative, is_whole
from pyro_vgpds.data.filling import patterns
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["choose_components", "pairs", "pca", "ppca"]

_Fit: TypeAlias = Callable[[Tensor, Tensor, int, int, float], Tensor]  # of y and which entries are used, (N, D) each

_HELD_OUT = 0.1  # fraction of the observed entries that is held out to choose the number of components
_COLUMNS = 500  # maximum number of columns used for this choice
_MOST = 40  # maximum number of components that are tried
_ITERATIONS, _TOLERANCE = 30, 1e-3  # limits of the fits that only compare numbers of components
_RIDGE = 1e-6  # ridge on the loadings, for columns observed in fewer frames than there are components


def pca(
    t: DataLike | Sequences,
    y: DataLike | None = None,
    num_components: int | None = None,
    num_iterations: int = 200,
    tolerance: float = 1e-5,
) -> Filled:
    """Fill by a low-rank fit: start from the column means, then alternate between the leading principal components and
    filling with their reconstruction until convergence. Times are not used.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param num_components: number of components. Default: the number that best predicts a tenth of the observed
        entries, held out at random with a fixed seed.
    :param num_iterations: maximum number of iterations.
    :param tolerance: stop if the filled values change by less than this, relative to the standard deviation of y.
    :returns: float64 (N, D) without NaN, or a list of them.
    :raises ValueError: as ``Sequences``; if a column was never observed, or ``num_components`` is not between 1 and the
        smaller side of y.

    >>> from pyro_vgpds.baselines import pca
    >>> y = [[1.0, 2.0], [2.0, 4.0], [3.0, float("nan")], [4.0, 8.0]]  # a line
    >>> round(pca(range(4), y, num_components=1)[2, 1].item(), 3)
    6.0
    """
    return _impute(Gaps(t, y), num_components, _low_rank, num_iterations, tolerance)


def ppca(
    t: DataLike | Sequences,
    y: DataLike | None = None,
    num_components: int | None = None,
    num_iterations: int = 200,
    tolerance: float = 1e-5,
) -> Filled:
    """Fill with the posterior mean of probabilistic PCA, y = W x + μ + noise, fitted by EM to the observed entries.

    Unlike :func:`pca`, it shrinks frames with few observations towards the mean. Arguments, result and errors as in
    :func:`pca`.

    >>> import numpy as np
    >>> from pyro_vgpds.baselines import ppca
    >>> y = np.outer(np.sin(np.arange(20.0)), [1.0, 2.0, 3.0])
    >>> y[4, 1] = np.nan
    >>> round(ppca(np.arange(20.0), y, num_components=1)[4, 1].item(), 2)  # twice the sine of 4
    -1.51
    """
    return _impute(Gaps(t, y), num_components, _em, num_iterations, tolerance)


def _impute(gaps: Gaps, number: int | None, fit: _Fit, num_iterations: int, tolerance: float) -> Filled:
    most = min(gaps.y.shape)
    if number is not None and not (is_whole(number) and 1 <= number <= most):
        raise ValueError(f"num_components must be between 1 and {most}, the smaller side of y, but got {number!r:.80}.")
    check_count("num_iterations", num_iterations)
    check_not_negative("tolerance", tolerance)
    if bool(gaps.seen.all()):
        return gaps.fill(gaps.y)
    if number is None:
        number = _choose(gaps, fit, min(num_iterations, _ITERATIONS), max(tolerance, _TOLERANCE))
    return gaps.fill(fit(gaps.y, gaps.seen, number, num_iterations, tolerance))


def choose_components(data: Sequences) -> int:
    """The number of components that :func:`ppca` chooses for sequences."""
    return _choose(Gaps(data), _em, _ITERATIONS, _TOLERANCE)


def _choose(gaps: Gaps, fit: _Fit, num_iterations: int, tolerance: float) -> int:
    """The number of components that predicts held-out entries best; the search stops after two increases in a row."""
    generator, (y, seen) = torch.Generator().manual_seed(0), (gaps.y, gaps.seen)
    columns = torch.randperm(y.shape[1], generator=generator)[:_COLUMNS].sort().values
    y, seen = y[:, columns], seen[:, columns]
    hidden = seen & (torch.rand(y.shape, generator=generator, dtype=y.dtype) < _HELD_OUT)
    hidden &= (seen & ~hidden).any(0)  # never hide all of a column
    if not bool(hidden.any()):
        return 1
    best, least, worse = 1, float("inf"), 0
    number = 1
    while number <= min(_MOST, *y.shape) and worse < 2:
        filled = fit(torch.where(hidden, torch.nan, y), seen & ~hidden, number, num_iterations, tolerance)
        error = float((filled - y)[hidden].square().mean())
        best, least, worse = (number, error, 0) if error < least else (best, least, worse + 1)
        number = max(number + 1, round(1.3 * number))
    return best


def _low_rank(y: Tensor, seen: Tensor, number: int, num_iterations: int, tolerance: float) -> Tensor:
    filled = torch.where(seen, y, torch.nanmean(y, 0))
    spread = filled.std(unbiased=False).clamp_min(1e-300)
    for _ in range(num_iterations):
        mean = filled.mean(0)
        fitted = _project(filled - mean, number) + mean
        moved = (fitted - filled)[~seen].square().mean().sqrt()
        filled = torch.where(seen, y, fitted)
        if bool(moved < tolerance * spread):
            break
    return filled


def _project(y: Tensor, number: int) -> Tensor:
    """The projection of y (N, D) onto its leading principal directions, from the Gram matrix of the smaller side."""
    if y.shape[0] > y.shape[1]:
        return _project(y.mT, number).mT
    directions = torch.linalg.eigh(y @ y.mT)[1][:, -number:]
    return directions @ (directions.mT @ y)


def _em(y: Tensor, seen: Tensor, number: int, num_iterations: int, tolerance: float) -> Tensor:
    """EM of probabilistic PCA, initialised by the principal components of the mean-imputed data.

    With w_d the loadings of column d and O_n the columns observed in frame n, the E step has
    C_n = (I + Σ_{d∈O_n} w_d w_dᵀ / σ²)⁻¹ and x_n = C_n Σ_{d∈O_n} w_d (y_nd − μ_d) / σ², and the M step regresses each
    column on (x, 1) over the frames in which it is observed. Frames, and columns, that share a pattern share matrices.
    """
    n, mask = len(y), seen.to(y.dtype)
    frame_masks, frame_of = patterns(seen)
    column_masks, column_of = patterns(seen.mT.contiguous())
    frame_masks, column_masks = frame_masks.to(y.dtype), column_masks.to(y.dtype)
    mean = torch.nanmean(y, 0)
    data = torch.where(seen, y, 0.0)
    _, s, v = torch.linalg.svd(torch.where(seen, y - mean, 0.0), full_matrices=False)
    loadings = (s[:number, None] * v[:number]).mT / n**0.5  # (D, Q)
    spread = float(mask.mul(data - mean).square().sum() / mask.sum())
    noise = max(float((s[number:] ** 2).sum() / mask.sum()), 1e-6 * spread, 1e-300)
    eye = torch.eye(number, dtype=y.dtype)
    fitted = mean.expand_as(y)
    for _ in range(num_iterations):
        precision = eye + (frame_masks @ pairs(loadings)).unflatten(-1, (number, number)) / noise
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))[frame_of]  # (N, Q, Q)
        x = (covariance @ ((mask * (data - mean)) @ loadings).unsqueeze(-1)).squeeze(-1) / noise
        # (x, 1) and the expectation of its outer product, summed over the frames of each column
        points = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        size, variance = number + 1, column_masks @ covariance.flatten(1)
        normal = (column_masks @ pairs(points)).unflatten(-1, (size, size))
        normal[:, :number, :number] += variance.unflatten(-1, (number, number)) + _RIDGE * eye
        right = (data.mT @ points).unsqueeze(-1)
        solution = torch.cholesky_solve(right, torch.linalg.cholesky(normal)[column_of]).squeeze(-1)
        loadings, mean = solution[:, :number], solution[:, number]
        new = x @ loadings.mT + mean
        uncertainty = (variance[column_of] * pairs(loadings)).sum()
        residual = (mask * (data - new)).square().sum() + uncertainty
        noise = max(float(residual / mask.sum()), 1e-9 * spread, 1e-300)
        moved = (new - fitted).square().mean().sqrt()
        fitted = new
        if bool(moved <= tolerance * max(spread, 1e-300) ** 0.5):
            break
    return fitted


def pairs(w: Tensor) -> Tensor:
    """Products of the entries of each row (Q,), as (n, Q²)."""
    return (w.unsqueeze(-1) * w.unsqueeze(-2)).flatten(1)
