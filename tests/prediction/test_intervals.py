# SPDX-License-Identifier: Apache-2.0
"""Calibrated intervals hold as often as they promise, whatever the errors are."""

import itertools
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch

from pyro_vgpds.evaluation import HeldOut
from pyro_vgpds.prediction import Calibration, calibrate_intervals, intervals

LEVELS = (0.5, 0.8, 0.9, 0.95)


def gaussian(probability):
    return NormalDist().inv_cdf(0.5 + 0.5 * probability)


def make_held_out(error, deviation, output):
    truth = torch.zeros_like(error)
    return HeldOut(truth, error, deviation.square().expand_as(error), output, torch.zeros_like(output))


def inside(calibration, error, deviation, output, level):
    """The share of errors inside the intervals."""
    width = calibration.width(level) * calibration.factor.to(error)[output] * deviation
    return float((error.abs() <= width).double().mean())


def draw(kind, n, generator):
    z = torch.randn(n, generator=generator)
    if kind == "gaussian":
        return z
    if kind == "heavy":  # Student t with 3 degrees of freedom
        return z / (torch.randn(3, n, generator=generator).square().sum(0) / 3.0).sqrt()
    if kind == "varying":  # a deviation that the prediction does not know
        return z * torch.exp(0.8 * torch.randn(n, generator=generator))
    return torch.rand(n, generator=generator) - 0.5  # light tails


@pytest.mark.parametrize("kind", ["gaussian", "heavy", "varying", "light"])
@pytest.mark.parametrize("scale", [0.2, 5.0])
def test_new_errors_are_inside_as_often_as_promised(kind, scale):
    generator = torch.Generator().manual_seed(0)
    n, outputs = 8000, 4
    output = torch.arange(n) % outputs
    deviation = 0.5 + torch.rand(n, generator=generator)
    own = torch.tensor([0.7, 1.0, 1.0, 1.5])[output] * deviation * scale  # what the prediction should have said
    old, new = (own * draw(kind, n, generator) for _ in range(2))
    calibration = calibrate_intervals(make_held_out(old, deviation, output), outputs)
    for level in LEVELS:
        assert inside(calibration, new, deviation, output, level) == pytest.approx(level, abs=0.025)
    for d in range(outputs):  # for each output too
        rows = output == d
        assert inside(calibration, new[rows], deviation[rows], output[rows], 0.9) == pytest.approx(0.9, abs=0.04)


def test_each_output_has_its_own_factor():
    generator = torch.Generator().manual_seed(1)
    output = torch.arange(9000) % 3
    size = torch.tensor([0.5, 1.0, 2.0])
    error = size[output] * torch.randn(9000, generator=generator)
    calibration = calibrate_intervals(make_held_out(error, torch.ones(9000), output), 3)
    ratio = calibration.factor / size
    torch.testing.assert_close(ratio / ratio[1], torch.ones(3).double(), rtol=0.1, atol=0)
    assert calibration.width(0.95) * calibration.factor[1].item() == pytest.approx(1.96, rel=0.1)


def test_tails_of_the_worst_output_count():
    """An output with large errors has large ones among them, which are no outliers."""
    generator = torch.Generator().manual_seed(0)
    n, output = 8000, torch.arange(8000) % 8
    own = torch.where(output == 0, 10.0, 1.0)
    old, new = (own * draw("heavy", n, generator) for _ in range(2))
    calibration = calibrate_intervals(make_held_out(old, torch.ones(n), output), 8)
    rows = output == 0
    assert inside(calibration, new[rows], torch.ones(1000), output[rows], 0.95) > 0.92
    assert inside(calibration, new, torch.ones(n), output, 0.95) == pytest.approx(0.95, abs=0.02)


def test_few_entries_keep_the_shape_of_the_gaussian():
    error = 2.0 * draw("light", 20, torch.Generator().manual_seed(0))
    calibration = calibrate_intervals(make_held_out(error, torch.ones(20), torch.arange(20) % 2), 2)
    for level in (0.3, *LEVELS, 0.99):
        ratio = calibration.width(level) / calibration.width(0.5)
        assert ratio == pytest.approx(gaussian(level) / gaussian(0.5), rel=0.02)
    alone = calibrate_intervals(make_held_out(error[:1], torch.ones(1), torch.zeros(1, dtype=torch.long)), 2)
    assert alone.factor.isfinite().all()
    assert 0.0 < alone.width(0.95) < float("inf")


def test_an_output_without_entries_has_the_factor_of_all():
    error = torch.randn(500, generator=torch.Generator().manual_seed(0)) * 3.0
    calibration = calibrate_intervals(make_held_out(error, torch.ones(500), torch.zeros(500, dtype=torch.long)), 2)
    assert calibration.factor[1].item() == pytest.approx(calibration.factor[0].item(), rel=0.05)


@pytest.mark.parametrize("n", [5, 150, 5000])
@pytest.mark.parametrize("kind", ["gaussian", "heavy", "light"])
def test_widths_grow_with_the_probability(n, kind):
    error = draw(kind, n, torch.Generator().manual_seed(n))
    calibration = calibrate_intervals(make_held_out(error, torch.ones(n), torch.zeros(n, dtype=torch.long)), 1)
    widths = [calibration.width(p) for p in torch.linspace(0.01, 0.9999, 200).tolist()]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(widths))
    assert widths[0] >= 0.0
    assert widths[-1] < float("inf")


def test_one_huge_error_does_not_widen_everything():
    generator = torch.Generator().manual_seed(0)
    error = torch.randn(400, generator=generator)
    zeros = torch.zeros(400, dtype=torch.long)
    before = calibrate_intervals(make_held_out(error, torch.ones(400), zeros), 1)
    error[7] = 1e6
    after = calibrate_intervals(make_held_out(error, torch.ones(400), zeros), 1)
    wide = [c.width(0.9) * c.factor.item() for c in (before, after)]
    assert wide[1] == pytest.approx(wide[0], rel=0.3)
    zeros[7] = 1  # also if it is the only entry of its output
    alone = calibrate_intervals(make_held_out(error, torch.ones(400), zeros), 2)
    assert alone.width(0.9) * alone.factor[0].item() == pytest.approx(wide[0], rel=0.3)


def test_errors_of_zero_and_variances_of_zero_are_allowed():
    zeros = torch.zeros(200)
    calibration = calibrate_intervals(make_held_out(zeros, torch.ones(200), zeros.long()), 1)
    assert calibration.factor.isfinite().all()
    assert calibration.width(0.95) >= 0.0
    calibration = calibrate_intervals(make_held_out(zeros, zeros, zeros.long()), 1)
    assert calibration.factor.isfinite().all()


@pytest.mark.parametrize("rounding", [0.0, 1e-9])
def test_constant_outputs_do_not_make_the_intervals_of_others_narrow(rounding):
    generator = torch.Generator().manual_seed(0)
    for n in (12, 400):  # below and above the number from which quantiles are taken
        error = 2.0 * torch.randn(n, generator=generator)
        zeros = torch.zeros(n, dtype=torch.long)
        alone = calibrate_intervals(make_held_out(error, torch.ones(n), zeros), 1, group=torch.arange(n) // 4)
        held_out = make_held_out(
            torch.cat([error, torch.full((3 * n,), rounding)]), torch.ones(4 * n), torch.arange(4 * n) // n
        )
        several = calibrate_intervals(held_out, 4, group=torch.arange(4 * n) // 4)
        assert several.factor[0].item() == pytest.approx(alone.factor[0].item())
        torch.testing.assert_close(several.widths, alone.widths)
        some = held_out.take(torch.arange(n))
        widths = [calibrate_intervals(part, 4, part).widths for part in (held_out, some)]
        torch.testing.assert_close(*widths)


def test_an_output_that_rarely_changes_has_intervals_of_the_size_of_its_errors():
    error = torch.zeros(40)
    error[::5] = 1.0  # more than half of the errors are zero
    calibration = calibrate_intervals(
        make_held_out(error, torch.full((40,), 0.1), torch.zeros(40, dtype=torch.long)), 1
    )
    assert 0.1 * calibration.factor.item() == pytest.approx(0.2**0.5)


@pytest.mark.parametrize("n", [12, 400])
def test_without_any_error_intervals_shrink_with_the_number_of_gaps_only(n):
    zeros = torch.zeros(n)
    held_out = make_held_out(zeros, torch.ones(n), zeros.long())
    for checked in (None, held_out):
        calibration = calibrate_intervals(held_out, 2, checked, gap_length=3.0, group=zeros.long())
        assert calibration.factor.tolist() == pytest.approx([(1.0 + n / 3.0) ** -0.5] * 2)
        torch.testing.assert_close(calibration.widths, Calibration.none(2).widths)


def test_without_calibration_intervals_are_gaussian():
    calibration = Calibration.none(3)
    assert torch.equal(calibration.factor, torch.ones(3).double())
    for level in (0.05, 0.2, 0.5, 0.77, 0.95, 0.99, 0.999):  # between levels and beyond them
        assert calibration.width(level) == pytest.approx(gaussian(level), rel=1e-9)


def test_a_few_errors_in_groups_have_the_quantiles_of_students_t_distribution():
    ends = {  # quantiles of tables
        2.0: {0.5: 0.816497, 0.8: 1.885618, 0.95: 4.302653, 0.99: 9.924843},
        10.0: {0.8: 1.372184, 0.95: 2.228139},
        30.0: {0.8: 1.310415, 0.95: 2.042272},
    }
    for count, known in ends.items():
        quantiles = intervals._student(count)
        for level, quantile in known.items():
            assert float(quantiles[intervals.LEVELS.index(level)]) == pytest.approx(quantile, rel=1e-5)
    at_limit = [intervals._student(intervals._NORMAL * factor) for factor in (0.999, 1.0)]
    torch.testing.assert_close(*at_limit, rtol=2e-3, atol=0.0)
    error = draw("light", 20, torch.Generator().manual_seed(0))
    held_out = make_held_out(error, torch.ones(20), torch.zeros(20, dtype=torch.long))
    calibration = calibrate_intervals(held_out, 1, group=torch.arange(20) // 10)  # two groups count as ten errors
    assert [calibration.width(level) for level in (0.8, 0.95)] == pytest.approx([1.372184, 2.228139], abs=2e-4)


def test_the_effective_number_of_errors_is_found():
    torch.manual_seed(0)
    group = torch.arange(400).repeat_interleave(25)
    independent = torch.randn(10000).double()
    assert intervals._effective_count(independent.abs(), group) == pytest.approx(10000, rel=0.25)
    alike = torch.randn(400).double()[group]  # one error in each group
    assert intervals._effective_count(alike.abs(), group) == pytest.approx(400, rel=0.25)
    assert intervals._effective_count(alike[:50].abs(), group[:50]) == 10.0  # two groups tell nothing


def test_groups_only_change_the_widths():
    torch.manual_seed(1)
    truth, output = torch.randn(300).double(), torch.arange(300) % 3
    held_out = HeldOut(truth, torch.zeros_like(truth), torch.ones_like(truth), output, torch.zeros_like(output))
    plain = calibrate_intervals(held_out, 3)
    grouped = calibrate_intervals(held_out, 3, group=torch.arange(300) // 150)
    assert grouped.factor.equal(plain.factor)
    # ten errors and Student's t-distribution count the same
    torch.testing.assert_close(grouped.widths, (plain.widths * intervals._student(10.0)).sqrt())
    assert torch.allclose(calibrate_intervals(held_out, 3, group=torch.arange(300)).widths, plain.widths, rtol=0.05)


@pytest.mark.parametrize("size", [1.0, 1.5])
def test_the_number_of_errors_may_be_known(size):
    """Few errors have Student's t-distribution of the size of the checked errors, many have their own quantiles."""
    truth = torch.zeros(20).double()
    known = HeldOut(truth, torch.ones(20).double(), truth + 1.0, truth.long(), truth.long())
    checked = replace(known, mean=known.mean * size)
    for number, freedom in ((3.0, 3.0), (1.0, 2.0)):  # at least two
        calibration = calibrate_intervals(known, 1, checked, num_errors=number)
        torch.testing.assert_close(calibration.widths, size * intervals._student(freedom))
    z = draw("light", 300, torch.Generator().manual_seed(0)).double()
    light = make_held_out(z, torch.ones(300), torch.zeros(300, dtype=torch.long))
    plain = calibrate_intervals(light, 1)
    assert torch.allclose(calibrate_intervals(light, 1, num_errors=1e6).widths, plain.widths, rtol=1e-3)
    half = calibrate_intervals(light, 1, num_errors=10.0)
    torch.testing.assert_close(half.widths, (plain.widths * intervals._student(10.0)).sqrt(), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("forecasts", [2, 8])
def test_intervals_hold_if_each_forecast_counts_as_one_error(forecasts):
    """All frames of a forecast are wrong by the same, so that 20 of them tell as much as one."""
    generator, hold = torch.Generator().manual_seed(0), {"known": [], "groups": []}
    group = torch.arange(forecasts).repeat_interleave(20)
    for _ in range(400):
        old, new = (torch.randn(forecasts, generator=generator).double()[group] for _ in range(2))
        held_out = make_held_out(old, torch.ones(len(old)), torch.zeros_like(group))
        for name, number in (("known", float(forecasts)), ("groups", None)):
            calibration = calibrate_intervals(held_out, 1, gap_length=20.0, group=group, num_errors=number)
            width = calibration.width(0.95) * calibration.factor
            hold[name].append(float((new.abs() <= width).double().mean()))
    coverage = {name: sum(shares) / len(shares) for name, shares in hold.items()}
    assert coverage["known"] == pytest.approx(0.95, abs=0.025)
    assert coverage["known"] > coverage["groups"]


def test_the_errors_of_one_gap_do_not_decide_the_shape_for_the_next_gaps():
    """Gaps have errors of different sizes; the size of the next gap is known as well as few gaps tell."""
    generator, inside = torch.Generator().manual_seed(0), {"groups": [], "none": []}
    group, zeros = torch.arange(240) // 30, torch.zeros(240, dtype=torch.long)
    for _ in range(200):
        old, new = (
            torch.exp(0.5 * torch.randn(8, generator=generator))[group] * torch.randn(240, generator=generator)
            for _ in range(2)
        )
        held_out = make_held_out(old, torch.ones(240), zeros)
        for name, known in (("groups", group), ("none", None)):
            calibration = calibrate_intervals(held_out, 1, gap_length=30.0, group=known)
            width = calibration.width(0.95) * calibration.factor
            inside[name].append(float((new.abs() <= width).double().mean()))
    coverage = {name: sum(shares) / len(shares) for name, shares in inside.items()}
    assert coverage["groups"] == pytest.approx(0.95, abs=0.01)
    assert coverage["none"] < coverage["groups"]
