# SPDX-License-Identifier: Apache-2.0
"""Columns that count the rows."""

import numpy as np
import pytest

from pyro_vgpds.cli import main
from pyro_vgpds.cli.counters import describe_counters

COUNT = np.arange(101.0, 121.0)
WAVE = np.sin(COUNT)


def test_a_column_that_counts_the_rows_is_described():
    found = describe_counters([np.stack([WAVE[:9], COUNT[:9]], 1), np.stack([WAVE[9:], COUNT[9:]], 1)], ["a", "id"])
    assert found == (
        "column 'id' increases by 1 in each row. If it counts the rows and was not measured, leave it out with "
        "--columns"
    )
    assert describe_counters([np.stack([10 * COUNT, WAVE], 1)], None).startswith("column 0 increases by 10 in each")


@pytest.mark.parametrize(
    "other",
    [WAVE, np.ones(20), -COUNT, 0.5 * COUNT, np.where(COUNT == 110, np.nan, COUNT), np.where(COUNT == 110, 0, COUNT)],
)
def test_other_columns_are_not(other):
    assert describe_counters([np.stack([WAVE, other], 1)], None) is None


def test_neither_are_few_rows_nor_data_without_other_columns():
    assert describe_counters([np.stack([WAVE, COUNT], 1)[:9]], None) is None
    assert describe_counters([COUNT[:, None]], None) is None


def test_fit_says_so(tmp_path, capsys):
    file = tmp_path / "x.csv"
    file.write_text("t,a,id\n" + "".join(f"{i},{i % 5},{i + 7}\n" for i in range(20)))
    assert main(["fit", str(file), "-o", str(tmp_path / "m"), "--steps", "1"]) == 0
    assert "note: column 'id' increases by 1 in each row." in capsys.readouterr().err
