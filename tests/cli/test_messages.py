# SPDX-License-Identifier: Apache-2.0
"""What commands print about their choices, and about what they ignore."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from written import write_csv

from pyro_vgpds import load_posterior
from pyro_vgpds.cli import main
from pyro_vgpds.cli.describing import _shortened

NAMES = list("abcdef")


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("waves")
    t = np.arange(30.0)
    y = np.sin(t[:, None] / 4.0 + np.arange(6)) + 0.1 * np.random.default_rng(0).standard_normal((30, 6))
    rows = np.column_stack([t, y]).round(4)
    path = write_csv(folder / "waves.csv", ["t", *NAMES], rows.tolist())
    return SimpleNamespace(folder=folder, csv=str(path), rows=rows)


@pytest.fixture(scope="module")
def model(waves):
    path = waves.folder / "model"
    assert main(["fit", waves.csv, "-o", str(path), "--quick", "--latent-dim", "5", "--steps", "3", "-q"]) == 0
    return path


@pytest.mark.parametrize(("task", "more"), [("forecast", ["--horizon", "5"]), ("reconstruct", [])])
def test_calibrate_prints_what_it_chose(task, more, waves, tmp_path, capsys):
    path = tmp_path / "m"
    assert main(["fit", waves.csv, "-o", str(path), "--steps", "3", "--calibrate", task, *more]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("calibrated")]
    found = load_posterior(path)
    origin, factor = found.members[0].origin, found.combination(task).calibration.factor
    noise = "as trained" if origin.noise_variance is None else f"{float(origin.noise_variance.sqrt().mean()):.4g}"
    residual = "white" if origin.residual is None else repr(origin.residual)
    assert line == (
        f"calibrated to {task}: noise sd {noise}, residuals {residual}, standard deviations of predictions times "
        f"{float(factor.median()):.3g} ({float(factor.min()):.3g} to {float(factor.max()):.3g})"
    )


def test_info_shortens_long_lists_of_parameters(model, capsys):
    assert main(["info", str(model)]) == 0
    text = capsys.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith(("temporal", "mapping")))
    assert re.search(r"lengthscale=\[5 values, [\d.e+-]+ to [\d.e+-]+\]", lines["temporal"])
    assert re.search(r"weight=\[5 values, [\d.e+-]+ to [\d.e+-]+\]", lines["mapping"])
    assert main(["info", str(model), "--json"]) == 0
    found = re.search(r"weight=\[(.*)\]", json.loads(capsys.readouterr().out)["mapping"])
    weights = load_posterior(model).origin.model.mapping.weight
    assert torch.allclose(torch.tensor([float(one) for one in found[1].split(", ")]), weights, rtol=1e-3)


def test_short_lists_and_other_brackets_stay():
    short = "RBF(variance=[1, 2e-05, -3, 4]) * Own(names=[], text=[a, b, c, d, e])"
    assert _shortened(short) == short
    long = "RBF(variance=[1, 2e-05, 3, 4, 1e+03], lengthscale=2 (fixed))"
    assert _shortened(long) == "RBF(variance=[5 values, 2e-05 to 1000], lengthscale=2 (fixed))"


def test_evaluate_does_not_train_on_all_data(waves, tmp_path, capsys):
    arguments = ["--candidates", "none", "--baselines", "column mean,last value"]
    assert main(["evaluate", waves.csv, "-o", str(tmp_path / "page.html"), *arguments]) == 0
    assert "training on all data" not in capsys.readouterr().err
    assert main(["fit", waves.csv, "-o", str(tmp_path / "m"), *arguments]) == 0
    assert "training on all data: " in capsys.readouterr().err


# columns of text in files to reconstruct


def test_columns_of_text_that_the_model_does_not_know_are_ignored(waves, model, tmp_path, capsys):
    rows = [[*row, "fine", ""] for row in waves.rows[:4].tolist()]
    rows[1][2] = ""
    rows[2][-1] = "late"
    plain = write_csv(tmp_path / "plain.csv", ["t", *NAMES], [row[:-2] for row in rows])
    more = write_csv(tmp_path / "more.csv", ["t", *NAMES, "remark", "state"], rows)
    for path in (plain, more):
        assert main(["reconstruct", str(model), str(path), "-o", f"{path}.out.csv"]) == 0
    assert (tmp_path / "more.csv.out.csv").read_text() == (tmp_path / "plain.csv.out.csv").read_text()
    note = f"note: {more}: columns 'remark', 'state' are ignored: they have text and are no outputs of {model}\n"
    assert capsys.readouterr().err.count(note) == 1
    one = write_csv(tmp_path / "one.csv", ["t", *NAMES, "remark"], [row[:-1] for row in rows])
    assert main(["reconstruct", str(model), str(one), "-o", str(tmp_path / "out.csv")]) == 0
    note = f"note: {one}: column 'remark' is ignored: it has text and is no output of {model}\n"
    assert note in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "cells", "fault"),
    [
        (["t", "a", "x"], [0, 1, 2], "column 'x' is not an output of "),  # a number may be a misspelled output
        (["t", "a", "x"], [0, 1, math.nan], "column 'x' is not an output of "),
        (["t", "a", "b"], [0, 1, "two"], "line 2, column 'b': 'two' is not a number"),
        (["t", "x", "y"], [0, "one", "two"], "line 2, column 'x': 'one' is not a number"),
    ],
)
def test_other_columns_are_errors(header, cells, fault, model, tmp_path, capsys):
    path = write_csv(tmp_path / "odd.csv", header, [cells])
    assert main(["reconstruct", str(model), str(path)]) == 1
    assert fault in capsys.readouterr().err
