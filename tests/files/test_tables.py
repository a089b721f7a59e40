# SPDX-License-Identifier: Apache-2.0
"""Predictions and draws as csv, npz and video files."""

import io

import numpy as np
import pytest
import torch
from problems import make_data, make_model

from pyro_vgpds import Posterior, PosteriorMixture, Sequences
from pyro_vgpds.datasets import load_video
from pyro_vgpds.files import write_table
from pyro_vgpds.kernels import Matern32


@pytest.fixture
def posterior():
    data = make_data()
    data.columns = list("abcde")
    return Posterior(*make_model(data), data)


@pytest.mark.parametrize("mixed", [False, True])
def test_csv_and_npz_have_the_moments_and_intervals(posterior, tmp_path, mixed):
    source = PosteriorMixture([posterior, posterior]) if mixed else posterior
    prediction = source.forecast([1.25, 2.5], 0)
    lower, upper = prediction.interval(0.8)
    prediction.to_file(tmp_path / "a.csv", 0.8, sequence=["x", "x"])
    header, *rows = [line.split(",") for line in (tmp_path / "a.csv").read_text().splitlines()]
    assert header[:5] == ["sequence", "time", "a", "a lower", "a upper"]
    assert [row[:2] for row in rows] == [["x", "1.25"], ["x", "2.5"]]
    numbers = np.array([row[2:] for row in rows], dtype=float).reshape(2, 5, 3)
    wanted = torch.stack([prediction.mean, lower, upper], -1).numpy()
    np.testing.assert_allclose(numbers, wanted, rtol=1e-9)
    prediction.to_file(tmp_path / "a.npz", 0.8)
    with np.load(tmp_path / "a.npz") as arrays:
        assert sorted(arrays) == ["columns", "lower", "stddev", "t", "upper", "y"]
        np.testing.assert_array_equal(arrays["y"], prediction.mean)
        np.testing.assert_array_equal(arrays["stddev"], prediction.stddev)
        np.testing.assert_array_equal(arrays["lower"], lower)
        assert arrays["columns"].tolist() == list("abcde")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.npz"]


def test_text_streams_have_no_intervals_if_not_asked_for(posterior):
    stream = io.StringIO()
    posterior.forecast([1.25], 0).to_file(stream, interval=0)
    header, row = stream.getvalue().splitlines()
    assert header == "time,a,b,c,d,e"
    assert row.startswith("1.25,")


def test_numbers_that_differ_in_late_digits_are_written_with_all_of_them():
    t, y = (
        np.arange(3.0),
        np.array([[1e12 + 0.25, 5.0, 0.1, 1.0 / 3.0], [1e12 + 0.5, 5.0, 0.1, 2.0], [1e12, 5.0, 0.1, np.nan]]),
    )
    file = io.StringIO()
    write_table(file, t, y, interval=(y - 0.125, y + 0.125))
    rows = [line.split(",") for line in file.getvalue().splitlines()]
    assert [row[1] for row in rows[1:]] == ["1000000000000.25", "1000000000000.5", "1e+12"]
    assert rows[1][2:4] == ["1000000000000.125", "1000000000000.375"]
    assert rows[1][4:] == [
        "5",
        "4.875",
        "5.125",
        "0.1",
        "-0.025",
        "0.225",
        "0.3333333333",
        "0.2083333333",
        "0.4583333333",
    ]
    file = io.StringIO()
    write_table(file, t, y)  # constant outputs without intervals
    assert [line.split(",")[1:4] for line in file.getvalue().splitlines()[1:]] == [
        ["1000000000000.25", "5", "0.1"], ["1000000000000.5", "5", "0.1"], ["1e+12", "5", "0.1"]
    ]  # fmt: skip
    for kind in (np.float32, np.int64, np.bool_):
        file = io.StringIO()
        write_table(file, t, np.ones((3, 1), kind))
        assert file.getvalue().splitlines()[1:] == ["0,1", "1,1", "2,1"]
    file = io.StringIO()
    write_table(file, t[:0], y[:0])
    assert file.getvalue() == "time,y0,y1,y2,y3\n"


def test_dates():
    days = np.datetime64("2024-03-01", "ns") + np.arange(7) * np.timedelta64(1, "D")
    data = Sequences(days, make_data((7,)).y)
    stream = io.StringIO()
    Posterior(*make_model(data, temporal=Matern32(1.0, "2d")), data).forecast(
        days[-1:] + np.timedelta64(12, "h")
    ).to_file(stream, 0)
    assert stream.getvalue().splitlines()[1].startswith("2024-03-07T12:00:00,")


@pytest.mark.long
def test_videos(tmp_path):
    frames = np.random.default_rng(0).uniform(0, 255, (3, 12))
    write_table(tmp_path / "a.gif", np.arange(3.0), frames, frame_shape=(3, 4), fps=5.0)
    assert load_video(tmp_path / "a.gif").frames.shape == (3, 3, 4)
    write_table(tmp_path / "a.npz", np.arange(3.0), frames, frame_shape=(3, 4), fps=5.0)
    with np.load(tmp_path / "a.npz") as arrays:
        np.testing.assert_array_equal(arrays["frames"], frames.reshape(3, 3, 4))
        assert float(arrays["fps"]) == 5.0


def test_bad_input_is_named(posterior, tmp_path):
    prediction = posterior.forecast([1.25], 0)
    with pytest.raises(ValueError, match=r"path must end in one of \.csv, \.npz, but got .*a\.txt"):
        prediction.to_file(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"a\.gif\. Videos need frame_shape"):
        prediction.to_file(tmp_path / "a.gif")
    with pytest.raises(ValueError, match=r"interval must be in \[0, 1\), but got 95"):
        prediction.to_file(tmp_path / "a.csv", 95)
    assert not list(tmp_path.iterdir())
