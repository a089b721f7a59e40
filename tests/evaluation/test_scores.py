# SPDX-License-Identifier: Apache-2.0
"""Scores and tables against values computed by hand."""

import math
import sys

import pytest
import torch
from problems import make_data

from pyro_vgpds.evaluation import HeldOut, Table, hold_out, score, score_predictor
from pyro_vgpds.evaluation.scores import relative_error
from pyro_vgpds.prediction import GaussianPrediction


def make_held_out():
    truth = torch.tensor([0.0, 1.0, 2.0, 3.0])
    mean = truth + torch.tensor([1.0, -1.0, 3.0, 0.5])
    variance = torch.tensor([1.0, 0.25, 1.0, 4.0])  # 1, 2, 3 and 0.25 standard deviations away
    return HeldOut(truth, mean, variance, torch.tensor([0, 1, 0, 1]), torch.zeros(4, dtype=torch.long))


def test_scores_are_those_computed_by_hand():
    found = score(make_held_out(), torch.tensor([1.0, 2.0]))
    squares = [1.0, 1.0, 9.0, 0.25]
    assert found["rmse"] == pytest.approx(math.sqrt(sum(squares) / 4))
    assert found["nrmse"] == pytest.approx(math.sqrt((1.0 + 0.25 + 9.0 + 0.0625) / 4))
    assert found["mae"] == pytest.approx(5.5 / 4)
    logs = [0.5 * (e / v + math.log(2 * math.pi * v)) for e, v in zip(squares, [1.0, 0.25, 1.0, 4.0], strict=True)]
    assert found["nlpd"] == pytest.approx(sum(logs) / 4)
    assert found["in 80 %"] == 50.0  # within 1.28 deviations
    assert found["in 95 %"] == 50.0  # within 1.96 deviations
    assert found["nrmse"] == relative_error(make_held_out(), torch.tensor([1.0, 2.0]))


def test_coverage_of_gaussians():
    mean, truth = torch.zeros(20_000), 3.0 * torch.randn(20_000)
    output = torch.zeros(20_000, dtype=torch.long)
    found = score(HeldOut(truth, mean, torch.full_like(mean, 9.0), output, output), torch.ones(1))
    assert found["in 80 %"] == pytest.approx(80.0, abs=1.5)
    assert found["in 95 %"] == pytest.approx(95.0, abs=0.8)


class Wide:
    """Forecasts 0 with variance 1, but with intervals that are ten times too wide for outputs 0 and 1 only."""

    def __init__(self, data):
        self.data = data

    def forecast(self, t, sequence=None):
        zero = t.new_zeros(len(t), self.data.num_base_outputs)
        prediction = GaussianPrediction(t, self.data, zero, zero + 1e-12)

        def interval(probability=0.95):
            width = torch.tensor([1e9, 1e9, 0.0, 0.0, 0.0]).expand_as(zero)
            return -width, width

        prediction.interval = interval
        return prediction


def test_predictors_are_scored_with_their_own_intervals():
    data = make_data((20, 16))
    split = hold_out(data, "forecast", horizon=4)
    found = score_predictor(Wide(split.train), split, torch.ones(5))
    assert found["in 80 %"] == found["in 95 %"] == 40.0
    truth = torch.cat(split.truth)
    assert found["rmse"] == pytest.approx(float(truth.square().mean().sqrt()))


def test_tables(monkeypatch):
    table = Table([{"name": "a", "n": 3, "x": 0.5, "y": None}, {"name": "bcd", "n": 10, "x": 1234.5678, "y": 1.0}])
    assert repr(table) == "name   n       x      y\na      3  0.5000      -\nbcd   10   1235.  1.000"
    assert len(table) == 2
    assert table["n"] == [3, 10]
    assert table.columns == ["name", "n", "x", "y"]
    assert [row["name"] for row in table] == ["a", "bcd"]
    frame = table.to_pandas()
    assert list(frame.columns) == table.columns
    assert frame["x"].tolist() == [0.5, 1234.5678]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas needs pandas: pip install pyro_vgpds\[data\]"):
        table.to_pandas()


def test_an_empty_table():
    assert repr(Table([])) == ""
    assert Table([]).columns == []
    assert len(Table([]).to_pandas()) == 0
