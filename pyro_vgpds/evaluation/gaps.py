# SPDX-License-Identifier: Apache-2.0
"""Which entries to hide: masks that resemble what users want to predict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["hide_blocks", "hide_entries", "hide_like_missing", "keep_enough", "mean_length"]

_LEAST = 3  # observed entries of a column that are never hidden
_TRIES = 8  # places near a random one, of which the best for a gap is taken
_NEAR = 1 / 16  # of a sequence, or the length of the gap if it is longer: how far they are from it


def hide_entries(seen: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A random share of the observed entries ``seen`` (n, D)."""
    hidden: np.ndarray = seen & (rng.random(seen.shape) < share)
    return hidden


def hide_blocks(seen: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Blocks of some frames by half of the columns until the share of the observed entries is reached.

    Half of the blocks are adjacent columns, which often belong together; the others are random columns.
    """
    frames, outputs = seen.shape
    length = min(10, max(1, frames // 5))
    hidden = np.zeros_like(seen)
    wanted = share * seen.sum()
    for _ in range(10 * frames):
        if (hidden & seen).sum() >= wanted:
            break
        start = rng.integers(0, frames - length + 1)
        hidden[start : start + length, choose_columns(outputs, rng)] = True
    return hidden & seen


def choose_columns(outputs: int, rng: np.random.Generator) -> np.ndarray:
    """Half of the columns: adjacent or random ones."""
    if rng.random() < 0.5:
        return (rng.integers(outputs) + np.arange(max(1, outputs // 2))) % outputs
    return rng.permutation(outputs)[: max(1, outputs // 2)]


def hide_like_missing(masks: list[np.ndarray], share: float, rng: np.random.Generator) -> list[np.ndarray]:
    """More missing entries of the kind that the sequences have, about a share of the observed ones.

    A gap is some consecutive frames of some columns. Gaps inside a sequence are repeated at other times, with their
    lengths and columns. Lost frames, in which nothing is observed, are another kind of gap than lost columns, since
    only the time is known of them: if the data have both, each kind has at least a third of what is hidden.
    Gaps at an end are extended by their own length, because a value outside the observed times is harder to predict
    than one between them.

    :param masks: which entries are observed, (n, D) for each sequence.
    """
    wanted = share * sum(int(seen.sum()) for seen in masks)
    ends, runs = (sum(map(count, masks)) for count in (_count_ends, _count_gaps))
    hidden = [_extend_ends(seen) for seen in masks]
    total = sum(int(part.sum()) for part in hidden)
    allowed = wanted * ends / max(1, runs)  # gaps at the ends may be few but long
    if total > allowed:
        chance = max(allowed / total, 1e-3)
        hidden = [part & (rng.random(part.shape[1]) < chance) for part in hidden]
        total = sum(int(part.sum()) for part in hidden)
    frames = [gap for seen in masks for gap in _lost_frames(seen)]
    columns = [gap for seen in masks for gap in _lost_columns(seen)]
    size = [sum(gap.length * len(gap.columns) for gap in kind) for kind in (frames, columns)]
    part = size[0] / max(1, sum(size))
    if frames and columns:
        part = min(max(part, 1.0 / 3.0), 2.0 / 3.0)
    for gaps, amount in ((frames, part), (columns, 1.0 - part)):
        if gaps:
            _repeat(gaps, masks, hidden, amount * (wanted - total), rng)
    return hidden


@dataclass(frozen=True)
class _Gap:
    """Consecutive frames of some columns."""

    length: int
    columns: np.ndarray
    whole: bool  #: whether nothing is observed in these frames


def _lost_frames(seen: np.ndarray) -> list[_Gap]:
    """Runs of frames without an observed entry, between frames with some."""
    some = seen.any(1).reshape(-1, 1)
    starts, stops, _ = _runs(~some & ~_at_ends(some))
    every = np.arange(seen.shape[1])
    return [_Gap(int(stop - start), every, True) for start, stop in zip(starts, stops, strict=True)]


def _lost_columns(seen: np.ndarray) -> list[_Gap]:
    """Runs of missing entries inside columns that are not runs of lost frames; those of the same frames together."""
    starts, stops, columns = _runs(~seen & ~_at_ends(seen))
    observed = np.append(0, seen.any(1).cumsum())
    some = observed[stops] > observed[starts]  # of these frames
    keys = (starts * (len(seen) + 1) + stops)[some]
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    groups = [group for group in np.split(order, cuts) if len(group)]
    lengths, columns = (stops - starts)[some], columns[some]
    return [_Gap(int(lengths[group[0]]), columns[group], False) for group in groups]


def _repeat(
    gaps: list[_Gap], masks: list[np.ndarray], hidden: list[np.ndarray], wanted: float, rng: np.random.Generator
) -> None:
    """Hide gaps like these until about as many entries are hidden as wanted.

    They are at all times, not only where the data have no other gaps, since errors of one time can be larger.
    """
    chance = np.array([len(seen) for seen in masks], dtype=float)
    chance /= chance.sum()
    total = 0
    for _ in range(10 * sum(len(seen) for seen in masks)):
        if total >= wanted:
            break
        gap, i = gaps[rng.integers(len(gaps))], rng.choice(len(masks), p=chance)
        free = masks[i] & ~hidden[i]
        length = min(gap.length, len(free) - 2)
        if length < 1:
            continue
        place, reach = int(rng.integers(1, len(free) - length)), max(length, int(_NEAR * len(free)))
        starts = rng.integers(max(1, place - reach), min(len(free) - length, place + reach + 1), size=_TRIES)
        start = max(starts, key=lambda start: _fit(free[start - 1 : start + length + 1], gap))
        block = np.ix_(np.arange(start, start + length), gap.columns)
        hidden[i][block] |= free[block]
        total += int(free[block].sum())


def _fit(free: np.ndarray, gap: _Gap) -> int:
    """How many columns of a gap would have its length here: they are observed in all its frames and next to it."""
    return int(free.any(1).all() if gap.whole else free[:, gap.columns].all(0).sum())


def _count_gaps(seen: np.ndarray) -> int:
    """The number of runs of missing entries in columns."""
    return int((np.diff(np.pad(~seen, ((1, 0), (0, 0))).astype(np.int8), axis=0) == 1).sum())


def _count_ends(seen: np.ndarray) -> int:
    """The number of those that touch an end."""
    return int((~seen[0] & seen.any(0)).sum() + (~seen[-1] & seen.any(0)).sum())


def _runs(gap: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First frames, frames after the last, and columns of all runs of a mask (n, D) in columns."""
    steps = np.diff(np.pad(gap, ((1, 1), (0, 0))).astype(np.int8), axis=0).T
    columns, starts = np.nonzero(steps == 1)
    return starts, np.nonzero(steps == -1)[1], columns


def mean_length(masks: list[np.ndarray]) -> float:
    """The mean length of runs in columns, each run with the weight of its length."""
    runs = [_runs(mask) for mask in masks]
    lengths = np.concatenate([stops - starts for starts, stops, _ in runs]).astype(float)
    return float((lengths**2).sum() / lengths.sum()) if len(lengths) else 1.0


def _at_ends(seen: np.ndarray) -> np.ndarray:
    """Missing entries before the first or after the last observed one of their column."""
    before = ~np.logical_or.accumulate(seen, axis=0)
    after = ~np.logical_or.accumulate(seen[::-1], axis=0)[::-1]
    return before | after


def _extend_ends(seen: np.ndarray) -> np.ndarray:
    """Observed entries next to a gap at an end, as many as are missing there, at most half of a column."""
    count = seen.sum(0)
    rank = np.cumsum(seen, axis=0)  # 1 for the first observed entry of a column
    leading = (~np.logical_or.accumulate(seen, axis=0)).sum(0)
    trailing = (~np.logical_or.accumulate(seen[::-1], axis=0)).sum(0)
    most = np.where(count > 0, count // 2, 0)
    most = most // ((leading > 0).astype(int) + (trailing > 0)).clip(1)
    leading, trailing = (np.minimum(gap, most) for gap in (leading, trailing))
    hidden: np.ndarray = seen & ((rank <= leading) | (rank > count - trailing))
    return hidden


def keep_enough(masks: list[np.ndarray], hidden: list[np.ndarray]) -> list[np.ndarray]:
    """Hide nothing in columns that would keep fewer than three observed entries in all sequences together."""
    kept = sum((seen & ~part).sum(0) for seen, part in zip(masks, hidden, strict=True))
    return [part & (kept >= _LEAST) for part in hidden]
