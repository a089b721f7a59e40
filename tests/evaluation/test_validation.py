# SPDX-License-Identifier: Apache-2.0
"""Cross-validation and backtests: what a model has seen, and what it is scored on."""

import pytest
import torch
from problems import make_data, make_problem

from pyro_vgpds import Posterior, PosteriorMixture
from pyro_vgpds.baselines import BaselinePosterior, last_value
from pyro_vgpds.evaluation import backtest, cross_validate, hold_out, score, score_predictor
from pyro_vgpds.prediction import Calibration, Combination, Ensemble

SCORES = ["rmse", "nrmse", "mae", "nlpd", "in 80 %", "in 95 %"]


def last(data):
    return BaselinePosterior(lambda some: (torch.cat(last_value(some)), None), data)


def test_folds_of_a_forecast_are_rolling_origins():
    data = make_data((30, 24))
    seen = []

    def factory(train):
        seen.append(train.lengths)
        return last(train)

    table = cross_validate(factory, data, "forecast", num_folds=3, horizon=4)
    assert seen == [(26, 20), (22, 16), (18, 12)]
    assert table.columns == ["fold", "hidden", *SCORES, "seconds"]
    assert table["fold"] == [0, 1, 2]
    assert table["hidden"] == [40, 40, 40]
    for fold, row in enumerate(table):
        split = hold_out(data, "forecast", horizon=4, skip=4 * fold)
        wanted = score_predictor(last(split.train), split, data.output_scales)
        assert {name: row[name] for name in SCORES} == wanted
        assert row["seconds"] >= 0.0


@pytest.mark.parametrize("task", ["impute", "reconstruct"])
def test_other_folds_are_random_parts(task):
    data = make_data((30, 24, 20, 26), missing=0.1)
    hidden = []

    def factory(train):
        hidden.append(
            {
                (float(t), j)
                for t, row in zip(train.times.t, train.y, strict=True)
                for j in range(5)
                if row[j].isfinite()
            }
        )
        return last(train)

    first = cross_validate(factory, data, task, num_folds=2, seed=5)
    assert hidden[0] != hidden[1]
    again = cross_validate(factory, data, task, num_folds=2, seed=5)
    assert hidden[:2] == hidden[2:]
    assert first["rmse"] == again["rmse"]
    total = int(data.output_counts.sum())
    for kept, row in zip(hidden, first, strict=False):
        assert len(kept) < total
        assert row["hidden"] <= total - len(kept)


def test_arguments_of_cross_validation():
    data = make_data((30, 24))
    with pytest.raises(ValueError, match="num_folds must be a whole number of at least 1, but got 0"):
        cross_validate(last, data, num_folds=0)
    with pytest.raises(ValueError, match="task must be one of"):
        cross_validate(last, data, "predict")
    with pytest.raises(ValueError, match="horizon=9 and skip=27 must leave 3 training frames"):
        cross_validate(last, data, "forecast", horizon=9, num_folds=4)


class Recording:
    """A predictor that keeps the data that it was conditioned on."""

    def __init__(self, data):
        self.data, self.seen = data, []

    def condition(self, data, sequences=None):
        self.seen.append(data)
        return last(data)


def test_a_backtest_never_shows_what_comes_after_the_origin():
    data = make_data((30, 24))
    recording = Recording(data)
    table = backtest(recording, 3, num_origins=4, step=2)
    assert [part.lengths for part in recording.seen] == [(21, 15), (23, 17), (25, 19), (27, 21)]
    assert table.columns == ["origin", "ahead", *SCORES]
    assert table["origin"] == [o for o in (-9, -7, -5, -3) for _ in range(3)]
    assert table["ahead"] == [1, 2, 3] * 4
    # the last origin, two frames ahead, by hand: the last training value of each sequence
    truth = torch.stack([data.y[28], data.y[30 + 22]])
    guess = torch.stack([data.y[26], data.y[30 + 20]])
    assert table.rows[-2]["rmse"] == pytest.approx(float((truth - guess).square().mean().sqrt()))
    relative = (truth - guess) / data.output_scales
    assert table.rows[-2]["nrmse"] == pytest.approx(float(relative.square().mean().sqrt()))


def test_a_backtest_keeps_the_hyperparameters():
    model, guide, data = make_problem((20, 16))
    posterior = Posterior(model, guide, data)
    before = {name: p.detach().clone() for name, p in [*model.named_parameters(), *guide.named_parameters()]}
    table = backtest(posterior, 2, num_origins=2)
    for name, parameter in [*model.named_parameters(), *guide.named_parameters()]:
        assert torch.equal(parameter, before[name]), name
    split = hold_out(data, "forecast", horizon=2)
    found = split.predict(posterior.condition(split.train))
    ahead = [row for row in table if row["origin"] == -2]
    overall = score(found, data.output_scales)
    assert sum(row["rmse"] ** 2 for row in ahead) / 2 == pytest.approx(overall["rmse"] ** 2)
    assert sum(row["nlpd"] for row in ahead) / 2 == pytest.approx(overall["nlpd"])
    weights = {"forecast": Combination(torch.ones(1, 5), Calibration.none(5))}
    for same in (PosteriorMixture([posterior]), Ensemble([posterior], weights)):
        for a, b in zip(backtest(same, 2, num_origins=2), table, strict=True):
            assert a == pytest.approx(b)


def test_arguments_of_a_backtest():
    recording = Recording(make_data((12, 10)))
    frames = "horizon must be a number of frames, a"
    for arguments, start in (
        ((0,), frames), ((2, 0), "num_origins must be a"), ((2, 1, 0), "step must be a"),
    ):  # fmt: skip
        options = dict(zip(("horizon", "num_origins", "step"), arguments, strict=False))
        with pytest.raises(ValueError, match=f"{start} whole number of at least 1, but got 0"):
            backtest(recording, **options)
    needed = "num_origins=5 with horizon=4 and step=4 needs a sequence of 23 frames, but the longest has 12"
    with pytest.raises(ValueError, match=needed):
        backtest(recording, 4)
