# SPDX-License-Identifier: Apache-2.0
"""Every command from end to end, on small files, in the units of the data."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image
from written import assert_picture_is_drawn, parse_csv, read_csv, write_csv

from pyro_vgpds import Posterior, load, load_metadata
from pyro_vgpds.cli import drawing, main
from pyro_vgpds.cli.model_file import ModelFile
from pyro_vgpds.cli.parser import make_parser
from pyro_vgpds.data.dates import format_duration
from pyro_vgpds.datasets import load_video, make_pendulum_video

COLUMNS = ["a", "b", "c", "d"]


def values(count, shift=0.0, seed=0):
    """Four outputs of very different scale that follow one latent path."""
    x = np.arange(count) / 3.0 + shift
    clean = np.stack([1000 * np.sin(x), np.cos(x), 0.01 * np.sin(x + 1), np.sin(x) * np.cos(x)], 1)
    return clean * (1 + 0.02 * np.random.default_rng(seed).standard_normal(clean.shape))


def numbers(rows, first):
    return np.array([[float(cell) for cell in row[first:]] for row in rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def walks(folder):
    """Two sequences with dates and gaps, and a model of them."""
    rows, hidden = [], {("walk", 3, 1), ("run", 5, 0), ("run", 5, 2)}
    for name, shift in (("walk", 0.0), ("run", 0.7)):
        for i, row in enumerate(values(16, shift)):
            cells = ["" if (name, i, d) in hidden else f"{value:.9g}" for d, value in enumerate(row)]
            rows.append([name, f"2024-03-{i + 1:02d}", *cells])
    path = write_csv(folder / "walks.csv", ["sequence", "date", *COLUMNS], rows)
    model = folder / "walks.safetensors"
    options = ["--latent-dim", "3", "--num-inducing", "12", "--steps", "25", "--scale", "-q"]
    assert main(["fit", str(path), "-o", str(model), *options]) == 0
    return SimpleNamespace(csv=path, model=str(model))


@pytest.fixture(scope="module")
def plain(folder):
    """One sequence with numbers as times and no missing values, as npz, and a model."""
    path = folder / "plain.npz"
    np.savez(path, t=np.arange(20) / 2, y=values(20)[:, 1:])
    model = folder / "plain.safetensors"
    assert main(["fit", str(path), "-o", str(model), "--steps", "10", "--num-inducing", "10", "-q"]) == 0
    return SimpleNamespace(npz=path, model=str(model))


@pytest.fixture(scope="module")
def film(folder):
    """A video with a model."""
    video = make_pendulum_video(30, 8, 10, period=10.0)
    path = folder / "film.npz"
    np.savez(path, frames=video.frames, fps=24.0)
    model = folder / "film.safetensors"
    options = ["--latent-dim", "3", "--num-inducing", "10", "--steps", "10", "--temporal", "periodic+white+bias"]
    assert main(["fit", str(path), "-o", str(model), *options, "--hold", "period", "-q"]) == 0
    return SimpleNamespace(npz=path, model=str(model), video=video)


# fit


@pytest.mark.long
def test_fit_prints_a_summary(walks, folder, capsys):
    model = folder / "again.safetensors"
    arguments = ["fit", str(walks.csv), "-o", str(model), "--latent-dim", "2", "--steps", "3", "--num-inducing", "6"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2 sequences, 32 frames, 4 outputs, 2.34 % missing" in captured.err
    assert "after 3 steps" in captured.err
    assert "of 2 latent dimensions are active; noise sd" in captured.err
    on = int(captured.err.split(" of 2 latent")[0][-1])
    assert ("a larger --latent-dim may" in captured.err) == (on == 2)
    assert main([*arguments]) == 2
    assert "already exists. Choose another name, or pass --force" in capsys.readouterr().err
    assert main([*arguments, "--force", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_load_reads_a_fitted_model(walks):
    model, guide, data = load(walks.model)
    assert data.columns == COLUMNS
    assert data.lengths == (16, 16)
    assert str(data.time_origin)[:10] == "2024-03-01"
    y, given = data.read().numpy(), np.concatenate([values(16), values(16, 0.7)])
    np.testing.assert_allclose(y, np.where(np.isnan(y), np.nan, given), rtol=1e-8)  # in the units of the file
    torch.testing.assert_close(model.output_scale, data.output_scales)
    about = load_metadata(walks.model)
    assert Posterior(model, guide, data).bound == pytest.approx(about["training"]["bound"], rel=1e-10)
    assert about["names"] == ["walk", "run"]
    assert model.output_scale[0] > 500
    assert about["source"] == "walks.csv"


@pytest.mark.long
def test_options_of_fit(folder, plain):
    path = folder / "options.safetensors"
    options = ["--temporal", "rbf*periodic(period=4)+white", "--hold", "period,lengthscale", "--one-noise",
               "--method", "lbfgs", "--restarts", "1", "--latent-dim", "2", "--num-inducing", "5", "--steps", "3",
               "--columns", "0,2", "--threads", "2", "--seed", "7", "-q"]  # fmt: skip
    assert main(["fit", str(plain.npz), "-o", str(path), *options]) == 0
    model, _, data = load(path)
    assert (model.latent_dim, model.num_inducing, data.num_outputs) == (2, 5, 2)
    assert model.noise.shape == ()
    assert "period=4 (fixed)" in repr(model.temporal)
    assert repr(model.temporal).count("(fixed)") == 3
    assert load_metadata(path)["training"]["method"] == "lbfgs"


@pytest.mark.long
def test_checkpoint_and_resume(folder, plain, capsys):
    check = folder / "run.checkpoint"
    both = ["fit", str(plain.npz), "--num-inducing", "6", "--latent-dim", "2", "--checkpoint", str(check), "--resume"]
    assert main([*both, "-o", str(folder / "half.safetensors"), "--steps", "10"]) == 0
    assert f"checkpoint {check} does not exist yet" in capsys.readouterr().err
    assert main([*both, "-o", str(folder / "whole.safetensors"), "--steps", "16"]) == 0
    history = load_metadata(folder / "whole.safetensors")["training"]["history"]
    assert [step for step, _, _ in history] == list(range(17))
    straight = folder / "straight.safetensors"
    assert main([*both[:-3], "-o", str(straight), "--steps", "16", "-q"]) == 0
    other = load_metadata(straight)["training"]["history"]
    # the warm-up is a tenth of the steps, which is one in both
    np.testing.assert_array_equal([bound for *_, bound in history], [bound for *_, bound in other])


# forecast


@pytest.mark.parametrize(("times", "count"), [("-1,0", 2), ("-1:0:0.25", 5), ("-.5,-.25,3", 3), ("-2", 1)])
def test_times_may_be_negative(plain, times, count, capsys):
    assert main(["forecast", plain.model, "--times", times, "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == count
    assert float(lines[0].split(",")[0]) == float(times.split(",")[0].split(":")[0])
    assert main(["forecast", plain.model, "--times", "-q"]) == 2  # an option is not parsed as times


def test_forecast_in_the_units_of_the_data(walks, folder):
    out = folder / "ahead.csv"
    assert main(["forecast", walks.model, "--sequence", "run", "--until", "2024-03-19", "-o", str(out), "-q"]) == 0
    header, rows = read_csv(out)
    assert header[:5] == ["sequence", "time", "a", "a lower", "a upper"]
    assert [row[:2] for row in rows] == [["run", f"2024-03-{day}"] for day in (17, 18, 19)]
    model, guide, data = load(walks.model)
    wanted = Posterior(model, guide, data).forecast(np.array([row[1] for row in rows], dtype="datetime64[ns]"), 1)
    got = numbers(rows, 2)
    np.testing.assert_allclose(got[:, ::3], wanted.mean.numpy(), rtol=1e-8)
    np.testing.assert_allclose(got[:, 2::3], wanted.interval(0.95)[1].numpy(), rtol=1e-8)
    assert np.abs(got[:, 0]).max() > 20  # the scale of a is about 700


def test_forecast_to_the_standard_output(plain, capsys):
    assert main(["forecast", plain.model, "--times", "9:11:0.5", "--interval", "0", "--no-noise"]) == 0
    header, rows = parse_csv(capsys.readouterr().out)
    assert header == ["time", "y0", "y1", "y2"]
    assert [row[0] for row in rows] == ["9", "9.5", "10", "10.5", "11"]
    for ahead in (["--until", "10.6"], ["--horizon", "2"]):
        assert main(["forecast", plain.model, *ahead]) == 0
        assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == ["time", "10", "10.5"]
    assert main(["forecast", plain.model, "--horizon", "2", "--step", "3"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == ["time", "12.5", "15.5"]


def test_forecast_of_each_sequence(walks, folder):
    names, out = ["run", "walk"], folder / "each.csv"
    assert main(["forecast", walks.model, "--horizon", "3", "-o", str(out), "-q"]) == 0
    header, rows = read_csv(out)
    assert sorted({row[0] for row in rows}) == names
    for name in names:
        one = folder / f"{name}.csv"
        assert main(["forecast", walks.model, "--horizon", "3", "--sequence", name, "-o", str(one), "-q"]) == 0
        alone = [row for row in rows if row[0] == name]
        assert read_csv(one) == (header, alone)
        assert len(alone) == 3


def test_forecast_as_npz(plain, folder):
    out = folder / "ahead.npz"
    assert main(["forecast", plain.model, "--times", "10,12.5", "--sequence", "0", "-o", str(out), "-q"]) == 0
    with np.load(out) as arrays:
        assert set(arrays) == {"t", "y", "columns", "stddev", "lower", "upper"}
        np.testing.assert_array_equal(arrays["t"], [10, 12.5])
        np.testing.assert_allclose(arrays["upper"] - arrays["y"], 1.959964 * arrays["stddev"], rtol=1e-6)


def test_forecast_of_a_film(film, folder):
    out = folder / "ahead.gif"
    assert main(["forecast", film.model, "--until", "34", "-o", str(out), "-q", "--fps", "5"]) == 0
    with Image.open(out) as frames:
        assert (frames.n_frames, frames.size, frames.info["duration"]) == (5, (10, 8), 200)
    arrays = folder / "film_ahead.npz"
    assert main(["forecast", film.model, "--until", "34", "-o", str(arrays), "-q"]) == 0
    again = load_video(arrays)
    assert again.frames.shape == (5, 8, 10)
    assert again.fps == 24.0


# reconstruct


def test_gaps_of_the_training_data(walks, folder):
    out = folder / "filled.csv"
    assert main(["reconstruct", walks.model, "-o", str(out), "-q"]) == 0
    header, rows = read_csv(out)
    assert header == ["sequence", "time", *COLUMNS]
    _, given = read_csv(walks.csv)
    for row, before in zip(rows, given, strict=True):
        for cell, kept in zip(row[2:], before[2:], strict=True):
            assert kept == "" or float(cell) == pytest.approx(float(kept), rel=1e-8)
    assert abs(float(rows[3][3]) - values(16)[3, 1]) < 0.5
    assert abs(float(rows[21][2]) - values(16, 0.7)[5, 0]) < 500


def test_reconstruct_takes_columns_in_any_order(walks, folder, capsys):
    y = values(8, 0.3)
    cells = [[f"{c:.9g}", f"2024-03-{i + 1:02d}T00:00:00Z", f"{a:.9g}"] for i, (a, _, c, _) in enumerate(y)]
    cells[4][0] = ""
    part = write_csv(folder / "part.csv", ["c", "time", "a"], cells)
    out = folder / "whole.csv"
    assert main(["reconstruct", walks.model, str(part), "-o", str(out), "--interval", "0.5", "--steps", "20"]) == 0
    assert "17 of 32 values are missing" in capsys.readouterr().err  # b, d, and one cell
    header, rows = read_csv(out)
    assert header == ["time", *(name + end for name in COLUMNS for end in ("", " lower", " upper"))]
    got = numbers(rows, 1)
    np.testing.assert_allclose(got[:, 0], y[:, 0], rtol=1e-8)
    np.testing.assert_array_equal(got[:, 1], got[:, 2])  # observed values have no interval
    assert (got[:, 4] < got[:, 5]).all()
    assert np.corrcoef(got[:, 3], y[:, 1])[0, 1] > 0.8


def test_hidden_columns_are_scored(walks, capsys):
    arguments = ["reconstruct", walks.model, str(walks.csv), "--hide", "b,3", "--steps", "5", "--starts", "1"]
    assert main([*arguments, "--factorised", "--smooth"]) == 0
    captured = capsys.readouterr()
    assert "error on the hidden values: root mean square" in captured.err
    header, rows = parse_csv(captured.out)
    assert header == ["sequence", "time", *COLUMNS]
    assert len(rows) == 32


def test_frames_of_a_training_sequence(plain, folder):
    path = folder / "between.npz"
    y = np.full((2, 3), np.nan)
    y[:, 0] = 0.5
    np.savez(path, t=[3.25, 30.0], y=y)
    out = folder / "between.out.npz"
    assert main(["reconstruct", plain.model, str(path), "--sequence", "0", "-o", str(out), "-q"]) == 0
    with np.load(out) as arrays:
        assert arrays["stddev"][0, 1] < arrays["stddev"][1, 1]  # between training frames, and far from all of them
        np.testing.assert_array_equal(arrays["y"][:, 0], 0.5)


@pytest.mark.long
def test_reconstruct_a_film(film, folder):
    frames = film.video.frames[4:8].copy()
    frames[:, 4:] = np.nan
    path = folder / "broken.npz"
    np.savez(path, frames=frames, t=np.arange(4, 8) + 0.5)
    out = folder / "whole.gif"
    arguments = ["reconstruct", film.model, str(path), "-o", str(out), "--sequence", "0", "--steps", "5", "-q"]
    assert main(arguments) == 0
    with Image.open(out) as whole:
        assert whole.n_frames == 4
    pytest.importorskip("av", reason="the [video] extra is not installed")
    assert main([*arguments[:4], str(folder / "whole.mp4"), *arguments[5:]]) == 0
    assert load_video(folder / "whole.mp4").shape == (8, 10)


@pytest.mark.long
def test_films_are_read_and_written(film, folder):
    pytest.importorskip("av", reason="the [video] extra is not installed")
    for suffix in ("gif", "mp4"):
        clip, model = folder / f"clip.{suffix}", folder / f"clip_{suffix}.safetensors"
        assert main(["generate", film.model, "--until", "11", "--no-noise", "--fps", "8", "-o", str(clip), "-q"]) == 0
        assert (
            main(["fit", str(clip), "-o", str(model), "--shrink", "2", "--steps", "1", "--latent-dim", "2", "-q"]) == 0
        )
        assert load(model)[2].num_outputs == 20
        assert load_metadata(model)["shape"] == [4, 5]
        assert main(["forecast", str(model), "--until", "14", "-o", str(folder / f"next.{suffix}"), "-q"]) == 0
        assert len(load_video(folder / f"next.{suffix}").frames) == 3


def test_frames_are_shrunk_as_in_training(film, folder, capsys):
    model, small = folder / "small.safetensors", folder / "small.npz"
    fit = ["fit", str(film.npz), "-o", str(model), "--shrink", "2", "--steps", "1", "--latent-dim", "2", "-q"]
    assert main(fit) == 0
    np.savez(small, frames=load_video(film.npz, factor=2).frames)
    arguments = ["--hide", "0:10", "--steps", "1", "--starts", "1", "-o"]
    answers = []
    for i, (clip, more) in enumerate([(film.npz, []), (film.npz, ["--shrink", "2"]), (small, [])]):
        out = folder / f"shrunk{i}.npz"
        assert main(["reconstruct", str(model), str(clip), *arguments, str(out), *more, "-q"]) == 0
        with np.load(out) as arrays:
            answers.append(arrays["frames"])
    assert answers[0].shape == (30, 4, 5)
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])
    assert (
        main(["reconstruct", str(model), str(film.npz), *arguments, str(folder / "no.npz"), "--shrink", "1", "-q"]) == 1
    )
    wanted = "frames are (8, 10), but those of"
    message = capsys.readouterr().err
    assert wanted in message
    assert "are (4, 5), after --shrink 2. --shrink N averages N x N pixels to one." in message


# generate


def test_generate(walks, folder):
    out = [folder / f"made{i}.csv" for i in range(3)]
    for path, seed in zip(out, "112", strict=True):
        assert main(["generate", walks.model, "--samples", "2", "--seed", seed, "-o", str(path), "-q"]) == 0
    header, rows = read_csv(out[0])
    assert header == ["sequence", "time", *COLUMNS]
    assert [row[0] for row in rows] == ["0"] * 16 + ["1"] * 16
    assert rows[0][1] == rows[16][1] == "2024-03-01"
    assert rows == read_csv(out[1])[1]
    assert rows != read_csv(out[2])[1]
    assert np.abs(numbers(rows, 2)[:, 0]).max() > 20
    # the output is valid input of fit
    assert main(["fit", str(out[0]), "-o", str(folder / "made.safetensors"), "--steps", "1", "-q"]) == 0


def test_generate_from_the_end_of_a_sequence(plain, capsys):
    assert main(["generate", plain.model, "--sequence", "0", "--until", "10.6", "--no-noise"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[1] for line in lines] == ["time", "10", "10.5"]
    for ahead in (["--until", "1"], ["--horizon", "3"]):  # a new sequence starts at the first one's start
        assert main(["generate", plain.model, *ahead]) == 0
        assert [line.split(",")[1] for line in capsys.readouterr().out.splitlines()] == ["time", "0", "0.5", "1"]


# info and plot


def test_info(walks, film, plain, capsys):
    assert main(["info", walks.model]) == 0
    text = capsys.readouterr().out
    for part in (
        "trained on walks.csv", "2 sequences, 32 frames, 4 outputs", "sequence run: 16 frames from 2024-03-01",
        "Matern32(", ", in seconds", "ARDRBF(", "12 points", "25 natural steps", "of 3 latent dimensions are active",
        "divided by its standard deviation", "Matern32.lengthscale is ",
    ):  # fmt: skip
        assert part in text
    assert main(["info", walks.model, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    seconds = facts["durations"]["Matern32.lengthscale"]
    assert len(seconds) == 3  # one for each latent dimension
    assert facts["durations"]["Matern32.lengthscale (2)"] == facts["durations"]["Matern12.lengthscale"]  # slow path
    assert f"Matern32.lengthscale is {format_duration(seconds[0])}, " in text
    assert facts["data"]["sequences"] == {"walk": 16, "run": 16}
    assert facts["data"]["missing"] == 3
    assert len(facts["relevance"]) == 3
    assert facts["noise_sd"][0] / facts["noise_sd"][2] > 1e4  # in the units of the data
    assert main(["info", film.model]) == 0
    assert "frames of 8 x 10 pixels" in capsys.readouterr().out
    assert main(["info", plain.model]) == 0
    assert ", in seconds" not in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("what", ["overview", "training", "relevance", "latent", "plane", "fit"])
def test_plot(walks, tmp_path, what):
    path = tmp_path / f"{what}.png"
    assert main(["plot", walks.model, "--what", what, "-o", str(path), "-q"]) == 0
    assert_picture_is_drawn(path)
    assert not plt.get_fignums()
    assert os.listdir(tmp_path) == [path.name]


def test_an_overview_of_one_latent_dimension_has_no_plane(tmp_path):
    (tmp_path / "x.csv").write_text("t,a\n" + "".join(f"{i},{i % 4}\n" for i in range(12)))
    assert main(["fit", str(tmp_path / "x.csv"), "--quick", "--steps", "1", "-o", str(tmp_path / "m"), "-q"]) == 0
    figure = drawing.FIGURES["overview"](ModelFile.read(tmp_path / "m"), SimpleNamespace())
    assert sorted(ax.get_ylabel() for ax in figure.axes) == ["bound (nats)", "latent 0", "relevance (largest = 1)"]
    plt.close(figure)


@pytest.mark.long
def test_plot_of_outputs(walks, film, tmp_path):
    out = str(tmp_path / "a.svg")
    assert main(["plot", walks.model, "--what", "forecast", "--until", "2024-03-20", "--sequence", "walk",
                 "--outputs", "b,0", "-o", out, "-q"]) == 0  # fmt: skip
    assert main(["plot", walks.model, "--what", "fit", "--sequence", "run", "-o", str(tmp_path / "b.pdf"), "-q"]) == 0
    assert main(["plot", film.model, "--what", "fit", "-o", str(tmp_path / "c.png"), "-q"]) == 0
    assert main(["plot", film.model, "-q"]) == 0
    assert Path(film.model).with_suffix(".png").is_file()
    assert main(["plot", film.model, "--what", "relevance", "-q"]) == 0  # each figure has its own default name
    assert Path(film.model).with_name(f"{Path(film.model).stem}_relevance.png").is_file()


def test_plot_names_the_sequence_and_the_data(walks, tmp_path):
    for arguments in (["--what", "fit"], ["--what", "forecast", "--until", "2024-03-20"]):
        path = tmp_path / f"{arguments[1]}.svg"
        with plt.rc_context({"svg.fonttype": "none"}):  # text stays text
            assert main(["plot", walks.model, *arguments, "--sequence", "run", "-o", str(path), "-q"]) == 0
        assert "sequence run" in path.read_text()
    text = (tmp_path / "fit.svg").read_text()
    assert ">data<" in text
    assert ">truth<" not in text


def test_forecast_figures_show_the_end_of_a_long_history(plain, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(drawing, "_LEAST_HISTORY", 3)
    monkeypatch.setattr(drawing, "plot_forecast", lambda *_, history: shown.append(history))
    command = ["plot", plain.model, "--what", "forecast", "-q", "--force", "-o", str(tmp_path / "a.svg")]
    for horizon, frames in (("1", 8), ("2", 16), ("5", 20)):  # of 20
        assert main([*command, "--horizon", horizon]) == 0
        t, y = shown[-1]
        assert (len(t), len(y), t[-1]) == (frames, frames, 9.5)


def test_models_saved_from_python(folder, plain, capsys):
    from pyro_vgpds import save

    path = folder / "python.safetensors"
    save(path, *load(plain.model))
    assert main(["info", str(path)]) == 0
    assert "trained on" not in capsys.readouterr().out
    assert main(["plot", str(path), "-o", str(folder / "python.png"), "-q"]) == 0
    assert main(["plot", str(path), "--what", "training", "-o", str(folder / "no.png")]) == 1
    assert "has no record of its training" in capsys.readouterr().err
    assert main(["forecast", str(path), "--until", "11"]) == 0


# experiment and demo


def test_experiment(monkeypatch, tmp_path, capsys):
    calls = []
    fake = SimpleNamespace(NAMES=("cmu35", "missa"), run=lambda *args, **kwargs: calls.append((args, kwargs)))
    monkeypatch.setitem(sys.modules, "pyro_vgpds.experiments", fake)
    assert main(["experiment", "missa", "--seeds", "3", "--quick", "--output", str(tmp_path)]) == 0
    assert main(["experiment", "cmu35", "-q", "--data-home", "here", "--download"]) == 0
    source = {"data_home": Path("here"), "download": True}
    assert calls == [
        (("missa", tmp_path), {"seeds": 3, "quick": True, "progress": None}),
        (("cmu35", Path("experiment_output")), {"seeds": None, "quick": False, "progress": False, **source}),
    ]
    assert main(["experiment"]) == 0
    assert "cmu35, missa" in capsys.readouterr().out
    assert main(["experiment", "moon"]) == 2
    assert "NAME must be one of cmu35, missa, but got 'moon'" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["experiment", "missa", "--output", str(tmp_path / "file")]) == 2
    monkeypatch.setitem(sys.modules, "pyro_vgpds.experiments", None)
    assert main(["experiment", "missa"]) == 1
    assert "cannot import the experiments" in capsys.readouterr().err


def test_an_experiment_without_data(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["experiment", "missa", "--data-home", str(tmp_path / "none"), "--output", str(out)]) == 1
    message = capsys.readouterr().err
    assert "--data-home" in message
    assert "data_home" not in message
    assert "download=" not in message
    assert not out.exists()


# the program


@pytest.mark.parametrize(
    "command", ["demo", "fit", "evaluate", "forecast", "reconstruct", "generate", "info", "plot", "experiment"]
)
def test_help_has_examples(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"examples:\n  pyro-vgpds {command}" in text
    assert "Exit codes: 0 success" in text
    assert "--debug" not in text


def test_examples_agree(capsys):
    parser, fitted, several, single = make_parser(), set(), set(), set()
    for command in ("fit", "evaluate", "forecast", "reconstruct", "generate", "info", "plot"):
        assert main([command, "--help"]) == 0
        for line in re.findall(r"^  pyro-vgpds (.*)", capsys.readouterr().out, re.MULTILINE):
            args = parser.parse_args(shlex.split(line))
            if command == "fit":
                fitted.add(args.output)
            if command in ("fit", "evaluate"):
                continue
            assert args.model in fitted, line
            if command == "forecast" or getattr(args, "what", "") == "forecast":
                (single if args.sequence is None else several).add(args.model)
    assert single
    assert several
    assert not single & several  # --sequence is required for several sequences


def test_entry_point():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.scripts]\npyro-vgpds = "pyro_vgpds.cli:main"\n' in text


@pytest.mark.long
def test_program(plain, tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "pyro_vgpds", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)

    done = run("forecast", plain.model, "--until", "12")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("time,y0,y0 lower,y0 upper,y1")
    failed = run("info", "none.safetensors")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "pyro-vgpds info: error: model file none.safetensors does not exist.\n"
