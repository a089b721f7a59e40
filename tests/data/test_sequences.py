# SPDX-License-Identifier: Apache-2.0
import datetime
import io
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyro_vgpds import Sequences, lagged
from pyro_vgpds.data import sequences


def check_groups(data: Sequences, y: np.ndarray, mean: torch.Tensor, columns: bool = False) -> None:
    """Every group's Gram matrix, counts and mask against the columns themselves."""
    groups = data.groups(mean, columns=columns)
    seen = ~np.isnan(y)
    patterns = {}
    for d in range(y.shape[1]):
        if seen[:, d].any():
            patterns.setdefault(tuple(seen[:, d]), []).append(d)
    assert groups.num_groups == len(patterns)
    assert list(groups.widths) == sorted(groups.widths)
    centred = torch.nan_to_num(torch.from_numpy(y).double() - mean)
    mask = torch.ones(1, len(y)) if groups.mask is None else groups.mask
    start = 0
    for c, width in enumerate(groups.widths):
        of_group = patterns.pop(tuple(mask[c].bool().tolist()))
        part, factor = centred[:, of_group], groups.factor[:, start : start + width]
        scale = float(part.abs().max()) ** 2 * len(of_group) + 1e-300
        torch.testing.assert_close(factor @ factor.mT, part @ part.mT, rtol=1e-9, atol=1e-12 * scale)
        assert groups.columns[c] == len(of_group)
        assert groups.rows[c] == mask[c].sum()
        torch.testing.assert_close(groups.square[c], part.square().sum(), rtol=1e-10, atol=1e-12 * scale)
        if columns:
            assert groups.order[start : start + width].tolist() == of_group
            torch.testing.assert_close(factor, part)
        else:
            assert width == min(len(of_group), int(mask[c].sum()))
        start += width
    assert not patterns
    runs = list(groups.runs())
    assert sum((r[0].stop - r[0].start) * r[2] for r in runs) == groups.factor.shape[1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 8),
    d=st.integers(1, 25),
    kinds=st.integers(1, 5),
    rate=st.floats(0, 1),
    columns=st.booleans(),
    block=st.sampled_from([1, 30, 1 << 21]),
    seed=st.integers(0, 1000),
)
def test_groups_of_any_pattern(n, d, kinds, rate, columns, block, seed, monkeypatch):
    monkeypatch.setattr(sequences, "_BLOCK", block)
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((n, d)) + 3
    masks = rng.random((kinds, n)) < rate
    y[masks[rng.integers(kinds, size=d)].T] = np.nan
    data = Sequences(np.arange(n), y)
    mean = torch.nan_to_num(data.output_means)
    check_groups(data, y, mean, columns)
    assert data.num_missing == np.isnan(y).sum()
    assert torch.equal(data.mask(), torch.from_numpy(~np.isnan(y)))
    observed = (~np.isnan(y)).any(0)
    np.testing.assert_allclose(data.output_means.numpy()[observed], np.nanmean(y[:, observed], 0))
    np.testing.assert_allclose(data.output_variances.numpy()[observed], np.nanvar(y[:, observed], 0), atol=1e-12)


def test_many_columns_become_a_factor_of_the_gram():
    y = np.random.default_rng(0).standard_normal((6, 500))
    data = Sequences(np.arange(6), y)
    groups = data.groups(data.output_means)
    assert groups.factor.shape == (6, 6)
    assert groups.mask is None
    check_groups(data, y, data.output_means)


@pytest.mark.parametrize(("d", "triangular"), [(3, False), (6, True), (9, True), (500, True)])
def test_the_factor_of_about_as_many_columns_as_frames_is_triangular(d, triangular, monkeypatch):
    monkeypatch.setattr("pyro_vgpds.data.groups._TRIANGLE", (9, 9))
    y = np.random.default_rng(0).standard_normal((9, d))
    data = Sequences(np.arange(9), y)
    check_groups(data, y, data.output_means)
    groups = data.groups(data.output_means)
    factor = groups.factor
    assert torch.equal(factor, factor.tril()) == triangular
    assert (groups.used is not None) == triangular
    assert not triangular or groups.used.tolist() == [min(n + 1, factor.shape[1]) for n in range(len(factor))]
    check_groups(data, y, data.output_means, columns=True)  # the columns themselves stay as they are


def test_groups_are_kept_until_the_mean_changes():
    data = Sequences(np.arange(5), np.random.default_rng(0).standard_normal((5, 3)))
    mean = torch.zeros(3)
    first = data.groups(mean)
    assert data.groups(mean) is first
    mean += 1.0
    assert data.groups(mean) is not first
    assert data.groups(torch.zeros(3)) is not first
    with pytest.raises(ValueError, match=r"mean must be \(3,\), one for each output, but got \(2,\)"):
        data.groups(torch.zeros(2))
    scale = torch.full((3,), 2.0)
    scaled = data.groups(mean, scale)
    assert data.groups(mean, scale) is scaled
    torch.testing.assert_close(scaled.square, data.groups(mean / 1).square / 4)
    torch.testing.assert_close(scaled.log_scale, 15 * torch.tensor(2.0).log())
    scale *= 2.0
    torch.testing.assert_close(data.groups(mean, scale).square, scaled.square / 4)
    with pytest.raises(ValueError, match=r"scale must be \(3,\), one for each output, but got \(1,\)"):
        data.groups(mean, torch.ones(1))


Y = np.arange(12.0).reshape(4, 3)
T = np.array([0.0, 0.5, 1.0, 2.0])


@pytest.mark.parametrize(
    ("t", "y"),
    [
        (T, Y),
        (T.tolist(), Y.tolist()),
        (torch.tensor(T), torch.tensor(Y)),
        (T.astype(np.float32), Y.astype(np.float32)),
        (2 * T.astype(int) + [0, 1, 0, 0], Y.astype(np.int16)),
        (torch.tensor(T), Y.astype(bool)),
        (pd.Series(T), pd.DataFrame(Y)),
        (pd.Index(T), pd.DataFrame(Y.astype(int))),
        ([T, T], [Y, Y + 1]),
        ((T, T), (torch.tensor(Y, dtype=torch.float32), Y)),
        (T, pd.DataFrame(Y).astype("Float64")),
    ],
)
def test_what_can_be_given(t, y):
    data = Sequences(t, y)
    several = isinstance(y, (list, tuple)) and np.ndim(y[0]) > 1
    first = y[0] if several else y
    expected = np.asarray(first, dtype=float) if not isinstance(first, torch.Tensor) else first.double().numpy()
    assert data.y.dtype == data.times.t.dtype == torch.float64
    assert data.lengths == ((4, 4) if several else (4,))
    np.testing.assert_array_equal(data.y[:4].numpy(), expected)
    assert len(data) == data.num_sequences == (2 if several else 1)


def test_other_dtypes_are_asked_for():
    data = Sequences(T, Y, dtype=torch.float32)
    assert data.y.dtype == data.times.t.dtype == data.groups(data.output_means).factor.dtype == torch.float32


def test_one_column_may_be_a_vector():
    assert Sequences(T, Y[:, 0]).y.shape == (4, 1)
    assert Sequences([T, T[:2]], [Y[:, 0], pd.Series(Y[:2, 0])]).y.shape == (6, 1)


def test_times_alone():
    data = Sequences(T)
    assert data.y is None
    assert data.num_outputs == 0
    assert repr(data) == "Sequences(1 sequence, 4 frames)"
    assert repr(Sequences([0.0], [[1.0]])) == "Sequences(1 sequence, 1 frame, 1 output)"
    assert repr(Sequences([T, T], [Y, np.full_like(Y, np.nan)])) == (
        "Sequences(2 sequences, 8 frames, 3 outputs, 50 % missing)"
    )


def test_dates_become_seconds():
    dates = pd.date_range("2024-01-01", periods=4, freq="D")
    for t in (dates, pd.Series(dates), dates.to_numpy()):
        data = Sequences(t, Y)
        assert data.times.t.tolist() == [0.0, 86400.0, 172800.0, 259200.0]
        assert data.time_origin == np.datetime64("2024-01-01")
    data = Sequences([dates, dates + pd.Timedelta("1s")], [Y, Y])
    assert data.times.t[4] == 1.0


def test_a_frame_whose_times_may_be_a_column_is_warned_of():
    y = np.random.default_rng(0).standard_normal((4, 2))
    frame = pd.DataFrame(y, columns=["a", "b"]).assign(Time=[0.0, 1.0, 2.5, 3.0])
    with pytest.warns(UserWarning, match=r"column 'Time' of frame is an output, .* pass time='Time'") as caught:
        assert Sequences.from_frame(frame).num_outputs == 3
    assert caught[0].filename == __file__
    for other in (frame.set_index("Time"), frame.assign(Time=[3.0, 1.0, 2.0, 0.0]), frame.set_index("a"), frame[:1]):
        with suppress(ValueError):  # an index that does not increase
            Sequences.from_frame(other)  # warnings are errors here
    assert Sequences.from_frame(frame, time="Time").num_outputs == 2


def test_frames():
    frame = pd.DataFrame(
        {"when": [0.0, 1.0, 0.0, 1.0, 2.0], "who": list("aabbb"), "u": range(5), "v": [1, None, 2, 3, 4]}
    )
    data = Sequences.from_frame(frame, time="when", sequence="who")
    assert data.lengths == (2, 3)
    assert data.columns == ["u", "v"]
    assert data.num_missing == 1
    single = Sequences.from_frame(frame.iloc[2:].drop(columns="who").set_index("when"))
    assert single.columns == ["u", "v"]
    assert single.times.t.tolist() == [0.0, 1.0, 2.0]
    hint = r"time='when' is not a column of frame; .* The index has this name: pass frame.reset_index\(\)"
    with pytest.raises(ValueError, match=hint):
        Sequences.from_frame(frame.drop(columns="who").set_index("when"), time="when")
    with pytest.raises(ValueError, match="time='t' is not a column of frame; the columns are"):
        Sequences.from_frame(frame, time="t")


def test_masked_arrays_are_missing_data():
    assert Sequences(T, np.ma.masked_array(Y.astype(int), mask=Y > 6)).num_missing == 5


def test_rows_of_no_sequence_are_refused():
    frame = pd.DataFrame({"t": [0.0, 1.0, 2.0], "s": ["a", "a", None], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="sequence='s' is missing in some rows"):
        Sequences.from_frame(frame, "t", "s")


def test_memmaps_of_another_byte_order(tmp_path):
    Y.astype(">f8").tofile(tmp_path / "y")
    data = Sequences(T, np.memmap(tmp_path / "y", dtype=">f8", mode="r", shape=Y.shape))
    np.testing.assert_array_equal(data.read().numpy(), Y)
    check_groups(data, Y, data.output_means)


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_memmaps_are_read_in_blocks_and_not_copied(tmp_path, monkeypatch, mode, dtype):
    full = np.random.default_rng(0).integers(0, 200, (5, 3000)).astype(dtype)
    path = tmp_path / "y.dat"
    full.tofile(path)
    y = np.memmap(path, dtype=dtype, mode=mode, shape=full.shape)
    monkeypatch.setattr(sequences, "_BLOCK", 1000)
    sizes = []
    original = sequences.to_tensor
    monkeypatch.setattr(sequences, "to_tensor", lambda a, d: sizes.append(a.size) or original(a, d))
    data = Sequences(np.arange(5), y)
    check_groups(data, full, data.output_means)
    assert max(sizes) <= 1000
    assert np.shares_memory(data.y.numpy(), y)
    two = Sequences([np.arange(5), np.arange(5)], [y, y])
    assert two.y.shape == (10, 3000)
    assert two.y.untyped_storage().nbytes() <= 8
    assert max(sizes) <= 1000
    check_groups(two, np.concatenate([full, full]), two.output_means)


@pytest.mark.parametrize(
    ("t", "y", "error", "message"),
    [
        (T, Y[:3], ValueError, "y has 3 rows, but t has 4 times"),
        ([T, T], [Y, Y[:2]], ValueError, r"y\[1\] has 2 rows, but t has 4 times"),
        ([T, T], [Y], ValueError, "t has 2 sequences, but y has 1"),
        ([T, T], Y, ValueError, "t is a list of 2 sequences, so y must be a list of the same length, but got ndarray"),
        ([T, T], [Y, Y[:, :2]], ValueError, r"y\[1\] has 2 columns, but the sequences before it have 3"),
        (T[:, None], Y, ValueError, r"t must have one dimension, \(N,\), but its shape is \(4, 1\)"),
        (T, Y[None], ValueError, r"y must be \(N, D\), frames by outputs, but its shape is \(1, 4, 3\)"),
        (T, Y[:, :0], ValueError, "y has no columns"),
        (
            5,
            Y,
            ValueError,
            r"t must have one dimension, .* its shape is \(\)\. Give a list or .* for a single one",
        ),
        ([0.0, 1.0, 1.0, 2.0], Y, ValueError, r"t must increase, but it repeats 1\.0 at index 2\. Sort t and y"),
        ([0.0, 2.0, 1.0, 3.0], Y, ValueError, r"t must increase, but it decreases from 2\.0 to 1\.0 at index 2"),
        ([T, T[::-1]], [Y, Y], ValueError, r"t\[1\] must increase, but it decreases"),
        ([0.0, np.nan, 1.0, 3.0], Y, ValueError, r"t must be finite, but t\[1\] is nan"),
        ([0.0, 0.5, 1.0, np.inf], Y, ValueError, r"t must be finite, but t\[3\] is inf"),
        (T, np.where(Y == 7, -np.inf, Y), ValueError, r"y must be finite or NaN .* row 2, column 1 is infinite\.$"),
        ([], Y, ValueError, "t is empty"),
        ([T, []], [Y, Y[:0]], ValueError, r"t\[1\] is empty: a sequence needs at least one time"),
        (np.array([]), Y[:0], ValueError, "t is empty"),
        (T, Y.astype(str), TypeError, "y must be real numbers, but its dtype is <U"),
        (T, Y + 1j, TypeError, "y must be real numbers, but its dtype is complex128"),
        (T, torch.tensor(Y) + 1j, TypeError, r"y must be real numbers, but its dtype is torch\.complex128"),
        (T, Y.astype(object).tolist()[:3] + [["a", 1, 2]], TypeError, "y must be real numbers"),
        (T, pd.DataFrame(Y).astype(object).replace(7.0, "x"), TypeError, "y must be numbers, but holds other objects"),
        (T.astype(str), Y, TypeError, "t must be numbers or dates, but its dtype is"),
        (["2024-01-01"], Y, TypeError, r"Convert text to dates with np\.array\(t, 'datetime64\[s\]'\)"),
        (Y, None, ValueError, r"its shape is \(4, \d\)\. Times come first, then outputs: Sequences\(t, y\)"),
        (T, Y.T, ValueError, r"but t has 4 times: each frame needs one\. y\.T has as many rows as there are times"),
        ([T, pd.date_range("2024", periods=4)], [Y, Y], TypeError, "dates in some sequences and numbers in others"),
        ([T, T], [pd.DataFrame(Y), Y], ValueError, r"y\[1\] has columns None, but the sequences before it have"),
        (T + 1e9 + np.array([0, 1e-9, 2e-9, 3e-9]) - T, Y, ValueError, "repeats"),
    ],
)
def test_bad_input(t, y, error, message):
    with pytest.raises(error, match=message):
        Sequences(t, y)


def test_bad_options():
    with pytest.raises(ValueError, match="columns has 2 names, but y has 3 columns"):
        Sequences(T, Y, columns=["a", "b"])
    with pytest.raises(TypeError, match=r"dtype must be torch\.float64 or torch\.float32, but got torch\.int64"):
        Sequences(T, Y, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"row 3, column 2 is infinite or too large for torch\.float32: use another"):
        Sequences(T, np.where(Y.max() == Y, 1e39, Y), dtype=torch.float32)
    with pytest.raises(ValueError, match=r"times of sequence 0 are too close together for torch\.float32"):
        Sequences(1e6 + 1e-3 * T, Y, dtype=torch.float32)


def test_what_was_given_is_not_changed():
    t, y = T.copy(), Y.copy()
    y[1, 1] = np.nan
    kept = y.copy()
    data = Sequences(t, y)
    data.groups(data.output_means)
    data.y.add_(1.0)
    y[0, 0] = 50.0  # nor does the data follow what is done to it later
    assert data.read()[0, 0] == 0.0
    y[0, 0] = 0.0
    np.testing.assert_array_equal(y, kept)
    np.testing.assert_array_equal(t, T)


def test_lagged():
    dates = pd.date_range("2024-01-01", periods=4, freq="D")
    data = Sequences(
        [dates, dates[:2]], [pd.DataFrame(Y, columns=list("abc")), pd.DataFrame(Y[:2], columns=list("abc"))]
    )
    assert data.lags == ()
    assert data.num_base_outputs == 3
    wide = data.lagged([-1, 2])
    expected = np.concatenate([lagged(Y, [-1, 2]), lagged(Y[:2], [-1, 2])])
    np.testing.assert_array_equal(wide.read().numpy(), expected)
    assert wide.lags == (-1, 2)
    assert wide.num_base_outputs == 3
    assert wide.columns == [
        "a",
        "b",
        "c",
        "a (lag -1)",
        "b (lag -1)",
        "c (lag -1)",
        "a (lag +2)",
        "b (lag +2)",
        "c (lag +2)",
    ]
    assert wide.lengths == data.lengths
    assert wide.time_origin == data.time_origin
    assert torch.equal(wide.times.t, data.times.t)
    joined = wide.joined(Sequences(T, expected[:4]))
    assert joined.lags == (-1, 2)
    assert joined.num_base_outputs == 3
    assert Sequences(T, Y).lagged([1]).columns is None
    for bad, message in (
        (wide, r"this one has the lags \[-1, 2\] already"),
        (Sequences(T), "this one has times but no outputs"),
        (data, "lags must be a list of different whole numbers of frames other than 0"),
    ):
        with pytest.raises(ValueError, match=message):
            bad.lagged([0])
    with pytest.raises(ValueError, match=r"lags of other are \(-1, 2\), but must be \(1, 2\)"):
        data.lagged([1, 2]).joined(wide)


# dates


def test_dates_of_a_time_zone_are_utc():
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2024-01-01", periods=3, freq="h", tz="Europe/Berlin")
    frame = pandas.DataFrame({"y": [1.0, 2.0, 3.0]}, index)
    zone = datetime.timezone(datetime.timedelta(hours=1))
    plain = [datetime.datetime(2024, 1, 1, hour, tzinfo=zone) for hour in range(3)]
    for data in (
        Sequences.from_frame(frame),
        Sequences.from_frame(frame.rename_axis("when").reset_index(), time="when"),
        Sequences(plain, frame),
        Sequences(np.array(plain), frame),
        Sequences([pandas.Series(index)], [frame]),
    ):
        assert data.time_origin == np.datetime64("2023-12-31T23")
        assert data.times.t.tolist() == [0.0, 3600.0, 7200.0]


def test_dates_of_python():
    days = [datetime.date(2024, 2, 28), datetime.date(2024, 2, 29), datetime.date(2024, 3, 1)]
    data = Sequences([days, days[1:]], [np.ones((3, 1)), np.ones((2, 1))])
    assert data.time_origin == np.datetime64("2024-02-28")
    assert data.times.t.tolist() == [0.0, 86400.0, 172800.0, 86400.0, 172800.0]


def test_durations_are_not_times():
    with pytest.raises(TypeError, match=r"t must be numbers or dates, but .* timedelta64\[h\]\. Convert durations to"):
        Sequences(np.array([1, 2], "timedelta64[h]"), np.ones(2))


def test_frames_with_columns_that_are_not_numbers():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "crew": ["anna", None], "count": ["1", "2"]})
    with pytest.raises(TypeError, match=r"column 'crew' must be numbers, but has text such as 'anna'\. Drop it, as in"):
        Sequences.from_frame(frame)
    day = frame[["a"]].assign(day=pandas.Timestamp("2024-01-31"))
    with pytest.raises(TypeError, match=r"column 'day' must be numbers, but has datetime64.*name it with time="):
        Sequences.from_frame(day)
    for time in (None, "a"):
        with pytest.raises(ValueError, match="columns of frame must differ, but 'a' occurs twice; rename one"):
            Sequences.from_frame(pandas.DataFrame([[1.0, 2.0]], columns=["a", "a"]), time=time)
    with pytest.raises(
        TypeError, match=r"index of frame has 2 levels, .*frame\.reset_index\(\), and name them with time="
    ):
        Sequences.from_frame(pandas.DataFrame({"t": [0.0, 1.0], "s": [1, 1], "y": [1, 2]}).set_index(["s", "t"]))
    with pytest.raises(
        TypeError, match=r"time='t' is text such as '7', .* frame\['t'\] = pandas\.to_numeric\(frame\['t'\]\)"
    ):
        Sequences.from_frame(pandas.DataFrame({"t": ["7", "8"], "y": [1, 2]}), time="t")
    with pytest.raises(TypeError, match=r"column 'run' must be numbers, but has text such as '1_2'\. Drop it"):
        Sequences.from_frame(pandas.DataFrame({"t": [0.0, 1.0], "run": ["1_2", "1_3"]}), time="t")
    with pytest.raises(TypeError, match=r"'a' must be numbers, but has text such as '1,5'. Read decimal commas with"):
        Sequences.from_frame(pandas.DataFrame({"a": ["1,5", "2"]}))
    dashes = pandas.DataFrame({"a": ["1.5", "-", 2.0]})
    with pytest.raises(
        TypeError, match=r"text such as '-'\. frame\['a'\] = pandas\.to_numeric\(frame\['a'\], errors='coe"
    ):
        Sequences.from_frame(dashes)
    words = pandas.DataFrame({"a": [None, "Easter", None, None]})
    with pytest.raises(TypeError, match=r"text such as 'Easter'\. Drop it, as in frame\.drop\(columns=\['a'\]\)"):
        Sequences.from_frame(words)
    dashes["a"] = pandas.to_numeric(dashes["a"], errors="coerce")
    assert Sequences.from_frame(dashes).num_observed == 2
    with pytest.raises(
        TypeError, match=r"frame must be a DataFrame of pandas, but got a Series\. Give series\.to_frame"
    ):
        Sequences.from_frame(dashes["a"])
    numbers = Sequences.from_frame(frame.drop(columns="crew"))  # numbers as text are numbers
    assert numbers.y.tolist() == [[1.0, 1.0], [2.0, 2.0]]


def test_frame_with_units():
    pandas = pytest.importorskip("pandas")
    for text in ("61.3%", "$1,234.50", "12 C"):
        with pytest.raises(TypeError, match=r"has text such as '.*'. Remove units and thousands separators: pandas"):
            Sequences.from_frame(pandas.DataFrame({"a": [text, text]}))


def test_an_index_without_a_name_is_no_output():
    pandas = pytest.importorskip("pandas")
    text = pandas.DataFrame({"a": [1.0, 2.0, 4.0]}).to_csv()
    with pytest.warns(UserWarning, match=r"column 'Unnamed: 0' of frame has the row numbers that pandas wrote"):
        Sequences.from_frame(pandas.read_csv(io.StringIO(text)))
    assert Sequences.from_frame(pandas.read_csv(io.StringIO(text), index_col=0)).columns == ["a"]


def test_frames_whose_times_do_not_increase():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"run": ["a", "a", "b"], "t": [0.0, 1.0, 0.0], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"t must increase, but .* Sequences\.from_frame\(frame, sequence=\.\.\.\)"):
        Sequences.from_frame(frame.drop(columns="run"), time="t")
    assert Sequences.from_frame(frame, time="t", sequence="run").num_sequences == 2
    days = frame[["y"]].set_index(pandas.to_datetime(["2024-01-30", "2024-01-31", "2024-01-30"]))
    with pytest.raises(ValueError, match=r"t must increase, but it decreases from 2024-01-31 to 2024-01-30 at index 2"):
        Sequences.from_frame(days)


def test_text_with_a_time_zone_says_how_to_convert_it():
    pandas = pytest.importorskip("pandas")
    clock = ["2024-03-31T01:00:00+01:00", "2024-03-31T03:00:00+02:00"]  # the beginning of summer time
    frame = pandas.DataFrame({"date": clock, "y": [1.0, 2.0]})
    with pytest.raises(TypeError, match=r"frame\['date'\] = pandas\.to_datetime\(frame\['date'\], utc=True\)\.$"):
        Sequences.from_frame(frame, time="date")
    frame["date"] = pandas.to_datetime(frame["date"], utc=True)
    assert Sequences.from_frame(frame, time="date").times.t.tolist() == [0.0, 3600.0]
