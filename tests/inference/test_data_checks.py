# SPDX-License-Identifier: Apache-2.0
"""The unit of time of a kernel is compared with the data when both meet, once, and without false alarms."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, auto, fit, load, save
from pyro_vgpds.datasets import make_gait, make_sequences
from pyro_vgpds.inference import TimeScaleWarning
from pyro_vgpds.kernels import ARDRBF, RBF, Bias, Cosine, Matern32, Periodic, White
from pyro_vgpds.selection import Configuration


def make_hours(n=60, dated=True) -> Sequences:
    rng = np.random.default_rng(0)
    t = np.arange(n)
    y = np.sin(2 * np.pi * t[:, None] / 24 + np.arange(4)) + 0.1 * rng.standard_normal((n, 4))
    return Sequences(np.datetime64("2024-05-06") + t * np.timedelta64(1, "h") if dated else t.astype(float), y)


def make(data, temporal):
    return VGPDS.from_data(data, 2, 8, temporal=temporal)


def test_a_duration_is_that_number_of_seconds():
    data = make_hours()
    given = make(data, Periodic(period="24h").fix("period") * Matern32(lengthscale="10d") + White(1e-2))
    twin = make(data, Periodic(period=86400.0).fix("period") * Matern32(lengthscale=864000.0) + White(1e-2))
    torch.testing.assert_close(
        given.temporal().gram(data.times.t), twin.temporal().gram(data.times.t), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            lambda: Periodic(period=24.0),
            r"period=24 of Periodic is below the median spacing of the frames \(3600 s, 1 h\). The times are dates, so "
            r"it is in seconds; write a duration with its unit, as in period='24h'",
        ),
        (
            lambda: RBF() + Matern32(lengthscale=10.0) * Cosine(),
            "lengthscale=10 of Matern32 is far below the median spacing",
        ),
        (lambda: Periodic(period=[86400.0, 24.0]), "period=24 of Periodic is below"),
        (
            lambda: RBF(lengthscale="10y"),
            r"of RBF is far beyond the span of the longest sequence \(212400 s, 2.458 d\). Check",
        ),
        (lambda: Cosine(period="1y"), "of Cosine is far beyond the span"),
        (lambda: RBF(lengthscale="10min"), "lengthscale=600 of RBF is far below .* Check the unit"),
    ],
)
def test_warnings_for_dates(kernel, message):
    with pytest.warns(TimeScaleWarning, match=message) as seen:
        make(make_hours(), kernel() + White(1e-2))
    assert len(seen) == 1
    assert seen[0].filename == __file__  # the line that called from_data


def test_warning_for_numbers():
    with pytest.warns(
        TimeScaleWarning, match=r"period=86400 of Periodic is far beyond .* \(59\). It is in the unit of the"
    ):
        make(make_hours(dated=False), Periodic(period=86400.0))


@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize(
    "kernel",
    [
        lambda unit: Periodic(period=24 * unit) * RBF(lengthscale=300 * unit),
        lambda unit: RBF(lengthscale=0.5 * unit),
        lambda unit: Periodic(period=unit),
        lambda unit: Matern32() * Cosine() + White(1e-2),  # chosen from the data
        lambda unit: Cosine(period=[24 * unit, 1e9 * unit]),  # the second dimension does not oscillate
        lambda unit: RBF(lengthscale=dist.LogNormal(0.0, 1.0)),
        lambda unit: Periodic(lengthscale=0.1, period=24 * unit),
        lambda unit: White(1.0) + Bias(1.0),
    ],
)
def test_no_false_alarms(kernel, dated):
    make(make_hours(dated=dated), kernel(3600.0 if dated else 1.0))  # warnings are errors


@pytest.mark.parametrize(
    "make_data",
    [
        make_hours,
        lambda: make_hours(24),
        lambda: make_hours(dated=False),
        lambda: make_sequences(num_sequences=3, num_outputs=4, length=(15, 20)).sequences(),
        lambda: make_sequences(num_sequences=1, num_outputs=4, length=(40, 41)).sequences(),
        lambda: make_gait(num_sequences=2).sequences(),
        lambda: Sequences(np.r_[0.0, 1.0, 1000.0], np.random.default_rng(0).standard_normal((3, 2))),
        lambda: Sequences(
            np.sort(np.random.default_rng(0).pareto(0.5, 30)), np.random.default_rng(1).standard_normal((30, 3))
        ),
    ],
)
def test_defaults_never_warn(make_data):
    data = make_data()
    model = VGPDS.from_data(data)
    fit(model, AutoOpperArchambeau(model), data, num_steps=2, progress=False)


def make_by_hand(kernel):
    return VGPDS(kernel, ARDRBF(), inducing=torch.randn(4, 2), noise=0.1, output_mean=torch.zeros(4))


def times_of(data):
    """The times alone, for draws from the prior."""
    new = Sequences(data.times.t)
    new.time_origin = data.time_origin
    return new


def test_a_model_made_by_hand_warns_once():
    hours, model = times_of(make_hours()), make_by_hand(Periodic(period=24.0))
    with pytest.warns(TimeScaleWarning, match="period=24") as seen:
        model(hours)
    assert len(seen) == 1
    model(hours)
    pyro.clear_param_store()
    make_by_hand(Periodic(period=24.0))(times_of(make_hours(dated=False)))


def test_trained_values_are_not_compared(tmp_path):
    data, model = make_hours(), make(make_hours(), RBF())
    guide = AutoOpperArchambeau(model)
    model.temporal.set("lengthscale", 1.0)  # as if training had led there
    guide(data)
    save(tmp_path / "model.safetensors", model, guide, data)
    again = load(tmp_path / "model.safetensors")
    Posterior(*again).condition(data)


DURATION = (
    "period of Periodic in temporal is a duration, .*, which needs data with dates, but the times are numbers. Use"
)


def test_durations_need_dates():
    numbers = make_hours(dated=False)
    with pytest.raises(ValueError, match=DURATION):
        make(numbers, Periodic(period="24h") + White(1e-2))
    with pytest.raises(ValueError, match=DURATION):
        make_by_hand(Periodic(period="24h"))(numbers)
    with pytest.raises(ValueError, match=DURATION):
        make_by_hand(Periodic(period="24h"))(data=times_of(numbers))
    assert make_by_hand(Periodic(period="24h"))(times_of(make_hours())).shape == (60, 4)
    model = make(numbers, RBF())
    guide = AutoOpperArchambeau(model)
    with pytest.raises(ValueError, match="lengthscale of Matern32 in residual is a duration, 3 h, which needs"):
        Posterior(model, guide, numbers, residual=Matern32(1.0, "3h") + White())


def test_residual_kernels_take_durations():
    data = make_hours()
    model = make(data, Periodic(period="24h"))
    guide = AutoOpperArchambeau(model)
    given, twin = (
        Posterior(model, guide, data, residual=Matern32(1.0, length) + White()) for length in ("3h", 10800.0)
    )
    ahead = ["2024-05-08T13"], ["2024-05-08T14"]
    for t in ahead:
        t = np.array(t, "datetime64[s]")
        torch.testing.assert_close(given.forecast(t).mean, twin.forecast(t).mean, rtol=1e-9, atol=1e-9)


def test_candidates_are_compared_before_any_work():
    wrong = Configuration("wrong", temporal="periodic(period=24h)+white", latent_dim=2, num_inducing=8, num_steps=2)
    with pytest.raises(ValueError, match=DURATION):
        auto(make_hours(dated=False), "forecast", candidates=[wrong], baselines=[])
    with pytest.raises(ValueError, match="unknown kernel 'wave'"):
        Configuration("odd", temporal="wave").check(make_hours())


@pytest.mark.long
def test_candidates_warn_once():
    second = Configuration("seconds", temporal="periodic(period=24)+white", latent_dim=2, num_inducing=8, num_steps=2)
    hours = Configuration("hours", temporal="periodic(period=24h)+white", latent_dim=2, num_inducing=8, num_steps=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        auto(make_hours(), "forecast", candidates=[second, hours], baselines=[], horizon=4, processes=1)
    assert [w.category for w in seen] == [TimeScaleWarning]
