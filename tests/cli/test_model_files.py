# SPDX-License-Identifier: Apache-2.0
"""Commands on files of posteriors, of mixtures, and of earlier versions: the same predictions as from Python."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from problems import GOLDEN, fit_posterior
from written import assert_picture_is_drawn, parse_csv

from pyro_vgpds import (
    VGPDS,
    Ensemble,
    PosteriorMixture,
    Sequences,
    Solver,
    load_posterior,
    save_posterior,
)  # fmt: skip
from pyro_vgpds.cli import main
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.prediction import Calibration, Combination
from pyro_vgpds.selection.named_baselines import make_baseline
from pyro_vgpds.training.metadata import Metadata


def walks():
    """Two sequences of three outputs, whose scales differ."""
    rng = np.random.default_rng(0)
    t = [0.1 * np.arange(12), 0.1 * np.arange(10)]
    y = [np.stack([np.sin(3 * s), 100 * np.cos(3 * s), s], 1) + 0.01 * rng.standard_normal((len(s), 3)) for s in t]
    return t, y


def train(seed, lags=()):
    t, y = walks()
    data = Sequences(t, y, columns=["a", "b", "c"])
    data = data.lagged(lags) if lags else data
    pyro.set_rng_seed(seed)
    model = VGPDS.from_data(data, 2, 6, Matern32() + White(1e-2) + Bias(0.1), scale_outputs=True)
    noise = torch.tensor([0.1, 100.0, 0.1]).double()
    return fit_posterior(model, data, 10, noise_variance=noise, residual=Bias() + White())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    single, lagged = train(0), train(1, lags=[-1, 1])
    posteriors = {"single": single, "lagged": lagged, "mixture": PosteriorMixture([single, lagged], [0.25, 0.75])}
    about = Metadata(names=["walk", "run"]).pack()
    for name, posterior in posteriors.items():
        save_posterior(folder / f"{name}.safetensors", posterior, about)
    return SimpleNamespace(
        folder=folder, posteriors=posteriors, path=lambda name: str(folder / f"{name}.safetensors")
    )  # fmt: skip


def table(text):
    header, rows = parse_csv(text)
    return header, np.array([[float(cell) for cell in row[2:]] for row in rows])


NAMES = ["single", "lagged", "mixture"]


@pytest.mark.parametrize("name", NAMES)
def test_forecasts_are_those_of_the_posterior(files, name, capsys):
    assert main(["forecast", files.path(name), "--sequence", "run", "--times", "1,1.1", "--interval", "0.5"]) == 0
    header, got = table(capsys.readouterr().out)
    assert header == ["sequence", "time", *(c + end for c in "abc" for end in ("", " lower", " upper"))]
    wanted = files.posteriors[name].forecast([1.0, 1.1], 1)
    lower, upper = wanted.interval(0.5)
    expected = torch.stack([wanted.mean, lower, upper], -1).flatten(1).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-8)
    assert np.abs(got[:, 3]).max() > 5  # in the units of the data


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_reconstructions_are_those_of_the_posterior(files, name, tmp_path, capsys):
    t, y = walks()
    seen = y[0].copy()
    seen[4:, 1] = np.nan
    np.savez(tmp_path / "part.npz", t=t[0] + 5.0, y=seen)
    out = tmp_path / "whole.npz"
    assert main(["reconstruct", files.path(name), str(tmp_path / "part.npz"), "-o", str(out), "--smooth", "-q"]) == 0
    wanted = files.posteriors[name].reconstruct(t[0] + 5.0, seen, solver=Solver(3, 200))
    with np.load(out) as arrays:
        np.testing.assert_allclose(arrays["y"], wanted.mean, rtol=1e-8)
        np.testing.assert_allclose(arrays["stddev"], wanted.stddev, rtol=1e-8)
        assert list(arrays["columns"]) == ["a", "b", "c"]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["overview", "relevance", "latent", "plane", "fit", "forecast"])
def test_plot(files, name, what, tmp_path):
    path = tmp_path / "figure.png"
    more = ["--until", "1.5", "--sequence", "walk"] if what == "forecast" else []
    assert main(["plot", files.path(name), "--what", what, "-o", str(path), "-q", *more]) == 0
    assert_picture_is_drawn(path)


def test_generate_from_a_mixture(files, capsys):
    assert main(["generate", files.path("mixture"), "--samples", "3", "--times", "0,0.1"]) == 0
    header, got = table(capsys.readouterr().out)
    assert header == ["sequence", "time", "a", "b", "c"]
    assert got.shape == (6, 3)


def test_info(files, capsys):
    assert main(["info", files.path("lagged")]) == 0
    text = capsys.readouterr().out
    for part in ("2 sequences, 22 frames, 3 outputs, each output divided", "outputs    a, b, c\n", "lags       -1, +1",
                 "residual   Bias(", "noise sd   0.3162, 10, 0.3162", "sequence walk: 12 frames"):  # fmt: skip
        assert part in text
    assert "missing" not in text  # frames beyond the ends of lagged outputs do not count
    assert main(["info", files.path("mixture")]) == 0
    text = capsys.readouterr().out
    for part in ("model 0    weight 0.25 in the mixture", "model 1    weight 0.75 in the mixture"):
        assert part in text
    assert text.count("temporal   Matern32(") == 2
    assert main(["info", files.path("mixture"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [model["weight"] for model in facts["models"]] == [0.25, 0.75]
    assert facts["models"][1]["lags"] == [-1, 1]
    members = files.posteriors["mixture"].posteriors
    assert [model["bound"] for model in facts["models"]] == pytest.approx([member.bound for member in members])


# files of earlier versions, whose scaled models held divided data, and the scale as metadata


def test_an_old_file_gives_its_old_forecast(capsys):
    assert main(["forecast", str(GOLDEN / "old_cli.safetensors"), "--until", "8"]) == 0
    assert capsys.readouterr().out == (GOLDEN / "old_cli_forecast.csv").read_text()
    assert main(["info", str(GOLDEN / "old_cli.safetensors")]) == 0
    text = capsys.readouterr().out
    for part in (", trained on cli.csv", "each output divided by its standard deviation", "noise sd   0.1054, 10.17, 0",
                 "training   20 natural steps in 1.0 s", "2 of 2 latent dimensions are active"):  # fmt: skip
        assert part in text


def test_an_old_file_of_an_experiment(capsys):
    path = GOLDEN / "old_scaled.safetensors"
    assert main(["reconstruct", str(path), "--smooth"]) == 0
    header, got = table(capsys.readouterr().out)
    assert header == ["sequence", "time", "a", "b", "c"]
    np.testing.assert_allclose(got, load_posterior(path).impute(fill=False).mean, rtol=1e-8)
    assert main(["info", str(path)]) == 0
    assert "sequence walk: " in capsys.readouterr().out


def test_info_has_the_weights_of_lost_frames(tmp_path, capsys):
    data = Sequences(np.arange(6.0), np.arange(12.0).reshape(6, 2))
    members = [make_baseline(name, data) for name in ("column mean", "last value")]
    own, lost = (
        Combination(torch.tensor([[w] * 2, [1.0 - w] * 2]).double(), Calibration.none(2)) for w in (0.25, 0.875)
    )
    path = tmp_path / "both.safetensors"
    save_posterior(path, Ensemble(members, {"impute": replace(own, lost=lost)}, ["mean", "last"]))
    assert main(["info", str(path)]) == 0
    assert "mean, mean weight 0.25, 0.875 in frames of which nothing is observed" in capsys.readouterr().out


def test_new_files_have_the_columns_of_training(tmp_path, capsys):
    rows = "".join(f"P{p},{d},{np.sin(d + p):.3f},{np.cos(d + p):.3f}\n" for p in (1, 2) for d in range(12))
    (tmp_path / "old.csv").write_text("patient,day,a,b\n" + rows)
    (tmp_path / "new.csv").write_text("patient,ward,day,b\nP3,x,1,0.5\nP3,x,2,0.4\nP4,y,1,0.3\n")
    model, whole = str(tmp_path / "m.safetensors"), tmp_path / "whole.csv"
    columns = ["--sequence-column", "patient", "--time", "day"]
    assert main(["fit", str(tmp_path / "old.csv"), *columns, "--steps", "2", "-q", "-o", model]) == 0
    assert main(["reconstruct", model, str(tmp_path / "new.csv"), "--steps", "2", "-o", str(whole)]) == 0
    assert "column 'ward' is ignored" in capsys.readouterr().err
    assert [line.split(",")[:2] for line in whole.read_text().splitlines()[1:]] == [
        ["P3", "1"],
        ["P3", "2"],
        ["P4", "1"],
    ]
