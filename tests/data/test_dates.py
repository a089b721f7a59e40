# SPDX-License-Identifier: Apache-2.0
"""All kinds of dates give the same numbers, in training and in predictions, and their time zone comes back."""

import datetime
import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    FileFormatError,
    Posterior,
    PosteriorMixture,
    Sequences,
    load_posterior,
    save_posterior,
)  # fmt: skip
from pyro_vgpds.data.dates import read_zone, with_offsets, zone_name

pandas = pytest.importorskip("pandas")

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "+01:00", "-03:30")


def as_python(index):
    return [stamp.to_pydatetime() for stamp in index]


#: kinds of dates that keep a time zone
ZONED = {
    "index": lambda index: index,
    "series": pandas.Series,
    "objects": lambda index: pandas.Series(index).astype(object),
    "timestamps": list,
    "datetimes": as_python,
    "array of datetimes": lambda index: np.array(as_python(index)),
}
#: and those that have none
PLAIN = ZONED | {
    "numpy": lambda index: index.to_numpy(),
    "numpy s": lambda index: index.to_numpy().astype("datetime64[s]"),
    "list of datetime64": lambda index: list(index.to_numpy()),
    "series of us": lambda index: pandas.Series(index.to_numpy().astype("datetime64[us]")),
    "periods": lambda index: index.to_period("s"),
    "series of periods": lambda index: pandas.Series(index.to_period("s")),
    "list of periods": lambda index: list(index.to_period("s")),
}
steps = st.lists(st.integers(1, 10**7), min_size=2, max_size=6)
starts = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)).map(
    lambda d: d.replace(microsecond=0)
)


def make_posterior(t):
    rows = len(t)
    y = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0)).double().cumsum(0)
    data = Sequences(t, y, columns=["a", "b", "c"])
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=4)
    return Posterior(model, AutoOpperArchambeau(model), data)


@settings(max_examples=40, deadline=None)
@given(start=starts, widths=steps, kind=st.sampled_from(sorted(PLAIN)))
def test_dates_without_a_zone(start, widths, kind):
    index = pandas.DatetimeIndex(np.datetime64(start, "ns") + np.cumsum(widths).astype("timedelta64[s]"))
    data = Sequences(PLAIN[kind](index), np.ones(len(index)))
    assert (data.time_origin, data.time_zone) == (index[0].to_datetime64(), None)
    assert data.times.t.tolist() == (np.cumsum(widths) - widths[0]).tolist()


@settings(max_examples=40, deadline=None)
@given(start=starts, widths=steps, kind=st.sampled_from(sorted(ZONED)), zone=st.sampled_from(ZONES))
def test_dates_of_a_zone(start, widths, kind, zone):
    index = pandas.DatetimeIndex(np.datetime64(start, "ns") + np.cumsum(widths).astype("timedelta64[s]"), tz="UTC")
    data = Sequences([ZONED[kind](index.tz_convert(zone))], [np.ones(len(index))])
    assert data.time_origin == index[0].to_datetime64()
    assert data.time_zone == (zone if zone[0].isalpha() else f"UTC{zone}")
    assert data.times.t.tolist() == (np.cumsum(widths) - widths[0]).tolist()


@pytest.mark.parametrize("zone", [None, *ZONES])
def test_the_zone_comes_back_from_predictions(zone, tmp_path):
    index = pandas.date_range("2024-03-28", periods=24, freq="6h", tz=zone)  # clocks change in Berlin on the 31st
    post = make_posterior(index[:20])
    kinds = PLAIN if zone is None else {**ZONED, "numpy, which is UTC": lambda part: part.to_numpy()}
    want = post.forecast((index[20:] - index[0]).total_seconds().to_numpy())
    for kind in kinds.values():
        ahead = post.forecast(kind(index[20:]))
        assert torch.equal(ahead.mean, want.mean)
        assert ahead.to_pandas().index.equals(index[20:])
        assert str(ahead.to_pandas().index.dtype) == str(index.as_unit("ns").dtype)
    assert post.impute().to_pandas().index.equals(index[:20])
    save_posterior(tmp_path / "model", post)
    again = load_posterior(tmp_path / "model")
    assert again.data.time_zone == post.data.time_zone
    assert again.forecast(index[20:]).to_pandas().index.equals(index[20:])
    text = io.StringIO()
    want.to_file(text)
    times = pandas.read_csv(io.StringIO(text.getvalue()))["time"]
    assert [pandas.Timestamp(time) for time in times] == list(index[20:])
    assert repr(want).startswith(f"Prediction(4 times from {times[0]} to {times[3]}") or zone is None
    new = Sequences(index[:22], torch.zeros(22, 3), columns=["a", "b", "c"])
    assert post.condition(new).forecast(index[22:]).to_pandas().index.equals(index[22:])
    assert new.lagged([-1]).time_zone == post.data.time_zone


def test_several_sequences_and_zones():
    index = pandas.date_range("2024-01-01", periods=3, freq="D", tz="Europe/Berlin")
    y = np.ones((3, 1))
    assert Sequences([index, index.tz_convert("Asia/Tokyo")], [y, y]).time_zone == "UTC"
    mixed = [index[0], index[1].tz_convert("Asia/Tokyo"), index[2]]
    data = Sequences(mixed, y)
    assert (data.time_zone, data.times.t.tolist()) == ("UTC", [0.0, 86400.0, 172800.0])
    with pytest.raises(TypeError, match="with a time zone in some sequences and without one in others"):
        Sequences([index, index.tz_localize(None)], [y, y])
    with pytest.raises(TypeError, match="t has dates with a time zone and dates without one"):
        Sequences([index[0], index[1].tz_localize(None), index[2]], y)


def test_dates_with_and_without_a_zone_do_not_mix():
    index = pandas.date_range("2024-03-28", periods=24, freq="6h")
    plain, zoned = make_posterior(index[:20]), make_posterior(index[:20].tz_localize("Asia/Tokyo"))
    y = np.zeros((4, 3))
    with pytest.raises(
        TypeError, match=r"t has dates of the time zone UTC, but the training dates have none.*tz_locali"
    ):
        plain.forecast(index[20:].tz_localize("UTC"))
    for call in (lambda: zoned.forecast(index[20:]), lambda: zoned.reconstruct(list(index[20:]), y)):
        with pytest.raises(TypeError, match=r"t has dates without a time zone.*t\.tz_localize\('Asia/Tokyo'\)"):
            call()
    with pytest.raises(TypeError, match="data has dates without a time zone, but those of training are of Asia/Tokyo"):
        zoned.condition(Sequences(index[:20], np.zeros((20, 3)), columns=["a", "b", "c"]))


@pytest.mark.parametrize(
    ("unit", "days"), [("Y", [0, 366, 731]), ("M", [0, 31, 60]), ("W", [0, 7, 14]), ("D", [0, 1, 2])]
)
def test_units_of_numpy(unit, days):
    t = np.datetime64("2024-01-04", unit) + np.arange(3)
    assert Sequences(t, np.ones(3)).times.t.tolist() == [86400.0 * day for day in days]


def test_months_as_periods():
    data = Sequences(pandas.period_range("2024-01", periods=3, freq="M"), np.ones(3))
    assert data.time_origin == np.datetime64("2024-01-01")
    assert data.times.t.tolist() == [0.0, 31 * 86400.0, 60 * 86400.0]


@pytest.mark.parametrize("kind", ["numpy", "index", "list", "series", "zoned", "none", "periods"])
def test_missing_dates_are_reported_at_their_place(kind):
    index = pandas.DatetimeIndex(["2024-01-01", "NaT", "2024-01-03"])
    t = {
        "numpy": index.to_numpy(), "index": index, "list": list(index), "series": pandas.Series(index),
        "zoned": index.tz_localize("Europe/Berlin"), "none": [index[0].date(), None, index[2].date()],
        "periods": index.to_period("D"),
    }[kind]  # fmt: skip
    with pytest.raises(ValueError, match=r"t must be finite, but t\[1\] is NaT"):
        Sequences(t, np.ones(3))
    with pytest.raises(ValueError, match=r"t\[1\] must be finite, but t\[1\]\[1\] is NaT"):
        Sequences([index[:1], t], [np.ones(1), np.ones(3)])


def test_what_is_no_date():
    day = datetime.timedelta(days=1)
    for t in ([day, 2 * day], pandas.TimedeltaIndex([day, 2 * day]), np.array([day, 2 * day])):
        with pytest.raises(TypeError, match="Convert durations to hours: ") as caught:
            Sequences(t, np.ones(2))
        hours = eval(str(caught.value).partition("hours: ")[2].rstrip("."), {"np": np, "t": t})
        assert hours.tolist() == [24.0, 48.0]
    with pytest.raises(TypeError, match=r"t must be all dates or all numbers, but t\[1\] is 3.0"):
        Sequences([datetime.date(2024, 1, 1), 3.0], np.ones(2))
    for t in (np.array(["0900", "2000"], "datetime64[Y]"), [datetime.date(900, 1, 1), datetime.date(2000, 1, 1)]):
        with pytest.raises(ValueError, match=r"t: dates must be in the years 1678 to 2261, but got 0900.* at index 0"):
            Sequences(t, np.ones(2))


@pytest.mark.parametrize("kind", ["dates", "zoned", "durations", "periods", "objects"])
def test_dates_among_outputs_are_refused_by_name(kind):
    index = pandas.date_range("2024-01-01", periods=3)
    column = {
        "dates": index, "zoned": index.tz_localize("UTC"), "durations": index - index[0],
        "periods": index.to_period("D"),
        "objects": pandas.Series(index).astype(object).to_numpy(),
    }[kind]  # fmt: skip
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "when": column})
    with pytest.raises(TypeError, match="column 'when' of y has dates or durations, but outputs must be numbers"):
        Sequences([0.0, 1.0, 2.0], frame)
    with pytest.raises(TypeError, match=r"column 'when' must be numbers, but has .*Drop it"):
        Sequences.from_frame(frame)


def test_names_of_zones():
    assert zone_name(datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))) == "UTC-03:30"
    for name in ("UTC", "UTC+05:45", "UTC-03:30", "Europe/Berlin"):
        assert zone_name(read_zone(name)) == name

    class Nameless(datetime.tzinfo):
        def utcoffset(self, moment):
            return None

    assert zone_name(Nameless()) == "UTC"
    for bad in ("Europe/Nowhere", "../../etc/passwd", "/etc/passwd", ""):
        with pytest.raises(ValueError, match=r"time zone .* is not known on this machine"):
            read_zone(bad)
    clocks, offsets = with_offsets(np.array(["2024-01-01", "2024-07-01T00:00:00.5"], "datetime64[ns]"), "Europe/Berlin")
    assert clocks.astype(str).tolist() == ["2024-01-01T01:00:00.000000000", "2024-07-01T02:00:00.500000000"]
    assert offsets == ["+01:00", "+02:00"]


def test_models_of_other_zones_and_files_with_unknown_zones(tmp_path):
    index = pandas.date_range("2024-03-28", periods=8, freq="6h", tz="UTC")
    one, two = make_posterior(index), make_posterior(index.tz_convert("Asia/Tokyo"))
    with pytest.raises(ValueError, match=r"the same time zone, but posteriors\[1\] has Asia/Tokyo"):
        PosteriorMixture([one, two])
    one.data.time_zone = "No/Where"
    save_posterior(tmp_path / "model", one)
    with pytest.raises(FileFormatError, match="time zone 'No/Where' is not known on this machine"):
        load_posterior(tmp_path / "model")
