# SPDX-License-Identifier: Apache-2.0
"""The experiments from end to end on small synthetic data, and the files that they write."""

import json
import math
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_vgpds import Solver, datasets, experiments, fit, load, load_metadata, load_posterior, metrics
from pyro_vgpds.baselines import nearest_neighbour
from pyro_vgpds.cli import main
from pyro_vgpds.datasets import CMU35, Dataset, Motion, make_pendulum_video, make_sequences, stick_figure
from pyro_vgpds.experiments import imputation, missa, recipe
from pyro_vgpds.experiments.imputation import Task
from pyro_vgpds.experiments.recipe import Recipe, balanced_scale
from pyro_vgpds.experiments.record import Folder, spread, table
from pyro_vgpds.experiments.video import hide_tiles, in_time
from pyro_vgpds.prediction.fitted import predict_with

pytestmark = pytest.mark.long


def small_video(frames=100):
    return make_pendulum_video(num_frames=frames, height=12, width=12, period=12.0)


def small_motion():
    """Six short training sequences of 59 features that follow a circle, and a test sequence."""
    rng = np.random.default_rng(0)
    loadings = 0.3 * rng.standard_normal((3, 59))

    def walk(n):
        angle = 0.4 * np.arange(n) + rng.uniform(0, 6)
        paths = np.stack([np.sin(angle), np.cos(angle), np.full(n, rng.standard_normal())], 1)
        return 0.05 * np.arange(n), paths @ loadings + 0.02 * rng.standard_normal((n, 59))

    pairs = [walk(n) for n in (20, 24, 18, 22, 20, 21, 26)]
    t, y = (list(part) for part in zip(*pairs, strict=True))
    blocks = {"legs": np.arange(7, 14), "body": np.arange(20, 50)}
    return CMU35(
        t[:-1], y[:-1], "made up", skeleton=stick_figure(), channels=[], test_t=t[-1], test_y=y[-1],
        test_channels=np.zeros((26, 62)), scale=np.ones(59), blocks=blocks,
    )  # fmt: skip


def test_finished_parts_are_reused(tmp_path):
    folder, calls = Folder(tmp_path / "out"), []

    def compute(files):
        calls.append(1)
        (files / "picture.png").write_text(f"drawn by call {len(calls)}")
        return {"error": 1.5, "values": np.array([[1.0, np.nan], [2.0, 3.0]]), "nested": {"a": [1, 2]}}

    first = folder.once("part", {"seed": 0}, compute)
    again = folder.once("part", {"seed": 0}, compute)
    assert len(calls) == 1
    assert again["error"] == first["error"]
    np.testing.assert_array_equal(again["values"], first["values"])
    folder.once("part", {"seed": 1}, compute)  # other settings
    assert (folder / "picture.png").read_text() == "drawn by call 2"
    folder.once("part", {"seed": 0}, compute)  # the first result and its picture are still there
    assert (folder / "picture.png").read_text() == "drawn by call 1"
    assert len(calls) == 2
    for file in (folder / "runs").glob("*.json"):
        file.write_text("{ cut sh")
    folder.once("part", {"seed": 1}, compute)
    assert len(calls) == 3
    assert not list(tmp_path.rglob("*.partial"))


def test_interrupted_parts_are_not_kept(tmp_path, monkeypatch):
    made = make_sequences(num_sequences=1, num_outputs=12, seed=2)
    data = Dataset(made.t, made.y, "made up")
    monkeypatch.setattr(datasets, "load_spellman", lambda: data)

    def interrupted(*args, **options):
        return fit(*args, callback=lambda *step: signal.raise_signal(signal.SIGINT), **options)

    monkeypatch.setattr(recipe, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiments.run("yeast", tmp_path, seeds=1, quick=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() or path.suffix == ".partial"]


def test_a_quick_run_keeps_the_full_one(tmp_path, monkeypatch, capsys):
    """Experiments and sizes that share a folder keep their own parts; the last command's results are shown."""
    made = make_sequences(num_sequences=1, num_outputs=12, seed=2)
    data = Dataset(made.t, made.y, "made up")
    monkeypatch.setattr(datasets, "load_spellman", lambda: data)
    monkeypatch.setattr(datasets, "load_robot_wireless", lambda: data)
    experiments.run("yeast", tmp_path, seeds=1)
    assert "yeast-0: " in capsys.readouterr().err  # printed when finished
    kept = {name: (tmp_path / name).read_bytes() for name in ("yeast.safetensors", "yeast.png")}
    table = json.loads((tmp_path / "yeast.json").read_text())
    experiments.run("yeast", tmp_path, seeds=1, quick=True, progress=False)
    experiments.run("robot", tmp_path, seeds=1, quick=True, progress=False)
    assert capsys.readouterr().err == ""
    assert (tmp_path / "yeast.safetensors").read_bytes() != kept["yeast.safetensors"]
    experiments.run("yeast", tmp_path, seeds=1)
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept
    assert json.loads((tmp_path / "yeast.json").read_text()) == table


def test_tables():
    assert spread([1.0]) == {"mean": 1.0, "sd": 0.0}
    assert spread([1.0, 3.0])["sd"] == pytest.approx(math.sqrt(2.0))
    text = table(["", "MAE"], [["ours", spread([1.0, 3.0])], ["theirs", 2.5], ["", spread([2.0])]])
    assert text.splitlines()[2:] == ["| ours | 2 ± 1.4 |", "| theirs | 2.5 |", "|  | 2 |"]


def test_cmu35(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets, "load_cmu35", small_motion)
    experiments.run("cmu35", tmp_path, seeds=2, quick=True)
    results = json.loads((tmp_path / "cmu35.json").read_text())
    for label in ("VGPDS", "NN", "NN sc.", "MAP GP-LVM"):
        for block in ("legs", "body"):
            assert set(results[label][block]) == {"SC", "RA"}
    walks = small_motion()
    for block in ("legs", "body"):
        for label, scaled in (("NN", False), ("NN sc.", True)):
            guess = nearest_neighbour(walks.y, walks.hide(walks.test_y, block), scaled=scaled)
            assert results[label][block]["RA"]["mean"] == pytest.approx(walks.score(walks.test_y, guess, block)["RA"])
        # an error of 0.3 is that of hiding nothing but the mean
        assert results["VGPDS"][block]["RA"]["mean"] < math.degrees(0.6)
        assert results["folds"]["VGPDS"][block]["RA"]["mean"] < math.degrees(0.6)
    assert 0 < results["VGPDS"]["legs"]["RA"]["sd"] < results["VGPDS"]["legs"]["RA"]["mean"]
    text = (tmp_path / "cmu35.md").read_text()
    assert "| paper: VGPDS, RBF | 8.19 | 3.57 | 10.73 | 1.90 |" in text
    assert text.strip() == capsys.readouterr().out.strip()
    with Image.open(tmp_path / "cmu35.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    assert (0xB5, 0xB5, 0xB5) in colours  # the truth behind
    assert any(max(colour) - min(colour) > 80 for colour in colours)  # and predictions in colour
    mixture = load_posterior(tmp_path / "cmu35.safetensors")
    assert len(mixture.posteriors) == 4
    scale = torch.from_numpy(np.concatenate(small_motion().y).std(0))
    for posterior in mixture.posteriors:
        model, data = posterior.origin.model, posterior.data
        assert model.num_outputs == 3 * 59  # with those of two lags
        assert data.lags == (-4, 4)
        assert data.num_sequences == 6
        assert posterior.origin.residual is not None
        torch.testing.assert_close(model.output_scale[:59], scale)

    def no_training(*args):
        raise AssertionError("a second run must reuse finished parts")

    monkeypatch.setattr(Recipe, "train", no_training)
    before = (tmp_path / "cmu35.json").read_text()
    experiments.run("cmu35", tmp_path, seeds=2, quick=True)
    assert (tmp_path / "cmu35.json").read_text() == before
    experiments.run("cmu35", tmp_path, seeds=1, quick=True)  # the seed of the file
    results, motion = json.loads((tmp_path / "cmu35.json").read_text()), small_motion()
    for block in ("legs", "body"):  # from Python and on the command line
        seen = motion.hide(motion.test_y, block)
        found = mixture.reconstruct(motion.test_t, seen, fill=True, solver=Solver(num_starts=2, num_steps=10)).mean
        for kind, score in motion.score(motion.test_y, found.numpy(), block).items():
            assert score == pytest.approx(results["VGPDS"][block][kind]["mean"], rel=1e-9)
        np.savez(tmp_path / "seen.npz", t=motion.test_t, y=seen)
        command = ["reconstruct", str(tmp_path / "cmu35.safetensors"), str(tmp_path / "seen.npz"), "--starts", "2"]
        assert main([*command, "--steps", "10", "-o", str(tmp_path / "found.npz"), "-q", "--force"]) == 0
        np.testing.assert_allclose(np.load(tmp_path / "found.npz")["y"], found, rtol=1e-12)


def test_cmu07(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)

    def channels(n):
        angle = 0.4 * np.arange(n)[:, None] + rng.uniform(0, 6)
        return 20 * np.sin(angle + np.arange(62)) + rng.standard_normal((n, 62))

    parts = [channels(n) for n in (20, 24, 18, 22, 20, 21)]
    t = [np.arange(len(part)) / 30 for part in parts]
    motion = Motion(t, parts, "made up", skeleton=stick_figure(), channels=parts)
    monkeypatch.setattr(datasets, "load_cmu_mocap", lambda subject, every: motion)
    experiments.run("cmu07", tmp_path, seeds=1, quick=True)
    folds = json.loads((tmp_path / "cmu07.json").read_text())["folds"]
    assert 0 < folds["VGPDS"]["legs"]["RA"]["mean"] < 90
    assert capsys.readouterr().out.splitlines()[2] == "|  | legs RA | body RA |"
    assert (tmp_path / "cmu07.png").exists()
    assert load_posterior(tmp_path / "cmu07.safetensors").posteriors[0].data.num_sequences == 4


def test_outputs_of_unequal_signal():
    """Magnified ones are predicted in the units of the data, with the trained noise, and less of theirs is fitted."""
    rng = np.random.default_rng(0)
    t = np.arange(60) / 10
    signal = np.concatenate([10 * np.sin(t[:, None] + np.arange(6)), 0.0 * t[:, None] + np.zeros(6)], 1)
    y = signal + 0.5 * rng.standard_normal(signal.shape)
    trained = Recipe("rbf", latent_dim=3, num_inducing=20, num_steps=60).train([t], [y], 0)
    balanced = predict_with(trained, output_scale=balanced_scale(trained, 1 / 3))
    fitted, smooth = (posterior.impute(fill=False).mean.numpy() for posterior in (trained, balanced))
    np.testing.assert_allclose(smooth[:, :6], fitted[:, :6], atol=0.5)
    assert smooth[:, 6:].std(0).mean() < 0.5 * fitted[:, 6:].std(0).mean()  # over time
    variance = balanced.impute(fill=False).variance.numpy()
    noise = float(trained.noise_variance)
    assert np.all(variance > 0.99 * noise)
    assert np.all(variance[:, 6:] < 1.5 * noise)
    seen = y[:20].copy()
    seen[:, ::2] = np.nan
    assert np.square(balanced.reconstruct(t[:20], seen).mean.numpy() - signal[:20])[:, :6].mean() < 5.0


def test_missa(tmp_path, monkeypatch):
    video = small_video(40)
    train = np.arange(40) % 8 < 5
    hidden = np.repeat(np.arange(12) < 6, 12)
    split = replace(video, train=np.flatnonzero(train), test=np.flatnonzero(~train), hidden=hidden)
    monkeypatch.setattr(datasets, "load_missa", lambda: split)
    experiments.run("missa", tmp_path, seeds=1, quick=True)
    results = json.loads((tmp_path / "missa.json").read_text())
    labels = ["VGPDS, times and seen half", "VGPDS, times alone", "VGPDS, times and seen half, pixels in common units",
              "nearest neighbours, best k", "mean frame", "linear in time", "one GP for each pixel"]  # fmt: skip
    assert list(results)[: len(labels)] == labels
    mean = results["mean frame"]
    assert mean["MSE"] == pytest.approx(np.square(video.y[0][~train] - video.y[0][train].mean(0))[:, hidden].mean())
    assert (tmp_path / "missa.png").exists()
    assert load_metadata(tmp_path / "missa.safetensors")["shape"] == [12, 12]
    assert bool((load(tmp_path / "missa.safetensors")[0].output_scale == 1.0).all())  # training does not scale pixels
    posterior, (t, seen), truth = load_posterior(tmp_path / "missa.safetensors"), split.partial(), split.truth()
    filled = posterior.reconstruct(t, seen, 0, trust=missa.TRUST).mean
    assert metrics.mae(truth, filled) == pytest.approx(results[labels[0]]["MAE"]["mean"], rel=1e-9)
    assert metrics.mae(truth, posterior.forecast(t, 0).mean) == pytest.approx(results[labels[1]]["MAE"]["mean"])


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("ocean", ["ocean.json", "ocean.png", "seawave.md", "seawave.safetensors"]),
        (
            "periodic_video",
            ["mouse-reconstruct.json", "mouse-generate.png", "pendulum-generate.json", "mouse-generate.safetensors"],
        ),
    ],
)
def test_clips(name, files, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load_clip", lambda clip: small_video())
    experiments.run(name, tmp_path, seeds=1, quick=True)
    for file in files:
        assert (tmp_path / file).exists()
    results = json.loads((tmp_path / files[0]).read_text())
    assert results["VGPDS"]["MAE"]["mean"] < 255
    assert results["recipe"]["num_steps"] == 10
    assert len(results["seconds"]) == 1
    film = tmp_path / "ahead.npz"
    command = ["forecast", str(tmp_path / files[-1]), "--until", "110", "-o", str(film), "-q"]
    assert main(command) == 0
    assert np.load(film)["frames"].shape[1:] == (12, 12)
    if name == "periodic_video":  # the file has the printed predictions
        video, results = small_video(), json.loads((tmp_path / "mouse-generate.json").read_text())
        ahead = load_posterior(tmp_path / "mouse-generate.safetensors").forecast(video.t[0][60:], 0).mean
        assert metrics.mae(video.y[0][60:], ahead) == pytest.approx(results["VGPDS"]["MAE"]["mean"], rel=1e-9)


@pytest.mark.parametrize("name", ["yeast", "robot"])
def test_imputation(name, tmp_path, monkeypatch):
    made = make_sequences(num_sequences=1, num_outputs=12, seed=2)
    paths = made.latent if name == "robot" else None
    data = Dataset(made.t, made.y, "made up", latent=paths)
    monkeypatch.setattr(datasets, "load_spellman", lambda: data)
    monkeypatch.setattr(datasets, "load_robot_wireless", lambda: data)
    experiments.run(name, tmp_path, seeds=2, quick=True)
    results = json.loads((tmp_path / f"{name}.json").read_text())
    assert 0 < results["VGPDS"]["mean"] < results["column mean"]["mean"]
    assert 0 < results["95 %"]["mean"] <= 100
    assert (tmp_path / f"{name}.png").exists()
    experiments.run(name, tmp_path, seeds=1, quick=True)  # the seed of the file
    results = json.loads((tmp_path / f"{name}.json").read_text())
    mean = load_posterior(tmp_path / f"{name}.safetensors").impute(fill=False).mean
    truth = Task.of(data.t, data.y, imputation.HIDDEN, 0).truth
    assert metrics.mse(truth, mean) ** 0.5 == pytest.approx(results["VGPDS"]["mean"], rel=1e-9)


def test_hidden_entries_are_hidden():
    rng = np.random.default_rng(0)
    y = [rng.standard_normal((30, 6)), rng.standard_normal((20, 6))]
    for part in y:
        part[:, 5] = 1.0  # constant: dropped
    y[0][:, 4] = y[1][:, 4] = np.nan
    y[0][3, 4], y[0][4, 4] = 1.0, 2.0
    task = Task.of([np.arange(30.0), np.arange(20.0)], y, 0.3, seed=0)
    kept = np.concatenate(task.y)
    both = np.isfinite(kept) & np.isfinite(task.truth)
    assert not both.any()
    share = np.isfinite(task.truth[:, :4]).mean()
    assert 0.2 < share < 0.4
    np.testing.assert_array_equal(np.where(np.isnan(kept), task.truth, kept)[:, :4], np.concatenate(y)[:, :4])


def test_tiles_and_lines():
    hidden = hide_tiles((10, 14), 0.4, 4, seed=0)
    assert hidden.shape == (140,)
    assert 0.4 < hidden.mean() < 0.8
    t, train = np.array([0.0, 1.0, 3.0]), np.array([[0.0, 1.0], [2.0, 1.0], [6.0, 1.0]])
    filled = in_time(
        lambda t, y: torch.from_numpy(np.nan_to_num(y, nan=t[2])), t, train, np.array([2.0]), [[np.nan, 5.0]]
    )
    np.testing.assert_array_equal(filled, [[2.0, 5.0]])


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="name must be one of cmu35, cmu07, missa"):
        experiments.run("dog", tmp_path)
    with pytest.raises(ValueError, match="seeds must be at least 1, but got 0"):
        experiments.run("missa", tmp_path, seeds=0)
    assert set(experiments.NAMES) == {
        "cmu35", "cmu07", "missa", "ocean", "periodic_video", "yeast", "robot", "spikes", "chorales", "flu",
    }  # fmt: skip
