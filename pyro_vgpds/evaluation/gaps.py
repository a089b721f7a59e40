# SPDX-License-Identifier: Apache-2.0
"""Which entries to hide: masks that resemble what users want to predict."""

from __future__ import annotations

import numpy as np

__all__ = ["hide_blocks", "hide_entries", "hide_like_missing", "keep_enough"]

_LEAST = 3  # observed entries of a column that are never hidden


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
    """More missing entries of the kind that the sequences have, up to a share of the observed ones.

    Gaps inside a sequence are moved in time, and come from another sequence if there are several. Gaps at an end are
    extended by their own length, because a value outside the observed times is harder to predict than one between them.

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
    gaps = [~seen & ~_at_ends(seen) for seen in masks]
    sources = [gap for gap in gaps if gap.any()]
    if not sources:
        return hidden
    windows = []
    for i, seen in enumerate(masks):
        own = gaps[i].any() and (len(sources) == 1 or rng.random() < 0.5)
        source = gaps[i] if own else sources[rng.integers(len(sources))]
        moved = _moved(source, len(seen), rng) & seen & ~hidden[i]
        width = max(4, 2 * _typical_length(source))
        windows += [(i, start, moved[start : start + width]) for start in range(0, len(seen), width)]
    for at in rng.permutation(len(windows)):
        if total >= wanted:
            break
        i, start, part = windows[at]
        hidden[i][start : start + len(part)] |= part
        total += int(part.sum())
    return hidden


def _moved(gap: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """The gaps of a sequence, moved in time to a sequence of another length."""
    repeats = -(-length // len(gap))
    moved: np.ndarray = np.roll(np.tile(gap, (repeats, 1))[:length], rng.integers(1, max(2, length)), axis=0)
    return moved


def _count_gaps(seen: np.ndarray) -> int:
    """The number of runs of missing entries in columns."""
    return int((np.diff(np.pad(~seen, ((1, 0), (0, 0))).astype(np.int8), axis=0) == 1).sum())


def _count_ends(seen: np.ndarray) -> int:
    """The number of those that touch an end."""
    return int((~seen[0] & seen.any(0)).sum() + (~seen[-1] & seen.any(0)).sum())


def _typical_length(gap: np.ndarray) -> int:
    """The median length of runs of missing entries in a column."""
    padded = np.pad(gap, ((1, 1), (0, 0))).astype(np.int8)
    steps = np.diff(padded, axis=0).T
    starts, ends = (np.nonzero(steps == sign)[1] for sign in (1, -1))
    return int(np.median(ends - starts)) if len(starts) else 1


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
