# SPDX-License-Identifier: Apache-2.0
"""Errors of the command line: a message that names the cause, an exit code, no traceback and no partial file."""

import os
import re
import sys
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from pyro_vgpds.cli import fitting, main, predicting
from pyro_vgpds.cli.dates import months_to, parse_date, parse_range, parse_step, with_hyphens
from pyro_vgpds.cli.errors import CommandError, UsageError
from pyro_vgpds.cli.layout import Layout, select
from pyro_vgpds.cli.reading import read_table
from pyro_vgpds.data.dates import format_times
from pyro_vgpds.files.atomic import atomic_write


def error_of(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return code, text


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    x = np.arange(12.0)[:, None] + np.arange(3)
    np.savez(folder / "plain.npz", y=np.sin(x), columns=np.array(["a", "b", "c"]))
    days = np.datetime64("2024-01-01") + np.arange(12).astype("timedelta64[D]")
    np.savez(folder / "two.npz", t=np.tile(days[:6], 2), y=np.sin(x), sequence=np.repeat(["u", "v"], 6))
    np.savez(folder / "short.npz", t=[*range(11), 0], y=np.sin(x), sequence=["long"] * 11 + ["short"])
    np.savez(folder / "film.npz", frames=np.random.default_rng(0).uniform(0, 255, (12, 8, 8)))
    names = ("plain", "two", "short", "film")
    for name in names:
        options = ["--latent-dim", "1", "--num-inducing", "4", "--steps", "1", "-q"]
        assert main(["fit", str(folder / f"{name}.npz"), "-o", str(folder / f"{name}.safetensors"), *options]) == 0
    return SimpleNamespace(folder=folder, **{name: folder / f"{name}.safetensors" for name in names})


# arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["fit", "x.csv"], "the following arguments are required: -o/--output"),
        (["fit", "x.csv", "-o", "m", "--steps", "0"], "--steps: must be a whole number of at least 1, but got '0'"),
        (["fit", "x.csv", "-o", "m", "--steps", "many"], "--steps: must be a whole number of at least 1"),
        (["fit", "x.csv", "-o", "m", "--seed", "-1"], "--seed"),
        (["fit", "x.csv", "-o", "m", "--seed", str(2**32)], "must be below 2**32"),
        (["fit", "x.csv", "-o", "m", "--method", "magic"], "invalid choice: 'magic'"),
        (
            ["fit", "x.csv", "-o", "m", "--temporal", "rbf+"],
            "kernel 'rbf+': expected the name of a kernel",
        ),
        (["fit", "x.csv", "-o", "m", "--resume"], "--resume requires --checkpoint FILE"),
        (["fit", "x.csv", "-o", "."], "-o/--output must be a file, but . is a folder"),
        (["fit", "x.csv", "-o", "y.csv"], "-o/--output must be a model file, such as y.safetensors, but got y.csv"),
        (["fit", "x.csv", "-o", "y.PNG", "--quick"], "-o/--output must be a model file, such as y.safetensors"),
        (
            ["fit", "x.csv", "-o", "m", "--checkpoint", "c.npz"],
            "--checkpoint must be a model file, such as c.safetensors, but got c.npz",
        ),
        (["forecast", "m", "--interval", "1"], "must be at least 0 and below 1, but got '1'"),
        (["forecast", "m", "--interval", "wide"], "must be at least 0 and below 1"),
        (["forecast", "m", "--fps", "0"], "must be a positive number, but got '0'"),
        (["forecast", "m", "--fps", "fast"], "must be a positive number, but got 'fast'"),
        (["plot", "m", "-o", "a.docx"], "-o/--output must end in one of .png, .pdf, .svg"),
        (["demo", "--output", __file__], "--output must be a folder"),
        (["demo", "--output", "demo.html"], "--output must be a folder, in which the page is one of several files"),
        (["demo", "--steps", "0"], "must be a whole number of at least 1"),
    ],
)
def test_usage(arguments, message, capsys):
    code, text = error_of(capsys, *arguments)
    assert code == 2
    assert message in text


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("plain", ["forecast"], "--horizon, --until or --times is required"),
        (
            "plain",
            ["forecast", "--times", "1,x"],
            "--times: 'x' is not a number like the first. Give times separated by commas",
        ),
        (
            "plain",
            ["forecast", "--until", "24h"],
            "--until: '24h' is not a number or a date such as 2024-01-31T12:00:00. Give the last time; --horizon takes",
        ),
        ("plain", ["forecast", "--times", "soon"], "--times: 'soon' is not a number or a date"),
        ("plain", ["forecast", "--times", "1,inf"], "--times must be finite"),
        ("plain", ["forecast", "--times", "5:1:1"], "--times must be START:STOP:STEP with START <= STOP"),
        ("plain", ["forecast", "--times", "0:1e9:1e-9"], "but the maximum is 10000000"),
        ("plain", ["forecast", "--times", "1", "--until", "2"], "--until cannot be combined with --times"),
        ("plain", ["forecast", "--horizon", "1", "--until", "2"], "--horizon cannot be combined with --until"),
        ("plain", ["forecast", "--times", "1", "--step", "2"], "--times cannot be combined with --step"),
        ("plain", ["forecast", "--horizon", "10000001"], "--horizon gives 10000001 times, but the maximum is 10000000"),
        (
            "two",
            ["forecast", "--horizon", "1000000", "--sequence", "u"],
            "--horizon 1000000: dates must be in the years 1678 to 2261, but got",
        ),
        ("plain", ["forecast", "--times", "2024-01-01"], "--times must be numbers, like the times of"),
        ("plain", ["forecast", "--until", "3"], "--until 3 gives no times: they start after 11, in steps of 1"),
        ("plain", ["forecast", "--until", "13,14"], "--until must be one time"),
        (
            "plain",
            ["forecast", "--until", "13", "--step", "2 years"],
            "--step must be a positive number, for dates with one of the units",
        ),
        ("plain", ["forecast", "--until", "13", "--step", "0"], "--step must be a positive number"),
        ("plain", ["forecast", "--until", "13", "--sequence", "zz"], "--sequence must be one of 0, or new"),
        ("plain", ["forecast", "--until", "13", "-o", "a.gif"], "-o/--output must end in one of .csv, .npz, but got"),
        (
            "plain",
            ["plot", "--what", "fit", "--sequence", "new"],
            "--sequence must be a training sequence with --what fit, but got 'new'",
        ),
        (
            "film",
            ["plot", "--what", "fit", "--sequence", "new"],
            "--sequence must be a training sequence with --what fit",
        ),
        ("film", ["plot", "--what", "fit", "--sequence", "zz"], "--sequence must be one of 0, or new"),
        ("plain", ["forecast", "--times", "-1,x"], "--times: 'x' is not a number like the first"),
        (
            "short",
            ["forecast", "--horizon", "2"],
            "--horizon requires --step, such as 0.5, because sequence short has only one frame, and the default is",
        ),
        ("short", ["forecast", "--until", "3", "--sequence", "short"], "--until requires --step, such as 0.5, because"),
        ("plain", ["generate", "--step", "1"], "--step requires --horizon or --until"),
        ("plain", ["reconstruct", "--hide", "a"], "--hide requires FILE"),
        ("two", ["forecast", "--until", "2024-02-01"], "--sequence is required: one of u, v, or new"),
        (
            "two",
            ["forecast", "--until", "2300-01-01", "--sequence", "u"],
            "--until: dates must be in the years 1678 to 2261, but got 2300-01-01",
        ),
        ("two", ["forecast", "--until", "7", "--sequence", "u"], "--until must be dates"),
        ("film", ["forecast", "--until", "15", "-o", "a.doc"], "must end in one of .csv, .npz, .gif, .mp4"),
    ],
)
def test_usage_with_a_model(models, model, arguments, message, capsys):
    command, *rest = arguments
    code, text = error_of(capsys, command, getattr(models, model), *rest)
    assert code == 2
    assert text.startswith(f"pyro-vgpds {command}: error: ")
    assert message in text


def test_inputs_are_not_replaced(models, capsys):
    data = models.folder / "plain.npz"
    for arguments in (["fit", data], ["reconstruct", models.plain, data]):
        code, text = error_of(capsys, *arguments, "-o", data, "--force")
        assert code == 2
        assert "is an input file. Choose another name" in text
    assert "is an input file" in error_of(capsys, "forecast", models.plain, "-o", models.plain, "--force")[1]


def test_a_checkpoint_replaces_no_file_without_force(tmp_path, capsys):
    data, other, out = tmp_path / "x.csv", tmp_path / "other.state", tmp_path / "m.safetensors"
    rows = "t,a,b\n0,1,2\n1,2,2\n2,4,1\n3,5,0\n"
    for path in (data, other):
        path.write_text(rows)
    fit = ["fit", data, "-o", out, "--steps", "2", "-q", "--checkpoint"]
    for more in ([], ["--force"], ["--resume"]):
        code, text = error_of(capsys, *fit, data, *more)
        assert (code, data.read_text()) == (2, rows)
        assert f"--checkpoint: {data} is an input file. Choose another name" in text
    code, text = error_of(capsys, *fit, other)
    assert (code, other.read_text()) == (2, rows)
    assert (
        f"--checkpoint: {other} already exists. Choose another name, or pass --resume to continue from it or --force"
        in text
    )
    code, text = error_of(capsys, *fit, other, "--resume")  # not a checkpoint
    assert (code, other.read_text()) == (1, rows)
    code, text = error_of(capsys, *fit, out)
    assert code == 2
    assert "--checkpoint and -o/--output must be different files, but both are" in text
    assert not out.exists()
    assert error_of(capsys, *fit, other, "--force") == (0, "")
    assert other.read_bytes()[:1] != b"t"


def test_outputs_are_checked_first(models, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fitting, "fit", None)
    monkeypatch.setattr(predicting, "_write", None)
    long = tmp_path / ("m" * 255 + ".safetensors")
    targets = [long, "/proc/m.safetensors"] if os.path.isdir("/proc/self") else [long]  # where even root cannot write
    for target in targets:
        for arguments in (
            ["fit", models.folder / "plain.npz", "-o", target],
            ["fit", models.folder / "plain.npz", "-o", tmp_path / "m", "--checkpoint", target],
            ["forecast", models.plain, "--until", "12", "-o", target],
        ):
            code, text = error_of(capsys, *arguments, "-q")
            assert code == 1
            assert f"{arguments[-2].replace('-o', '-o/--output')}: cannot write {target}: " in text
            assert ".part" not in text
    code, text = error_of(capsys, "plot", models.plain, "-o", long.with_suffix(".png"))
    assert code == 1
    assert "cannot write" in text
    assert not os.listdir(tmp_path)


def test_many_outputs_require_a_file(models, capsys, monkeypatch):
    monkeypatch.setattr(predicting, "_WIDEST", 10)
    code, text = error_of(capsys, "forecast", models.film, "--until", "15")
    assert code == 2
    assert "-o/--output is required: 64 outputs are too many to print" in text


# files


CSV = {
    "empty.csv": ("", "empty.csv is empty"),
    "head.csv": ("t,a,b\n", "has a header but no rows"),
    "ragged.csv": ("t,a,b\n0,1,2\n1,2\n", "ragged.csv, line 3: 2 cells, but the header has 3 columns"),
    "text.csv": (
        "t,a,b\n0,1,2\n1,low,3\n",
        "text.csv, line 3, column 'a': 'low' is not a number. Leave missing values empty",
    ),
    "inf.csv": ("t,a,b\n0,1,2\n1,inf,3\n", "line 3, column 'a': 'inf' is infinite. Leave missing values empty"),
    "twice.csv": ("t,a,a\n0,1,2\n", "column 3 has the same name as another, 'a'; rename it, or delete it."),
    "noname.csv": ("t,,a\n0,1,2\n", "column 2 has no name; name it, or delete it."),
    "bars.csv": ("t|a\n1|1\n2|2\n", "its columns are t|a. Cells are separated by commas, semicolons or tabs."),
    "unclosed.csv": (
        't,a,b\n0,1,2\n1,"2,3\n2,1,2\n' + "3,1,2\n4,1,2",
        "line 3: 2 cells, but the header has 3 columns",
    ),
    "unclosed_last.csv": (
        't,a,b\n0,1,2\n1,2,"3\n' + 20 * "2,1,2\n",
        "line 3, column 'b': '3\\n2,1,2\\n"
        + 5 * "2,1,2\\n"
        + "2,…' (a cell of several lines: is a quotation mark missing?)",
    ),
    "numbered.csv": (
        "0,1,2\n0.1,1.5,2.5\n0.2,3.5,1.0\n",
        "line 1: 0, 1, 2, … are the numbers of columns, or the first row of a file without names. Write names",
    ),
    "comment.csv": (
        "# of 2024\nt,a\n0,1\n1,2\n",
        "the first line has 1 cell, but most others have 2. The first line must be the names of the columns: delete",
    ),
    "comments.csv": (
        "# of 2024\n# K\nt,a\n0,1\n1,2\n",
        "the first line has 1 cell, but most others have 2. The first line",
    ),
    "uneven.csv": ("t,a,b\n0,1\n1,2\n2,1,2\n3,1,2\n", "line 2: 2 cells, but the header has 3 columns."),
    "second.csv": (
        "t,a\ns,K\n0,1\n1,2\n",
        "line 2, column 't': 's' is not a number or a date such as 2024-01-31T12:00:00. This column was taken for the "
        "times. If line 2 has units or descriptions, delete it. Name the times' column",
    ),
    "clock.csv": (
        "date,time,a\n2024-01-01,00:10,1\n2024-01-01,00:20,2\n",
        "(it is a time of day without a date: write",
    ),
    "short.csv": (
        "date,a\n31-Jan-24,1\n01-Feb-24,2\n",
        "'31-Jan-24' is not a number or a date such as 2024-01-31T12:00:00 (write years with four digits)",
    ),
    "lonely.csv": ("a\n1\n2\n", "its columns are a. Cells are separated by commas, semicolons or tabs. If the file"),
    "units.csv": (
        "t,a,b\n0,12.3 C,1\n1,12.4 C,2\n",
        "line 2, column 'a': '12.3 C' is not a number. Write numbers without units and thousands separators, and leave "
        'missing values empty. All columns of numbers are selected by --columns "b".',
    ),
    "thousands.csv": ("t;a\n0;1.234,5\n", "'1.234,5' is not a number. Write numbers without units and thousands"),
    "limits.csv": (
        "t,note,a,b,who\n0,ok,<0.5,1,x\n1,ok,0.7,2,7\n2,ok,-,2,y\n3,ok,0.8,2,z\n",
        "line 2, column 'note': 'ok' is not a number. Leave missing values empty, select the columns of numbers with "
        "--columns, or name the column of the times with --time and that of the sequences' names with "
        '--sequence-column. All columns of numbers are selected by --columns "b". These columns have numbers and text: '
        "a.",
    ),
    "index.csv": ("t,a,run\n0,1,1_1\n1,2,1_2\n", "line 2, column 'run': '1_1' is not a number."),
    "huge.csv": (
        "t,a,b\n0,1,1e300\n1,2,-1e300\n2,1,2\n",
        "outputs 1 ('b') of data have values so large that their variance is not a finite number in torch.float64. Use",
    ),
    "tiny.csv": (
        "t,a,b\n0,1,1e-200\n1,2,-1e-200\n2,1,\n",
        "outputs 1 ('b') of data differ by so little that their variance is zero in torch.float64. Use another unit.",
    ),
    "zones.csv": (
        "t,a\n2024-01-01T00:00Z,1\n2024-01-01T01:00Z,2\n2024-01-01T02:00,1\n",
        "line 4, column 't': '2024-01-01T02:00' has no time zone, unlike the first, '2024-01-01T00:00Z'.",
    ),
    "back.csv": (
        "t,a,b\n0,1,2\n2,1,2\n1,3,4\n",
        "the times (column 't') must increase, but 1 comes after 2 (row 3). Sort the rows",
    ),
    "again.csv": (
        "t,a,b\n2024-01-01,1,2\n2024-01-01,1,3\n",
        "the times (column 't') must increase, but 2024-01-01 is repeated (row 2)",
    ),
    "slashes.csv": ("t,a\n01/02/2024,1\n", "the first number could be the day or the month). This column was taken"),
    "nameless.csv": (",t,a\n5,0,1\n6,1,2\n", "column 1 has no name"),
    "when.csv": ("t,a,b\nlater,1,2\n", "line 2, column 't': 'later' is not a number or a date"),
    "label.csv": (
        "run,when,a\nfirst,now,2\n",
        "line 2, column 'run': 'first' is not a number or a date such as 2024-01-31T12:00:00. This column "
        "was taken for the times. Name the times' column with --time and the sequences' column with "
        "--sequence-column, or pass --no-time if the file has no times.",
    ),
    "closed.csv": (
        "t,a\n0,1\n1,not open\n2,3\n",
        "'not open' is not a number. If it stands for a missing value, pass --missing 'not open'. Otherwise: Leave",
    ),
    "patients.csv": (
        "run,when,a\nfirst,0,2\nfirst,1,2\n",
        "was taken for the times. If it has the names of sequences, pass --sequence-column 'run'. Name",
    ),
    "who_and_when.csv": (
        "run,when,a\nfirst,2024-01-01,2\n",
        "line 2, column 'run': 'first' is not a number. Leave missing values empty, select the columns of numbers with "
        "--columns, or name the column of the times with --time and that of the sequences' names with "
        "--sequence-column.",
    ),
    "mixed.csv": ("t,a,b\n1,1,2\n2024-01-01,1,2\n", "line 3, column 't': '2024-01-01' is not a number like the first"),
    "timeless.csv": ("t,a,b\n1,1,2\nnan,1,2\n", "line 3, column 't': times must be finite"),
    "old.csv": (
        "t,a\n1677-12-31,1\n1678-01-01,2\n",
        "line 2, column 't': dates must be in the years 1678 to 2261, but ",
    ),
    "bare.csv": ("1600-01-01,1\n2000-01-01,2\n2001-01-01,2\n", "line 1, column 'y0': dates must be in the years"),
    "far.csv": (
        "t,a\n2000-01-01,1\n2300-01-01 12:00,2\n",
        "line 3, column 't': dates must be in the years 1678 to 2261",
    ),
    "alone.csv": ("t\n1\n2\n", "has no column of outputs besides time and sequence; its columns are t."),
    "who.csv": ("sequence,t,a\nx,1,1\n,2,2\n", "line 3: column 'sequence' is empty; give the name of a sequence"),
    "flat.csv": ("t,a,b\n0,1,1\n1,1,1\n2,1,1\n", "nothing in data varies"),
    "never.csv": (
        "t,a,b\n0,1,\n1,2,\n2,1,\n",
        "never.csv: column 'b' has no numbers. All columns of numbers are selected by --columns \"a\".",
    ),
    "nevers.csv": ("t,a:1,b,c\n0,1,,\n1,2,,\n2,1,,\n", "nevers.csv: the columns b, c have no numbers.\n"),
    "status.csv": (
        "t,a,status,b c,note\n0,1,ok,2,\n1,2,ok,1,late\n2,1,ok,3,\n",
        "line 2, column 'status': 'ok' is not a number. Leave missing values empty, select the columns of numbers with "
        "--columns, or name the column of the times with --time and that of the sequences' names with "
        '--sequence-column. All columns of numbers are selected by --columns "a,b c".',
    ),
    "latin.csv": (
        b"t,a\n0,\xe9\n",
        "latin.csv: it is not UTF-8 text (byte 0xe9 at position 6). Save it with encoding UTF-8.",
    ),
}


@pytest.mark.parametrize("name", CSV)
def test_bad_tables(tmp_path, name, capsys):
    content, message = CSV[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    code, text = error_of(capsys, "fit", tmp_path / name, "-o", tmp_path / "m", "--steps", "1", "-q")
    assert code == 1
    assert message in text
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time", "when"], "--time 'when' is not a column; the columns are t, a, b"),
        (["--sequence", "who"], "--sequence-column 'who' is not a column"),
        (["--columns", "a,z"], "--columns: unknown column 'z'; the columns are a, b"),
        (["--columns", "5"], "--columns must select different columns of 0 to 1, but got 5"),
        (["--columns", "a,a"], "but one is repeated"),
        (["--columns", "1:1"], "but '1:1' selects none"),
        (["--latent-dim", "3"], "--latent-dim must be at most the number of outputs, 2, but got 3"),
        (["--num-inducing", "9"], "--num-inducing must be at most the number of frames, 4, but got 9"),
    ],
)
def test_layouts_that_do_not_fit(tmp_path, arguments, message, capsys):
    path = tmp_path / "x.csv"
    path.write_text("t,a,b\n0,1,2\n1,2,2\n2,4,1\n3,5,0\n")
    code, text = error_of(capsys, "fit", path, "-o", tmp_path / "m", "--steps", "1", "-q", *arguments)
    assert code == 1
    assert message in text


def test_hold_must_name_a_parameter(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("t,a,b\n0,1,2\n1,2,2\n2,4,1\n3,5,0\n")
    code, text = error_of(capsys, "fit", path, "-o", tmp_path / "m", "--hold", "power", "-q")
    assert code == 2
    assert "--hold: no kernel of --temporal has a parameter 'power'; known: lengthscale, variance" in text


def arrays_of(tmp_path, name, **arrays):
    np.savez(tmp_path / name, **arrays)
    return tmp_path / name


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones(3)}, "must contain y (N, D), or frames (T, H, W) of a video, but it contains a (3,)"),
        ({"y": np.ones((2, 2, 2))}, "y must be numbers of shape (N, D), but is float64 of shape (2, 2, 2)"),
        ({"y": np.array([["a", "b"]])}, "y must be numbers of shape (N, D), but is <U1"),
        ({"y": np.array([[1, None]], dtype=object)}, "as arrays of numbers: Object arrays"),
        ({"y": np.full((2, 2), np.inf)}, "y must be finite, or NaN"),
        (
            {"y": np.ones((2, 2)), "t": np.ones(3)},
            "t must be numbers or dates of shape (2,), but is float64 of shape (3,)",
        ),
        ({"y": np.ones((2, 2)), "t": np.array([0, np.nan])}, "times must be finite"),
        (
            {"y": np.ones((2, 2)), "t": np.array(["1600-01-01", "2000-01-01"], "datetime64[D]")},
            "x.npz: t: dates must be in the years 1678 to 2261, but got 1600-01-01",
        ),
        (
            {"y": np.ones((2, 2)), "t": np.array(["2000-01-01", "NaT"], "datetime64[D]")},
            "times must be finite",
        ),
        ({"y": np.ones((2, 2)), "columns": np.array(["a"])}, "columns must be strings of shape (2,)"),
        ({"y": np.ones((2, 2)), "sequence": np.ones(2)}, "sequence must be integers or strings of shape (2,)"),
        ({"frames": np.ones((2, 2))}, "the frames must be numbers (T, H, W)"),
    ],
)
def test_bad_arrays(tmp_path, arrays, message, capsys):
    path = arrays_of(tmp_path, "x.npz", **arrays)
    code, text = error_of(capsys, "fit", path, "-o", tmp_path / "m", "-q")
    assert code == 1
    assert message in text


def test_files_of_the_wrong_kind(tmp_path, models, capsys):
    out = tmp_path / "m"
    assert error_of(capsys, "fit", tmp_path / "no.csv", "-o", out) == (
        1, f"pyro-vgpds fit: error: file {tmp_path / 'no.csv'} does not exist.\n")  # fmt: skip
    (tmp_path / "x.doc").touch()
    assert (
        "the suffix of a data file must be one of .csv, .tsv"
        in error_of(capsys, "fit", tmp_path / "x.doc", "-o", out)[1]
    )
    (tmp_path / "x.npz").write_bytes(b"nothing of the kind")
    assert "cannot read" in error_of(capsys, "fit", tmp_path / "x.npz", "-o", out)[1]
    code, text = error_of(capsys, "fit", tmp_path / "x.doc", "-o", tmp_path / "no" / "m")
    assert code == 1
    assert f"-o/--output: folder {tmp_path / 'no'} does not exist" in text
    (tmp_path / "cut").write_bytes(models.plain.read_bytes()[:500])
    code, text = error_of(capsys, "info", tmp_path / "cut")
    assert code == 1
    assert "is not a complete pyro_vgpds file" in text


@pytest.mark.parametrize("arrays", [{"y": np.ones((9, 2))}, {"frames": np.ones((9, 4, 4))}])
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_arrays(tmp_path, arrays, packed, capsys):
    path = tmp_path / "x.npz"
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    whole = path.read_bytes()
    for content in (whole[:100], whole[:-30], whole[:60] + b"damage" + whole[66:], b"PK\x03\x04", b""):
        path.write_bytes(content)
        code, text = error_of(capsys, "fit", path, "-o", tmp_path / "m")
        assert code == 1
        assert f"error: cannot read {path} as arrays of numbers: " in text


def test_suffixes_may_be_upper_case(tmp_path):
    y, frames = np.arange(6.0).reshape(3, 2), np.arange(48.0).reshape(3, 4, 4)
    for name, array in (("y", y), ("frames", frames)):
        np.save(tmp_path / "X.NPY.npy", array)
        (tmp_path / "X.NPY.npy").rename(tmp_path / "X.NPY")
        np.savez(tmp_path / "X.NPZ.npz", **{name: array})
        (tmp_path / "X.NPZ.npz").rename(tmp_path / "X.NPZ")
        for file in ("X.NPY", "X.NPZ"):
            table = read_table(tmp_path / file, Layout())
            np.testing.assert_array_equal(table.y[0], array.reshape(3, -1))
            assert table.shape == (None if name == "y" else (4, 4))
    (tmp_path / "X.CSV").write_text("t,a\n0,1\n")
    assert read_table(tmp_path / "X.CSV", Layout()).columns == ["a"]


def test_videos_require_the_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "x.mp4").write_bytes(b"film")
    code, text = error_of(capsys, "fit", tmp_path / "x.mp4", "-o", tmp_path / "m")
    assert code == 1
    assert "pip install 'pyro_vgpds[video]'" in text


@pytest.mark.parametrize(
    ("model", "name", "content", "message"),
    [
        ("plain", "a.csv", "t,a,zz\n0,1,2\n", "column 'zz' is not an output of"),
        ("plain", "a.csv", "t,a,zz\n0,1,2\n", "whose outputs are a, b, c. Select columns with --columns."),
        ("plain", "a.csv", "t,a\n2024-01-01,1\n", "the times are dates, but those of"),
        ("two", "a.csv", "t,y0\n1,1\n", "the times are numbers, but those of"),
        ("plain", "a.npz", {"y": np.ones((2, 5))}, "has 5 outputs, but"),
        ("film", "a.npz", {"frames": np.ones((2, 4, 16))}, "frames are (4, 16), but those of"),
        ("film", "a.npz", {"frames": np.ones((2, 4, 16))}, "are (8, 8). --shrink N averages N x N pixels to one."),
    ],
)
def test_files_that_do_not_fit_the_model(models, tmp_path, model, name, content, message, capsys):
    path = tmp_path / name
    if isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_text(content)
    code, text = error_of(capsys, "reconstruct", getattr(models, model), path, "-q")
    assert code == 1
    assert message in text


# unexpected errors


def test_unexpected_errors(models, capsys, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("something is odd")

    monkeypatch.setattr(predicting, "_write_forecasts", fail)
    assert main(["forecast", str(models.plain), "--until", "12"]) == 1
    assert capsys.readouterr().err == (
        "pyro-vgpds forecast: error: RuntimeError: something is odd (--debug prints the traceback)\n"
    )
    assert main(["forecast", str(models.plain), "--until", "12", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (MemoryError(), 1), (BrokenPipeError(), 0)])
def test_ends(models, capfd, monkeypatch, error, code):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(predicting, "_write_forecasts", fail)
    if isinstance(error, BrokenPipeError):  # keep the test's own output
        monkeypatch.setattr(os, "dup2", lambda *_: None)
    assert main(["forecast", str(models.plain), "--until", "12"]) == code
    text = capfd.readouterr().err
    assert "Traceback" not in text
    assert {130: "interrupted", 1: "out of memory", 0: ""}[code] in text


def test_ctrl_c_keeps_the_model(models, tmp_path, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        result = original(*arguments, **options)
        result.stopped = "interrupted"
        return result

    original = fitting.fit
    monkeypatch.setattr(fitting, "fit", interrupted)
    out = tmp_path / "m.safetensors"
    for quiet in ([], ["-q", "--force"]):
        assert main(["fit", str(models.folder / "plain.npz"), "-o", str(out), "--steps", "2", *quiet]) == 130
        assert "interrupted by Ctrl-C; the best model so far was saved" in capsys.readouterr().err
        assert out.is_file()


def test_a_terminal_shows_the_elapsed_time(models, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    data = str(models.folder / "plain.npz")
    assert main(["reconstruct", str(models.plain), data, "--hide", "a", "--steps", "1"]) == 0
    text = capsys.readouterr().err
    assert re.search(r"12 of 36 values are missing; reconstructing \.\.\. \d+\.\d s\n", text)


def test_no_partial_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("old")
    with suppress(RuntimeError), atomic_write(path) as part:
        assert part.suffix == ".csv"
        part.write_text("ha")
        raise RuntimeError
    assert path.read_text() == "old"
    with atomic_write(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.csv"]
    gone = tmp_path / "gone" / "b.csv"
    with pytest.raises(FileNotFoundError, match=re.escape(repr(str(gone)))), atomic_write(gone) as part:
        part.write_text("nowhere")


# details of reading and times


DAYS = np.array(["2024-01-02", "2024-01-03"], "datetime64[ns]")


@pytest.mark.parametrize(
    ("text", "layout", "t", "y", "columns"),
    [
        ("t,a\n0,1\n1,\n", Layout(), [0, 1], [1, np.nan], ["a"]),
        ("a;Time;b\n1;5;x\n2;6;y\n", Layout(columns="a"), [5, 6], [1, 2], ["a"]),
        ("0\t1\n2\tNA\n", Layout(), [0, 2], [1, np.nan], ["y1"]),
        ("a\n3\n4\n", Layout(no_time=True), [0, 1], [3, 4], ["a"]),
        (",a\n7,1\n8,2\n", Layout(), [7, 8], [1, 2], ["a"]),
        (",0\n7,1\n8,2\n", Layout(), [7, 8], [1, 2], ["0"]),
        ("\ufeffday,a\n1,1\n\n2,null\n", Layout(), [1, 2], [1, np.nan], ["a"]),
        ("x,y\n1,4\n2,3\n", Layout(time="x"), [1, 2], [4, 3], ["y"]),
        (",day,a\n0,2024-01-02,5\n1,2024-01-03,6\n", Layout(), DAYS, [5, 6], ["a"]),  # row numbers are no output
        (",x,a\n0,7,5\n1,8,6\n", Layout(time="x"), [7, 8], [5, 6], ["a"]),
        (",a\n0,5\n1,6\n", Layout(no_time=True), [0, 1], [5, 6], ["a"]),
        ("a;Datum\n1,5;2.1.2024\n;03.01.2024 00:00\n", Layout(), DAYS, [1.5, np.nan], ["a"]),
    ],
)
def test_tables(tmp_path, text, layout, t, y, columns):
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    table = read_table(path, layout)
    np.testing.assert_array_equal(table.t[0], t)
    np.testing.assert_array_equal(table.y[0][:, 0], y)
    assert table.columns == columns
    assert table.names is None


def test_sequences_of_a_table_may_be_mixed(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("who,t,a\nv,0,1\nu,0,2\nv,1,3\nu,2,4\n")
    table = read_table(path, Layout(sequence="who"))
    assert table.names == ["v", "u"]
    assert [part.ravel().tolist() for part in table.y] == [[1, 3], [2, 4]]
    assert [part.tolist() for part in table.t] == [[0, 1], [0, 2]]
    path.write_text("sequence,when,a\nv,5,1\nv,6,2\n")
    np.testing.assert_array_equal(read_table(path, Layout()).t[0], [5, 6])  # the first other column
    path.write_text("sequence,a,b\nv,1,1\nu,2,2\nv,3,3\n")
    table = read_table(path, Layout(no_time=True))
    assert [part.tolist() for part in table.t] == [[0, 1], [0]]


def test_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    table = read_table(tmp_path / "x.npy", Layout())
    np.testing.assert_array_equal(table.t[0], [0, 1, 2])
    np.save(tmp_path / "film.npy", np.zeros((3, 4, 6)))
    assert read_table(tmp_path / "film.npy", Layout(shrink=2)).shape == (2, 3)
    days = np.datetime64("2024-01-01", "D") + np.arange(2)
    table = read_table(arrays_of(tmp_path, "x.npz", values=np.ones((2, 3)), time=days), Layout(columns="0:2"))
    assert table.t[0].dtype == "datetime64[ns]"
    assert table.y[0].shape == (2, 2)
    with_time = arrays_of(tmp_path, "y.npz", y=np.ones(3), t=[5, 4, 3])
    np.testing.assert_array_equal(read_table(with_time, Layout(no_time=True)).t[0], [0, 1, 2])


def test_select():
    assert select("b, 0,2:4", ["a", "b", "c", "d"], 4, "--x") == [1, 0, 2, 3]
    with pytest.raises(CommandError, match="--x: unknown column 'q'; their numbers are 0 to 3"):
        select("q", None, 4, "--x")


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2024-02", "2024-02-01T00:00:00"),
        ("2024-02-03", "2024-02-03T00:00:00"),
        ("2024-02-03 04:05", "2024-02-03T04:05:00"),
        ("2024-02-03T04:05:06.5Z", "2024-02-03T04:05:06.5"),
        ("2024-02-03T04:05:06+01:30", "2024-02-03T02:35:06"),
        ("2024-02-03T04:05-0200", "2024-02-03T06:05"),
        ("03.02.2024", "2024-02-03T00:00:00"),
        ("3.2.2024 04:05:06", "2024-02-03T04:05:06"),
        ("2024-02-03 4:05:06", "2024-02-03T04:05:06"),
        ("2024/2/3", "2024-02-03"),
        ("2024/02/03 04:05", "2024-02-03T04:05"),
        ("Feb 3 2024", "2024-02-03"),
        ("February 3, 2024 04:05", "2024-02-03T04:05"),
        ("Feb-3-2024", "2024-02-03"),
        ("03-FEB-2024 04:05:06", "2024-02-03T04:05:06"),
        ("3 Sept. 2024", "2024-09-03"),
        ("May 2024", "2024-05-01"),
        ("2024 May", "2024-05-01"),
        ("2024Q2", "2024-04-01"),
        ("2024 Q4", "2024-10-01"),
        ("Q1-2024", "2024-01-01"),
        ("2024-W05", "2024-01-29"),
        ("2020W53-7 04:05", "2021-01-03T04:05"),
        ("2024-02-03 12:05 AM", "2024-02-03T00:05"),
        ("Feb 3 2024 12:05:06 pm", "2024-02-03T12:05:06"),
        ("2024/2/3 4:05PM", "2024-02-03T16:05"),
    ],
)
def test_dates(text, date):
    assert parse_date(text) == np.datetime64(date, "ns")


@pytest.mark.parametrize(
    "text",
    [
        "03/02/2024", "03.13.2024", "3.2.24", "2024-13-01", "2024-2-3", "today", "", "2024/13/1", "2024Q5", "Foo 2024",
        "Feb 30 2024", "2024-01-31 13:00 PM", "2024-01-31 0:30 AM", "2024-01-31 AM", "Feb 3",
        "3 Feb 24", "2024-W53", "Marchand 2024", "Febr 3 2024 noon",
    ],
)  # fmt: skip
def test_invalid_dates(text):
    with pytest.raises(ValueError):
        parse_date(text)


@pytest.mark.parametrize(
    ("cells", "written"),
    [
        (["20240131", "20240201"], ["2024-01-31", "2024-02-01"]),
        (["20240131", "20240132"], None),  # numbers
        (["20240131", "20240230"], None),
        (["20240131", "2024.5"], None),
        (["18991231"], None),
        (["05/01/2024", "13/01/2024"], ["2024-01-05", "2024-01-13"]),
        (["1/5/2024 8:00 AM", "1/13/2024 8:00 PM"], ["2024-01-05 8:00 AM", "2024-01-13 8:00 PM"]),
        (["1/5/2024", "2/5/2024"], None),  # January and February, or days of May
        (["1/13/2024", "13/1/2024"], None),
        (["13/01/2024", "30/02/2024"], None),
        (["13/01/2024", "late"], None),
    ],
)
def test_dates_without_hyphens(cells, written):
    assert with_hyphens(cells) == (written or cells)


def test_forecasts_after_dates_without_hyphens_are_dates(tmp_path, capsys):
    file = tmp_path / "days.csv"
    file.write_text("date,a,b\n" + "".join(f"202401{d:02d},{d % 5},{d % 3}\n" for d in range(20, 32)))
    model = str(tmp_path / "days.safetensors")
    assert main(["fit", str(file), "-o", model, "--quick", "--steps", "2", "-q"]) == 0
    assert main(["forecast", model, "--horizon", "2"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == ["time", "2024-02-01", "2024-02-02"]


def test_forecasts_after_quarters_are_quarterly(tmp_path, capsys):
    file = tmp_path / "accounts.csv"
    file.write_text("quarter,a\n" + "".join(f"{2000 + i // 4} Q{i % 4 + 1},{i % 4}\n" for i in range(12)))
    model = str(tmp_path / "accounts.safetensors")
    assert main(["fit", str(file), "-o", model, "--quick", "--steps", "2", "-q"]) == 0
    assert main(["forecast", model, "--horizon", "2"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == ["time", "2003-01-01", "2003-04-01"]


def test_ranges_and_steps():
    np.testing.assert_allclose(parse_range("0:1:0.25", "--times"), [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(parse_range("3", "--times"), [3])
    assert parse_range("2024-01-01,2024-01-02", "--times").dtype == "datetime64[ns]"
    assert [parse_step(text, "--step") for text in ("2", "0.5s", "3 min", "2h", "1d", "1w")] == [
        2.0, 0.5, 180.0, 7200.0, 86400.0, 604800.0]  # fmt: skip
    with pytest.raises(UsageError, match="--step must be a positive number"):
        parse_step("1 fortnight", "--step")
    assert format_times(np.array([0.1 + 0.2, 1600000000.125])) == ["0.3", "1600000000.125"]
    assert format_times(np.array(["2024-01-01", "2024-01-02T03:00"], dtype="datetime64[ns]")) == [
        "2024-01-01T00:00:00", "2024-01-02T03:00:00"]  # fmt: skip


def test_decimal_commas(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("time;a;b\n0,5;-1,25;2\n1,5;,5;3,5e-1\n2,5;;-4\n")
    table = read_table(path, Layout())
    np.testing.assert_array_equal(table.t[0], [0.5, 1.5, 2.5])
    np.testing.assert_array_equal(table.y[0], [[-1.25, 2], [0.5, 0.35], [np.nan, -4]])
    for bad in (
        "time;a\n0;1,234\n1;1.5\n",
        "time;a\n0;1,234.5\n1;2\n",
        "time\ta\n0\t1,5\n",
    ):  # could be thousands separators
        path.write_text(bad)
        with pytest.raises(CommandError, match="is not a number"):
            read_table(path, Layout())


@pytest.mark.parametrize(
    ("known", "until", "wanted"),
    [
        (["2015-05-01", "2015-06-01", "2015-07-01"], "2015-10-01", ["2015-08-01", "2015-09-01", "2015-10-01"]),
        (["2015-03-31", "2015-06-30", "2015-09-30"], "2016-03-30", ["2015-12-31"]),
        (["2014-12-31", "2015-01-31", "2015-02-28"], "2015-04-30", ["2015-03-31", "2015-04-30"]),
        (["2010-07-04", "2011-07-04"], "2013-12-31", ["2012-07-04", "2013-07-04"]),
        (["2015-06-01", "2015-07-01"], "2015-07-20", []),
        (["2241-12-31", "2251-12-31"], "2261-12-31", ["2261-12-31"]),
        (["2015-06-01", "2015-06-08", "2015-06-15"], "2015-08-01", None),
    ],
)
def test_monthly_dates_continue_monthly(known, until, wanted):
    got = months_to(np.array(known, "datetime64[ns]"), np.datetime64(until, "ns"))
    assert (got if got is None else format_times(got)) == wanted
    if wanted:
        counted = months_to(np.array(known, "datetime64[ns]"), len(wanted))
        assert format_times(counted) == wanted


def test_forecasts_of_monthly_data_are_monthly(tmp_path, capsys):
    months = np.arange("2014-01", "2016-01", dtype="datetime64[M]")
    rows = [f"{month}-01,{np.sin(i / 3)},{np.cos(i / 3)}" for i, month in enumerate(months)]
    (tmp_path / "m.csv").write_text("\n".join(["date,a,b", *rows]), encoding="utf-8")
    model = str(tmp_path / "m.safetensors")
    assert main(["fit", str(tmp_path / "m.csv"), "-o", model, "--steps", "3", "-q"]) == 0
    capsys.readouterr()
    for ahead in (["--until", "2016-04-01"], ["--horizon", "4"]):
        assert main(["forecast", model, *ahead, "-q"]) == 0
        lines = capsys.readouterr().out.splitlines()[1:]
        assert [line.split(",")[0] for line in lines] == ["2016-01-01", "2016-02-01", "2016-03-01", "2016-04-01"]
    assert main(["forecast", model, "--until", "2015-12-20", "-q"]) == 2
    assert "they start after 2015-12-01, in steps of 31 d." in capsys.readouterr().err


def test_a_csv_file_in_place_of_a_model(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("t,a\n0,1\n1,2\n2,1\n")
    for command in (["forecast", "--horizon", "2"], ["info"], ["plot"]):
        code, text = error_of(capsys, command[0], tmp_path / "x.csv", *command[1:])
        assert code == 1
        assert f"x.csv is not a model file. `pyro-vgpds fit {tmp_path / 'x.csv'} -o MODEL` trains a model." in text


def test_dates_with_slashes_and_rows_from_the_latest(tmp_path, capsys):
    file = tmp_path / "prices.csv"
    file.write_text("id,day,a,b\n" + "".join(f"{d},{d}/01/2024,{d % 5},?\n{d},{d - 1}/01/2024,-,2\n" for d in (14, 12)))
    table = read_table(file, Layout())
    days = np.array([f"2024-01-{d}" for d in (11, 12, 13, 14)], "datetime64[ns]")
    np.testing.assert_array_equal(table.t[0], days)
    np.testing.assert_array_equal(table.y[0], [[12, np.nan, 2], [12, 2, np.nan], [14, np.nan, 2], [14, 4, np.nan]])
    assert table.reversed
    model = str(tmp_path / "prices.safetensors")
    assert main(["fit", str(file), "-o", model, "--columns", "a,b", "--quick", "--steps", "2"]) == 0
    assert "the rows begin with the latest time: they are read in reverse order" in capsys.readouterr().err
    assert main(["forecast", model, "--horizon", "1", "--interval", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2024-01-15,")


def test_rows_of_several_sequences_from_the_latest(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("sequence,t,a\nx,2,1\nx,1,2\ny,9,3\nz,3,4\nz,0,5\n")
    table = read_table(file, Layout())
    assert [t.tolist() for t in table.t] == [[1, 2], [9], [0, 3]]
    assert [y[:, 0].tolist() for y in table.y] == [[2, 1], [3], [5, 4]]
    file.write_text("sequence,t,a\nx,2,1\nx,1,2\ny,0,4\ny,3,5\n")
    with pytest.raises(
        CommandError, match=r"the times of sequence 'x' \(column 't'\) must increase, but 1 comes after 2"
    ):
        read_table(file, Layout())


def test_true_and_false_and_lines_that_end_with_a_separator(tmp_path):
    file = tmp_path / "doors.csv"
    file.write_text("t,open,a,\n0,TRUE,1.5,\n1,false,2,\n2,,3,\n")
    table = read_table(file, Layout())
    assert table.columns == ["open", "a"]
    np.testing.assert_array_equal(table.y[0], [[1, 1.5], [0, 2], [np.nan, 3]])
    file.write_text("t,a,\n0,1,\n1,2,4\n")
    with pytest.raises(CommandError, match="column 3 has no name; name it, or delete it"):
        read_table(file, Layout())
