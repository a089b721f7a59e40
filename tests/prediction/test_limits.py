# SPDX-License-Identifier: Apache-2.0
"""Limits of outputs: which are found, and that predictions of ensembles do not pass them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pyro_vgpds import Sequences, auto
from pyro_vgpds.evaluation import HeldOut
from pyro_vgpds.files import FileFormatError
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.prediction import Calibration, Combination, Ensemble, Limits, load_posterior, save_posterior
from pyro_vgpds.prediction.combination import find_limits
from pyro_vgpds.selection.named_baselines import make_baseline

T_NEW = torch.tensor([40.0, 41.0, 42.0])


def slow_limit(parts, sign):
    """The rule, one column and one entry at a time."""
    found = []
    for d in range(parts[0].shape[1]):
        values = [[sign * float(v) for v in part[:, d] if v.isfinite()] for part in parts]
        every = sorted(v for part in values for v in part)
        if not every:
            found.append(-torch.inf)
            continue
        least = every[0]
        count = every.count(least)
        others = [v for v in every if v > least]
        runs = sum(v == least and (i == 0 or part[i - 1] != least) for part in values for i, v in enumerate(part))
        often = (runs >= 5 and count >= 0.05 * len(every)) or (runs >= 3 and count >= 0.5 * len(every))
        enough = often and count > (others.count(others[0]) if others else 0)
        found.append(sign * least if enough else -sign * torch.inf)
    return torch.tensor(found, dtype=torch.float64)


def rainy(n=40, seed=0):
    """Rain, which is often zero; humidity, which is often 100; a temperature; and a price that rises in steps."""
    torch.manual_seed(seed)
    wave = torch.sin(torch.arange(float(n)).double() / 2.0)
    rain, humidity = (4.0 * wave + torch.randn(n)).clamp_min(0.0), (95.0 + 9.0 * wave + torch.randn(n)).clamp_max(100.0)
    price = (torch.arange(n) // 10).clamp_max(2).double()
    return Sequences(torch.arange(float(n)), torch.stack([rain, humidity, wave + 0.1 * torch.randn(n), price], 1))


def test_dry_weather_with_few_showers_has_a_limit():
    rain = torch.zeros(100, 1).double()
    rain[[20, 21, 60]] = 0.5
    assert find_limits(Sequences(torch.arange(100.0), rain)).lower.tolist() == [0.0]
    rain[60] = 0.0  # two runs of zero
    assert find_limits(Sequences(torch.arange(100.0), rain)) is None


def test_limits_by_the_slow_rule():
    torch.manual_seed(0)
    for trial in range(40):
        lengths = [(30,), (12, 25), (1, 8, 40)][trial % 3]
        levels = torch.randint(1, 9, (6,))
        parts = [(torch.randint(0, 12, (n, 6)) - 3).clamp_min(0).minimum(levels).double() for n in lengths]
        for part in parts:
            part[torch.rand(part.shape) < 0.2] = torch.nan
        parts[-1][0] = 1.0  # no column without an observation
        data = Sequences([torch.arange(float(n)) for n in lengths], parts)
        lower, upper = slow_limit(parts, 1.0), slow_limit(parts, -1.0)
        found = find_limits(data)
        if found is None:
            assert not (lower.isfinite() | upper.isfinite()).any()
        else:
            torch.testing.assert_close(found.lower, lower)
            torch.testing.assert_close(found.upper, upper)


def test_limits_of_rain_and_humidity_but_not_of_temperatures_and_steps():
    found = find_limits(rainy())
    assert found is not None
    assert found.lower.tolist() == [0.0, -torch.inf, -torch.inf, -torch.inf]
    assert found.upper.tolist() == [torch.inf, 100.0, torch.inf, torch.inf]
    assert find_limits(Sequences(torch.arange(30.0), torch.randn(30, 3))) is None


def test_the_largest_count_is_no_limit():
    torch.manual_seed(0)
    counts = torch.poisson(torch.full((400, 1), 0.8).double())
    found = find_limits(Sequences(torch.arange(400.0), counts))
    assert found is not None
    assert (found.lower.item(), found.upper.item()) == (0.0, torch.inf)


def test_numbers_are_clamped_by_output():
    limits = Limits(torch.tensor([0.0, -torch.inf]), torch.tensor([torch.inf, 1.0]))
    assert limits.clamp(torch.tensor([[-2.0, 3.0], [2.0, -3.0]])).tolist() == [[0.0, 1.0], [2.0, -3.0]]
    output = torch.tensor([1, 0, 0])
    held_out = HeldOut(torch.zeros(3), torch.tensor([3.0, -2.0, 2.0]), torch.ones(3), output, torch.zeros(3))
    assert limits.clamp_means(held_out).mean.tolist() == [1.0, 0.0, 2.0]


def make_ensemble(data, limits):
    members = [make_baseline(name, data, torch.ones(4).double()) for name in ("linear interpolation", "column mean")]
    combination = Combination(torch.full((2, 4), 0.5).double(), Calibration.none(4), limits=limits)
    return Ensemble(members, {"impute": replace(combination, lost=combination)}, ["a", "b"])


def test_predictions_stay_within_limits():
    data = rainy()
    limits = find_limits(data)
    free, bounded = (make_ensemble(data, each).forecast(T_NEW) for each in (None, limits))
    lower, upper = bounded.interval(0.95)
    assert bool((free.interval(0.95)[0][:, 0] < 0.0).all())
    assert bool((lower[:, 0] == 0.0).all())
    assert bool((upper[:, 1] <= 100.0).all())
    for one, other in zip(free.interval(0.95), (lower, upper), strict=True):
        torch.testing.assert_close(limits.clamp(one), other)
    torch.manual_seed(0)
    draws = bounded.sample(200)
    assert float(draws[..., 0].min()) == 0.0
    assert float(draws[..., 1].max()) == 100.0
    assert float(draws[..., 2].min()) < -0.5


def test_members_are_clamped_before_they_are_combined():
    data = rainy()
    limits = replace(find_limits(data), lower=torch.tensor([2.0, -torch.inf, -torch.inf, -torch.inf]).double())
    ensemble = make_ensemble(data, limits)
    both = [member.forecast(T_NEW) for member in ensemble.members]
    expected = sum(limits.clamp(part.mean) for part in both) / 2
    torch.testing.assert_close(ensemble.forecast(T_NEW).mean, expected)


def test_known_numbers_outside_the_limits_are_returned_unchanged():
    data = rainy()
    ensemble = make_ensemble(data, find_limits(data))
    seen = torch.full((3, 4), torch.nan).double()
    seen[:, 0] = -3.0
    found = ensemble.reconstruct(T_NEW, seen, fill=True)
    for numbers in (found.mean, *found.interval(0.95), found.sample(1)[0]):
        assert numbers[:, 0].tolist() == [-3.0] * 3


def test_auto_and_calibration_use_the_limits():
    data = rainy(60)
    gaps = torch.rand(60, 4, generator=torch.Generator().manual_seed(1)) < 0.1
    data = Sequences(data.times.t, data.y.masked_fill(gaps, torch.nan))
    found = auto(data, "impute", candidates=[], baselines=["column mean", "cubic spline"], progress=False)
    filled = found.impute()
    assert float(filled.mean[:, 0].min()) == 0.0
    assert float(filled.interval(0.95)[1][:, 1].max()) == 100.0
    assert float(found.members[-1].impute().mean[:, 0].min()) < 0.0  # the spline alone passes the limit


def test_limits_round_trip_and_damaged_ones_are_refused(tmp_path):
    data, path = rainy(), tmp_path / "a"
    save_posterior(path, make_ensemble(data, find_limits(data)))
    again = load_posterior(path).combination("impute")
    for one in (again, again.lost):
        assert torch.equal(one.limits.lower, find_limits(data).lower)
        assert torch.equal(one.limits.upper, find_limits(data).upper)
    header, tensors = read_file(path, "ensemble")
    lower = [name for name, value in tensors.items() if value.shape == (4,) and bool((value == -torch.inf).any())]
    for value, match in ((torch.full((4,), torch.nan), "not be NaN"), (torch.zeros(3), "limits must have 4 numbers")):
        write_file(path, "ensemble", header, {**tensors, lower[0]: value.double()})
        with pytest.raises(FileFormatError, match=match):
            load_posterior(path)
