# SPDX-License-Identifier: Apache-2.0
"""csv files of very many columns: as fast for each column as narrow ones, with short messages."""

import numpy as np
import pytest

from pyro_vgpds.cli.csv_files import read_csv
from pyro_vgpds.cli.errors import CommandError
from pyro_vgpds.cli.layout import Layout, select

COUNT = 100_000  # in a quadratic time, this test would take many minutes


def write(path, names):
    y = np.arange(2.0 * (len(names) - 1)).reshape(2, -1)
    lines = [",".join(names), *(",".join([str(i), *(f"{v:g}" for v in row)]) for i, row in enumerate(y))]
    path.write_text("\n".join(lines))
    return np.array([[float(f"{v:g}") for v in row] for row in y])


def test_many_columns(tmp_path):
    names = ["time", *(f"c{i}" for i in range(COUNT))]
    y = write(tmp_path / "wide.csv", names)
    table = read_csv(tmp_path / "wide.csv", Layout())
    assert table.columns == names[1:]
    assert np.array_equal(table.y[0], y)
    with pytest.raises(CommandError) as caught:
        read_csv(tmp_path / "wide.csv", Layout(time="when"))
    assert "'when' is not a column; the columns are time, c0, c1, " in str(caught.value)
    assert len(str(caught.value)) < 500
    assert select(",".join(reversed(names)), names, len(names), "--columns") == list(range(COUNT + 1))[::-1]


def test_a_repeated_name_among_many(tmp_path):
    write(tmp_path / "wide.csv", ["time", *(f"c{i}" for i in range(COUNT)), "c7"])
    with pytest.raises(CommandError, match=f"column {COUNT + 2} has the same name as another, 'c7'"):
        read_csv(tmp_path / "wide.csv", Layout())
