# SPDX-License-Identifier: Apache-2.0
"""Kernel ridge regression of hidden columns on observed ones, from complete training frames."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Filled
from pyro_vgpds.baselines.neighbours import as_given, read_pair
from pyro_vgpds.baselines.regression import check_lags
from pyro_vgpds.checks import check_choice
from pyro_vgpds.data.filling import patterns, windows
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["kernel_ridge"]

_KERNELS = ("rbf", "linear")
_FRAMES = 2000  # training frames used for each pattern, evenly spaced
_CHOICE = 500  # of those, the frames for the choice of bandwidth and penalty
_BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # times the median distance between training frames
_PENALTIES = 10.0 ** torch.linspace(-6.0, 1.0, 15, dtype=torch.float64)


def kernel_ridge(train: DataLike | Sequences, test: DataLike, lags: Sequence[int] = (), kernel: str = "rbf") -> Filled:
    """Fill the NaN of test frames by kernel ridge regression on their observed entries, trained on complete frames.

    Each pattern of observed entries has its own regression, so it suits hidden columns that follow few patterns. Inputs
    are the observed entries of the frame and of its neighbours, divided by their standard deviations. Bandwidth and
    penalty minimise the leave-one-out error (in closed form) over a grid, for at most 500 training frames; the
    regression uses at most 2000. A frame without observations is filled with the mean of the training frames.

    :param train: frames (N, D) without NaN, or a list of them, one per sequence, or :class:`~pyro_vgpds.Sequences`.
    :param test: frames (N*, D) with NaN, or a list of them, one per sequence.
    :param lags: neighbours whose observed entries are inputs too, as differences of frame numbers other than 0.
    :param kernel: ``"rbf"``, or ``"linear"`` for linear ridge regression.
    :returns: float64 (N*, D) without NaN, or a list of them.
    :raises ValueError: if shapes disagree, ``train`` or ``test`` has infinite values, ``train`` has NaN, or lags or
        ``kernel`` are invalid.

    >>> import numpy as np
    >>> from pyro_vgpds.baselines import kernel_ridge
    >>> x = np.linspace(0, 6, 50)
    >>> test = [[1.0, float("nan")]]
    >>> round(kernel_ridge(np.stack([x, np.sin(x)], 1), test)[0, 1].item(), 2)  # the sine of 1
    0.84
    """
    check_lags(lags)
    check_choice("kernel", kernel, _KERNELS)
    known, parts = read_pair(train, test)
    filled = _fill(windows(known, lags), windows(parts, lags), torch.cat(known), torch.cat(parts), kernel)
    return as_given(filled, test, parts)


def _fill(known: Tensor, given: Tensor, frames: Tensor, test: Tensor, kernel: str) -> Tensor:
    """``test`` with predictions from its windows ``given``, learnt from training windows ``known``, in place."""
    spread = frames.std(0, unbiased=False)
    spread = torch.where(spread > 0, spread, 1.0).repeat(known.shape[1] // frames.shape[1])
    masks, pattern_of = patterns(~given.isnan())
    for pattern, seen in enumerate(masks):
        rows, hidden = (pattern_of == pattern).nonzero(), (~seen[: test.shape[1]]).nonzero().squeeze(-1)
        if len(hidden) == 0:
            continue
        # neighbours beyond the ends of a training sequence are NaN
        whole = (~known[:, seen].isnan().any(1)).nonzero().squeeze(-1)
        whole = whole[_even(len(whole), _FRAMES)]
        if not bool(seen.any()) or len(whole) == 0:
            test[rows, hidden] = frames.mean(0)[hidden]
            continue
        inputs = (known[whole][:, seen] / spread[seen], given[rows.squeeze(-1)][:, seen] / spread[seen])
        target = known[whole][:, hidden]
        scale = spread[hidden]
        test[rows, hidden] = _predict(*inputs, target / scale, kernel) * scale
    return test


def _predict(x: Tensor, at: Tensor, y: Tensor, kernel: str) -> Tensor:
    """Kernel ridge regression of y (n, H) on x (n, F), at the points ``at`` (m, F)."""
    centre, middle = y.mean(0), x.mean(0)
    x, at, y = x - middle, at - middle, y - centre
    few = _even(len(x), _CHOICE)
    if kernel == "linear":
        scales = x.square().sum(1).mean().clamp_min(1e-300).sqrt().unsqueeze(0)
    else:
        distances = torch.pdist(x[few])
        distances = distances[distances > 0]
        scales = (distances.median() if len(distances) else 1.0) * torch.tensor(_BANDWIDTHS, dtype=x.dtype)
    choices = [_leave_one_out(_gram(x[few], x[few], scale, kernel), y[few]) for scale in scales]
    best = min(range(len(choices)), key=lambda i: choices[i][0])
    gram = _gram(x, x, scales[best], kernel)
    gram.diagonal().add_(choices[best][1])
    weights = torch.cholesky_solve(y, torch.linalg.cholesky(gram))
    return _gram(at, x, scales[best], kernel) @ weights + centre


def _gram(x: Tensor, z: Tensor, scale: Tensor, kernel: str) -> Tensor:
    x, z = x / scale, z / scale
    return x @ z.mT if kernel == "linear" else (-0.5 * torch.cdist(x, z).square()).exp()


def _leave_one_out(gram: Tensor, y: Tensor) -> tuple[float, float]:
    """The least leave-one-out error over the penalties, and its penalty.

    With G = K + λI, the error of frame i without itself is (G⁻¹y)_i / (G⁻¹)_ii.
    """
    values, vectors = torch.linalg.eigh(gram)
    weights = 1.0 / (values.clamp_min(0.0) + _PENALTIES.unsqueeze(-1))  # (L, n)
    solved = vectors @ (weights.unsqueeze(-1) * (vectors.mT @ y))  # (L, n, H)
    errors = (solved / (weights @ vectors.square().mT).unsqueeze(-1)).square().mean((1, 2))
    best = int(errors.argmin())
    return float(errors[best]), float(_PENALTIES[best])


def _even(count: int, most: int) -> Tensor:
    """At most ``most`` evenly spaced indices below ``count``."""
    return torch.linspace(0, max(count - 1, 0), min(count, most), dtype=torch.float64).round().long()
