# SPDX-License-Identifier: Apache-2.0
"""Held-out parts: training data and hidden numbers together are the data."""

import numpy as np
import pytest
import torch
from problems import make_data

from pyro_vgpds import Sequences
from pyro_vgpds.data.parts import split_outputs
from pyro_vgpds.evaluation import hold_out
from pyro_vgpds.evaluation.splits import count_gaps
from pyro_vgpds.prediction import GaussianPrediction
from pyro_vgpds.selection.named_baselines import make_baseline


class Echo:
    """A predictor that records what it was asked and returns 10 · time + column, with variance 4."""

    def __init__(self, data):
        self.data, self.calls = data, []

    def _answer(self, t):
        mean = 10.0 * t[:, None] + torch.arange(self.data.num_base_outputs)
        return GaussianPrediction(t, self.data, mean, torch.full_like(mean, 4.0))

    def impute(self, *, fill=True):
        self.calls.append(fill)
        return self._answer(self.data.times.t)

    def forecast(self, t, sequence=None):
        self.calls.append(sequence)
        return self._answer(t)

    def reconstruct(self, t, y, sequence=None):
        self.calls.append(sequence)
        return self._answer(torch.cat(t))


def entries(parts):
    """{(sequence, time, column): number} of all finite numbers."""
    return {(s, float(t[i]), j): float(y[i, j]) for s, (t, y) in parts for i, j in y.isfinite().nonzero().tolist()}


def assert_complete(split, data, dropped=0):
    """What is trained on, what is given and what is hidden have no number in common and are all of the data."""
    everything = entries(enumerate(zip(*split_outputs(data), strict=True)))
    own = zip(split.kept, zip(*split_outputs(split.train), strict=True), strict=True)
    train = entries(own)
    new = [s for s in range(data.num_sequences) if s not in split.kept]
    where = [new[split.sequence[:k].count(None)] if s is None else split.kept[s] for k, s in enumerate(split.sequence)]
    truth, seen = (entries(zip(where, zip(split.t, y, strict=True), strict=True)) for y in (split.truth, split.y))
    if split.task == "impute":
        assert seen == train
    else:
        assert not train.keys() & seen.keys()
    assert not truth.keys() & (train.keys() | seen.keys())
    union = train | truth | seen
    assert union.items() <= everything.items()
    assert len(everything) - len(union) == dropped
    return train, truth


@pytest.mark.parametrize("pattern", [None, "entries", "blocks", "spans", "missing"])
@pytest.mark.parametrize("missing", [0.0, 0.25])
def test_imputation_hides_entries_of_the_training_sequences(pattern, missing):
    data = make_data((40, 25, 3), missing=missing)
    split = hold_out(data, "impute", share=0.2, pattern=pattern, seed=3)
    train, truth = assert_complete(split, data)
    assert 0.05 <= len(truth) / (len(train) + len(truth)) <= 0.35
    assert (split.train.output_counts >= 3).all()
    assert split.kept == split.sequence == [0, 1, 2]
    assert split.train.lengths == data.lengths
    again, other = (hold_out(data, "impute", share=0.2, pattern=pattern, seed=seed) for seed in (3, 4))
    torch.testing.assert_close(again.train.y, split.train.y, equal_nan=True)
    assert not torch.equal(other.train.y.isnan(), split.train.y.isnan())


def test_default_pattern_is_that_of_the_data():
    t = np.arange(60.0)
    y = np.random.default_rng(0).standard_normal((60, 4))
    y[50:, :2] = np.nan
    truth = torch.cat(hold_out(Sequences(t, y), "impute", share=0.2).truth)
    rows, columns = truth.isfinite().nonzero(as_tuple=True)
    assert set(columns.tolist()) <= {0, 1}
    assert set(rows.tolist()) == set(range(40, 50))


def test_columns_with_few_numbers_keep_them():
    y = np.random.default_rng(0).standard_normal((30, 3))
    y[4:, 1] = np.nan
    for seed in range(20):
        split = hold_out(Sequences(np.arange(30.0), y), "impute", share=0.5, pattern="entries", seed=seed)
        assert split.train.output_counts[1] in (3, 4)


def test_forecasts_hide_the_last_frames():
    data = make_data((40, 25, 12))
    split = hold_out(data, "forecast", horizon=5)
    assert_complete(split, data)
    assert split.train.lengths == (35, 20, 7)
    assert split.sequence == split.kept == [0, 1, 2]
    for s, (t, hidden) in enumerate(zip(split.t, split.truth, strict=True)):
        assert (t > split.train.times.t[split.train.times.slices()[s]][-1]).all()
        assert hidden.shape == (5, 5)
        assert split.y[s].isnan().all()
    earlier = hold_out(data, "forecast", horizon=5, skip=10)
    # the last sequence would keep no frame: it stays, and nothing of it is predicted
    assert earlier.train.lengths == (25, 10, 12)
    assert earlier.sequence == [0, 1]
    assert_complete(earlier, data, dropped=2 * 10 * 5)
    torch.testing.assert_close(earlier.truth[0], data.y[25:30])
    assert len(hold_out(data, "forecast").t[0]) == 25 // 8


def test_a_forecast_starts_at_the_last_observed_frame():
    data = make_data((30,))
    y = data.y.clone()
    y[26:] = torch.nan  # frames that are asked for but were not observed
    y[25, :4] = torch.nan
    split = hold_out(Sequences(data.times.t, y), "forecast", horizon=4)
    assert split.train.lengths == (22,)
    torch.testing.assert_close(split.truth[0], y[22:26], equal_nan=True)


@pytest.mark.parametrize(("lengths", "whole"), [((9, 8, 7, 6, 9, 8), True), ((30, 40), True), ((60,), False)])
def test_reconstruction_hides_columns_of_frames(lengths, whole):
    data = make_data(lengths, missing=0.1)
    split = hold_out(data, "reconstruct", share=0.2, seed=1)
    _, truth = assert_complete(split, data)
    assert truth
    for seen, hidden in zip(split.y, split.truth, strict=True):
        columns = hidden.isfinite().any(0).sum()
        assert 1 <= columns <= 2  # half of five
        assert seen.isfinite().any()
    if whole:
        assert split.sequence == [None] * len(split.t)
        assert len(split.kept) + len(split.t) == len(lengths)
    else:
        assert split.kept == list(range(len(lengths)))
        shown = sum(len(t) for t in split.t)
        assert 0.2 <= shown / sum(lengths) <= 0.7


def test_some_held_out_sequences_lose_their_columns_on_the_way():
    data = make_data((20,) * 8)
    split = hold_out(data, "reconstruct", share=0.25)
    first = [int(part.isfinite().any(1).nonzero()[0]) for part in split.truth]
    assert first == [0, 10, 0, 10]


def test_given_columns_are_hidden():
    data = make_data((20,) * 8)
    names = Sequences(*split_outputs(data), columns=list("abcde"))
    for given, known in (([3, -4], data), (["b", "d"], names)):
        split = hold_out(known, "reconstruct", share=0.25, hidden=given)
        assert_complete(split, data)
        for number, (seen, truth) in enumerate(zip(split.y, split.truth, strict=True)):
            first = 10 * (number % 2)  # in every second sequence from its middle on
            assert truth[first:, [1, 3]].isfinite().all()
            assert truth[:first].isnan().all()
            assert truth[:, [0, 2, 4]].isnan().all()
            assert seen[:, [0, 2, 4]].isfinite().all()


def test_only_columns_that_were_observed_are_hidden():
    t = np.arange(12.0)
    y = [np.random.default_rng(i).standard_normal((12, 4)) for i in range(5)]
    for part in y[1:]:
        part[:, :3] = np.nan
    for seed in range(10):
        split = hold_out(Sequences([t] * 5, y), "reconstruct", seed=seed)
        assert_complete(split, Sequences([t] * 5, y))
        assert all(part.isfinite().any() for part in split.truth)
    empty = [np.full((12, 4), np.nan) for _ in range(5)]
    empty[0][0] = 1.0
    data = Sequences([t] * 5, empty)
    with pytest.raises(ValueError, match="data must have more observed entries to hold out some of them"):
        [hold_out(data, "reconstruct", seed=seed) for seed in range(10)]


def test_gaps_are_counted_for_the_rarer_kind():
    data = make_data((100, 60))
    y = data.y.clone()
    y[10:16] = torch.nan  # lost frames, and lost columns in other frames
    y[20:100:10, 1] = torch.nan
    data = Sequences(list(data.times.t.split(data.lengths)), list(y.split(data.lengths)))
    split = hold_out(data, "impute", share=0.2)
    lost = torch.cat([~part.isfinite().any(1) for part in split.y]) & torch.cat(split.truth).isfinite().any(1)
    least = (4 * 6**2 + 2**2 + 3**2) / (4 * 6 + 5)  # mean length of gaps if a missing entry divides that of column 1
    assert 1.0 <= count_gaps(split) <= int(lost.sum()) / least
    single = hold_out(make_data((40, 25)), "impute", pattern="spans")
    frames = int(torch.cat(single.truth).isfinite().any(1).sum())
    assert 1.0 <= count_gaps(single) <= frames / 3.0
    assert count_gaps(hold_out(make_data((20, 20, 20, 20, 20)), "reconstruct", share=0.2)) == 6.0


def test_a_split_asks_for_its_task_only():
    data = make_data((20, 16))
    for task, calls in (("impute", [False]), ("forecast", [0, 1]), ("reconstruct", [[None]])):
        split = hold_out(data, task)
        predictor = Echo(split.train)
        found = split.predict(predictor)
        assert predictor.calls == calls
        hidden = torch.cat(split.truth)
        times = torch.cat(split.t)
        rows, columns = hidden.isfinite().nonzero(as_tuple=True)
        torch.testing.assert_close(found.truth, hidden[rows, columns])
        torch.testing.assert_close(found.mean, 10.0 * times[rows] + columns)
        torch.testing.assert_close(found.variance, torch.full((len(rows),), 4.0))
        assert torch.equal(found.output, columns)
        ahead = rows % 2 + 1 if task == "forecast" else torch.zeros_like(rows)
        assert torch.equal(found.ahead, ahead)  # two frames of each sequence
    assert repr(split).startswith("Split(reconstruct: ")
    assert repr(split).endswith(f"hidden entries, trained on {split.train})")


def test_lags_names_and_dates_are_kept():
    data = make_data((20, 16))
    named = Sequences(
        list(data.times.t.split(data.lengths)), list(data.y.split(data.lengths)), columns=list("abcde")
    ).lagged([-1, 1])
    for task in ("impute", "forecast", "reconstruct"):
        split = hold_out(named, task)
        assert split.train.lags == (-1, 1)
        assert split.train.num_base_outputs == 5
        assert split.train.columns == named.columns
        assert all(part.shape[1] == 5 for part in [*split.truth, *split.y])
        # hidden numbers are not visible through the lagged copies either
        hidden = entries(zip(split.sequence, zip(split.t, split.truth, strict=True), strict=True))
        assert not set(hidden.values()) & set(split.train.y[split.train.y.isfinite()].tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "guess"}, "task must be one of 'impute', 'reconstruct', 'forecast', but got 'guess'"),
        ({"task": "impute", "share": 0.0}, r"share must be between 0 and 1, but got 0\.0"),
        ({"task": "reconstruct", "share": 1.0}, r"share must be between 0 and 1, but got 1\.0"),
        (
            {"task": "impute", "pattern": "stripes"},
            "pattern must be one of 'entries', 'blocks', 'spans', 'missing', but got 'stripes'",
        ),
        ({"task": "forecast", "horizon": 0}, "horizon must be a number of frames, a whole number of at least 1, but"),
        ({"task": "forecast", "horizon": "24h"}, "horizon must be a number of frames, a whole .* but got '24h'"),
        ({"task": "impute", "hidden": [0]}, "hidden requires the task 'reconstruct', but the task is 'impute'"),
        ({"task": "reconstruct", "hidden": [5]}, "hidden must be a whole number from 0 to 4, but got 5"),
        ({"task": "reconstruct", "hidden": ["hip"]}, "hidden must be one of 0 to 4, but got 'hip'"),
        ({"task": "reconstruct", "hidden": []}, "hidden must be some of the 5 columns, but not all, and got 0"),
        ({"task": "reconstruct", "hidden": range(5)}, "hidden must be some of the 5 columns, but not all, and got 5"),
        ({"task": "forecast", "skip": -1}, "skip must be a whole number of at least 0, but got -1"),
        (
            {"task": "forecast", "horizon": 6, "skip": 2},
            "horizon=6 and skip=2 must leave 3 training frames, but the longest sequence has 9 frames",
        ),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        hold_out(make_data(), **arguments)


def test_data_that_are_too_few():
    few = make_data((3,), outputs=2)
    with pytest.raises(
        ValueError, match="data must have more observed entries to hold out some of them, but it is Seq"
    ):
        hold_out(few, "impute")
    with pytest.raises(ValueError, match="data must have more frames to hold out some of them, but it is Sequences"):
        hold_out(few, "reconstruct")
    with pytest.raises(ValueError, match=r"^horizon \(by default 1 here\) must leave 3 training frames, but the"):
        hold_out(few, "forecast")


@pytest.mark.parametrize("name", ["last value with drift", "damped trend", "linear dynamical system"])
def test_baselines_forecast_all_sequences_at_once(name, monkeypatch):
    rng = np.random.default_rng(0)
    lengths = (12, 20, 15)
    data = Sequences([np.arange(float(n)) for n in lengths], [rng.standard_normal((n, 2)).cumsum(0) for n in lengths])
    split = hold_out(data, "forecast", horizon=3)
    baseline = make_baseline(name, split.train)
    each = [baseline.forecast(t, i) for t, i in zip(split.t, split.sequence, strict=True)]
    wanted = split.held_out(each)
    monkeypatch.setattr(type(baseline), "forecast", None)  # with 200 sequences it would fill 40,000
    found = split.predict(baseline)
    torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.variance, wanted.variance, rtol=1e-10, atol=1e-10)
    assert found.ahead.tolist() == wanted.ahead.tolist()
