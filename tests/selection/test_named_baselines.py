# SPDX-License-Identifier: Apache-2.0
"""Every baseline of the automatic choice trains, predicts and can be stored."""

import re

import numpy as np
import pytest
import torch

from pyro_vgpds import Sequences, baselines
from pyro_vgpds.baselines.cycle import find_period
from pyro_vgpds.evaluation import hold_out
from pyro_vgpds.evaluation.scores import score
from pyro_vgpds.kernels import parse_kernel
from pyro_vgpds.selection import proposals
from pyro_vgpds.selection.named_baselines import BASELINES, make_baseline
from pyro_vgpds.selection.problem import Problem
from pyro_vgpds.selection.proposals import propose_baselines, propose_models
from pyro_vgpds.selection.trials import try_out

TASKS = ("impute", "reconstruct", "forecast")


def make_waves(lengths=(36, 30, 33, 28), outputs=5, missing=0.0, seed=0):
    """Cycles of period 1.2 with a little noise; the first sequence has no gaps."""
    rng = np.random.default_rng(seed)
    t = [0.1 * np.arange(n) for n in lengths]
    phase = rng.uniform(0, 6, outputs)
    y = [np.sin(2 * np.pi * a[:, None] / 1.2 + phase) + 0.05 * rng.standard_normal((len(a), outputs)) for a in t]
    for part in y[1:] or y:
        part[rng.random(part.shape) < missing] = np.nan
    return Sequences(t, y)


@pytest.mark.parametrize("task", TASKS)
def test_all_of_them_predict(task):
    data = make_waves(missing=0.1)
    names = propose_baselines(data, task)
    assert names == [name for name in BASELINES if task in BASELINES[name].tasks and name != "last long cycle"]
    split = hold_out(data, task, horizon=4)
    for name in names:
        rival = make_baseline(name, split.train)
        (found, *rest) = split.outputs(rival)
        for part in (found, *rest):
            assert part.mean.shape == part.variance.shape == (len(part.t), 5), name
            assert part.mean.isfinite().all(), name
            assert part.variance.isfinite().all(), name
            assert (part.variance >= 0).all(), name
        held_out = split.predict(rival)
        assert (held_out.variance > 0).all(), name
        spread = data.output_scales[held_out.output]
        error = ((held_out.mean - held_out.truth) / spread).square().mean().sqrt()
        assert error < (1.6 if name in ("last value", "nearest neighbour", "linear interpolation") else 1.3), name


@pytest.mark.parametrize("name", BASELINES)
def test_they_are_stored_and_restored(name):
    data = make_waves(missing=0.1)
    variance = torch.arange(1.0, 6.0)
    rival = make_baseline(name, data, variance, setting=3.6 if name == "last long cycle" else None)
    state = rival.imputer.state()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert bool(state) == (name == "linear dynamical system")
    again = make_baseline(name, data, variance, state, rival.imputer.setting)
    y = data.y[:6].clone()
    y[:, 1:3] = torch.nan
    for a, b in (
        (rival.reconstruct(data.times.t[:6], y), again.reconstruct(data.times.t[:6], y)),
        (rival.forecast([4.0, 4.1], 1), again.forecast([4.0, 4.1], 1)),
        (rival.impute(), again.impute()),
    ):
        assert torch.equal(a.mean, b.mean)
        assert torch.equal(a.variance, b.variance)


def test_a_rival_is_the_function_of_that_name():
    data = make_waves(missing=0.1)
    for name, function in (
        ("column mean", baselines.column_mean),
        ("column median", baselines.column_median),
        ("last value", baselines.last_value),
        ("last value with drift", baselines.last_value_with_drift),
        ("damped trend", baselines.damped_trend),
        ("cubic spline", baselines.cubic_spline),
        ("autoregression", baselines.autoregression),
        ("last cycle", baselines.repeat_cycle),
        ("last cycle with drift", lambda data: baselines.repeat_cycle(data, drift=True)),
    ):
        torch.testing.assert_close(make_baseline(name, data).impute().mean, torch.cat(function(data)))
    rows, scale = data.times.slices(), data.output_scales  # the result of PCA depends on the units
    scaled = baselines.ppca([data.times.t[own] for own in rows], [data.read()[own] / scale for own in rows])
    torch.testing.assert_close(make_baseline("probabilistic PCA", data).impute().mean, torch.cat(scaled) * scale)
    mean, variance = baselines.ridge_regression(data, return_variance=True)
    found = make_baseline("ridge regression", data).impute()
    torch.testing.assert_close(found.mean, torch.cat(mean))
    torch.testing.assert_close(found.variance, torch.cat(variance))


@pytest.mark.parametrize("task", TASKS)
def test_lagged_copies_are_not_their_business(task):
    data = make_waves(missing=0.1)
    plain, lagged = hold_out(data, task, horizon=4), hold_out(data.lagged([-1, 1]), task, horizon=4)
    for name in propose_baselines(data, task):
        found = [split.predict(make_baseline(name, split.train)) for split in (plain, lagged)]
        torch.testing.assert_close(found[0].mean, found[1].mean)
        torch.testing.assert_close(found[0].variance, found[1].variance)


def test_the_linear_dynamical_system_is_trained_once(monkeypatch):
    data = make_waves()
    rival = make_baseline("linear dynamical system", data)
    monkeypatch.setattr(baselines.LinearDynamicalSystem, "fit", None)
    assert rival.condition(make_waves((20,))).forecast([2.0]).mean.isfinite().all()


def test_methods_of_frames_need_complete_sequences():
    whole, gaps = make_waves(), make_waves((20,), missing=0.3)
    names = {"nearest neighbour", "kernel ridge"}
    assert names <= set(propose_baselines(whole, "reconstruct"))
    assert not names & set(propose_baselines(gaps, "reconstruct"))
    # frames without any output get the means of the training data
    found = make_baseline("nearest neighbour", whole).forecast([9.0], None)
    torch.testing.assert_close(found.mean[0], whole.output_means)


def test_what_suits_the_data_is_proposed():
    noise = Sequences(np.arange(12.0), np.random.default_rng(0).standard_normal((12, 3)))
    few = propose_baselines(noise, "forecast")
    assert "linear dynamical system" not in few
    assert "linear interpolation" not in few
    assert "last value" in few
    wide = Sequences(np.arange(20.0), np.random.default_rng(0).standard_normal((20, 500)))
    assert "ridge regression" not in propose_baselines(wide, "impute")
    for data in (noise, wide, make_waves()):
        for task in TASKS:
            models = propose_models(data, task)
            assert len({model.name for model in models}) == len(models) > 0
            for model in models:
                assert model.latent_dim is None or model.latent_dim <= data.num_base_outputs
                assert model.num_inducing is None or model.num_inducing <= data.num_frames
    for outputs, own in ((2000, True), (2001, False)):
        film = Sequences(np.arange(20.0), np.random.default_rng(0).standard_normal((20, outputs)))
        assert {model.noise_per_output for model in propose_models(film, "impute")} == {own}


def test_processes_whose_covariances_take_long_to_factorise_are_not_tried():
    """2000³ multiply-adds for each pattern of missing entries."""
    y = np.random.default_rng(0).normal(size=(2000, 8))
    one, several = y.copy(), y.copy()
    one[5] = np.nan
    several[np.arange(8), np.arange(8)] = np.nan
    for outputs, expected in ((y, True), (one, True), (several, False)):
        names = propose_baselines(Sequences(np.arange(2000.0), outputs), "impute")
        assert ("one GP for each output" in names) is expected


def test_hidden_columns_have_models_with_neighbouring_frames():
    long, short = (Sequences([range(n)] * 2, list(torch.randn(2, n, 12))) for n in (10, 9))
    found = [model for model in propose_models(long, "reconstruct") if model.lags]
    assert [(model.latent_dim, model.noise_per_output) for model in found] == [(6, True), (6, False)]
    assert not any(model.lags for model in propose_models(short, "reconstruct"))
    assert not any(model.lags for model in propose_models(long, "impute"))


def make_weeks(days=42):
    """Eight frames a day; each sixth and seventh day is lower."""
    t = torch.arange(8.0 * days)
    y = (torch.pi * t.unsqueeze(-1) / 4.0 + torch.arange(6.0)).sin() + 1.0
    y = torch.where((t // 8 % 7 >= 5).unsqueeze(-1), 0.4 * y, y) + 0.05 * torch.randn(len(t), 6)
    return Sequences(t, y)


def test_days_and_weeks():
    data = make_weeks()
    assert find_period(data) == 8.0
    assert find_period(data, longer=True) == 56.0
    models = {model.name: model for model in propose_models(data, "forecast")}
    for period in (8.0, 56.0):
        assert f"cosine(variance=1.0, period={period})" in models["two cycles, nonlinear mapping"].temporal
    assert "two cycles, nonlinear mapping" not in {model.name for model in propose_models(data, "impute")}
    assert "last long cycle" in propose_baselines(data, "forecast")
    assert "last long cycle" not in propose_baselines(make_waves(), "forecast")
    split = hold_out(data, "forecast", horizon=16)
    errors = [score(split.predict(make_baseline(name, split.train)), data.output_scales)["nrmse"]
              for name in ("last cycle", "last long cycle")]  # fmt: skip
    assert errors[1] < 0.3 * errors[0]
    mean = make_baseline("last long cycle", split.train).forecast(split.t[0], 0).mean
    torch.testing.assert_close(
        mean, make_baseline("last cycle", split.train, setting=56.0).forecast(split.t[0], 0).mean
    )


def test_a_cycle_is_tried_once():
    t = torch.arange(100) / 10.0
    y = torch.sin(2.0 * t.unsqueeze(-1) + torch.arange(6.0)) ** 3 + 0.1 * torch.randn(100, 6)
    one, several = Sequences(t, y), Sequences([t, t], [y, y])
    cycle = "cycle, nonlinear mapping"
    assert cycle not in {model.name for model in propose_models(one, "forecast")}  # the default has it already
    assert cycle in {model.name for model in propose_models(several, "forecast")}
    assert cycle not in {model.name for model in propose_models(several, "impute")}


def test_variances_of_all_parts_are_held_out_errors():
    """Each part has other training data, and other variances of them; none of these is an error of a prediction."""
    y = torch.randn(40, 3).cumsum(0)
    y[10:16] = torch.nan
    splits = Problem(Sequences(torch.arange(40.0), y), "impute", None, 0).splits
    assert len(splits) == 4
    found = try_out("linear interpolation", splits, 0).found
    for output in range(3):
        variance = found.variance[found.output == output]
        assert bool((variance == variance[0]).all())
    scale = splits[0].train.output_scales[found.output]  # in which errors of different outputs are compared
    square = float(((found.mean - found.truth) / scale).square().mean())
    assert abs(float((found.variance / scale.square()).mean()) / square - 1.0) < 0.3


def test_proposed_cycles_have_no_harmonics_of_less_than_two_frames(monkeypatch):
    """Quarters of months: a third of them is a month of 30.4 days, which is below the median month, 31 days."""
    months = np.arange("2000-01", "2012-01", dtype="datetime64[M]").astype("datetime64[D]")
    data = Sequences(months, np.random.default_rng(0).standard_normal((144, 1)))
    month = 86400.0 * 365.25 / 12
    monkeypatch.setattr(proposals, "find_period", lambda data, longer=False: month * (12 if longer else 3))
    cycles = [model.temporal for model in propose_models(data, "forecast") if "cycle" in model.name]
    assert len(cycles) == 2
    for text, wanted in zip(cycles, ([3], [3, 4, 6, 12]), strict=True):
        periods = [float(found) for found in re.findall(r"cosine\(variance=[^,]*, period=([^)]*)\)", text)]
        assert sorted(round(period / month) for period in periods) == wanted
        parse_kernel(text)
