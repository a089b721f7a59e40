# SPDX-License-Identifier: Apache-2.0
"""Worker processes, and folders in which finished candidates are kept."""

import itertools
import math
import subprocess
import sys
import threading

import pytest
import torch

from pyro_vgpds import Sequences, auto
from pyro_vgpds.data.parts import base_outputs
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.selection import Configuration, race
from pyro_vgpds.selection.jobs import Workplace
from pyro_vgpds.selection.problem import Problem

MODELS = [
    Configuration("small", latent_dim=2, num_inducing=8, num_steps=3),
    Configuration("line", mapping="linear", latent_dim=2, num_inducing=3, num_steps=3, lags=(-1, 1)),
]
NAMES = ["column mean", "probabilistic PCA"]


def make_data(seed=3):
    return make_sequences(num_sequences=2, num_outputs=4, length=(24, 28), missing=0.1, seed=seed).sequences()


def run(data, **options):
    return auto(data, "impute", candidates=MODELS, baselines=NAMES, **options)


def same(first, second):
    assert first.names == second.names
    assert torch.equal(first.impute().mean, second.impute().mean)
    assert torch.equal(first.impute().variance, second.impute().variance)
    assert [(c.name, c.error, c.weight) for c in first.report.candidates] == [
        (c.name, c.error, c.weight) for c in second.report.candidates
    ]


@pytest.fixture
def untrainable(monkeypatch):
    """A function after which no candidate can be trained."""

    def forbid():
        def fail(self, *args, **kwargs):
            raise AssertionError("trained again")

        monkeypatch.setattr(Configuration, "fit", fail)
        monkeypatch.setattr("pyro_vgpds.selection.trials.make_baseline", fail)

    return forbid


@pytest.mark.long
def test_two_processes_give_the_results_of_one(tmp_path):
    data = make_data()
    same(run(data, processes=1), run(data, processes=2, folder=tmp_path))
    assert not list(tmp_path.glob("*.begun"))
    assert not list(tmp_path.glob("*.part"))


def test_a_folder_keeps_what_is_finished(tmp_path, untrainable):
    data = make_data()
    options = {"candidates": MODELS[:1], "baselines": [], "folder": tmp_path / "new"}
    first = auto(data, "impute", **options)
    kept = sorted((tmp_path / "new").iterdir())
    assert [path.name.split("-")[0] for path in kept] == ["final", "more", "try"]
    untrainable()
    same(first, auto(data, "impute", **options))
    assert sorted((tmp_path / "new").iterdir()) == kept


def test_an_interrupted_comparison_continues(tmp_path, monkeypatch):
    data, original, count = make_data(), Configuration.fit, []

    def fit(self, *args, **kwargs):
        count.append(self.name)
        if len(count) == 5:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Configuration, "fit", fit)
    for limit, value in (("_SMALL", 0), ("_BEHIND", math.inf), ("_BEHIND_MODEL", math.inf)):
        monkeypatch.setattr(race, limit, value)  # both models continue
    with pytest.raises(KeyboardInterrupt):
        run(data, folder=tmp_path, refit=False)
    found = run(data, folder=tmp_path, refit=False)
    # the first of four held-out parts, then the others, of which those of the first model are repeated
    assert count == ["small", "line"] + ["small"] * 3 + ["small"] * 3 + ["line"] * 3
    same(found, run(data, refit=False))


def test_other_problems_in_the_folder_are_others(tmp_path):
    options = {"folder": tmp_path, "refit": False}
    first = run(make_data(), **options)
    same(run(make_data(4), **options), run(make_data(4), refit=False))
    assert first.report.ensemble.error != run(make_data(), seed=1, **options).report.ensemble.error


def test_results_of_another_procedure_are_not_continued(tmp_path, monkeypatch):
    data, options = make_data(), {"candidates": MODELS[:1], "baselines": ["column mean"], "folder": tmp_path}
    auto(data, "impute", **options)
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("pyro_vgpds.selection.problem._PROCEDURE", 1)
    auto(data, "impute", **options)
    assert len(list(tmp_path.iterdir())) == 2 * len(kept)  # all trials and results once more
    assert all(path.read_bytes() == content for path, content in kept.items())


def test_damaged_files_and_claims_of_dead_processes_are_ignored(tmp_path):
    data = make_data()
    first = run(data, folder=tmp_path, refit=False)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    place = Workplace(Problem(data, "impute", None, 0), tmp_path)
    for candidate in MODELS:
        place._mark(place._path(candidate, "try")).write_text(str(dead.pid))
    same(first, run(data, folder=tmp_path, refit=False))
    assert not list(tmp_path.glob("*.begun"))


def test_a_worker_that_is_killed_while_it_works_is_replaced(tmp_path):
    data = make_data()
    place = Workplace(Problem(data, "impute", None, 0), tmp_path)
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    place._workers.append(worker)
    place._mark(place._path(MODELS[0], "try")).write_text(str(worker.pid))
    threading.Timer(0.3, worker.kill).start()
    ((candidate, trial),) = place.tries(MODELS[:1], math.inf, lambda name: None)
    assert candidate is MODELS[0]
    assert trial.name == "small"
    place.close()
    assert not list(tmp_path.glob("*.begun"))


@pytest.mark.long
def test_a_worker_that_cannot_start_is_replaced_by_this_process(monkeypatch):
    data = make_data()
    monkeypatch.setattr("pyro_vgpds.selection.jobs.sys.executable", "/bin/false")
    same(run(data, processes=3, refit=False), run(data, processes=1, refit=False))


def test_without_refit_the_members_never_saw_what_is_held_out():
    data = make_data()
    found = run(data, refit=False)
    seen = [int(base_outputs(member.data).isfinite().sum()) for member in found.members]  # without lagged copies
    assert all(count < data.num_observed for count in seen)


def test_the_number_of_processes_must_be_positive():
    with pytest.raises(ValueError, match="processes must be a whole number of at least 1, but got 0"):
        run(make_data(), processes=0)


def test_forecasts_have_four_origins_which_overlap_if_the_horizon_is_long():
    data = make_sequences(num_sequences=1, num_outputs=3, length=(80, 80), seed=0).sequences()
    lengths = [split.train.num_frames for split in Problem(data, "forecast", 4, 0).splits]
    assert lengths == [64, 68, 72, 76]
    assert [split.train.num_frames for split in Problem(data, "forecast", None, 0).splits] == [60, 63, 67, 70]
    assert [split.train.num_frames for split in Problem(data, "forecast", 8, 0).splits] == [64, 67, 69, 72]
    assert [split.train.num_frames for split in Problem(data, "forecast", 1, 0).splits] == [76, 77, 78, 79]
    assert [split.train.num_frames for split in Problem(data, "forecast", 38, 0).splits] == [4, 17, 29, 42]
    assert [split.train.num_frames for split in Problem(data, "forecast", 40, 0).splits] == [40]


def test_there_are_several_parts_if_one_has_few_gaps():
    data = make_sequences(num_sequences=1, num_outputs=3, length=(80, 80), seed=0).sequences()
    y = data.y.clone()
    y[30:38] = torch.nan
    few = Sequences(data.times.t, y)
    y = data.y.clone()
    y[1:-1:3, 1] = torch.nan
    many = Sequences(data.times.t, y)
    parts = Problem(few, "impute", None, 0).splits
    assert len(parts) == 4
    hidden = [torch.cat(part.truth).isfinite() for part in parts]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(hidden, 2))
    assert len(Problem(many, "impute", None, 0).splits) == 4  # of few entries
    data = make_sequences(num_sequences=1, num_outputs=30, length=(200, 200), seed=0).sequences()
    y = data.y.clone()
    y[1:-1:3] = torch.where(torch.arange(30) < 15, torch.nan, y[1:-1:3])
    assert len(Problem(Sequences(data.times.t, y), "impute", None, 0).splits) == 1


@pytest.mark.parametrize(("outputs", "parts"), [(10, 4), (50, 4), (100, 3), (300, 2)])
def test_many_outputs_need_fewer_parts(outputs, parts):
    y = torch.randn(100, outputs)
    y[30:38] = y[60:68] = torch.nan
    assert len(Problem(Sequences(torch.arange(100.0), y), "impute", None, seed=1).splits) == parts  # of two gaps


def test_parts_of_whole_sequences_differ_in_them():
    data = make_sequences(num_sequences=2, num_outputs=3, length=(20, 20), seed=0).sequences()
    assert sorted(part.kept for part in Problem(data, "reconstruct", None, 0).splits) == [[0], [1]]
    data = make_sequences(num_sequences=6, num_outputs=3, length=(20, 20), seed=0).sequences()
    parts = Problem(data, "reconstruct", None, 0).splits
    assert len(parts) == 4
    assert all(a.kept != b.kept for a, b in itertools.combinations(parts, 2))


def test_given_columns_are_hidden_in_all_parts(tmp_path):
    data = make_sequences(num_sequences=5, num_outputs=6, length=(20, 24), seed=3).sequences()
    problem = Problem(data, "reconstruct", None, 0, hidden=[1, 4])
    for split in problem.splits:
        for truth in split.truth:
            assert truth.isfinite().any(0).nonzero().flatten().tolist() == [1, 4]
    problem.write(tmp_path / "p.safetensors")
    assert Problem.read(tmp_path / "p.safetensors").hidden == [1, 4]
    assert len({Problem(data, "reconstruct", None, 0, hidden=hidden).digest for hidden in (None, [1], [1, 4])}) == 3
