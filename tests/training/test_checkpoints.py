# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, FileFormatError, fit
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.training import api as training
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
def test_undone_steps_are_resumed_too(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_BAD_DROP", 1e-3)
    options = {"tolerance": 0.0, "warmup": 4, "learning_rate": 0.5}
    whole = fit(*make(), num_steps=40, **options)
    assert whole.num_undone > 1
    fit(*make(), num_steps=21, checkpoint=tmp_path / "c", checkpoint_steps=7, **options)
    resumed = fit(*make(), num_steps=40, resume=tmp_path / "c", **options)
    assert resumed.num_undone == whole.num_undone
    assert [r.bound for r in resumed.history] == [r.bound for r in whole.history]


SCRIPT = textwrap.dedent(
    """
    import sys, torch
    torch.set_default_dtype(torch.float64); torch.set_num_threads(1)
    sys.path[:0] = {tests!r}
    from test_checkpoints import make
    from pyro_vgpds import fit
    import os
    path = {path!r}
    resume = path if os.path.exists(path) else None
    fit(*make(), num_steps=400, warmup=4, tolerance=0.0, checkpoint=path, checkpoint_steps=1, resume=resume)
    print("done", flush=True)
    """
)


@pytest.mark.long
def test_killed_at_any_moment_the_file_is_a_complete_one(tmp_path):
    path = tmp_path / "checkpoint"
    script = SCRIPT.format(tests=[str(folder) for folder in Path(__file__).parents[:2]], path=str(path))
    seen = []
    for i in range(6):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        first = path.stat().st_mtime_ns if path.exists() else None
        while process.poll() is None and time.monotonic() < deadline:  # until it has written something new
            if path.exists() and path.stat().st_mtime_ns != first:
                break
            time.sleep(0.005)
        time.sleep(0.03 + 0.037 * i)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
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


def test_what_cannot_be_resumed(tmp_path):
    path = tmp_path / "c"
    fit(*make(), num_steps=5, checkpoint=path, checkpoint_steps=1)
    with pytest.raises(ValueError, match=r"resume: the run was 'natural' .*but this one is 'adam'"):
        fit(*make(), num_steps=9, method="adam", resume=path)
    model, guide, data = make()
    other = VGPDS.from_data(data, 2, 8, temporal=Matern32() + White(1e-2) + Bias(0.1))
    with pytest.raises(ValueError, match="parameters are not those of this model"):
        fit(other, AutoOpperArchambeau(other), data, num_steps=5, resume=path)
    data = make_sequences(num_sequences=3, num_outputs=8, length=(8, 14), missing=0.1, noise=0.5).sequences()
    with pytest.raises(ValueError, match=r"resume: the bound was .* data or machine are others"):
        fit(model, guide, data, num_steps=5, resume=path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileFormatError, match="not a complete pyro_vgpds file"):
        fit(*make(), num_steps=5, resume=path)
    with pytest.raises(FileNotFoundError):
        fit(*make(), num_steps=5, resume=tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_steps": 0}, "checkpoint_steps must be a whole number of at least 1, but got 0"),
        ({"checkpoint_seconds": -1.0}, r"checkpoint_seconds must be 0 or more, but got -1\.0"),
        ({"num_restarts": 1}, "checkpoint and resume are for single runs"),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        fit(*make(), num_steps=2, checkpoint=tmp_path / "c", **options)
    with pytest.raises(ValueError, match="checkpoint: there is no folder"):
        fit(*make(), num_steps=2, checkpoint=tmp_path / "none" / "c")
    with pytest.raises(ValueError, match="checkpoint must be a file, but"):
        fit(*make(), num_steps=2, checkpoint=tmp_path)
