# SPDX-License-Identifier: Apache-2.0
"""Weights and intervals of an ensemble, and what it predicts by choices made on other entries."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pyro_vgpds.evaluation import HeldOut
from pyro_vgpds.prediction.intervals import calibrate_intervals
from pyro_vgpds.prediction.weights import combine, stack
from pyro_vgpds.selection.combining import LEVELS, choose
from pyro_vgpds.selection.entries import Entries

OUTPUTS = 4
SCALE = torch.ones(OUTPUTS)


def make_entries(frames: int, origins: int = 1, lost: int = 0) -> Entries:
    """Frames one after the other, the last ones of which are lost."""
    t = torch.arange(frames).repeat_interleave(OUTPUTS).double()
    return Entries(torch.zeros(len(t), dtype=torch.long), t, (t * origins / frames).long(), t >= frames - lost)


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
