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


def make_entries(frames: int, origins: int = 1) -> Entries:
    t = torch.arange(frames).repeat_interleave(OUTPUTS).double()
    return Entries(torch.zeros(len(t), dtype=torch.long), t, (t * origins / frames).long())


def make_members(frames: int, errors: list[float], claimed: float = 1.0) -> list[HeldOut]:
    """Members with independent errors of these sizes, which claim a standard deviation."""
    n = frames * OUTPUTS
    truth, output = torch.randn(n), torch.arange(OUTPUTS).repeat(frames)
    variance, ahead = torch.full((n,), claimed**2), torch.zeros(n, dtype=torch.long)
    return [HeldOut(truth, truth + size * torch.randn(n), variance, output, ahead) for size in errors]


def test_the_final_choice_uses_all_entries():
    members = make_members(200, [0.5, 0.52])
    choice = choose(members, make_entries(200), SCALE)
    torch.testing.assert_close(choice.weights, stack(members, OUTPUTS, SCALE))
    factor = calibrate_intervals(combine(members, choice.weights), OUTPUTS).factor
    torch.testing.assert_close(choice.calibration.factor, factor)


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
    mixed = combine(new, choice.weights)
    size = mixed.variance.sqrt() * choice.calibration.factor[mixed.output]
    for level in LEVELS:
        inside = ((mixed.mean - mixed.truth).abs() <= choice.calibration.width(level) * size).double().mean()
        assert abs(float(inside) - level) < 0.03


def test_intervals_are_wider_if_the_folds_differ():
    """The errors of a second origin tell more about the next one than those within an origin."""
    members = make_members(200, [0.5])
    second = torch.arange(200 * OUTPUTS) >= 100 * OUTPUTS
    members = [replace(m, mean=torch.where(second, m.truth + 3.0 * (m.mean - m.truth), m.mean)) for m in members]
    one, two = (choose(members, make_entries(200, origins), SCALE) for origins in (1, 2))
    alone = calibrate_intervals(members[0], OUTPUTS)
    assert two.calibration.width(0.95) > alone.width(0.95)
    assert one.found.truth.equal(two.found.truth)


def test_poor_members_get_no_weight_even_if_their_errors_offset_others():
    frames = 20
    (good,) = make_members(frames, [0.5])
    poor = replace(good, mean=good.truth - 1.5 * (good.mean - good.truth))  # errors of the opposite sign
    assert float(stack([good, poor], OUTPUTS, SCALE)[1].mean()) > 0.3
    choice = choose([good, poor], make_entries(frames), SCALE)
    assert choice.weights[1].tolist() == [0.0] * OUTPUTS


def test_few_entries():
    members = make_members(1, [0.5, 0.6])
    choice = choose(members, make_entries(1), SCALE)
    assert torch.isfinite(choice.found.mean).all()
    torch.testing.assert_close(choice.weights.sum(0), torch.ones(OUTPUTS).double())
