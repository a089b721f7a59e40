# SPDX-License-Identifier: Apache-2.0
"""Loaders of counts and of yes/no data: small files that are written here, and the real ones."""

import numpy as np
import pytest

from pyro_vgpds import datasets

RNG = np.random.default_rng(0)


def reaches_file(folder, **changes):
    arrays = {
        "spikes": RNG.poisson(0.5, (11, 20, 8)).astype(np.uint8),
        "hand_velocity": RNG.standard_normal((11, 20, 2)).astype(np.float32),
        "hand_position": RNG.standard_normal((11, 20, 2)).astype(np.float32),
        "condition": np.arange(11, dtype=np.int8),
        "bin_ms": np.int64(5),
    }
    return written(folder / "mc_maze" / "reaches.npz", arrays | changes)


def chorales_file(folder, **changes):
    notes = {name: RNG.random((n, 88)) < 0.1 for name, n in (("train", 7), ("valid", 4), ("test", 3))}
    arrays = {name: np.packbits(value, axis=1) for name, value in notes.items()}
    arrays |= {"train_lengths": [4, 3], "valid_lengths": [4], "test_lengths": [1, 2]}
    return written(folder / "jsb" / "chorales.npz", arrays | changes) | notes


def flu_file(folder, **changes):
    arrays = {
        "counts": RNG.poisson(3.0, (12, 4)).astype(np.int16),
        "population_share": np.array([0.1, 0.2, 0.3, 0.4]),
        "districts": np.array(["8336", "8337", "9162", "9163"]),
        "first_week": np.array([2001, 1]),
    }
    return written(folder / "flu" / "weekly_counts.npz", arrays | changes)


def written(path, arrays):
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return arrays


def test_reaches(tmp_path):
    file = reaches_file(tmp_path)
    data = datasets.load_mc_maze(data_home=tmp_path)
    assert (len(data.y), data.bin_ms, data.columns[3]) == (11, 20, "neuron 3")
    np.testing.assert_allclose(data.t[4], [0.01, 0.03, 0.05, 0.07, 0.09])
    for trial in (0, 7):
        for k in range(5):
            rows = slice(4 * k, 4 * k + 4)
            np.testing.assert_array_equal(data.y[trial][k], file["spikes"][trial, rows].astype(float).sum(0))
            for name, values in (("hand_velocity", data.velocity), ("hand_position", data.position)):
                np.testing.assert_allclose(values[trial][k], file[name][trial, rows].astype(float).mean(0), atol=1e-12)
    np.testing.assert_array_equal(data.condition, np.arange(11))
    fine = datasets.load_mc_maze(5, data_home=tmp_path)
    np.testing.assert_array_equal(np.stack(fine.y), file["spikes"])


def test_folds_and_hidden_neurons(tmp_path):
    reaches_file(tmp_path)
    data = datasets.load_mc_maze(data_home=tmp_path)
    np.testing.assert_array_equal(np.flatnonzero(data.hidden), [3, 7])
    tests = [data.fold(k)[1].tolist() for k in range(5)]
    assert tests == [[0, 5, 10], [1, 6], [2, 7], [3, 8], [4, 9]]
    train, test = data.fold(2)
    assert sorted([*train, *test]) == list(range(11))
    training, partial, truth = data.training(2), data.partial(2), data.truth(2)
    assert (training.num_sequences, partial.num_sequences, truth.shape) == (9, 2, (10, 8))
    np.testing.assert_array_equal(training.read().numpy(), np.concatenate([data.y[i] for i in train]))
    both = np.where(np.isnan(truth), partial.read().numpy(), truth)
    np.testing.assert_array_equal(both, np.concatenate([data.y[i] for i in test]))
    np.testing.assert_array_equal(np.isnan(truth), ~np.isnan(partial.read().numpy()))
    assert partial.columns == data.columns
    for fold in (5, -1, 0.5, True):
        with pytest.raises(ValueError, match="fold must be a whole number from 0 to 4, but got"):
            data.fold(fold)
    with pytest.raises(ValueError, match="num_folds must be a whole number of at least 2"):
        data.fold(0, 1)


def test_chorales(tmp_path):
    notes = chorales_file(tmp_path)
    data = datasets.load_jsb(data_home=tmp_path)
    assert [len(y) for y in data.y] == [4, 3, 4, 1, 2]
    for name, lengths in (("train", (4, 3)), ("valid", (4,)), ("test", (1, 2))):
        part = data.part(name)
        assert part.lengths == lengths
        np.testing.assert_array_equal(part.read().numpy(), notes[name])
    assert data.part("test").names == ["test 0", "test 1"]
    assert (data.columns[0], data.columns[39], data.columns[48], data.columns[87]) == ("A0", "C4", "A4", "C8")
    assert data.part("train").columns == data.columns
    np.testing.assert_array_equal(data.t[0], [0.0, 1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="name must be one of 'train', 'valid', 'test', but got 'all'"):
        data.part("all")


@pytest.mark.parametrize(
    ("first", "monday"), [((2001, 1), "2001-01-01"), ((2005, 1), "2005-01-03"), ((2008, 3), "2008-01-14")]
)
def test_flu(tmp_path, first, monday):
    file = flu_file(tmp_path, first_week=np.array(first))
    data = datasets.load_flu(data_home=tmp_path)
    np.testing.assert_array_equal(data.y[0], file["counts"])
    np.testing.assert_array_equal(data.exposure, file["population_share"])
    assert data.columns == ["8336", "8337", "9162", "9163"]
    assert data.dates[0][0] == np.datetime64(monday)
    assert set(np.diff(data.dates[0]).astype(int)) == {7}
    assert data.sequences().num_outputs == 4


def test_years_of_flu_have_52_weeks(tmp_path):
    flu_file(tmp_path, first_week=np.array((2004, 51)))
    dates = datasets.load_flu(data_home=tmp_path).dates[0]
    assert dates.astype(str).tolist()[:3] == ["2004-12-13", "2004-12-20", "2005-01-03"]  # no week 53


@pytest.mark.parametrize(
    ("write", "load", "changes", "fault"),
    [
        (reaches_file, datasets.load_mc_maze, {"bin_ms": None}, "it has no bin_ms, only spikes, hand_velocity"),
        (reaches_file, datasets.load_mc_maze, {"spikes": np.zeros((2, 3))}, "spikes must have 3 axes"),
        (reaches_file, datasets.load_mc_maze, {"condition": np.zeros(3)}, r"condition must have the shape \(11,\)"),
        (reaches_file, datasets.load_mc_maze, {"hand_velocity": np.zeros((11, 19, 2))}, "hand_velocity must have the"),
        (reaches_file, datasets.load_mc_maze, {"spikes": np.full((11, 20, 8), "a")}, "spikes must be numbers"),
        (reaches_file, datasets.load_mc_maze, {"spikes": np.full((11, 20, 8), 0.5)}, r"entry \(0, 0, 0\) is 0.5"),
        (reaches_file, datasets.load_mc_maze, {"spikes": np.array([{}] * 2)}, "Object arrays cannot be loaded"),
        (chorales_file, datasets.load_jsb, {"test": None}, "it has no test"),
        (chorales_file, datasets.load_jsb, {"test_lengths": [1, 3]}, r"test must have the shape \(4, 11\)"),
        (chorales_file, datasets.load_jsb, {"test_lengths": [3, 0]}, "test_lengths positive"),
        (chorales_file, datasets.load_jsb, {"test": np.zeros((3, 11))}, "test must be bytes"),
        (flu_file, datasets.load_flu, {"population_share": np.array([1.0, 0.0, 1.0, 1.0])}, "positive, but entry 1"),
        (flu_file, datasets.load_flu, {"districts": np.array(["a"])}, r"districts must have the shape \(4,\)"),
        (flu_file, datasets.load_flu, {"counts": np.array([[1, 2, 3, -4]])}, r"entry \(0, 3\) is -4"),
    ],
)
def test_damaged_files(tmp_path, write, load, changes, fault):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=fault):
        load(data_home=tmp_path)


def test_other_files(tmp_path):
    (tmp_path / "flu").mkdir()
    path = tmp_path / "flu" / "weekly_counts.npz"
    path.write_bytes(b"PK not a zip")
    with pytest.raises(ValueError, match="cannot be read as a data file"):
        datasets.load_flu(data_home=tmp_path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match="cannot be read as a data file"):
        datasets.load_flu(data_home=tmp_path)


@pytest.mark.parametrize("bin_ms", [7, 15, 200])
def test_bins_that_do_not_fit(tmp_path, bin_ms):
    reaches_file(tmp_path)
    with pytest.raises(ValueError, match=f"bin_ms must be a multiple of 5 that divides 100, but got {bin_ms}"):
        datasets.load_mc_maze(bin_ms, data_home=tmp_path)
    with pytest.raises(ValueError, match=r"bin_ms must be a whole number of at least 1, but got 2\.5"):
        datasets.load_mc_maze(2.5, data_home=tmp_path)


def test_missing_files(tmp_path):
    for load, part in (
        (datasets.load_mc_maze, "pickle files there, which this library does not read"),
        (datasets.load_jsb, "github.com/czhuang/JSB-Chorales-dataset"),
        (datasets.load_flu, "github.com/cran/surveillance"),
    ):
        with pytest.raises(FileNotFoundError, match="It cannot be downloaded automatically") as caught:
            load(data_home=tmp_path, download=True)
        assert part in str(caught.value)


@pytest.mark.data
def test_real_files(data_home):
    reaches = datasets.load_mc_maze(data_home=data_home)
    assert np.stack(reaches.y).shape == (165, 25, 162)
    assert sorted(set(reaches.condition)) == [2, 3, 4, 6, 7, 8, 10, 11, 12]
    # a reach: the hand moves as the velocity says
    moved = np.diff(np.stack(reaches.position), axis=1)
    speed = np.stack(reaches.velocity)
    assert np.corrcoef(moved.ravel(), (0.5 * (speed[:, 1:] + speed[:, :-1])).ravel())[0, 1] > 0.99
    chorales = datasets.load_jsb(data_home=data_home)
    assert [chorales.part(name).num_sequences for name in ("train", "valid", "test")] == [229, 76, 77]
    notes = np.concatenate(chorales.y)
    assert set(np.unique(notes)) == {0.0, 1.0}
    assert notes.sum(1).max() == 4
    flu = datasets.load_flu(data_home=data_home)
    assert flu.y[0].shape == (416, 140)
    assert flu.exposure.sum() == pytest.approx(1.0)
    assert flu.y[0].max() == 109
