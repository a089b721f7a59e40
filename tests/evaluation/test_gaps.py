# SPDX-License-Identifier: Apache-2.0
"""What is hidden: shares, places, and gaps of the kind that the data have."""

import numpy as np
import pytest

from pyro_vgpds.evaluation.gaps import (
    choose_columns,
    hide_blocks,
    hide_entries,
    hide_like_missing,
    hide_spans,
    keep_enough,
    mean_length,
)


def runs(mask):
    """(first row, length, column) of every run of True in a column, counted one entry at a time."""
    found = []
    for column in range(mask.shape[1]):
        length = 0
        for row, value in enumerate([*mask[:, column], False]):
            if value:
                length += 1
            elif length:
                found.append((row - length, length, column))
                length = 0
    return found


def with_runs(frames, columns, length, count, seed):
    """Observed entries of a sequence with ``count`` runs of missing ones, none of which touches an end."""
    rng = np.random.default_rng(seed)
    seen = np.ones((frames, columns), dtype=bool)
    for _ in range(count):
        start = rng.integers(1, frames - length)
        seen[start : start + length, rng.integers(columns)] = False
    return seen


@pytest.mark.parametrize("hide", [hide_entries, hide_blocks, hide_spans])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_about_the_share_is_hidden_and_nothing_that_was_missing(hide, share):
    rng = np.random.default_rng(0)
    seen = rng.random((200, 30)) < 0.8
    found = hide(seen, share, rng)
    assert found.shape == seen.shape
    assert not (found & ~seen).any()
    assert share - 0.02 <= found.sum() / seen.sum() <= share + 0.08  # the last block or span may exceed it


def test_entries_are_scattered_blocks_are_not():
    rng = np.random.default_rng(1)
    seen = np.ones((200, 20), dtype=bool)
    entries, blocks, spans = (hide(seen, 0.1, rng) for hide in (hide_entries, hide_blocks, hide_spans))
    typical = [np.median([length for _, length, _ in runs(mask)]) for mask in (entries, blocks, spans)]
    assert typical[0] == 1
    assert min(typical[1:]) >= 5
    hidden = blocks.sum(1)
    assert 0 < hidden[hidden > 0].min() < 20  # never all columns
    assert set(spans.sum(1)) == {0, 20}  # always all columns
    assert not spans[[0, -1]].any()


def test_half_of_the_columns_are_chosen():
    rng = np.random.default_rng(0)
    for outputs in (1, 2, 7):
        chosen = [choose_columns(outputs, rng) for _ in range(200)]
        assert {len(set(c.tolist())) for c in chosen} == {max(1, outputs // 2)}
        assert set(np.concatenate(chosen)) == set(range(outputs))  # every column has its turn
    chosen = [choose_columns(20, rng) for _ in range(200)]
    adjacent = np.mean([set(np.diff(c) % 20) == {1} for c in chosen])
    assert 0.3 < adjacent < 0.7


def test_gaps_like_those_of_the_data_have_their_lengths():
    rng = np.random.default_rng(0)
    for length in (1, 5, 12):
        masks = [with_runs(240, 10, length, 30, seed) for seed in range(3)]
        hidden = hide_like_missing(masks, 0.1, rng)
        assert not any((part & ~seen).any() for part, seen in zip(hidden, masks, strict=True))
        total = sum(part.sum() for part in hidden) / sum(seen.sum() for seen in masks)
        present = sum((~seen).sum() for seen in masks) / sum(seen.sum() for seen in masks)
        assert 0.5 * min(present, 0.1) < total < 0.15  # no more than the data have themselves
        lengths = [n for part in hidden for _, n, _ in runs(part)]
        assert 0.5 * length <= np.mean(lengths) <= 2.0 * length + 1.0
        at_ends = [part[[0, -1]].mean() for part in hidden]
        assert np.mean(at_ends) < 0.3


def test_gaps_at_the_ends_stay_there():
    seen = np.ones((100, 20), dtype=bool)
    seen[85:, :10] = False  # sensors that failed
    seen[:5, 15:] = False  # sensors that came late
    hidden = hide_like_missing([seen], 0.5, np.random.default_rng(0))[0]
    assert hidden.any()
    for first, length, column in runs(hidden):
        assert column < 10 or column >= 15
        assert (first, length) == ((70, 15) if column < 10 else (5, 5))
    few = hide_like_missing([seen], 0.02, np.random.default_rng(0))[0]  # fewer columns, not shorter gaps
    assert 0 < few.sum() < hidden.sum()
    assert {n for _, n, _ in runs(few)} <= {5, 15}


def test_an_end_is_extended_by_at_most_half_of_the_column():
    seen = np.zeros((30, 2), dtype=bool)
    seen[10:14, 0] = True  # 4 observed entries, 10 missing before and 16 after them
    seen[:20, 1] = True
    hidden = hide_like_missing([seen], 0.9, np.random.default_rng(0))[0]
    assert runs(hidden[:, :1]) == [(10, 1, 0), (13, 1, 0)]
    assert runs(hidden[:, 1:]) == [(10, 10, 0)]


def test_gaps_are_repeated_at_all_times():
    seen = np.ones((200, 10), dtype=bool)
    for start in range(100, 190, 12):  # only the second half has gaps
        seen[start : start + 8, start % 4 : start % 4 + 5] = False
    late = [
        hidden[100:].sum() / hidden.sum()
        for (hidden,) in (hide_like_missing([seen], 0.1, np.random.default_rng(seed)) for seed in range(50))
    ]
    assert 0.25 < np.mean(late) < 0.5


def test_lost_frames_and_lost_columns_are_both_repeated():
    """Many long gaps of columns, and two spans of lost frames: both kinds are hidden, with their lengths."""
    seen = with_runs(300, 12, 15, 40, 0)
    seen[[50, 59, 200, 209]] = True  # the spans have ends
    seen[51:59] = seen[201:209] = False
    for seed in range(5):
        hidden = hide_like_missing([seen], 0.1, np.random.default_rng(seed))[0]
        lost = ~(seen & ~hidden).any(1)
        spans = runs((lost & hidden.any(1))[:, None])
        assert len(spans) >= 1
        assert all(length % 8 == 0 or length >= 8 for _, length, _ in spans)
        in_spans = hidden[lost].sum() / hidden.sum()
        assert 0.2 < in_spans < 0.8


def test_gaps_keep_their_length_if_there_is_space():
    seen = np.ones((400, 6), dtype=bool)
    seen[100:110, :3] = False
    hidden = hide_like_missing([seen], 0.03, np.random.default_rng(1))[0]
    lengths = [length for _, length, column in runs(hidden)]
    assert set(lengths) == {10}
    assert {column for _, _, column in runs(hidden)} == {0, 1, 2}


def test_the_mean_length_counts_runs_by_their_entries():
    mask = np.zeros((10, 2), dtype=bool)
    mask[:3, 0] = mask[5, 0] = mask[2:4, 1] = True  # lengths 3, 1 and 2
    assert mean_length([mask, np.zeros((4, 2), dtype=bool)]) == pytest.approx((9 + 1 + 4) / 6)
    assert mean_length([np.zeros((4, 2), dtype=bool)]) == 1.0


def test_a_sequence_without_gaps_gets_those_of_another():
    masks = [with_runs(60, 6, 4, 20, 0), np.ones((40, 6), dtype=bool), np.ones((150, 6), dtype=bool)]
    hidden = hide_like_missing(masks, 0.3, np.random.default_rng(3))
    assert all(part.any() for part in hidden)
    assert [part.shape for part in hidden] == [seen.shape for seen in masks]


def test_nothing_is_hidden_if_nothing_is_missing():
    assert not any(part.any() for part in hide_like_missing([np.ones((9, 2), bool)], 0.5, np.random.default_rng(0)))


def test_columns_keep_three_entries_in_all_sequences_together():
    masks = [np.ones((2, 3), bool), np.ones((3, 3), bool)]
    hidden = [np.zeros((2, 3), bool), np.zeros((3, 3), bool)]
    hidden[0][:, :2] = True
    hidden[1][0, 1] = True  # column 1 would keep two
    kept = keep_enough(masks, hidden)
    np.testing.assert_array_equal(kept[0], [[True, False, False]] * 2)
    assert not kept[1].any()
