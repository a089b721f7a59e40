# SPDX-License-Identifier: Apache-2.0
"""Jobs in forked processes: results, failures, and no deadlock after threads were used."""

import os
import time

import pytest
import torch
from problems import make_data

from pyro_vgpds import VGPDS, AutoOpperArchambeau, fit
from pyro_vgpds.compiled import chunks, loop_threads
from pyro_vgpds.evaluation import cross_validate
from pyro_vgpds.selection import Configuration
from pyro_vgpds.training import forking
from pyro_vgpds.training.forking import can_fork, run_forked

needs_fork = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux only")
pytestmark = pytest.mark.long


def jobs(*functions):
    return sorted(run_forked(functions, 2))


@needs_fork
def test_closures_run_in_other_processes():
    here, numbers = os.getpid(), torch.arange(3.0)
    found = jobs(*[lambda i=i: {"pid": os.getpid(), "x": [numbers * i, None, "é", float("nan")]} for i in range(4)])
    assert [i for i, _ in found] == [0, 1, 2, 3]
    assert here not in {row["pid"] for _, row in found}
    for i, row in found:
        assert torch.equal(row["x"][0], numbers * i)
        assert row["x"][1:3] == [None, "é"]


@needs_fork
def test_a_failed_process_is_repeated_here():
    here = os.getpid()

    def dies():
        if os.getpid() != here:
            os._exit(3)
        return "here"

    def broken():
        raise KeyError("fold")

    def no_number():
        return object() if os.getpid() != here else 1

    assert jobs(dies, no_number, lambda: "there") == [(0, "here"), (1, 1), (2, "there")]
    with pytest.raises(KeyError, match="fold"):
        jobs(broken, lambda: 1)


@needs_fork
def test_processes_end_with_the_iterator(tmp_path):
    def slow():
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

    results = run_forked([lambda: 1, slow, slow], 3)
    assert next(results) == (0, 1)
    results.close()
    for pid in map(int, os.listdir(tmp_path)):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@needs_fork
def test_one_thread_for_compiled_loops():
    with loop_threads(4):
        assert len(chunks(100, 1, float("inf"))) == 4
        results = run_forked([lambda: len(chunks(100, 1, float("inf")))] * 2, 2)
        assert sorted(results) == [(0, 1), (1, 1)]


@needs_fork
def test_no_deadlock_after_threads():
    # torch's own threads and those of the compiled loops have run here; the forked processes have none of them
    torch.set_num_threads(4)
    try:
        x = torch.randn(400, 400)
        (x @ x).exp().sum().item()
        data = make_data((40, 30))
        small = Configuration("small", latent_dim=2, num_inducing=8, num_steps=3)
        small.fit(data)
        table = cross_validate(small.fit, data, num_folds=3, processes=2, progress=False)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(1)
    assert table["fold"] == [0, 1, 2]


def test_folds_are_the_same_in_processes():
    data = make_data((40, 30), missing=0.1)
    small = Configuration("small", latent_dim=2, num_inducing=8, num_steps=3)

    def rows(count):
        table = cross_validate(lambda train: small.fit(train, 1), data, num_folds=3, processes=count, progress=False)
        return [{name: value for name, value in row.items() if name != "seconds"} for row in table]

    assert rows(2) == rows(1)


def test_restarts_are_the_same_in_processes(monkeypatch):
    data = make_data((30, 24))

    def run(count):
        torch.manual_seed(3)
        model = VGPDS.from_data(data, 2, 8)
        guide = AutoOpperArchambeau(model)
        result = fit(model, guide, data, num_steps=4, num_restarts=2, processes=count, progress=False)
        return result, [p.detach().clone() for p in (*model.parameters(), *guide.parameters())]

    expected, values = run(1)
    found, own = run(3)
    assert found.bound == expected.bound
    assert [record.bound for record in found.history] == [record.bound for record in expected.history]
    assert all(map(torch.equal, own, values))
    monkeypatch.setattr(forking, "can_fork", lambda: False)
    monkeypatch.setattr("pyro_vgpds.training.restarts.can_fork", lambda: False)
    assert run(3)[0].bound == expected.bound
    model = VGPDS.from_data(data, 2, 8)
    with pytest.raises(ValueError, match="callback needs processes=1, but got processes=2"):
        fit(model, AutoOpperArchambeau(model), data, processes=2, callback=print)
    with pytest.raises(ValueError, match="processes must be a whole number of at least 1, but got 0"):
        fit(model, AutoOpperArchambeau(model), data, processes=0)
    with pytest.raises(ValueError, match="processes must be a whole number of at least 1, but got 0"):
        cross_validate(print, data, processes=0)
