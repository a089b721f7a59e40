# SPDX-License-Identifier: Apache-2.0
"""Kernels with units of time on the command line, and names of sequences in Python and in files."""

import datetime

import numpy as np
import pytest
from written import write_csv

from pyro_vgpds import load, load_posterior
from pyro_vgpds.cli import main

SIZES = ["--latent-dim", "2", "--num-inducing", "8", "--steps", "2"]


@pytest.fixture
def hours(tmp_path):
    """An hourly csv with dates and two named sequences."""
    path, rng = tmp_path / "hours.csv", np.random.default_rng(0)
    rows = []
    for name, start in (("2014/15", datetime.datetime(2014, 5, 6)), ("2015/16", datetime.datetime(2015, 5, 6))):
        for i in range(40):
            values = np.sin(2 * np.pi * i / 24 + np.arange(3)) + 0.05 * rng.standard_normal(3)
            rows.append([name, (start + datetime.timedelta(hours=i)).isoformat(), *values])
    return write_csv(path, ["sequence", "time", "a", "b", "c"], rows)


def fit(path, kernel, *options):
    return main(["fit", str(path), "-o", str(path.with_suffix(".safetensors")), "--temporal", kernel, *SIZES, *options])


def test_units(hours, capsys):
    assert fit(hours, "periodic(period=24h fixed)*matern32(lengthscale=7 d)+white") == 0
    assert "warning" not in capsys.readouterr().err
    model, _, data = load(hours.with_suffix(".safetensors"))
    assert model.temporal[0][0].period.item() == pytest.approx(86400.0)
    assert model.temporal[0][0].is_fixed("period")
    assert data.names == ["2014/15", "2015/16"]
    assert load_posterior(hours.with_suffix(".safetensors")).forecast([5e5], sequence="2015/16").mean.shape == (1, 3)
    assert main(["info", str(hours.with_suffix(".safetensors"))]) == 0
    assert "Periodic.period is 1 d" in capsys.readouterr().out


@pytest.mark.filterwarnings("always::pyro_vgpds.inference.TimeScaleWarning")
def test_numbers_that_are_not_seconds(hours, capsys):
    assert fit(hours, "periodic(period=24 fixed)+white") == 0
    error = capsys.readouterr().err
    assert (
        "pyro-vgpds fit: warning: period=24 of Periodic is below the median spacing of the frames (3600 s, 1 h)"
        in error
    )
    assert "write a duration with its unit, as in period='24h'" in error
    assert error.count("warning") == 1


def test_units_need_dates(tmp_path, capsys):
    path = tmp_path / "numbers.csv"
    path.write_text("time,a,b\n" + "\n".join(f"{i},{np.sin(i)},{np.cos(i)}" for i in range(12)))
    assert fit(path, "periodic(period=24h)+white") == 2
    assert "--temporal: period of Periodic in temporal is a duration, 1 d, which needs data with dates" in (
        capsys.readouterr().err
    )
    assert not path.with_suffix(".safetensors").exists()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("periodic(period=24hours)", "--temporal: the kernel 'periodic(period=24hours)': unknown unit 'hours'"),
        ("periodic(variance=2h)", "variance of Periodic is not a time, so it has no unit 'h'"),
    ],
)
def test_bad_units(hours, kernel, message, capsys):
    assert fit(hours, kernel) == 2
    assert message in capsys.readouterr().err


def test_time_zones_are_mentioned(hours, capsys):
    note = "the dates have a time zone and become UTC: dates of predictions, --until and --times are UTC\n"
    text = hours.read_text()
    for zone, noted in (("", False), ("Z", False), ("+00:00", False), ("+01:00", True)):
        hours.write_text(text.replace(":00,", f":00{zone},"))
        assert fit(hours, "matern32+white", "--force") == 0
        assert (note in capsys.readouterr().err) == noted
    assert fit(hours, "matern32+white", "--force", "-q") == 0
    assert note not in capsys.readouterr().err
    _, _, data = load(hours.with_suffix(".safetensors"))
    assert data.time_origin == np.datetime64("2014-05-05T23")
