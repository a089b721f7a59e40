# SPDX-License-Identifier: Apache-2.0
"""One candidate: what its predictions of held-out data and of all data are trained on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_vgpds import Sequences, auto
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.prediction.noise_settings import apply_settings
from pyro_vgpds.selection import Configuration
from pyro_vgpds.selection.named_baselines import choose_setting, make_baseline
from pyro_vgpds.selection.problem import Problem
from pyro_vgpds.selection.trials import finish, load_trial, save_trial, try_out

MODEL = Configuration("small", latent_dim=2, num_inducing=8, num_steps=8)


def make_data() -> Sequences:
    return make_sequences(num_sequences=2, num_outputs=4, length=(36, 40), seed=5).sequences()


def make_walk(begins: int, columns: list[str] | None = None) -> Sequences:
    """Random walks, of which the third is observed from a frame on."""
    y = np.random.default_rng(0).normal(size=(60, 4)).cumsum(0)
    y[:begins, 2] = np.nan
    return Sequences(np.arange(60.0), y, columns=columns)


def test_a_model_is_trained_for_each_origin_of_a_forecast():
    splits = Problem(make_data(), "forecast", 4, 0).splits
    found = try_out(MODEL, splits, seed=1).found
    assert len(splits) > 1
    expected = torch.cat([split.predict(MODEL.fit(split.train, 1)).mean for split in splits])
    assert torch.equal(found.mean, expected)


@pytest.mark.parametrize(("task", "horizon"), [("forecast", 4), ("impute", None)])
def test_a_model_is_trained_anew_on_all_data(task, horizon):
    data = make_data()
    splits = Problem(data, task, horizon, 0).splits
    trial = try_out(MODEL, splits, seed=1)
    found = finish(trial, splits[0], data, seed=1)
    t = torch.linspace(2.6, 2.9, 4, dtype=torch.float64)
    expected = apply_settings(MODEL.fit(data, 1), trial.settings)
    assert torch.equal(found.forecast(t, 0).mean, expected.forecast(t, 0).mean)


@pytest.mark.parametrize("task", ["forecast", "impute"])
def test_a_baseline_is_trained_for_each_part(task):
    name, splits = "linear dynamical system", Problem(make_data(), task, None, 0).splits
    expected = torch.cat([split.predict(make_baseline(name, split.train)).mean for split in splits])
    assert torch.equal(try_out(name, splits, seed=1).found.mean, expected)


@pytest.mark.parametrize("name", ["ridge regression", "probabilistic PCA"])
def test_all_parts_share_a_setting_that_takes_long_to_choose(name):
    data = make_sequences(num_sequences=1, num_outputs=4, length=(40, 40), missing=0.15, seed=1).sequences()
    splits = Problem(data, "impute", None, 0).splits
    assert len(splits) == 4
    setting = choose_setting(name, splits[0].train)
    rivals = [make_baseline(name, splits[0].train)]  # chooses for itself
    rivals += [make_baseline(name, split.train, setting=setting) for split in splits[1:]]
    expected = torch.cat([split.predict(rival).mean for split, rival in zip(splits, rivals, strict=True)])
    assert torch.equal(try_out(name, splits, seed=1).found.mean, expected)
    own = torch.cat([split.predict(make_baseline(name, split.train)).mean for split in splits])
    assert not torch.equal(own, expected)  # other parts would have chosen others


@pytest.mark.parametrize(("name", "settings"), [("ridge regression", (1e-4, 1.0)), ("probabilistic PCA", (1, 3))])
def test_the_final_baseline_has_the_setting_whose_errors_are_known(name, settings):
    """Variances differ a lot between settings, so that the calibration of one is wrong for another."""
    data = make_sequences(num_sequences=1, num_outputs=4, length=(40, 40), missing=0.15, seed=1).sequences()
    splits = Problem(data, "impute", None, 0).splits
    trial, means = try_out(name, splits, seed=1), []
    for setting in settings:
        found = finish(replace(trial, setting=float(setting)), splits[0], data, seed=1).impute()
        assert torch.equal(found.mean, make_baseline(name, data, setting=float(setting)).impute().mean)
        means.append(found.mean)
    assert not torch.equal(*means)


def test_the_period_is_that_of_all_data():
    """Before early origins there are too few cycles to find it."""
    t = torch.arange(100.0, dtype=torch.float64)
    y = (2.0 * np.pi * t.unsqueeze(-1) / 52.0 + torch.arange(6)).sin()
    data = Sequences(t, y)
    splits = Problem(data, "forecast", 12, 0).splits
    with pytest.raises(ValueError, match="do not repeat"):
        splits[0].predict(make_baseline("last cycle", splits[0].train))
    trial = try_out("last cycle", splits, 0, data=data)
    assert trial.setting == pytest.approx(52.0, abs=0.1)
    assert float((trial.found.mean - trial.found.truth).abs().max()) < 0.05
    assert finish(trial, splits[0], data, 0).imputer.setting == trial.setting


@pytest.mark.parametrize("candidate", ["column mean", "ridge regression", "linear dynamical system", MODEL])
@pytest.mark.parametrize("task", ["forecast", "impute"])
def test_a_trial_of_the_first_part_is_continued(candidate, task, tmp_path):
    splits = Problem(make_walk(0), task, 4, 0).splits
    first = try_out(candidate, splits[:1], seed=1)
    assert len(first.found.mean) < sum(int(part.isfinite().sum()) for split in splits for part in split.truth)
    save_trial(tmp_path / "first", first)
    for known in (first, load_trial(tmp_path / "first", candidate)):
        found, expected = try_out(candidate, splits, 1, known), try_out(candidate, splits, seed=1)
        assert torch.equal(found.found.mean, expected.found.mean)
        assert torch.equal(found.found.variance, expected.found.variance)
        assert (found.settings, found.setting) == (expected.settings, expected.setting)
        assert found.seconds > first.seconds


@pytest.mark.parametrize(
    ("name", "task"),
    [("last value", "forecast"), ("last value", "impute"), ("linear dynamical system", "forecast")]
    + [(name, "impute") for name in ("probabilistic PCA", "ridge regression", "one GP for each output")],
)
def test_each_output_may_have_its_own_unit(name, task):
    """Variances of held-out and of new predictions, too: errors of different outputs are compared in their scales."""
    unit = torch.tensor([1.0, 1e3, 1e-2, 50.0], dtype=torch.float64)
    data = make_data()
    rows = data.times.slices()
    other = Sequences([data.times.t[own] for own in rows], [data.read()[own] * unit for own in rows])
    trials = []
    for each in (data, other):
        splits = Problem(each, task, 4, 0).splits
        trial = try_out(name, splits, seed=1)
        ahead = finish(trial, splits[0], each, seed=1).forecast([3.0, 3.1], 0)
        trials.append((trial.found, ahead))
    (found, ahead), (found_other, ahead_other) = trials
    scale = unit[found.output]
    torch.testing.assert_close(found_other.mean, scale * found.mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found_other.variance, scale.square() * found.variance, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(ahead_other.variance, unit.square() * ahead.variance, rtol=1e-6, atol=1e-12)


def test_a_column_that_begins_late_limits_the_origins():
    data = make_walk(begins=46)
    assert [len(split.train.times.t) for split in Problem(data, "forecast", 8, 0).splits] == [49, 52]
    ahead = auto(data, "forecast", candidates=[], baselines=["last value"], horizon=8).forecast([60.0, 61.0])
    assert torch.equal(ahead.mean, data.y[-1].expand(2, -1))


def test_a_column_that_begins_too_late_is_named():
    with pytest.raises(ValueError, match=r"column 2 of data has fewer than 3 observed entries before the last 8"):
        auto(make_walk(begins=50), "forecast", candidates=[], baselines=["last value"], horizon=8)
    with pytest.raises(ValueError, match=r"column 'c' of data .* Pass a shorter horizon, or drop the column\."):
        auto(make_walk(begins=57, columns=list("abcd")), "forecast", candidates=[], baselines=["last value"], horizon=8)
    with pytest.raises(ValueError, match=r"before the last 1 frame, held out to compare forecasts\. Drop the column\."):
        auto(make_walk(begins=57), "forecast", candidates=[], baselines=["last value"], horizon=1)


@pytest.mark.parametrize("task", ["forecast", "impute", "reconstruct"])
def test_a_column_that_was_never_observed_is_named(task):
    with pytest.raises(ValueError, match=r"column 'c' of data was never observed\. Drop the column\."):
        auto(make_walk(begins=60, columns=list("abcd")), task, candidates=[], baselines=["column mean"])


def test_gaussian_outputs_in_a_pool_have_the_settings_of_gaussian_outputs_alone():
    """Residuals that are correlated in time help a member of a pool as they help without a likelihood."""
    rng = np.random.default_rng(0)
    own = make_walk(0).read().numpy()
    y = 0.3 * own + np.sin(np.arange(60.0) / 8.0)[:, None]  # each output has a walk of its own
    y[rng.random(y.shape) < 0.15] = np.nan
    splits = Problem(Sequences(np.arange(60.0), y), "impute", None, 0, likelihood="student-t").splits
    assert len(splits) > 1
    plain = replace(MODEL, latent_dim=1)
    pooled = replace(plain, likelihood="gaussian")
    expected, trial = try_out(plain, splits, seed=1), try_out(pooled, splits, seed=1, likelihood="student-t")
    assert expected.settings.residual is not None
    assert trial.settings == expected.settings
    assert torch.equal(trial.found.mean, expected.found.mean)
    normal = torch.distributions.Normal(trial.found.mean, trial.found.variance.sqrt())
    torch.testing.assert_close(trial.found.log_density, normal.log_prob(trial.found.truth))
    torch.testing.assert_close(trial.found.cdf, normal.cdf(trial.found.truth).unsqueeze(-1).expand(-1, 2))
    known = try_out(pooled, splits[:1], seed=1, likelihood="student-t")
    again = try_out(pooled, splits, seed=1, known=known, likelihood="student-t")
    assert torch.equal(again.found.log_density, trial.found.log_density)
