# SPDX-License-Identifier: Apache-2.0
"""Columns that count the rows, and numbers that stand for missing values."""

import numpy as np
import pytest

from pyro_vgpds.cli import main
from pyro_vgpds.cli.notes import find_notes

COUNT = np.arange(101.0, 121.0)
WAVE = np.sin(COUNT)
Y = np.sin(np.arange(60.0)).reshape(30, 2)


def with_values(*entries):
    y = Y.copy()
    for row, column, value in entries:
        y[row, column] = value
    return y


@pytest.mark.parametrize("value", [-999.0, -9999.0, 9999.9, -99.0, 99999.0, -99.99])
def test_usual_codes_are_described(value):
    (found,) = find_notes([with_values((3, 1, value)), with_values((5, 1, value), (6, 0, np.nan))], ["a", "b"])
    assert found == (
        f"column 'b' has {value:g} in 2 rows, far from all other values. If such a number stands for a missing value, "
        f"pass --missing {value:g}"
    )


@pytest.mark.parametrize(
    "y",
    [
        Y,
        with_values((3, 1, -998.0)),  # an outlier
        np.linspace(0, 999, 60)[:, None],  # the largest of many
        np.array([[999.0], [999.0], [999.0], [998.0]]),
        np.full((5, 1), -999.0),
        np.full((5, 1), np.nan),
        with_values((3, 0, 9.0)),
    ],
)
def test_other_numbers_are_not(y):
    assert list(find_notes([y], None)) == []


def test_many_columns():
    (found,) = find_notes([np.hstack([with_values((0, 0, -999.0), (1, 1, -999.0))] * 3)], None)
    assert found.startswith("column 0 has -999 in 1 row, column 1 has -999 in 1 row, column 2 has -999 in 1 row, far")
    assert ", and 3 further columns are like that." in found


def test_a_column_that_counts_the_rows_is_described():
    (found,) = find_notes([np.stack([WAVE[:9], COUNT[:9]], 1), np.stack([WAVE[9:], COUNT[9:]], 1)], ["a", "id"])
    assert found == (
        "column 'id' increases by 1 in each row. If it counts the rows and was not measured, leave it out with "
        "--columns"
    )
    (found,) = find_notes([np.stack([10 * COUNT, WAVE], 1)], None)
    assert found.startswith("column 0 increases by 10 in each")


@pytest.mark.parametrize(
    "other",
    [WAVE, np.ones(20), -COUNT, 0.5 * COUNT, np.where(COUNT == 110, np.nan, COUNT), np.where(COUNT == 110, 0, COUNT)],
)
def test_other_columns_do_not_count_rows(other):
    assert list(find_notes([np.stack([WAVE, other], 1)], None)) == []


def test_neither_do_few_rows_nor_data_without_other_columns():
    assert list(find_notes([np.stack([WAVE, COUNT], 1)[:9]], None)) == []
    assert list(find_notes([COUNT[:, None]], None)) == []


@pytest.mark.parametrize(("y", "name"), [(COUNT % 7, "negative-binomial"), (COUNT % 2, "bernoulli")])
def test_counts_and_yes_or_no(y, name):
    y = np.stack([y, np.roll(y, 3)], 1)
    (found,) = find_notes([np.vstack([y, [[np.nan, 0.0]]])], None)
    assert f"With --likelihood {name}, intervals have only such numbers" in found
    assert list(find_notes([y], None, may_be_counts=False)) == []
    for other in (y + 0.5, -y, y + 1000.0, y[:9]):
        assert list(find_notes([other], None)) == []


@pytest.mark.parametrize("code", ["-999", "-999.0", "broken"])
def test_codes_become_missing(tmp_path, capsys, code):
    file = tmp_path / "x.csv"
    file.write_text("t,a,id\n" + "".join(f"{i},{code if i == 4 else i % 5},{i + 7}\n" for i in range(20)))
    fit = ["fit", str(file), "-o", str(tmp_path / "m"), "--steps", "1"]
    if code != "broken":
        assert main(fit) == 0
        printed = capsys.readouterr().err
        assert "note: column 'a' has -999 in 1 row, far from all other values." in printed
        assert "note: column 'id' increases by 1 in each row." in printed
    assert main([*fit, "--force", "--missing", code.removesuffix(".0")]) == 0
    printed = capsys.readouterr().err
    assert "1 sequence, 20 frames, 2 outputs, 2.5 % missing" in printed
    assert "-999" not in printed
