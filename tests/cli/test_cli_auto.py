# SPDX-License-Identifier: Apache-2.0
"""The automatic choice on the command line: fit, its file in every other command, and evaluate."""

import base64
import io
import json
import re
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pages import Page
from written import assert_picture_is_drawn, parse_csv, write_csv

from pyro_vgpds import VGPDS, Ensemble, Sequences, load, load_metadata, load_posterior
from pyro_vgpds.cli import choosing, main
from pyro_vgpds.cli.progress import watching
from pyro_vgpds.selection.page import write_page
from pyro_vgpds.selection.progress import Event

SMALL = ["--candidates", "linear mapping", "--baselines", "column mean,last value,linear dynamical system"]


def signal(count, shift=0.0):
    x = np.arange(count) / 3.0 + shift
    clean = np.stack([100 * np.sin(x), np.cos(x), np.sin(x) * np.cos(x)], 1)
    return clean * (1 + 0.02 * np.random.default_rng(0).standard_normal(clean.shape))


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """One sequence with dates, and an ensemble of it for forecasts."""
    folder = tmp_path_factory.mktemp("auto")
    rows = [[f"2024-03-{i + 1:02d}", *(f"{v:.9g}" for v in row)] for i, row in enumerate(signal(30))]
    path, model = write_csv(folder / "days.csv", ["date", "a", "b", "c"], rows), folder / "days.safetensors"
    arguments = ["fit", str(path), "-o", str(model), *SMALL, "--task", "forecast", "--horizon", "3", "-q"]
    assert main(arguments) == 0
    return SimpleNamespace(folder=folder, csv=str(path), model=str(model), arguments=arguments)


@pytest.fixture(scope="module")
def gaps(tmp_path_factory):
    """Two sequences with missing values, and an ensemble of baselines only."""
    folder = tmp_path_factory.mktemp("gaps")
    rng, rows = np.random.default_rng(1), []
    for name, shift in (("u", 0.0), ("v", 0.5)):
        for i, row in enumerate(signal(20, shift)):
            rows.append([name, i, *("" if rng.random() < 0.1 else f"{v:.9g}" for v in row)])
    path, model = write_csv(folder / "gaps.csv", ["sequence", "t", "a", "b", "c"], rows), folder / "gaps.safetensors"
    baselines = "linear interpolation,cubic spline"
    assert main(["fit", str(path), "-o", str(model), "--candidates", "none", "--baselines", baselines, "-q"]) == 0
    return SimpleNamespace(folder=folder, csv=str(path), model=str(model))


# fit


def test_fit_compares_and_prints_a_report(days, tmp_path, capsys):
    model, page = tmp_path / "m.safetensors", tmp_path / "m.html"
    arguments = ["fit", days.csv, "-o", str(model), "--report", str(page), *SMALL, "--seed", "1"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    for part in ("candidate", "ensemble", "linear mapping", "column mean", "Task: forecast.", "Chosen: "):
        assert part in captured.out
    assert "1 sequence, 30 frames, 3 outputs" in captured.err
    assert "training on all data: " in captured.err
    assert f"model: {model}\nreport: {page}\n" in captured.err
    ensemble = load_posterior(model)
    assert isinstance(ensemble, Ensemble)
    assert str(ensemble.report) == captured.out.rstrip("\n")
    assert load_metadata(model)["source"] == "days.csv"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert main(arguments) == 2
    assert "already exists. Choose another name, or pass --force" in capsys.readouterr().err


def test_fit_is_quiet(days, tmp_path, capsys):
    assert main([*days.arguments[:3], str(tmp_path / "m"), *days.arguments[4:]]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_baseline_that_wins_is_named(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", y=rng.standard_normal((30, 2)).cumsum(0))  # a random walk
    model = ["fit", str(tmp_path / "x.npz"), "-o", str(tmp_path / "m")]
    assert main([*model, "--candidates", "linear mapping", "--baselines", "last value"]) == 0
    text = capsys.readouterr().out
    best = text.splitlines()[2].split("  ")[0]
    assert ("A baseline wins: the error of last value" in text) == (best == "last value")


def test_defaults_of_the_single_fit_are_those_of_python(days, tmp_path, capsys):
    path = tmp_path / "m.safetensors"
    assert main(["fit", days.csv, "-o", str(path), "--quick", "--steps", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "as with --quick" not in captured.err
    model, _, data = load(path)
    torch.manual_seed(0)
    wanted = VGPDS.from_data(Sequences(data.times.t, data.read()))
    for name in ("latent_dim", "num_inducing"):
        assert getattr(model, name) == getattr(wanted, name)
    assert model.noise.shape == wanted.noise.shape == (3,)
    assert model.temporal.parameter_names == wanted.temporal.parameter_names
    assert [type(leaf) for leaf in model.temporal.leaves()] == [type(leaf) for leaf in wanted.temporal.leaves()]
    torch.testing.assert_close(model.output_scale, wanted.output_scale)
    assert main(["fit", days.csv, "-o", str(path), "--no-scale", "--one-noise", "--steps", "1", "--force"]) == 0
    assert "--no-scale, --one-noise, --steps belong to a single model, so one is trained, as with --quick" in (
        capsys.readouterr().err
    )
    model, _, _ = load(path)
    assert model.noise.shape == ()
    assert bool((model.output_scale == 1.0).all())


def test_old_flags_are_accepted(days, tmp_path, capsys):
    arguments = [*days.arguments[:3], str(tmp_path / "m"), *days.arguments[4:]]
    assert main([*arguments, "--scale", "--noise-per-output"]) == 0
    assert isinstance(load_posterior(tmp_path / "m"), Ensemble)
    assert main(["fit", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--noise-per-output" not in text
    assert re.search(r"\s--scale\b", text) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "dance"], "invalid choice: 'dance'"),
        (["--horizon", "0"], "--horizon: must be a whole number of at least 1"),
        (["--seconds", "0"], "--seconds: must be a positive number"),
        (["--processes", "0"], "--processes: must be a whole number of at least 1"),
        (["--task", "impute", "--horizon", "3"], "--horizon requires --task forecast, but got --task impute"),
        (["--hidden", "a", "--horizon", "3"], "--horizon requires --task forecast, but got --hidden"),
        (["--hidden", "a", "--task", "impute"], "--hidden requires --task reconstruct, but got --task impute"),
        (["--hidden", "a", "--quick"], "--hidden cannot be combined with --quick, which trains a single model"),
        (["--quick", "--task", "impute"], "--task cannot be combined with --quick, which trains a single model"),
        (["--steps", "3", "--seconds", "9"], "--seconds cannot be combined with --steps, which trains a single model"),
        (["--baselines", "magic"], "--baselines: 'magic' is unknown; known: column mean; column median; "),
        (["--candidates", "none", "--baselines", "none"], "--candidates and --baselines cannot both be none"),
        (["--candidates", "magic"], "--candidates: 'magic' is unknown; known: linear mapping; nonlinear mapping"),
        (["--folder", __file__], "--folder must be a folder, but"),
        (["--report", "page.txt"], "--report must end in one of .html, .htm, but got page.txt"),
    ],
)
def test_usage_of_fit(days, tmp_path, arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(choosing, "auto", None)
    assert main(["fit", days.csv, "-o", str(tmp_path / "m"), "-q", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_hidden_columns_that_do_not_exist(gaps, tmp_path, capsys):
    assert main(["evaluate", gaps.csv, "-o", str(tmp_path / "a.html"), "-q", "--hidden", "a,hip"]) == 1
    assert "--hidden: unknown column 'hip'; the columns are a, b, c." in capsys.readouterr().err
    assert main(["evaluate", gaps.csv, "-o", str(tmp_path / "a.html"), "-q", "--hidden", "a,b,c"]) == 1
    assert "hidden must be some of the 3 columns, but not all, and got 3." in capsys.readouterr().err


def test_names_may_contain_commas():
    known = ["a", "b", "a, b"]
    assert choosing._named("a, b,a", known, "--x") == ["a, b", "a"]
    assert choosing._named("b,a", known, "--x") == ["b", "a"]
    assert choosing._named(" none ", known, "--x") == []


def test_arguments_of_the_choice_are_passed_on(days, gaps, tmp_path, monkeypatch):
    given = {}

    def fake(
        data, task, *, candidates=None, baselines=None, horizon=None, seconds=None, seed=0, progress=None,
        processes=None, folder=None, refit=True, likelihood=None, hidden=None,
    ):  # fmt: skip
        given.update(locals())
        raise ValueError("stop")

    monkeypatch.setattr(choosing, "auto", fake)
    more = ["--seconds", "9", "--processes", "2", "--folder", str(tmp_path / "kept"), "--seed", "3"]
    assert main([*days.arguments[:3], str(tmp_path / "m"), *days.arguments[4:], *more]) == 1
    assert [one.name for one in given["candidates"]] == ["linear mapping"]
    assert given["baselines"] == ["column mean", "last value", "linear dynamical system"]
    expected = {"task": "forecast", "horizon": 3, "seconds": 9.0, "seed": 3, "processes": 2, "progress": False,
                "folder": tmp_path / "kept"}  # fmt: skip
    assert {name: given[name] for name in expected} == expected
    for more, task, hidden in (
        ([], "impute", None),
        (["--horizon", "2"], "forecast", None),
        (["--task", "reconstruct"], "reconstruct", None),
        (["--hidden", "c,a"], "reconstruct", [2, 0]),
    ):
        assert main(["evaluate", gaps.csv, "-o", str(tmp_path / "a.html"), "-q", *more]) == 1
        assert given["task"] == task
        assert given["hidden"] == hidden
        assert not given["refit"]  # only the comparison is needed


@pytest.mark.filterwarnings("always:horizon")
def test_a_horizon_that_is_long_for_the_data_is_a_warning(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("t,a\n" + "".join(f"{i},{i % 7}\n" for i in range(30)))
    fit = ["fit", str(tmp_path / "x.csv"), "-o", str(tmp_path / "m"), "--candidates", "none", "--horizon", "25"]
    assert main([*fit, "--baselines", "last value", "-q"]) == 0
    text = capsys.readouterr().err
    assert text.startswith("pyro-vgpds fit: warning: horizon=25 leaves 5 of the 30 frames of the longest sequence")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,1,1\n1,1,1\n2,1,1\n", "nothing in data varies"),
        ("0,1,\n1,2,\n2,1,\n", "column 'b' has no numbers."),
        (
            "0,1,2\n1,2,3\n",
            "must leave 3 training frames, but the longest sequence has 2 frames. Without a comparison, `",
        ),
        ("0,1,2\n", "sequence has 1 frame. Without a comparison, `pyro-vgpds fit --quick` trains one model."),
        ("0,1,2\n1,2,\n", "data must have more observed entries to hold out some of them, but it is Sequences"),
    ],
)
def test_data_that_cannot_be_compared(tmp_path, rows, message, capsys):
    (tmp_path / "x.csv").write_text(f"t,a,b\n{rows}")
    for command in (["fit", "-o", str(tmp_path / "m")], ["evaluate", "-o", str(tmp_path / "m.html")]):
        assert main([command[0], str(tmp_path / "x.csv"), *command[1:], "-q"]) == 1
        assert message in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1


def test_ctrl_c_leaves_no_file(days, tmp_path, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("pyro_vgpds.selection.configuration.fit", interrupted)
    assert main([*days.arguments[:3], str(tmp_path / "m"), *days.arguments[4:]]) == 130
    assert "interrupted." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_interrupted_candidate_ends_the_comparison(days, tmp_path, monkeypatch):
    result = SimpleNamespace(stopped="interrupted")
    monkeypatch.setattr("pyro_vgpds.selection.configuration.fit", lambda *a, **o: result)
    assert main([*days.arguments[:3], str(tmp_path / "m"), *days.arguments[4:]]) == 130


# other commands with the file of an ensemble


def test_forecasts_are_those_of_the_ensemble(days, capsys):
    assert main(["forecast", days.model, "--until", "2024-04-01", "--interval", "0.8"]) == 0
    captured = capsys.readouterr()
    header, rows = parse_csv(captured.out)
    assert header[:4] == ["time", "a", "a lower", "a upper"]
    dates = np.array([row[0] for row in rows], "datetime64[ns]")
    wanted = load_posterior(days.model).forecast(dates)
    lower, upper = wanted.interval(0.8)
    expected = torch.stack([wanted.mean, lower, upper], -1).flatten(1).numpy()
    np.testing.assert_allclose([[float(cell) for cell in row[1:]] for row in rows], expected, rtol=1e-8)
    assert "note: " not in captured.err


def test_reconstruct_with_an_ensemble(days, gaps, tmp_path, capsys):
    assert main(["reconstruct", gaps.model]) == 0
    captured = capsys.readouterr()
    header, rows = parse_csv(captured.out)
    assert header == ["sequence", "time", "a", "b", "c"]
    filled = load_posterior(gaps.model).impute().mean.numpy()
    np.testing.assert_allclose([[float(cell) for cell in row[2:]] for row in rows], filled, rtol=1e-8)
    assert "note: " not in captured.err
    part = write_csv(tmp_path / "part.csv", ["t", "a", "b", "c"], [[3.5, "", 0.2, ""], [4.5, 10, "", ""]])
    arguments = ["reconstruct", gaps.model, str(part), "--sequence", "u", "--interval", "0.9"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "were chosen for the task impute; fit --task reconstruct chooses them for this one" in captured.err
    _, rows = parse_csv(captured.out)
    seen = np.array([[np.nan, 0.2, np.nan], [10, np.nan, np.nan]])
    wanted = load_posterior(gaps.model).reconstruct([3.5, 4.5], seen, 0, fill=True)
    np.testing.assert_allclose([float(row[1]) for row in rows], wanted.mean[:, 0], rtol=1e-8)
    for option in (["--factorised"], ["--starts", "1"], ["--steps", "9"], ["--no-noise"]):
        assert main([*arguments, *option]) == 2
        assert f"{option[0]} requires a single model, but {gaps.model} has an ensemble" in capsys.readouterr().err
    assert main(["forecast", days.model, "--until", "2024-04-01", "--no-noise"]) == 2


def test_generate_from_an_ensemble(both, capsys):
    for _ in range(2):
        assert main(["generate", both, "--samples", "2", "--seed", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 61
    assert lines[:61] == lines[61:]


def test_info_of_an_ensemble(days, gaps, capsys):
    assert main(["info", days.model]) == 0
    text = capsys.readouterr().out
    for part in ("trained on days.csv", "weighted and calibrated to forecast", "Task: forecast.", "mean weight"):
        assert part in text
    assert main(["info", days.model, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tasks"] == ["forecast"]
    assert facts["report"]["task"] == "forecast"
    assert sum(member["weight"] for member in facts["members"]) == pytest.approx(1.0)
    assert main(["info", gaps.model]) == 0
    text = capsys.readouterr().out
    assert "baseline   " in text
    assert "temporal" not in text


@pytest.fixture(scope="module")
def both(days):
    """An ensemble with a model and a baseline, which share the weights."""
    from pyro_vgpds import save_posterior
    from pyro_vgpds.prediction import Calibration, Combination
    from pyro_vgpds.selection.named_baselines import make_baseline

    path = days.folder / "quick.safetensors"
    options = ["--latent-dim", "2", "--num-inducing", "8", "--steps", "5", "-q"]
    assert main(["fit", days.csv, "-o", str(path), *options]) == 0
    model = load_posterior(path)
    combination = Combination(torch.full((2, 3), 0.5).double(), Calibration.none(3))
    members = [make_baseline("column mean", model.data), model]
    save_posterior(days.folder / "both", Ensemble(members, {"impute": combination}, ["column mean", "small"]))
    return str(days.folder / "both")


@pytest.mark.long
@pytest.mark.parametrize("what", ["overview", "relevance", "latent", "plane", "fit", "forecast"])
def test_plots_of_an_ensemble(both, what, tmp_path, capsys):
    path = tmp_path / "a.png"
    more = ["--until", "2024-04-03"] if what == "forecast" else []
    assert main(["plot", both, "--what", what, "-o", str(path), *more]) == 0
    assert_picture_is_drawn(path)
    said = f"{what}: of the best model of the ensemble, small" in capsys.readouterr().err
    assert said == (what not in ("fit", "forecast"))


def test_plots_that_need_a_model(both, gaps, tmp_path, capsys):
    out = str(tmp_path / "a.png")
    for what in ("overview", "relevance", "latent", "plane"):
        assert main(["plot", gaps.model, "--what", what, "-o", out]) == 1
        message = capsys.readouterr().err
        assert "has no model, only baselines (" in message
        assert f"but --what {what} requires one. --what fit and --what forecast draw predictions" in message
    assert main(["plot", both, "--what", "training", "-o", out]) == 1
    assert "has no record of its training; models written by `pyro-vgpds fit --quick`" in capsys.readouterr().err
    assert main(["plot", gaps.model, "--what", "fit", "--sequence", "v", "-o", out, "-q"]) == 0


# evaluate


@pytest.mark.parametrize("task", ["forecast", "impute", "reconstruct"])
def test_evaluate_writes_a_page(days, gaps, task, tmp_path, capsys):
    source = days if task == "forecast" else gaps
    path = tmp_path / "page.html"
    arguments = ["evaluate", source.csv, "--task", task, "-o", str(path), "--candidates", "linear mapping"]
    assert main([*arguments, "--baselines", "column mean,linear dynamical system", "-q"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert f"Task: {task}." in captured.out
    text = path.read_text()
    page = Page(text)
    assert not page.open
    assert page.headings[0].endswith(task)
    assert ("How far ahead?" in page.headings) == (task == "forecast")
    assert len(page.images) == (4 if task == "forecast" else 3)
    for image in page.images:
        kind, content = image["src"].split(";base64,")
        assert kind == "data:image/png"
        assert_picture_is_drawn(io.BytesIO(base64.b64decode(content)))
    assert "http" not in text
    for part in ("in 50 %", "in 80 %", "linear mapping", "column mean", "regular, every", "Chosen: "):
        assert part in text
    if task == "forecast":
        assert "regular, every 1 d" in text
        assert "from 2024-03-01 to 2024-03-30" in text
    else:
        assert "2: u, v" in text
        assert "of 120 entries" in text


def test_default_name_and_errors_of_evaluate(gaps, tmp_path, capsys, monkeypatch):
    arguments = ["evaluate", gaps.csv, "--candidates", "none", "--baselines", "column mean"]
    assert main(arguments) == 0
    assert (gaps.folder / "gaps_report.html").is_file()
    assert "gaps_report.html (open it in a browser)" in capsys.readouterr().err
    monkeypatch.setattr(choosing, "choose", None)
    assert main(arguments) == 2
    assert "already exists" in capsys.readouterr().err
    assert main([*arguments, "-o", "a.pdf"]) == 2
    assert "-o/--output must end in one of .html, .htm" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "no.csv")]) == 1
    assert "no.csv does not exist" in capsys.readouterr().err


def test_pages_need_predictions(gaps, tmp_path):
    ensemble = load_posterior(gaps.model)
    with pytest.raises(ValueError, match="report must have held-out predictions"):
        write_page(tmp_path / "a.html", ensemble.report, ensemble.data)


# progress


EVENTS = [
    Event("start", "a", 0, 3),
    Event("done", "a", 1, 3, 0.25, 1.5),
    Event("start", "b", 1, 3),
    Event("failed", "b", 2, 3),
    Event("skipped", "c", 3, 3),
    Event("final", "a", 3, 3),
]
LINES = ["  1/3  a: held-out error 0.25, 1.5 s", "  2/3  b: failed", "  3/3  c: not tried: the time budget is over"]


def test_a_terminal_shows_a_line_for_each_candidate(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with watching(SimpleNamespace(quiet=False)) as progress:
        for event in EVENTS:
            progress(event)
        time.sleep(0.7)
    text = capsys.readouterr().err
    for line in [*LINES, "training on all data: a"]:
        assert f"{line}\n" in text
    assert "\rfinal training ... " in text
    assert text.endswith("\r")


def test_elsewhere_a_line_is_printed_now_and_then(capsys, monkeypatch):
    with watching(SimpleNamespace(quiet=False)) as progress:
        for event in EVENTS:
            progress(event)
    assert capsys.readouterr().err == "training on all data: a\n"
    monkeypatch.setattr("pyro_vgpds.cli.progress._SECONDS", 0.0)
    with watching(SimpleNamespace(quiet=False)) as progress:
        for event in EVENTS:
            progress(event)
    assert capsys.readouterr().err.splitlines() == [*LINES, "training on all data: a"]
    monkeypatch.setattr("pyro_vgpds.cli.progress._SILENCE", 0.5)
    with watching(SimpleNamespace(quiet=False)) as progress:
        progress(EVENTS[0])
        time.sleep(1.3)
    assert re.fullmatch(r"a is running; 0 of 3 candidates are done after \d s\n", capsys.readouterr().err)
    monkeypatch.setattr("pyro_vgpds.cli.progress._SECONDS", 9.0)
    with watching(SimpleNamespace(quiet=False)) as progress:
        progress(EVENTS[3])  # a failure, before the next candidate starts
        progress.pending = None
        time.sleep(1.3)
    assert re.fullmatch(r"2 of 3 candidates are done after \d s\n", capsys.readouterr().err)
    with watching(SimpleNamespace(quiet=True)) as progress:
        assert progress is False
