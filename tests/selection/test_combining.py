# SPDX-License-Identifier: Apache-2.0
"""Weights and intervals of an ensemble, and what it predicts by choices made on other entries."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_vgpds import Sequences
from pyro_vgpds.evaluation import HeldOut, Split, hold_out
from pyro_vgpds.evaluation.entries import Entries
from pyro_vgpds.prediction.intervals import calibrate_intervals
from pyro_vgpds.selection.combining import LEVELS, choose
from pyro_vgpds.selection.weights import combine, stack

OUTPUTS = 4
SCALE = torch.ones(OUTPUTS)


def make_entries(frames: int, origins: int = 1, lost: int = 0) -> Entries:
    """Frames one after the other, the last ones of which are lost."""
    t = torch.arange(frames).repeat_interleave(OUTPUTS).double()
    split, gap = (t * origins / frames).long(), torch.arange(len(t))
    return Entries(torch.zeros_like(split), t, split, t >= frames - lost, gap)


def make_members(frames: int, errors: list[float], claimed: float = 1.0) -> list[HeldOut]:
    """Members with independent errors of these sizes, which claim a standard deviation."""
    n = frames * OUTPUTS
    truth, output = torch.randn(n), torch.arange(OUTPUTS).repeat(frames)
    variance, ahead = torch.full((n,), claimed**2), torch.zeros(n, dtype=torch.long)
    return [HeldOut(truth, truth + size * torch.randn(n), variance, output, ahead) for size in errors]


def test_the_final_choice_uses_all_entries():
    members = make_members(200, [0.5, 0.52])
    choice = choose(members, make_entries(200), SCALE)
    torch.testing.assert_close(choice.combination.weights, stack(members, OUTPUTS, SCALE))
    factor = calibrate_intervals(combine(members, choice.combination.weights), OUTPUTS).factor
    torch.testing.assert_close(choice.combination.calibration.factor, factor)


@pytest.mark.parametrize(("outputs", "ahead", "used"), [(49, 0, 1), (50, 0, 2), (50, 1, 1)])
def test_errors_of_many_outputs_may_be_larger(outputs, ahead, used):
    frames = 8
    t = torch.arange(frames).repeat_interleave(outputs).double()
    entries = Entries(torch.zeros_like(t), t, t >= 4, t < 0, torch.arange(len(t)))
    truth, output = torch.zeros(len(t)), torch.arange(outputs).repeat(frames)
    errors = [torch.randn(len(t)), torch.randn(len(t))]
    errors = [size * e / e.square().mean().sqrt() for size, e in zip((1.0, 1.15), errors, strict=True)]
    members = [HeldOut(truth, e, torch.ones(len(t)), output, torch.full((len(t),), ahead)) for e in errors]
    assert int(choose(members, entries, torch.ones(outputs)).combination.used.sum()) == used


@pytest.mark.parametrize("origins", [1, 2])
def test_predictions_of_a_fold_do_not_depend_on_its_truth(origins):
    frames = 80
    entries, members = make_entries(frames, origins), make_members(frames, [0.5, 0.7, 0.6])
    first = choose(members, entries, SCALE)
    folds = 4 if origins == 1 else origins
    own = torch.arange(frames * OUTPUTS) < frames * OUTPUTS // folds
    other = [replace(m, truth=torch.where(own, m.truth + 5.0 * torch.randn(len(own)), m.truth)) for m in members]
    second = choose(other, entries, SCALE)
    assert torch.equal(first.found.mean[own], second.found.mean[own])
    assert torch.equal(first.found.variance[own], second.found.variance[own])
    assert not torch.equal(first.found.mean[~own], second.found.mean[~own])


@pytest.mark.parametrize("claimed", [0.1, 1.0, 10.0])
def test_intervals_hold_whatever_the_members_claim(claimed):
    members = make_members(1000, [0.5, 0.6], claimed)
    choice = choose(members, make_entries(1000), SCALE)
    for level in LEVELS:
        inside = ((choice.found.mean - choice.found.truth).abs() <= choice.widths[level]).double().mean()
        assert abs(float(inside) - level) < 0.03
    new = make_members(1000, [0.5, 0.6], claimed)
    mixed = combine(new, choice.combination.weights)
    size = mixed.variance.sqrt() * choice.combination.calibration.factor[mixed.output]
    for level in LEVELS:
        width = choice.combination.calibration.width(level) * size
        inside = ((mixed.mean - mixed.truth).abs() <= width).double().mean()
        assert abs(float(inside) - level) < 0.03


def test_intervals_are_wider_if_the_folds_differ():
    """The errors of a second origin tell more about the next one than those within an origin."""
    members = make_members(200, [0.5])
    second = torch.arange(200 * OUTPUTS) >= 100 * OUTPUTS
    members = [replace(m, mean=torch.where(second, m.truth + 3.0 * (m.mean - m.truth), m.mean)) for m in members]
    one, two = (choose(members, make_entries(200, origins), SCALE) for origins in (1, 2))
    alone = calibrate_intervals(members[0], OUTPUTS)
    assert two.combination.calibration.width(0.95) > alone.width(0.95)
    assert one.found.truth.equal(two.found.truth)


def test_poor_members_get_no_weight_even_if_their_errors_offset_others():
    frames = 20
    (good,) = make_members(frames, [0.5])
    poor = replace(good, mean=good.truth - 1.5 * (good.mean - good.truth))  # errors of the opposite sign
    assert float(stack([good, poor], OUTPUTS, SCALE)[1].mean()) > 0.3
    choice = choose([good, poor], make_entries(frames), SCALE)
    assert choice.combination.weights[1].tolist() == [0.0] * OUTPUTS


def test_few_entries():
    members = make_members(1, [0.5, 0.6])
    choice = choose(members, make_entries(1), SCALE)
    assert torch.isfinite(choice.found.mean).all()
    torch.testing.assert_close(choice.combination.weights.sum(0), torch.ones(OUTPUTS).double())


def test_lost_frames_have_weights_and_intervals_of_their_own():
    """One member is better in lost frames, the other one if a part of a frame is observed."""
    entries = make_entries(200, lost=80)
    good, poor = make_members(200, [0.1, 3.0])
    swapped = [
        replace(good, mean=torch.where(entries.lost, b.mean, a.mean), variance=torch.where(entries.lost, 4.0, 0.01))
        for a, b in ((good, poor), (poor, good))
    ]
    choice = choose(swapped, entries, SCALE)
    assert choice.combination.lost is not None
    assert choice.combination.weights[0].min() > 0.9
    assert choice.combination.lost.weights[1].min() > 0.9
    torch.testing.assert_close(choice.shares, torch.tensor([0.6, 0.4]).double(), atol=0.05, rtol=0.0)
    error = (choice.found.mean - choice.found.truth).abs()
    for kind in (entries.lost, ~entries.lost):
        assert float(error[kind].square().mean().sqrt()) < 0.2
        assert 0.9 < float((error <= choice.widths[0.95])[kind].double().mean()) < 0.99


def test_few_lost_frames_share_the_weights_of_the_others():
    members = make_members(200, [0.5, 0.6])
    few, none = (choose(members, make_entries(200, lost=lost), SCALE) for lost in (5, 0))
    assert few.combination.lost is None
    torch.testing.assert_close(few.combination.weights, none.combination.weights)


def test_entries_of_one_gap_count_as_one():
    """The errors of an output in a long gap say little about it: its weights and factors are those of all outputs."""
    frames = 200
    members = make_members(frames, [0.5, 0.52])
    large = members[0].output == 0
    members = [replace(m, mean=torch.where(large, m.truth + 3.0 * (m.mean - m.truth), m.mean)) for m in members]
    alone = make_entries(frames)
    together = replace(alone, gap=(alone.t // 50).long() * OUTPUTS + members[0].output)
    assert alone.gap_length == 1.0
    assert together.gap_length == 50.0
    ratio, difference = [], []
    for entries in (alone, together):
        combination = choose(members, entries, SCALE).combination
        factor, weights = combination.calibration.factor, combination.weights
        ratio.append(float(factor[0] / factor[1]))
        difference.append(float((weights - weights.mean(1, keepdim=True)).abs().max()))
    assert ratio[0] > 2.0
    assert ratio[1] < 1.5
    assert difference[1] < 0.5 * difference[0]


def test_gaps_are_runs_of_columns():
    data = Sequences([torch.arange(6.0), torch.arange(4.0)], [torch.randn(6, 2), torch.randn(4, 2)])
    truth = [torch.full((6, 2), torch.nan), torch.full((4, 2), torch.nan)]
    truth[0][1:3, 0] = truth[0][2:5, 1] = truth[0][5, 0] = truth[1][0, 0] = 1.0
    split = Split(
        "impute", data, [torch.arange(6.0), torch.arange(4.0)], [torch.zeros(6, 2)] * 2, truth, [0, 1], [0, 1]
    )
    split = replace(split, y=[torch.zeros(6, 2), torch.zeros(4, 2)])
    entries = Entries.of([split, split], data)
    rows = [(0, 1, 0), (0, 2, 0), (0, 2, 1), (0, 3, 1), (0, 4, 1), (0, 5, 0), (1, 0, 0)]  # sequence, time, column
    assert list(zip(entries.sequence[:7].tolist(), entries.t[:7].tolist(), strict=True)) == [r[:2] for r in rows]
    first = entries.gap[:7].tolist()
    groups = [0, 0, 1, 1, 1, 2, 3]
    assert len({*zip(first, groups, strict=True)}) == len(set(first)) == 4
    assert not set(first) & set(entries.gap[7:].tolist())
    assert entries.gap_length == (4 + 9 + 1 + 1) / 7
    assert not entries.lost.any()


def test_groups_are_parts_of_a_sequence_as_long_as_a_gap():
    # two sequences; gaps of three frames in one column, and the same frames of another column
    t = torch.tensor([0.0, 1.0, 2.0, 7.0, 8.0, 9.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    sequence = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
    gap = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
    entries = Entries(sequence, t, torch.zeros_like(gap), torch.zeros_like(gap, dtype=torch.bool), gap)
    assert entries.group.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 2, 2, 2]
    assert len(make_entries(50).group.unique()) == 50
    assert len(make_entries(50, origins=2).group.unique()) == 50


def test_forecasts_that_share_frames_are_one_error_of_each_independent_output():
    """Four origins whose forecasts of three frames cover six frames, of two outputs that are the same."""
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(40, 1)).cumsum(0)
    data = Sequences([np.arange(40.0)], [np.repeat(walk, 2, axis=1)])
    splits = [hold_out(data, "forecast", horizon=3, skip=skip) for skip in (3, 2, 1, 0)]
    entries = Entries.of(splits, data)
    assert entries.num_errors == pytest.approx(2.0, rel=0.02)
    assert entries.take(entries.split >= 2).num_errors == pytest.approx(4 / 3, rel=0.02)  # four frames
    other = Sequences([np.arange(40.0)] * 2, [rng.normal(size=(40, 2)).cumsum(0) for _ in range(2)])
    splits = [hold_out(other, "forecast", horizon=3, skip=skip) for skip in (3, 2, 1, 0)]
    assert Entries.of(splits, other).num_errors == pytest.approx(8.0, rel=0.1)  # of two sequences and two outputs
    assert Entries.of([hold_out(data, "impute")], data).num_errors is None


def test_intervals_of_forecasts_have_as_many_degrees_of_freedom_as_independent_errors():
    frames = 40
    members = [replace(m, ahead=torch.ones_like(m.ahead)) for m in make_members(frames, [0.5, 0.6])]
    entries = make_entries(frames, origins=2)
    few, many = (choose(members, replace(entries, num_outputs=number), SCALE) for number in (1.5, 1000.0))
    assert few.combination.weights.equal(many.combination.weights)
    assert few.combination.calibration.factor.equal(many.combination.calibration.factor)
    assert few.combination.calibration.width(0.95) > 1.2 * many.combination.calibration.width(0.95)
    assert bool((few.widths[0.95] > many.widths[0.95]).all())


def test_weights_of_forecasts_are_not_decided_by_one_origin():
    """The first member is a little better at the origin with the largest errors, the second one at all others."""
    frames = 80
    entries, (unit, other) = make_entries(frames, origins=4), make_members(frames, [1.0, 1.0])
    hard = entries.split == 0
    sizes = [torch.where(hard, 5.0, 1.0), torch.where(hard, 5.5, 0.1)]
    members = [
        replace(m, mean=m.truth + size * (m.mean - m.truth), ahead=torch.ones_like(m.ahead))
        for m, size in zip((unit, other), sizes, strict=True)
    ]
    assert choose(members, entries, SCALE).combination.weights[1].min() > 0.9
    filled = [replace(m, ahead=torch.zeros_like(m.ahead)) for m in members]
    assert choose(filled, entries, SCALE).combination.weights[1].max() < 0.6


def test_splits_that_have_no_frame_in_common():
    """Four forecasts of three frames, each of which begins one or two frames after the one before."""
    start = [0, 2, 3, 5]
    t = torch.cat([first + torch.arange(3.0) for first in start])
    split = torch.arange(4).repeat_interleave(3)
    entries = Entries(torch.zeros_like(split), t, split, split < 0, split)
    assert entries.apart().tolist() == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3
    other = replace(entries, sequence=(split == 2).long())  # the same times of another sequence are other frames
    assert other.apart().tolist() == [False] * 3 + [True] * 9


def make_sequences(sizes: list[float], frames: int = 40) -> tuple[Entries, list[HeldOut]]:
    """A part for each sequence, in which the errors of all members have another size, and members that claim one."""
    generator = torch.Generator().manual_seed(0)
    n = len(sizes) * frames * OUTPUTS
    t = torch.arange(frames).repeat_interleave(OUTPUTS).repeat(len(sizes)).double()
    split = torch.arange(len(sizes)).repeat_interleave(frames * OUTPUTS)
    entries = Entries(split, t, split, t < 0, torch.arange(n), gain=1.0)
    size, output = torch.tensor(sizes)[split], torch.arange(OUTPUTS).repeat(len(sizes) * frames)
    common, *own = size * torch.randn(4, n, generator=generator)
    ahead = torch.zeros(n, dtype=torch.long)
    return entries, [HeldOut(torch.zeros(n), common + e, torch.ones(n), output, ahead) for e in own]


def test_disagreement_tells_which_sequence_is_unusual():
    entries, members = make_sequences([1.0, 1.0, 6.0, 1.0])
    found, same = choose(members, entries, SCALE), choose(members, replace(entries, gain=None), SCALE)
    assert found.combination.disagreement > 1.0
    assert same.combination.disagreement is None
    for choice, least, most in ((found, 0.88, 0.99), (same, 0.6, 1.0)):
        error = choice.found.mean.abs()
        inside = [float((error <= choice.widths[0.95])[entries.split == k].double().mean()) for k in range(4)]
        assert least <= min(inside) <= max(inside) <= most
        assert (min(inside) == inside[2]) == (choice is same)
    torch.testing.assert_close(found.combination.weights, same.combination.weights)
    torch.testing.assert_close(found.found.mean, same.found.mean)


def test_members_that_are_wrong_together_keep_their_own_variances():
    entries, members = make_sequences([1.0, 1.0, 1.0, 1.0])
    common, part = members[0].mean, torch.tensor([0.1, 1.5, 0.1, 1.5])[entries.split]  # of sequences alike
    members = [replace(member, mean=common + part * (member.mean - common)) for member in members]
    assert choose(members, entries, SCALE).combination.disagreement == 1.0


def test_training_on_all_sequences_makes_errors_smaller():
    entries, members = make_sequences([1.0, 1.2, 0.9])
    one, other = (choose(members, replace(entries, gain=gain), SCALE) for gain in (1.0, 0.9))
    torch.testing.assert_close(0.9 * one.combination.calibration.factor, other.combination.calibration.factor)
    torch.testing.assert_close(one.combination.calibration.widths, other.combination.calibration.widths)
    for level in LEVELS:  # of what was held out
        torch.testing.assert_close(one.widths[level], other.widths[level])


def test_the_gain_is_that_of_a_mean_of_sequences():
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, 3, generator=generator) for n in (20, 25, 30, 22)]
    data = Sequences([torch.arange(float(len(y))) for y in parts], parts)
    splits = [hold_out(data, "reconstruct", seed=seed) for seed in (0, 1)]
    assert [len(split.kept) for split in splits] == [3, 3]
    means = torch.randn(200_000, 5, generator=generator)
    errors = [float((means[:, 4] - means[:, :k].mean(1)).square().mean().sqrt()) for k in (3, 4)]
    assert Entries.of(splits, data).gain == pytest.approx(errors[1] / errors[0], rel=0.01)
    alone = Sequences(torch.arange(60.0), torch.randn(60, 3, generator=generator))
    assert Entries.of([hold_out(alone, "reconstruct")], alone).gain == 1.0
    for task in ("impute", "forecast"):
        assert Entries.of([hold_out(data, task)], data).gain is None
