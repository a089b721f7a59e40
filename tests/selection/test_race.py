# SPDX-License-Identifier: Apache-2.0
"""Candidates that are far behind on the first held-out part end there."""

import math

import numpy as np
import pytest
import torch

from pyro_vgpds import Sequences, auto
from pyro_vgpds.evaluation.scores import relative_error
from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.selection import Configuration, trials
from pyro_vgpds.selection import race as module
from pyro_vgpds.selection.problem import Problem
from pyro_vgpds.selection.race import promising
from pyro_vgpds.selection.report import Report, Scored
from pyro_vgpds.selection.trials import try_out

NAMES = ["column mean", "last value", "damped trend"]


def make_walk(drift=0.0) -> Sequences:
    y = np.random.default_rng(2).normal(size=(80, 3)).cumsum(0) + drift * np.arange(80.0)[:, None]
    return Sequences(np.arange(80.0), y)


def predicted(*errors: float) -> HeldOut:
    n = len(errors)
    output, ahead = torch.zeros(n, dtype=torch.long), torch.zeros(n)
    return HeldOut(torch.zeros(n), torch.tensor(errors), torch.ones(n), output, ahead)


def test_candidates_far_behind_are_not_promising():
    found = [predicted(2.0, 2.0), predicted(2.6, 2.6), predicted(2.8, 2.8)]
    nowhere = torch.tensor([False, False])
    for lost in (nowhere, ~nowhere):
        assert promising(found, [True, True, True], lost, torch.ones(1)) == [True, True, False]


def test_models_compete_with_each_other():
    found = [predicted(2.0), predicted(2.2), predicted(2.5), predicted(2.6), predicted(2.8)]
    lost, baseline = torch.tensor([False]), [True, False, False, False, False]
    assert promising(found, baseline, lost, torch.ones(1)) == [True, True, True, False, False]
    assert promising(found[3:], [True, False], lost, torch.ones(1)) == [True, True]
    assert promising(found, baseline, lost, torch.ones(1), one_model=True) == [True, True, False, False, False]


@pytest.mark.parametrize("small", [0, 5000])
def test_only_the_best_model_of_small_data_continues(monkeypatch, small):
    monkeypatch.setattr(module, "_SMALL", small)
    models = [Configuration(name, latent_dim=2, num_steps=5 + i) for i, name in enumerate(("short", "long"))]
    report = auto(make_walk(), "forecast", candidates=models, baselines=[], horizon=5, refit=False).report
    assert len(report.stopped) == (1 if small else 0)


def test_a_candidate_that_is_good_for_lost_frames_or_for_lost_columns_continues():
    found = [predicted(1.0, 9.0), predicted(9.0, 1.0), predicted(8.0, 2.0)]
    lost = torch.tensor([False, True])
    assert promising(found, [True, True, True], lost, torch.ones(1)) == [True, True, False]


def test_a_stopped_candidate_is_reported_with_an_estimated_error():
    data = make_walk(drift=0.5)
    splits = Problem(data, "forecast", 5, 0).splits
    report = auto(data, "forecast", candidates=[], baselines=NAMES, horizon=5).report
    assert report.stopped == ["column mean"]
    errors = {c.name: c.error for c in report.candidates}
    assert list(errors) == NAMES
    first, every = (
        {name: relative_error(try_out(name, parts, 0).found, data.output_scales) for name in NAMES}
        for parts in (splits[:1], splits)
    )
    best = min(first, key=lambda name: first[name])
    assert errors["column mean"] == pytest.approx(
        math.sqrt(first["column mean"] ** 2 - first[best] ** 2 + every[best] ** 2)
    )
    for name in NAMES[1:]:
        assert errors[name] == pytest.approx(every[name])
    assert report.hidden == 4 * 5 * 3
    assert set(report.comparison.found) == {"ensemble", *NAMES[1:]}
    rows = [row["error"] for row in list(report.table())[1:]]
    assert rows == sorted(errors.values())


def test_a_failure_on_a_later_part_is_reported(monkeypatch):
    original = trials.make_baseline

    def sometimes(name, data, *args, **kwargs):
        if name == "last value" and data.num_frames > 70:
            raise ValueError("no such luck")
        return original(name, data, *args, **kwargs)

    monkeypatch.setattr(trials, "make_baseline", sometimes)
    report = auto(make_walk(), "forecast", candidates=[], baselines=NAMES, horizon=5, refit=False).report
    assert {c.name: c.failure for c in report.candidates if c.failure} == {"last value": "no such luck"}


def test_others_continue_if_all_that_are_near_fail(monkeypatch):
    original = trials.make_baseline

    def sometimes(name, data, *args, **kwargs):
        if name != "column mean" and data.num_frames > 70:
            raise ValueError("no such luck")
        return original(name, data, *args, **kwargs)

    monkeypatch.setattr(trials, "make_baseline", sometimes)
    report = auto(make_walk(0.5), "forecast", candidates=[], baselines=NAMES, horizon=5, refit=False).report
    assert {c.name for c in report.candidates if c.failure} == {"last value", "damped trend"}
    assert report.stopped == []
    assert report.best.name == "column mean"
    assert report.hidden == 4 * 5 * 3


def test_the_first_part_decides_if_there_is_no_time_for_others(monkeypatch):
    monkeypatch.setattr(module, "monotonic", lambda: math.inf)
    events = []
    report = auto(
        make_walk(), "forecast", candidates=[], baselines=NAMES, horizon=5, seconds=1000.0, progress=events.append
    ).report
    assert report.hidden == 5 * 3
    assert report.stopped == []
    assert report.skipped == []
    assert [event.name for event in events if event.kind == "done"] == NAMES


def test_each_candidate_is_done_once():
    events = []
    auto(make_walk(drift=0.5), "forecast", candidates=[], baselines=NAMES, horizon=5, progress=events.append)
    assert sorted(event.name for event in events if event.kind == "done") == sorted(NAMES)
    assert [event.finished for event in events if event.kind == "done"] == [1, 2, 3]
    assert [event.name for event in events if event.kind == "start"] == [*NAMES, *NAMES[1:]]


def test_the_errors_of_a_single_part_are_shown_when_they_are_known(monkeypatch):
    monkeypatch.setattr(Problem, "splits", property(lambda self: [self._part(0)]))
    events = []
    auto(make_walk(), "forecast", candidates=[], baselines=NAMES, horizon=5, progress=events.append, refit=False)
    assert [(event.kind, event.name) for event in events] == [
        (kind, name) for name in NAMES for kind in ("start", "done")
    ]


def test_the_best_model_may_have_been_stopped():
    line, curve = (Scored(name, False, error, 95.0, 1.0) for name, error in (("line", 0.5), ("curve", 0.7)))
    mean = Scored("column mean", True, 0.4, 95.0, 0.1, 1.0)
    report = Report("impute", [line, curve, mean], Scored("ensemble", False, 0.4, 95.0, 2.1, 1.0), 40, [], ["line"])
    assert report.best_model == line
    assert "of column mean is 0.4, that of the best model 0.5 (25 % more)" in str(report)
    assert Report("impute", [line, curve], line, 40, [], ["line"]).best == curve  # complete, not estimated
