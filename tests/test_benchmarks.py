# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run and print their tables; no time is asserted."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.long


@pytest.fixture
def run(monkeypatch, capsys):
    """A function that runs a benchmark in this process, with the defaults of a new one, and returns what it prints."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        torch.set_default_dtype(torch.float32)
        pyro.clear_param_store()
        importlib.import_module(name).main()
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("size", "bound"), [("S", -126636.04092072089), ("mocap", -11437747.404213583)])
def test_bound(size, bound, run):
    result = json.loads(run("benchmarks.bound", "--size", size, "--threads", "1", "--runs", "1"))
    assert set(result) == {"size", "dtype", "seconds_median", "cpu_median", "peak_rss_mb", "bound"}
    assert result["size"] == size
    assert result["bound"] == pytest.approx(bound, rel=1e-9)


def test_large(run):
    sizes = ("--sequences", "8", "--frames", "20", "--outputs", "6", "--latent-dim", "2", "--num-inducing", "8")
    options = ("--sample", "4", "--sample-steps", "3", "--batch-size", "4", "--epochs", "1", "--full-steps", "2")
    result = json.loads(run("benchmarks.large", "--json", *sizes, *options).splitlines()[-1])
    assert set(result) == {"collapsed_difference", "batch_difference", "cpu_ratio", "peak_mb"}
    assert result["collapsed_difference"] < 1e-8
    assert result["batch_difference"] < 1e-10


def test_table(run):
    lines = run("benchmarks.table", "--sizes", "S", "--runs", "1").splitlines()
    assert lines[-3].startswith("| size |")
    assert lines[-1].startswith("| S |")


@pytest.mark.parametrize(("case", "options"), [("missing", []), ("wide", ["--outputs", "20000"])])
def test_data(case, options, run):
    result = json.loads(run("benchmarks.data", case, *options))
    assert result["case"] == case
    assert result["ratio"] == pytest.approx(result["cpu"] / result["plain_cpu"])


def test_scaling(tmp_path, run):
    sizes = ["--frames", "60", "80", "--dense-frames", "60", "--base-frames", "60", "--outputs", "5", "6"]
    sizes = [*sizes, "--inducing", "4", "5", "--runs", "1", "--plot", str(tmp_path / "scaling.png")]
    output = run("benchmarks.scaling", *sizes).splitlines()
    assert [line.split("|")[1].strip() for line in output if line.startswith("| ") and "---" not in line] == [
        "N", "60", "80", "D", "5", "6", "M", "4", "5",
    ]  # fmt: skip
    with Image.open(tmp_path / "scaling.png") as picture:
        assert picture.size == (1440, 480)
        panels = np.split(np.asarray(picture.convert("RGB")), 3, axis=1)
    for panel in panels:  # a line in matplotlib's first colour in each
        assert (np.abs(panel - np.array([31, 119, 180])).max(-1) < 10).sum() > 50


def test_threads(run, monkeypatch):
    monkeypatch.setenv("PYRO_VGPDS_THREADS", "")  # the benchmark sets it
    output = run("benchmarks.threads", "--sizes", "tiny", "--steps", "1", "--runs", "1", "--threads", "1").splitlines()
    assert output[-1].startswith("| tiny | 100 x 20, 2, 15 | ")
    assert output[-1].endswith(" | 1 |")


def test_small_steps(run):
    output = run("benchmarks.training", "--small", "--cells", "tiny-twenty-blocks", "--steps", "4", "--json")
    row = json.loads(output)
    assert list(row) == ["cell", "step_ms", "loss_and_grads_ms", "ratio"]
    assert row["cell"] == "tiny-twenty-blocks"
    assert row["ratio"] == pytest.approx(row["step_ms"] / row["loss_and_grads_ms"], rel=1e-2)


def test_small_steps_beside(run):
    arguments = ["--cells", "tiny-linear-shared", "--steps", "1", "--beside", str(ROOT), "--rounds", "1"]
    lines = run("benchmarks.training", "--small", *arguments).splitlines()
    assert lines[0].endswith("| ratio | here_ms | there_ms | there / here |")
    assert lines[2].startswith("| tiny-linear-shared | ")


def test_small_steps_unknown():
    from benchmarks.steps import make

    with pytest.raises(ValueError, match=r"a cell is one of tiny, small, .* not 'small-red'"):
        make("small-red")


def test_auto_tables(tmp_path, run):
    scores = {"legs": {"SC": 13.3, "RA": 2.7}, "body": {"SC": 8.6, "RA": 1.56}}
    times = {"auto s": 60.0, "linear dynamical system s": 4.0}
    walks = {"scores": {name: [scores] for name in ("auto", "NN", "NN sc.")}, **times}
    (tmp_path / "cmu35-test-0.json").write_text(json.dumps(walks))
    faces = {"auto": {"MAE": 1.61, "MSE": 9.0}, "NN, best k": {"MAE": 1.7, "MSE": 16.0}}
    (tmp_path / "missa-impute-1-0.json").write_text(json.dumps({"scores": faces, "outputs": 12, **times}))
    output = run("benchmarks.auto_tables", "--table", "--output", str(tmp_path))
    assert "| auto / recipe | 2.000 | 1.000 | 1.000 | 1.000 |" in output
    assert "auto 60 s, linear dynamical system 4.0 s, ratio 15.0" in output
    assert "| impute | 12 | 1.61 | 9 | 1.288 | 1.250 | 1.7 | 60 | 4.0 | 15.0 |" in output


def test_auto_tables_average_pixels():
    from benchmarks.auto_tables import shrunk
    from pyro_vgpds.datasets import Video

    y, hidden = np.arange(40.0).reshape(2, 20), np.arange(20) < 9
    video = Video(
        [np.arange(2.0)], [y], "a film", shape=(4, 5), fps=1.0, train=np.arange(1), test=np.arange(1, 2), hidden=hidden
    )
    small = shrunk(video, 2)
    assert small.shape == (2, 2)
    np.testing.assert_allclose(small.y[0][0], [3.0, 5.0, 13.0, 15.0])
    assert small.hidden.tolist() == [True, True, False, False]


def test_defaults(tmp_path, run):
    arguments = ["model (generated)", "--tasks", "points", "ahead", "--methods", "baselines", "--seeds", "1"]
    lines = run("benchmarks.defaults", *arguments, "--jobs", "1", "--output", str(tmp_path)).splitlines()
    assert lines[0].startswith("| data | task | seeds | best baseline | its error | auto |")
    assert [line.split(" | ")[1:3] for line in lines[2:4]] == [["ahead", "1"], ["points", "1"]]
    assert len(list(tmp_path.glob("*.json"))) == 2
    again = run("benchmarks.defaults", *arguments, "--table", "--output", str(tmp_path)).splitlines()
    assert again == lines  # finished cells are reused


def test_lost_days_and_spikes(monkeypatch):
    from benchmarks import defaults

    y = np.random.default_rng(0).standard_normal((240, 3))
    y /= y.std(0)
    monkeypatch.setitem(defaults.DATA, "hours", lambda seed: ([np.arange(240.0)], [y]))
    for task, lost in (("days", 2 * 3), ("spikes", 2 * 3), ("lostdays", 2 * 3)):
        split = defaults.make_split("hours", task, 1)
        (truth,), (seen,) = split.truth, split.y
        hidden = truth.isfinite().numpy()
        assert 24 * lost / 2 <= hidden.sum() <= 24 * lost, task
        assert (hidden.all(1).sum() == 48) == (task == "lostdays"), task
        np.testing.assert_allclose(truth.numpy()[hidden], y[hidden])
        assert not seen.isfinite().numpy()[hidden].any()
        wrong = np.abs(seen.numpy()[~hidden] - y[~hidden]) > 1e-9
        assert (0 < wrong.mean() < 0.03) == (task == "spikes"), task
    assert defaults.make_split("hours", "fifth", 1).truth[0].shape == (48, 3)


def test_distributed():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "benchmarks.distributed", "--size", "S", "--runs", "1", "--json"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    result = json.loads(output.splitlines()[-1])
    assert set(result) == {"difference", "speedup", "bytes_per_step"}
    assert result["difference"] < 1e-10
    assert result["bytes_per_step"] <= 2 * 8 * (50 * 50 + 50 * 50)


def test_standard_errors_of_overlapping_windows():
    flu_ahead = importlib.import_module("benchmarks.flu_ahead")
    x = np.random.default_rng(0).standard_normal(400)
    alone = np.std(x, ddof=1) / 20.0
    assert flu_ahead.standard_error(x, 0) == pytest.approx(alone)
    assert flu_ahead.standard_error(np.repeat(x[:200], 2), 1) == pytest.approx(
        np.std(np.repeat(x[:200], 2), ddof=1) / 20.0 * 1.5**0.5, rel=0.05
    )


def test_differences_of_heavy_tails_are_those_of_the_same_seeds():
    heavy_tails = importlib.import_module("benchmarks.heavy_tails")
    first = [{"RMSE": 1.0}, {"RMSE": 3.0}]
    assert heavy_tails.summary(first, first) == {"RMSE": 2.0}
    found = heavy_tails.summary([{"RMSE": 1.5}, {"RMSE": 3.7}], first)
    assert found == {"RMSE": 2.6, "RMSE, difference": "+0.6000 ± 0.1000"}
