# SPDX-License-Identifier: Apache-2.0
"""The automatic choice: what it tries, what it keeps, what it reports, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import Ensemble, Posterior, Sequences, auto
from pyro_vgpds.baselines import BaselinePosterior
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import ARDRBF, ARDLinear
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.selection import Configuration, Report, Scored, api, jobs

SMALL = Configuration("small", latent_dim=2, num_inducing=10, num_steps=15)
LINEAR = Configuration("line", mapping="linear", latent_dim=3, num_inducing=4, num_steps=10)


def make_data(missing=0.0, sequences=2, length=(24, 30), outputs=5):
    return make_sequences(
        num_sequences=sequences, num_outputs=outputs, length=length, missing=missing, seed=3
    ).sequences()


def ask(found, data):
    """One prediction of each kind."""
    y = data.y[:4].clone()
    y[:, :2] = torch.nan
    return [found.impute(), found.forecast([9.0, 9.1], 0), found.reconstruct(data.times.t[:4] + 0.01, y, 0)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "sequences", "missing"), [("impute", 2, 0.15), ("forecast", 2, 0.0), ("reconstruct", 5, 0.0)]
)
def test_each_task(task, sequences, missing):
    data = make_data(missing, sequences)
    names = ["column mean", "linear dynamical system"]
    found = auto(data, task, candidates=[SMALL, LINEAR], baselines=names, seed=1)
    assert isinstance(found, Ensemble)
    weights = found.combination(task).weights
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(0), torch.ones(5).double())
    assert (weights.sum(1) > 0).all()  # only what is used is kept
    report = found.report
    assert isinstance(report, Report)
    assert report.task == task
    assert {c.name for c in report.candidates} == {*names, "small", "line"}
    assert [c.is_baseline for c in report.candidates] == [True, True, False, False]
    assert sum(c.weight for c in report.candidates) == pytest.approx(1.0)
    assert {c.name for c in report.candidates if c.weight > 0} == set(found.names)
    assert report.hidden > 0
    assert report.skipped == []
    for candidate in [*report.candidates, report.ensemble]:
        assert 0.0 < candidate.error < 3.0
        assert 0.0 <= candidate.inside <= 100.0
        assert candidate.seconds > 0.0
        assert candidate.failure is None
    assert report.ensemble.error < max(c.error for c in report.candidates)
    assert report.best.error <= report.best_model.error
    assert report.table()["candidate"][0] == "ensemble"
    assert len(report.table()) == 5
    assert found.data is data  # trained on everything
    for member in found.members:
        assert member.data.num_frames == data.num_frames
    for prediction in ask(found, data):
        assert prediction.mean.isfinite().all()
        assert (prediction.variance >= 0).all()


def test_given_columns_are_hidden_in_the_comparison():
    data = make_data(sequences=5)
    found = auto(data, hidden=[0, 3], candidates=[], baselines=["column mean", "ridge regression"])
    assert found.report.task == "reconstruct"
    assert set(found.report.comparison.found["ensemble"].output.tolist()) == {0, 3}


def test_default_task_is_that_of_the_data_and_the_horizon():
    for missing, horizon, task in ((0.2, None, "impute"), (0.0, None, "forecast"), (0.2, 3, "forecast")):
        found = auto(make_data(missing), candidates=[], baselines=["column mean"], horizon=horizon)
        assert list(found.combinations) == [task]
        assert found.report.task == task


@pytest.mark.long
def test_the_defaults_beat_the_mean():
    data = make_data(0.2, length=(30, 30), outputs=4)
    found = auto(data)
    errors = {c.name: c.error for c in found.report.candidates}
    assert found.report.ensemble.error < 0.6 * errors["column mean"]
    assert not [c for c in found.report.candidates if c.failure]
    assert any(not c.is_baseline for c in found.report.candidates)


def test_a_perfect_baseline_wins_and_the_report_says_so():
    t = np.arange(40.0)
    y = np.sin(t[:, None] + np.arange(3))
    y[20:] = y[20]  # nothing moves any more
    found = auto(Sequences(t, y), "forecast", candidates=[SMALL], baselines=["last value", "column mean"], horizon=4)
    assert found.names == ["last value"]
    assert torch.equal(found.combination("forecast").weights, torch.ones(1, 3).double())
    assert found.report.best.error == 0.0
    text = str(found.report)
    assert "A baseline wins: the error of last value is 0, that of the best model" in text
    assert "Chosen: 100 % last value." in text
    stopped = "Stopped after the first held-out part, with estimated errors: column mean, small."
    assert text.endswith(f"No model is part of the result.\n{stopped}")
    assert found.report.stopped == ["column mean", "small"]
    assert Report.from_dict(found.report.to_dict()).stopped == found.report.stopped
    assert "column mean" not in found.report.comparison.found
    assert "nan" not in text
    assert "inf" not in text
    torch.testing.assert_close(found.forecast([40.0, 41.0]).mean, torch.from_numpy(y[-1]).expand(2, 3))


@pytest.mark.parametrize("error", [ValueError, NumericalError, torch.linalg.LinAlgError])
def test_a_candidate_that_fails_is_reported(error, monkeypatch):
    original = Configuration.fit

    def sometimes(self, data, seed=0):
        if self.name == "broken":
            raise error("no such luck")
        return original(self, data, seed)

    monkeypatch.setattr(Configuration, "fit", sometimes)
    broken = Configuration("broken")
    found = auto(make_data(), "forecast", candidates=[broken, SMALL], baselines=["last value"])
    (failed,) = [c for c in found.report.candidates if c.failure is not None]
    assert (failed.name, failed.failure, failed.is_baseline, failed.weight) == ("broken", "no such luck", False, 0.0)
    assert "broken failed: no such luck" in str(found.report)
    assert "broken" not in found.report.table()["candidate"]
    assert "broken" not in found.names
    with pytest.raises(ValueError, match=r"no candidate succeeded: \{'broken': 'no such luck'\}"):
        auto(make_data(), "forecast", candidates=[broken], baselines=[])


def test_a_baseline_that_fails_is_reported():
    t = np.arange(12.0)
    data = Sequences(t, np.random.default_rng(0).standard_normal((12, 2)))
    found = auto(data, "forecast", candidates=[], baselines=["last cycle", "last value"])
    failed = {c.name: c for c in found.report.candidates if c.failure}
    assert not failed or (failed["last cycle"].is_baseline and failed["last cycle"].failure)
    assert "last value" in found.names


def test_other_errors_are_not_hidden(monkeypatch):
    def fail(self, data, seed=0):
        raise KeyError("a bug")

    monkeypatch.setattr(Configuration, "fit", fail)
    with pytest.raises(KeyError, match="a bug"):
        auto(make_data(), "forecast", candidates=[SMALL], baselines=["last value"])


def test_the_time_budget_skips_candidates_and_says_so(monkeypatch):
    clock = iter(range(1000))
    for module in (api, jobs):
        monkeypatch.setattr(module, "monotonic", lambda: float(next(clock)))
    found = auto(make_data(), "forecast", candidates=[SMALL], baselines=["last value", "column mean"], seconds=0.5)
    assert found.names == ["last value"]  # the first is always tried
    assert found.report.skipped == ["column mean", "small"]
    assert "Not tried because of the time budget: column mean, small." in str(found.report)


@pytest.mark.long
def test_the_seed_makes_it_reproducible():
    data = make_data(0.1)
    options = {"candidates": [SMALL], "baselines": ["probabilistic PCA"]}
    torch.manual_seed(5)
    first = auto(data, "impute", seed=7, **options)
    torch.manual_seed(6)  # the state of the global generator does not matter
    again, other = auto(data, "impute", seed=7, **options), auto(data, "impute", seed=8, **options)
    assert torch.equal(first.impute().mean, again.impute().mean)
    assert torch.equal(first.impute().variance, again.impute().variance)
    assert [c.error for c in first.report.candidates] == [c.error for c in again.report.candidates]
    assert [c.error for c in first.report.candidates] != [c.error for c in other.report.candidates]


def test_nothing_global_is_left_behind():
    data = make_data()
    pyro.param("mine", torch.tensor(3.0))
    torch.manual_seed(11)
    wanted = torch.rand(3)
    torch.manual_seed(11)
    auto(data, "forecast", candidates=[SMALL], baselines=["last value"])
    assert torch.equal(torch.rand(3), wanted)  # the caller's random numbers are those without the call
    assert list(pyro.get_param_store()) == ["mine"]


def test_only_what_is_asked_for_is_tried():
    found = auto(make_data(), "forecast", candidates=[SMALL], baselines=[])
    assert found.names == ["small"]
    assert isinstance(found.members[0], Posterior)
    assert found.report.best is found.report.best_model
    assert "A baseline wins" not in str(found.report)
    found = auto(make_data(), "forecast", candidates=[], baselines=["last value", "column mean"])
    assert all(isinstance(member, BaselinePosterior) for member in found.members)
    assert found.report.best_model is None
    assert "A baseline wins" not in str(found.report)  # there is no model to compare with


def test_the_horizon_is_that_of_the_held_out_frames():
    found = auto(make_data(length=(30, 30)), "forecast", candidates=[], baselines=["last value"], horizon=3)
    assert found.report.hidden == 4 * 2 * 3 * 5  # four origins of two sequences
    short = Sequences(np.arange(7.0), np.random.default_rng(0).standard_normal((7, 2)))
    assert auto(short, "forecast", candidates=[], baselines=["last value"], horizon=3).report.hidden == 6


def test_progress_is_shown_on_request(capsys):
    auto(make_data(), "forecast", candidates=[], baselines=["last value"], progress=True)
    assert "candidates" in capsys.readouterr().err
    auto(make_data(), "forecast", candidates=[], baselines=["last value"], progress=False)
    assert capsys.readouterr().err == ""


def test_intervals_hold_on_new_data():
    """Noise alone: the best prediction is the mean, and its intervals are known."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((400, 6)) * np.array([1.0, 2.0, 0.5, 1.0, 10.0, 0.1])
    found = auto(Sequences(np.arange(300.0), y[:300]), "forecast", candidates=[], baselines=["column mean"], horizon=40)
    prediction = found.forecast(np.arange(300.0, 400.0))
    truth = torch.from_numpy(y[300:])
    for level in (0.8, 0.95):
        lower, upper = prediction.interval(level)
        assert float(((lower <= truth) & (truth <= upper)).double().mean()) == pytest.approx(level, abs=0.06)


def test_a_horizon_of_more_than_half_of_the_frames_is_tested_with_half_of_them():
    rng = np.random.default_rng(0)
    t = np.arange(36.0)
    late = np.where(t < 24, np.sin(t / 2), np.nan)  # the last observed frame counts
    y = np.stack([late, late + 0.1 * rng.standard_normal(36)], 1)
    call = {"candidates": [], "baselines": ["last value", "column mean"]}
    message = "horizon=20 leaves 4 of the 24 frames .* compared with horizon=12 instead"
    with pytest.warns(UserWarning, match=message) as found:
        long = auto(Sequences(t, y), "forecast", horizon=20, **call)
    assert found[0].filename == __file__
    assert long.report.hidden == 12 * 2
    assert long.forecast(np.arange(24.0, 44.0)).shape == (20, 2)
    half = auto(Sequences(t, y), "forecast", horizon=12, **call)  # without a warning
    assert str(half.report.conclusions()) == str(long.report.conclusions())


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"task": "guess"}, ValueError, "task must be one of 'impute', 'reconstruct', 'forecast', but got 'guess'"),
        ({"seconds": 0}, ValueError, "seconds must be positive, but got 0"),
        ({"seconds": -1.0}, ValueError, r"seconds must be positive, but got -1\.0"),
        ({"seconds": math.nan}, ValueError, "seconds must be positive, but got nan"),
        (
            {"baselines": ["column mean", "oracle"]},
            ValueError,
            "baselines must be some of 'column mean', 'column median', .*, but got 'oracle'",
        ),
        ({"candidates": ["small"]}, TypeError, "candidates must be of the class Configuration, but got str"),
        ({"candidates": [], "baselines": []}, ValueError, "candidates and baselines are both empty"),
        (
            {"candidates": [SMALL, SMALL]},
            ValueError,
            "needs a name of its own, but 'small' occurs twice",
        ),
        (
            {"task": "forecast", "hidden": [0]},
            ValueError,
            "hidden requires the task 'reconstruct', but the task is 'fo",
        ),
        ({"task": "forecast", "horizon": 40}, ValueError, "horizon=40 must leave 3 training frames"),
        ({"task": "forecast", "horizon": 0}, ValueError, "horizon must be a number of frames, .* but got 0"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_trained(options, kind, message, monkeypatch):
    def never(*args):
        raise AssertionError("trained")

    monkeypatch.setattr(jobs, "try_out", never)
    with pytest.raises(kind, match=message):
        auto(make_data(), **options)


def test_data_that_cannot_be_used():
    with pytest.raises(ValueError, match=r"data must be Sequences\(t, y\) with outputs, but got Sequences\(1 sequence"):
        auto(Sequences(np.arange(9.0)))
    with pytest.raises(TypeError, match=r"but got a DataFrame\. Sequences\.from_frame\(frame\) reads it"):
        auto(pytest.importorskip("pandas").DataFrame({"a": [1.0, 2.0]}))
    with pytest.raises(TypeError, match=r"data must be Sequences\(t, y\), but got list"):
        auto([1, 2])
    with pytest.raises(ValueError, match="must leave 3 training frames, but the longest sequence has 3 frames"):
        auto(Sequences(np.arange(3.0), np.random.default_rng(0).standard_normal((3, 2))))


def test_configurations_train_what_they_say():
    data = make_data()
    for mapping, kinds in (("rbf", [ARDRBF]), ("linear", [ARDLinear]), ("sum", [ARDRBF, ARDLinear])):
        found = Configuration("a", mapping=mapping, latent_dim=2, num_inducing=5, static_dim=0, num_steps=2).fit(data)
        model = found.origin.model
        assert [type(leaf) for leaf in model.mapping.leaves()] == kinds
        assert (model.latent_dim, model.num_inducing) == (2, 5)
    lagged = Configuration("b", temporal="rbf + white", latent_dim=2, num_inducing=5, lags=(-1, 1), num_steps=2)
    found = lagged.fit(data)
    assert found.data.lags == (-1, 1)
    assert found.num_outputs == 5
    smooth, white = found.origin.model.temporal
    assert smooth.lengthscale.shape == white.variance.shape == (2,)
    assert lagged.settings()["lags"] == (-1, 1)
    assert Configuration(**lagged.settings()) == lagged
    plain = Configuration("c", latent_dim=2, num_inducing=5, noise_per_output=False, scale_outputs=False, num_steps=2)
    for configuration, size in ((plain, 1), (replace(plain, noise_per_output=True), 5)):
        assert configuration.fit(data).origin.model.noise.numel() == size
    for scaled in (True, False):
        scale = replace(plain, scale_outputs=scaled).fit(data).origin.model.output_scale
        assert bool((scale == 1.0).all()) is not scaled
    seeds = [SMALL.fit(data, seed).q.mean for seed in (1, 1, 2)]
    assert torch.equal(seeds[0], seeds[1])
    assert not torch.equal(seeds[0], seeds[2])


def test_reports():
    mean = Scored("mean", True, 1.0, 90.0, 0.1, 0.2)
    model = Scored("model", False, 0.5, 94.0, 2.0, 0.8)
    broken = Scored("broken", False, math.nan, math.nan, 0.0, failure="too few frames")
    ensemble = Scored("ensemble", False, 0.55, 93.0, 2.1, 1.0)
    report = Report("impute", [mean, model, broken], ensemble, 77, ["slow"])
    assert report.best == report.best_model == model
    assert report.table()["candidate"] == ["ensemble", "model", "mean"]
    assert report.table()["kind"] == ["ensemble", "model", "baseline"]
    assert report.conclusions() == [
        "Task: impute. 77 held-out entries: missing entries of the training sequences.",
        "Chosen: 80 % model, 20 % mean.",
        "The ensemble's held-out error is 10.0 % above that of the best single candidate, model.",
        "broken failed: too few frames",
        "Not tried because of the time budget: slow.",
    ]
    assert replace(report, hidden=29).conclusions()[1] == "These are few: errors, weights and intervals may be far off."
    two = Report("impute", [mean, replace(model, name="cycle, model")], ensemble, 77, ["slow", "slow, too"])
    assert two.conclusions()[1] == "Chosen: 80 % cycle, model; 20 % mean."
    assert two.conclusions()[-1] == "Not tried because of the time budget: slow; slow, too."
    beaten = Report("impute", [Scored("mean", True, 0.4, 90.0, 0.1, 1.0), model], ensemble, 77)
    assert any(
        line.startswith("A baseline wins: the error of mean is 0.4, that of the best model 0.5 (25 % more).")
        for line in beaten.conclusions()
    )
    assert beaten.conclusions()[3].endswith("The ensemble contains it. Consider using that baseline alone.")
    better = replace(beaten, ensemble=replace(ensemble, error=0.39))  # than the baseline
    assert better.conclusions()[3].endswith("(25 % more). The ensemble contains it.")


def test_a_report_of_one_chosen_baseline_compares_it_with_nothing():
    cycle, model = Scored("last cycle", True, 0.4, 90.0, 0.1, 1.0), Scored("model", False, 0.5, 94.0, 2.0, 0.0)
    report = Report("forecast", [cycle, model], Scored("ensemble", False, 0.4, 93.0, 2.1, 1.0), 77)
    chosen, wins, advice = report.conclusions()[1:]
    assert chosen == "Chosen: 100 % last cycle."
    assert wins.endswith("(25 % more). No model is part of the result.")
    assert advice.startswith("If you know the period, a model that has it may be better: for a daily cycle temporal=")


def test_intervals_of_new_sequences_are_narrower_after_training_on_all_of_them():
    data, names = make_data(sequences=4), ["nearest neighbour", "probabilistic PCA"]
    again, kept = (
        auto(data, "reconstruct", candidates=[], baselines=names, refit=refit).combination("reconstruct")
        for refit in (True, False)
    )
    gain = math.sqrt((1.0 + 1.0 / 4.0) / (1.0 + 1.0 / 3.0))
    torch.testing.assert_close(again.calibration.factor, gain * kept.calibration.factor)
    torch.testing.assert_close(again.weights, kept.weights)
    assert again.disagreement == kept.disagreement is not None
