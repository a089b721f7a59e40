# SPDX-License-Identifier: Apache-2.0
"""Rules for the means of counts.

The counts of a frame are taken as a level of the frame times a share of each column. Frames of which nothing is
observed get their level from other frames: the last one, or the same part of earlier cycles. Each earlier cycle is one
component of the predictive distribution, so that its spread is that of the cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.data.parts import base_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.oscillations import average_cycle
from pyro_vgpds.likelihoods.guess import column_means

__all__ = ["COUNT_RULES", "common_period", "join_components"]

_SWEEPS = 50  # of levels and shares
_LEAST = 1e-12  # mean count
_CYCLES = 10  # earlier cycles that are used, at most
_LONG = 24  # frames of a cycle that three of them hardly differ from, unlike the days of a week


def common_period(data: Sequences) -> float | None:
    """The period of a cycle in the levels of the frames; None if there are several sequences, or no clear cycle."""
    if data.num_sequences > 1:
        return None
    level, _, seen = _levels(data)
    level = torch.where(seen, level.log(), torch.nan)
    times = Times(data.times.t.cpu().double(), [len(level)])
    return average_cycle(times, level, data.time_origin is not None)


def join_components(parts: Sequence[Tensor]) -> Tensor:
    """Components (K, n, ...) of several parts (k, n, ...), one after the other; shorter ones repeat theirs in turn."""
    count = max(len(part) for part in parts)
    return torch.cat([part[torch.arange(count) % len(part)] for part in parts], 1)


def _exposure(data: Sequences) -> Tensor | float:
    """Exposures (N, D) if each entry has its own. Those of columns are part of their means."""
    own = data.exposure
    return 1.0 if own is None or own.dim() == 1 else own.detach().cpu().double()


def _levels(data: Sequences) -> tuple[Tensor, Tensor, Tensor]:
    """Levels (N,) and shares (D,) whose products are the most likely means of Poisson counts, and the frames with any.

    Each frame has half a count more, and each column half a count at the mean rate of all: no product is 0.
    """
    y = base_outputs(data).detach().cpu().double()
    seen = y.isfinite()
    values, known = y.nan_to_num(0.0), seen.double() * _exposure(data)
    share, level = _column_means(data), torch.ones(len(y), dtype=y.dtype)
    for _ in range(_SWEEPS):
        level = (values.sum(1) + 0.5) / (known @ share).clamp_min(_LEAST)
        expected = level @ known
        mean = (values.sum() / expected.sum()).clamp_min(_LEAST)
        share = (values.sum(0) + 0.5) / (expected + 0.5 / mean)
    return level, share, seen.any(1)


def _column_means(data: Sequences) -> Tensor:
    y, exposure = base_outputs(data).detach().cpu().double(), _exposure(data)
    return column_means(y, exposure if isinstance(exposure, Tensor) else None).clamp_min(_LEAST)


def _from_levels(data: Sequences, fill: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Tensor:
    """Means (K, N, D), with levels (K, n) of the frames of which nothing is observed by ``fill(t, level, t_new)``."""
    level, share, seen = _levels(data)
    every = []
    for rows in data.times.slices():
        t, own, known = data.times.t[rows].cpu().numpy(), level[rows].numpy(), seen[rows].numpy()
        found = np.full((1, len(t)), float(level[seen].mean()))  # if nothing is observed
        if known.any():
            new = fill(t[known], own[known], t[~known])
            found = np.tile(own, (len(new), 1))
            found[:, ~known] = new
        every.append(torch.from_numpy(found))
    return (join_components(every).unsqueeze(-1) * share).clamp_min(_LEAST)


def _common_level(data: Sequences) -> Tensor:
    return _from_levels(data, lambda t, level, new: np.interp(new, t, level)[None])


def _common_cycle(data: Sequences) -> Tensor:
    period = common_period(data)
    if period is None:
        return _common_level(data)

    def earlier(t: np.ndarray, level: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Levels (K, n) of the same part of other cycles, averaged with the frames next to it in long cycles."""
        step, found = float(np.median(np.diff(t))), []
        beside = [-step, 0.0, step] if period >= _LONG * step else [0.0]
        for at in new:
            cycles = [at + k * period for k in (*range(-1, -_CYCLES - 1, -1), *range(1, _CYCLES + 1))]
            inside = [place for place in cycles if t[0] <= place + beside[0] and place + beside[-1] <= t[-1]]
            near = [np.interp([place + by for by in beside], t, level).mean() for place in inside[:_CYCLES]]
            found.append(torch.tensor(near or [np.interp(at, t, level)], dtype=torch.float64).unsqueeze(-1))
        return join_components(found).numpy() if found else np.empty((1, 0))

    return _from_levels(data, earlier)


#: the rules by name: functions of sequences with NaN to means (K, N, D) of K components, at the exposure 1 if each
#: entry has its own exposure
COUNT_RULES: dict[str, Callable[[Sequences], Tensor]] = {
    "mean count": lambda data: _column_means(data).expand(1, data.num_frames, -1),
    "common level": _common_level,
    "common cycle": _common_cycle,
}
