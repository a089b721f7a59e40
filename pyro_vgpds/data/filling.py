# SPDX-License-Identifier: Apache-2.0
"""Missing entries filled from the entries around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["around", "line_between", "patterns", "regress_windows", "windows"]

_SWEEPS = 5  # of EM


def around(seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each entry, the rows of the last observation at or before it and of the first at or after it, (n, D) each.

    If one side has no observation, both are the row on the other side. The third value, (D,), marks the columns with
    any observation.
    """
    n = len(seen)
    row = torch.arange(n).unsqueeze(-1).expand_as(seen)
    before = torch.where(seen, row, -1).cummax(0).values
    after = torch.where(seen, row, n).flip(0).cummin(0).values.flip(0)
    none_before, none_after = before < 0, after == n
    before, after = torch.where(none_before, after, before), torch.where(none_after, before, after)
    return before.clamp(0, n - 1), after.clamp(0, n - 1), seen.any(0)


def patterns(seen: Tensor) -> tuple[Tensor, Tensor]:
    """The unique rows of ``seen`` (n, m) as (P, m), and the index of each row among them, (n,)."""
    packed = np.ascontiguousarray(np.packbits(seen.numpy(), axis=1))
    keys = packed.view([("", packed.dtype)] * packed.shape[1]).ravel()
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return seen[torch.from_numpy(first)], torch.from_numpy(place.ravel())


def line_between(t: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """Linear interpolation (n, D) of the observed entries of y (n, D) at times t (n,); NaN in columns without any."""
    before, after, _ = around(seen)
    left, right = y.gather(0, before), y.gather(0, after)
    width = t[after] - t[before]
    share = torch.where(width > 0, (t.unsqueeze(-1) - t[before]) / torch.where(width > 0, width, 1.0), 0.0)
    return left + share * (right - left)


def windows(parts: Sequence[Tensor], lags: Sequence[int]) -> Tensor:
    """Each frame of sequences (n, D), followed by its neighbours: (N, D (1 + lags)), NaN beyond the ends."""
    joined = []
    for part in parts:
        row = torch.arange(len(part)).unsqueeze(-1) + torch.tensor([0, *lags])
        inside = ((row >= 0) & (row < len(part))).unsqueeze(-1)
        joined.append(torch.where(inside, part[row.clamp(0, len(part) - 1)], torch.nan).flatten(1))
    return torch.cat(joined)


def regress_windows(
    y: Tensor, seen: Tensor, t: Tensor, rows: Sequence[slice], lags: Sequence[int], penalty: float
) -> tuple[Tensor, Tensor]:
    """Means and variances (N, D) of the entries that are not ``seen``, given all others in a window of frames.

    Windows are draws of one Gaussian, whose covariance is found by EM from linear interpolation, with a prior that
    counts as ``penalty`` N frames of independent outputs of unit variance. With K the inverse of the covariance, the
    missing entries m of a window given the observed entries x_o have the covariance K_mm⁻¹ and the mean
    −K_mm⁻¹ K_mo x_o: the matrices have the size of the missing part.

    :param y: outputs (N, D) of mean 0 and variance 1.
    :param lags: neighbours in the window, as differences of frame numbers other than 0.
    """
    n, num_outputs = y.shape
    lines = []
    for part in rows:
        line = line_between(t[part], y[part], seen[part])
        lines.append(torch.where(seen[part].any(0), line, 0.0))
    given = windows([torch.where(seen, y, torch.nan)[part] for part in rows], lags)
    masks, pattern_of = patterns(~given.isnan())
    given = given.nan_to_num(0.0)
    frames_of = pattern_of.argsort(stable=True).unsqueeze(-1).split(pattern_of.bincount().tolist())
    groups = [(frames, (~mask).nonzero().squeeze(-1)) for frames, mask in zip(frames_of, masks, strict=True)]
    filled = windows(lines, lags).nan_to_num(0.0)
    variances, eye = torch.zeros_like(given), torch.eye(given.shape[1]).to(y)
    square = filled.mT @ filled
    for _ in range(_SWEEPS):
        covariance = (square / n + penalty * eye) / (1.0 + penalty)
        precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance + 1e-9 * eye))
        pull = given @ precision
        uncertainty = torch.zeros_like(square)
        for frames, missing in groups:
            pairs = (missing.unsqueeze(-1), missing)
            block = torch.cholesky_inverse(torch.linalg.cholesky_ex(precision[pairs])[0])
            filled[frames, missing] = -pull[frames, missing] @ block
            variances[frames, missing] = block.diagonal()
            uncertainty[pairs] += len(frames) * block
        square = filled.mT @ filled + uncertainty
    return filled[:, :num_outputs], variances[:, :num_outputs]
