# SPDX-License-Identifier: Apache-2.0
import math
import os
import signal
import sys
import time

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, FileFormatError, fit
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.training import checkpoints
from pyro_vgpds.training.checkpoints import read_checkpoint, write_checkpoint


def make(prior=False):
    pyro.set_rng_seed(1)
    data = make_sequences(num_sequences=3, num_outputs=8, length=(8, 14), missing=0.1).sequences()
    lengthscale = dist.LogNormal(0.0, 0.3) if prior else None
    model = VGPDS.from_data(data, 3, 8, temporal=Matern32(1.0, lengthscale) + White(1e-2) + Bias(0.1))
    return model, AutoOpperArchambeau(model), data


def test_anything_nested_comes_back(tmp_path):
    content = {
        "numbers": [1, 2.5, math.inf, -math.inf, True, None, "text"],
        3: {"tensor": torch.arange(4, dtype=torch.int64), "empty": []},
        "deep": [{"a": [torch.randn(2, 2), {"t": 1}]}],
    }
    write_checkpoint(tmp_path / "c", content)
    again = read_checkpoint(tmp_path / "c")
    assert again["numbers"] == content["numbers"]
    assert torch.equal(again[3]["tensor"], content[3]["tensor"])
    assert torch.equal(again["deep"][0]["a"][0], content["deep"][0]["a"][0])
    assert again["deep"][0]["a"][1] == {"t": 1}


@pytest.mark.long
@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize(("method", "stop"), [("natural", 13), ("adam", 13), ("lbfgs", 40)])
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, method, stop, prior):
    options = {"method": method, "warmup": 4, "tolerance": 0.0}
    whole = make(prior)
    steps = 70 if method == "lbfgs" else 30
    result = fit(*whole, num_steps=steps, **options)
    path = tmp_path / "checkpoint"

    def crash(record):
        if record.step == stop:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fit(*make(prior), num_steps=steps, checkpoint=path, checkpoint_steps=1, callback=crash, **options)
    pyro.set_rng_seed(99)
    second = make(prior)
    with torch.no_grad():
        for parameter in (*second[0].parameters(), *second[1].parameters()):
            parameter.add_(0.1)  # the checkpoint has it all
    resumed = fit(*second, num_steps=steps, resume=path, **options)
    assert [r.bound for r in resumed.history] == [r.bound for r in result.history]
    assert resumed.bound == result.bound
    for a, b in zip(
        (*whole[0].parameters(), *whole[1].parameters()),
        (*second[0].parameters(), *second[1].parameters()),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.long
def test_undone_steps_are_resumed_too(tmp_path):
    options = {"tolerance": 0.0, "warmup": 4, "learning_rate": 1.5}
    whole = fit(*make(), num_steps=40, **options)
    stopped = fit(*make(), num_steps=14, checkpoint=tmp_path / "c", checkpoint_steps=7, **options)
    assert 1 < stopped.num_undone < whole.num_undone
    resumed = fit(*make(), num_steps=40, resume=tmp_path / "c", **options)
    assert resumed.num_undone == whole.num_undone
    assert [r.bound for r in resumed.history] == [r.bound for r in whole.history]


@pytest.mark.parametrize(("method", "tolerance"), [("natural", 0.1), ("lbfgs", 0.2)])
def test_a_run_that_has_converged_stays_so(tmp_path, method, tolerance):
    options = {"method": method, "num_steps": 300, "tolerance": tolerance}
    whole = fit(*make(), checkpoint=tmp_path / "c", **options)
    resumed = fit(*make(), resume=tmp_path / "c", **options)
    assert whole.stopped == resumed.stopped == "converged"
    assert resumed.history == whole.history


def test_a_run_that_is_stuck_ends_at_its_start_and_stays_so(tmp_path, monkeypatch):
    original, calls = Collapsed_ELBO.loss_and_grads, []

    def only_the_start(self, *args):
        loss = original(self, *args)
        calls.append(loss)
        return loss if abs(loss - calls[0]) < 1e-9 else math.inf

    monkeypatch.setattr(Collapsed_ELBO, "loss_and_grads", only_the_start)
    model, guide, data = make()
    whole = fit(model, guide, data, num_steps=100, warmup=4, checkpoint=tmp_path / "c")
    assert -Collapsed_ELBO().loss(model, guide, data) == pytest.approx(whole.history[0].bound, rel=1e-8)
    resumed = fit(*make(), num_steps=200, warmup=4, resume=tmp_path / "c")
    assert whole.stopped == resumed.stopped == "stuck"
    assert resumed.history == whole.history


@pytest.mark.long
def test_lbfgs_that_has_converged_in_the_warm_up_is_resumed_after_it(tmp_path):
    options = {"method": "lbfgs", "warmup": 100, "tolerance": 0.2}
    whole = fit(*make(), num_steps=150, **options)
    path = tmp_path / "c"

    def crash(record):
        if path.exists() and read_checkpoint(path)["loop"]["phase"] == 1:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fit(*make(), num_steps=150, checkpoint=path, checkpoint_steps=1, callback=crash, **options)
    resumed = fit(*make(), num_steps=150, resume=path, **options)
    assert [r.bound for r in resumed.history] == [r.bound for r in whole.history]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_at_any_moment_the_file_is_a_complete_one(tmp_path):
    """Again and again, each process from the checkpoint of the one that was killed before it."""
    path, seen = tmp_path / "checkpoint", []
    for i in range(6):
        first = path.stat().st_mtime_ns if path.exists() else None
        pid = os.fork()
        if not pid:
            try:
                options = {"checkpoint": path, "checkpoint_steps": 1, "resume": path if path.exists() else None}
                fit(*make(), num_steps=10_000, warmup=4, tolerance=0.0, progress=False, **options)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:  # until it has written something new
            if path.exists() and path.stat().st_mtime_ns != first:
                break
            time.sleep(0.005)
        time.sleep(0.03 + 0.037 * i)
        os.kill(pid, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "the process ended before it was killed"
        seen.append(len(read_checkpoint(path)["history"]))
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
    steps = seen[-1] + 3
    resumed = fit(*make(), num_steps=steps, warmup=4, tolerance=0.0, resume=path)
    whole = fit(*make(), num_steps=steps, warmup=4, tolerance=0.0)
    assert [r.bound for r in resumed.history] == [r.bound for r in whole.history]


def test_a_longer_run_takes_the_warm_up_of_the_first(tmp_path):
    path = tmp_path / "c"
    first = fit(*make(), num_steps=30, checkpoint=path, checkpoint_steps=1)
    longer = fit(*make(), num_steps=60, resume=path)
    assert [r.bound for r in longer.history[:31]] == [r.bound for r in first.history]
    assert longer.num_steps == 60


def test_by_time(tmp_path):
    path = tmp_path / "c"
    fit(*make(), num_steps=5, checkpoint=path, checkpoint_seconds=1e9)
    assert len(read_checkpoint(path)["history"]) == 6  # at the end in any case
    path.unlink()
    fit(*make(), num_steps=5, checkpoint=path, checkpoint_seconds=0.0)
    assert len(read_checkpoint(path)["history"]) == 6


@pytest.mark.parametrize(
    ("method", "steps", "written"),
    [("natural", 4, [4, 8, 10]), ("natural", 5, [5, 10]), ("lbfgs", 3, [3, 10]), ("lbfgs", 50, [10])],
)
def test_by_steps(tmp_path, monkeypatch, method, steps, written):
    """L-BFGS has states after the warm-up of 4 evaluations and at the end. The last state is written once."""
    seen = []
    monkeypatch.setattr(checkpoints, "write_checkpoint", lambda path, content: seen.append(content["history"][-1][0]))
    options = {"method": method, "warmup": 4, "tolerance": 0.0}
    result = fit(*make(), num_steps=10, checkpoint=tmp_path / "c", checkpoint_steps=steps, **options)
    assert seen == [*written[:-1], result.num_steps]
    assert result.num_steps >= 10 if method == "lbfgs" else result.num_steps == 10


def test_an_interrupted_chunk_of_lbfgs_is_stored_and_resumed(tmp_path):
    options = {"num_steps": 40, "method": "lbfgs", "warmup": 4, "tolerance": 0.0}
    whole = fit(*make(), **options)

    def interrupt(record):
        if record.step == 8:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = fit(*make(), checkpoint=tmp_path / "c", callback=interrupt, **options)
    assert stopped.stopped == "interrupted"
    assert len(read_checkpoint(tmp_path / "c")["history"]) == len(stopped.history) < len(whole.history)
    resumed = fit(*make(), resume=tmp_path / "c", **options)
    assert [r.bound for r in resumed.history] == [r.bound for r in whole.history]


def test_what_cannot_be_resumed(tmp_path):
    path = tmp_path / "c"
    fit(*make(), num_steps=5, checkpoint=path, checkpoint_steps=1)
    with pytest.raises(ValueError, match=r"Cannot resume: method was 'natural' and is now 'adam'; learning_rate was"):
        fit(*make(), num_steps=9, method="adam", resume=path)
    with pytest.raises(ValueError, match=r"Cannot resume: warmup was 0 and is now 3\. Only num_steps may differ"):
        fit(*make(), num_steps=9, warmup=3, resume=path)
    model, guide, data = make()
    other = VGPDS.from_data(data, 2, 8, temporal=Matern32() + White(1e-2) + Bias(0.1))
    with pytest.raises(ValueError, match=r"Cannot resume: the checkpoint's parameters are not those of this model"):
        fit(other, AutoOpperArchambeau(other), data, num_steps=5, resume=path)
    data = make_sequences(num_sequences=3, num_outputs=8, length=(8, 14), missing=0.1, noise=0.5).sequences()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"Cannot resume: the checkpoint's bound was .*, but the same step now gives"):
        fit(model, guide, data, num_steps=5, resume=path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    write_checkpoint(tmp_path / "other", {"method": "natural"})
    with pytest.raises(FileFormatError, match="is not a checkpoint of fit: it lacks best, best_bound, history"):
        fit(model, guide, data, num_steps=5, resume=tmp_path / "other")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileFormatError, match="not a complete pyro_vgpds file"):
        fit(*make(), num_steps=5, resume=path)
    with pytest.raises(FileNotFoundError):
        fit(*make(), num_steps=5, resume=tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_steps": 0}, "checkpoint_steps must be a whole number of at least 1, but got 0"),
        ({"checkpoint_seconds": -1.0}, r"checkpoint_seconds must be finite and 0 or more, but got -1\.0"),
        ({"num_restarts": 1}, "checkpoint and resume need num_restarts=0, but got num_restarts=1"),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        fit(*make(), num_steps=2, checkpoint=tmp_path / "c", **options)
    with pytest.raises(ValueError, match=r"checkpoint: the folder .* does not exist"):
        fit(*make(), num_steps=2, checkpoint=tmp_path / "none" / "c")
    with pytest.raises(ValueError, match="checkpoint must be the name of a file, but"):
        fit(*make(), num_steps=2, checkpoint=tmp_path)
