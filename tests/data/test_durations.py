# SPDX-License-Identifier: Apache-2.0
"""Durations in all the forms that users write are the same seconds; everything else has an error that helps."""

import datetime

import numpy as np
import pandas
import pytest

from pyro_vgpds.data.durations import UNITS, has_unit, parse_duration, read_durations
from pyro_vgpds.kernels import (
    RBF,
    Cosine,
    Kernel,
    MarkovRBF,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    White,
    parse_kernel,
)

DAY = 86400.0


@pytest.mark.parametrize(
    "value",
    [
        "24h", "24 h", " 1d ", "1D", "1440min", "86400s", "8.64e4s", np.timedelta64(24, "h"), np.timedelta64(1, "D"),
        np.timedelta64(86400 * 10**9, "ns"), datetime.timedelta(days=1), pandas.Timedelta("1D"),
    ],
)  # fmt: skip
def test_a_day(value):
    assert has_unit(value)
    assert read_durations(value) == DAY
    assert Periodic(period=value).period.item() == pytest.approx(DAY)


def test_units():
    assert parse_duration("1w") == 7 * DAY
    assert parse_duration("1y") == 365.25 * DAY == read_durations(np.timedelta64(1, "Y"))
    assert read_durations(np.timedelta64(6, "M")) == pytest.approx(0.5 * 365.25 * DAY)
    assert parse_duration(".5min") == 30.0
    assert list(UNITS) == ["s", "min", "h", "d", "w", "y"]


@pytest.mark.parametrize(
    "value",
    [
        ["1h", "1d"],
        ("1h", np.timedelta64(1, "D")),
        np.array([1, 24], "timedelta64[h]"),
        pandas.to_timedelta(["1h", "24h"]),
    ],
)
def test_one_for_each_latent_dimension(value):
    assert read_durations(value) == [3600.0, DAY]
    assert RBF(lengthscale=value).lengthscale.tolist() == pytest.approx([3600.0, DAY])


def test_numbers_are_not_durations():
    for value in (1.0, 3, np.float64(2.0), np.ones(3), [1.0, 2.0], None, RBF()):
        assert not has_unit(value)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("24", ValueError, "Periodic.period: a duration must be a number with one of the units s, min, h, d, w, y"),
        ("24m", ValueError, "but got '24m'"),
        ("24 hours", ValueError, "but got '24 hours'"),
        ("-1h", ValueError, "but got '-1h'"),
        ("", ValueError, "but got ''"),
        ("0h", ValueError, "Periodic.period must be positive and finite, but got 0.0"),
        ("1e999h", ValueError, "must be positive and finite"),
        (np.timedelta64(-1, "h"), ValueError, "must be positive and finite"),
        (np.array([5]).view("m8")[0], ValueError, "a duration needs a unit, as in numpy.timedelta64"),
        (np.timedelta64("NaT", "s"), ValueError, "a duration must be finite"),
        (np.timedelta64("NaT", "Y"), ValueError, "a duration must be finite"),
        (pandas.NaT, TypeError, "must be a positive number"),
        (["1h", 24.0], TypeError, "only durations or only numbers"),
    ],
)
def test_errors(value, error, message):
    with pytest.raises(error, match=message):
        Periodic(period=value)


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda value: RBF(variance=value), "RBF.variance"),
        (lambda value: White(value), "White.variance"),
        (lambda value: Periodic(lengthscale=value), "Periodic.lengthscale"),  # relative to the period
        (lambda value: Cosine().set("variance", value), "Cosine.variance"),
    ],
)
def test_only_times_have_units(make, parameter):
    with pytest.raises(
        TypeError, match=f"{parameter} must be a positive number or tensor, but got '24h'; it is not a time"
    ):
        make("24h")


@pytest.mark.parametrize("kind", [RBF, MarkovRBF, Matern12, Matern32, Matern52])
def test_lengthscales_take_durations(kind):
    kernel = kind(lengthscale="2h")
    assert kernel.lengthscale.item() == pytest.approx(7200.0)
    assert kernel.durations == {"lengthscale"}
    assert not kernel.unset


def test_the_mark_follows_the_value():
    kernel = Periodic(period="24h")
    assert kernel.fix("period").learn("period").per_dimension(3, "period").durations == {"period"}
    assert kernel.set("period", 24.0).durations == set()
    assert kernel.set("period", "1w").durations == {"period"}


def test_kernels_of_ones_own_name_their_times():
    class Wave(Kernel):
        time_parameters = frozenset({"length"})

        def __init__(self, length):
            super().__init__()
            self.add_parameter("length", length)

    assert Wave("1min").length.item() == pytest.approx(60.0)


def test_text():
    kernel = parse_kernel("periodic(period=24h fixed, lengthscale=2)*rbf(lengthscale=7 d)+cosine(period=1.5Y)+white")
    assert str(kernel) == str(
        Periodic(1.0, 2.0, "24h").fix("period") * RBF(lengthscale="7d") + Cosine(period="1.5y") + White(1e-2)
    )
    assert [leaf.durations for leaf in kernel.leaves()] == [{"period"}, {"lengthscale"}, {"period"}, set()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rbf(lengthscale=2hours)", r"unknown unit 'hours' \(known: s, min, h, d, w, y\) at character 18"),
        ("rbf(variance=2h)", "variance of RBF is not a time, so it has no unit 'h', at character 15"),
        ("periodic(lengthscale=2h)", "lengthscale of Periodic is not a time"),
        ("rbf(lengthscale=h)", "expected a positive number, but got h"),
        ("rbf(lengthscale=2h 3)", r"expected \), but got 3"),
    ],
)
def test_errors_in_text(text, message):
    with pytest.raises(ValueError, match=message):
        parse_kernel(text)
