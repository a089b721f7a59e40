# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while they write: the file is a whole one, and nothing is left behind.

``PYRO_VGPDS_KILLS`` is the number of kills of each kind of writer. Default: a few.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyro
import pytest
import torch
from problems import make_data

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    Posterior,
    auto,
    fit,
    load,
    load_metadata,
    load_posterior,
    save,
    save_posterior,
)
from pyro_vgpds.kernels import RBF, White
from pyro_vgpds.selection import Configuration

COUNT = int(os.environ.get("PYRO_VGPDS_KILLS", "10"))
STEPS = 12
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only"),
]


def small():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    data = make_data((9, 7), missing=0.1)
    model = VGPDS.from_data(data, 2, 4, RBF(1.0, 0.5) + White(0.01))
    return model, AutoOpperArchambeau(model), data


def killed(work: Callable[[], object], seconds: float) -> None:
    """Run ``work`` in a forked process, again and again, and kill it after this many seconds."""
    pid = os.fork()
    if not pid:
        try:
            torch.set_num_threads(1)
            while True:
                work()
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "the process ended before it was killed"


def kills(name: str, longest: float, work: Callable[[], object], path: Path, check: Callable[[], object]) -> None:
    """Kill processes at random times. After each, check what is there; then write, and see that nothing is left."""
    dice = random.Random(name)
    for _ in range(COUNT):
        killed(work, longest * dice.random())
        check()
    work()
    check()
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_models(tmp_path):
    path, (model, guide, data) = tmp_path / "model.safetensors", small()

    def write() -> None:
        value = random.uniform(0.1, 1.0)
        with torch.no_grad():
            model.noise.fill_(value)
        save(path, model, guide, data, {"noise": float(model.noise.detach()[0])})

    def check() -> None:
        assert float(load(path)[0].noise.detach()[0]) == load_metadata(path)["noise"]

    write()
    kills("models", 0.05, write, path, check)


def test_posteriors(tmp_path):
    path, (model, guide, data) = tmp_path / "posterior.safetensors", small()

    def write() -> None:
        value = random.uniform(0.1, 1.0)
        save_posterior(path, Posterior(model, guide, data, noise_variance=value), {"noise": value})

    def check() -> None:
        assert float(load_posterior(path).origin.noise_variance[0]) == load_metadata(path)["noise"]

    write()
    kills("posteriors", 0.1, write, path, check)


@pytest.mark.long
def test_checkpoints_that_resume(tmp_path):
    path, (model, guide, data) = tmp_path / "checkpoint.safetensors", small()
    whole = fit(model, guide, data, STEPS, progress=False)

    def write() -> None:
        fit(*small(), STEPS, progress=False, checkpoint=path, checkpoint_steps=1)

    def check() -> None:
        if path.exists():
            found = fit(*small(), STEPS, progress=False, resume=path)
            assert [record.bound for record in found.history] == [record.bound for record in whole.history]

    kills("checkpoints", 0.6, write, path, check)


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_tables(suffix, tmp_path):
    path, (model, guide, data) = tmp_path / f"table.{suffix}", small()
    post = Posterior(model, guide, data)
    tables = [post.forecast([3.0 + i, 4.0 + i], 0) for i in range(2)]
    contents = set()
    for table in tables:
        table.to_file(path)
        contents.add(path.read_bytes())

    def check() -> None:
        assert path.read_bytes() in contents

    kills(suffix, 0.05, lambda: random.choice(tables).to_file(path), path, check)


@pytest.mark.long
def test_comparisons_continue(tmp_path):
    """Comparisons that are killed in the same folder: each finds what is whole, and the results are those of one."""
    data = make_data((20, 16), missing=0.1)
    models = [Configuration(name, latent_dim=1, num_inducing=4, num_steps=2) for name in ("one", "two")]
    options = {"candidates": models, "baselines": ["column mean"], "progress": False, "processes": 1}
    wanted, folder = auto(data, "impute", **options), tmp_path / "work"
    dice = random.Random(0)
    for _ in range(max(2, COUNT // 5)):
        killed(lambda: auto(data, "impute", folder=folder, **options), 1.0 * dice.random())
        found = auto(data, "impute", folder=folder, **options)
        assert torch.equal(found.impute().mean, wanted.impute().mean)
        left = sorted(one.name.split("-")[0] for one in folder.iterdir())
        assert set(left) <= {"final", "more", "try"}
        for one in folder.iterdir():
            if dice.random() < 0.5:
                one.unlink()
