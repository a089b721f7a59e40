# SPDX-License-Identifier: Apache-2.0
"""The automatic choice for outputs that are not Gaussian: pools, their weights, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_vgpds import Ensemble, Sequences, auto, load_posterior, save_posterior
from pyro_vgpds.baselines import OutputBaseline
from pyro_vgpds.evaluation import hold_out
from pyro_vgpds.evaluation.entries import Entries
from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.likelihoods import ByColumn, NegativeBinomial, Poisson, StudentT
from pyro_vgpds.prediction import Calibration, Combination, Limits
from pyro_vgpds.prediction.combination import find_growth_limits
from pyro_vgpds.prediction.mixture_prediction import MixturePrediction
from pyro_vgpds.selection import Configuration, Report
from pyro_vgpds.selection.distributions import covered, predict_distribution
from pyro_vgpds.selection.pooling import choose_pool, pool, pool_weights
from pyro_vgpds.selection.problem import Problem
from pyro_vgpds.selection.proposals import propose_baselines, propose_models, propose_origins

SMALL = Configuration("small", latent_dim=2, num_inducing=8, num_steps=15, likelihood="negative-binomial")


def make_data(frames=64, missing=False, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(float(frames))
    y = rng.poisson(np.exp(1.0 + np.sin(2.0 * np.pi * t[:, None] / 16.0)) * np.array([1.0, 2.0, 3.0])).astype(float)
    if missing:
        y[rng.random(y.shape) < 0.15] = np.nan
        y[20:22] = np.nan
    return Sequences(t, y)


def held_out(density, mean=None):
    density = torch.as_tensor(density).double()
    n = len(density)
    truth = torch.zeros(n).double()
    mean = truth + 0.1 if mean is None else mean
    ones = torch.ones(n).double()
    return HeldOut(truth, mean, ones, torch.zeros(n).long(), ones.long(), density, torch.stack([ones, ones], -1) / 2)


def test_weights_are_halfway_from_the_best_to_equal_ones():
    rng = np.random.default_rng(0)
    density = np.log(rng.random((3, 500)))
    density[2] -= 4.0  # far worse
    weights = pool_weights([held_out(part) for part in density], torch.ones(1))
    assert weights[2] == 0.0
    grid = np.linspace(0.001, 0.999, 999)
    scores = [np.log(w * np.exp(density[0]) + (1 - w) * np.exp(density[1])).sum() for w in grid]
    best = grid[int(np.argmax(scores))]
    np.testing.assert_allclose(weights[0], 0.5 * best + 0.25, atol=0.02)
    assert float(weights.sum()) == pytest.approx(1.0)


def test_members_with_enormous_means_have_no_weight():
    good, other = held_out([-1.0] * 9), held_out([-0.5] * 9, torch.full((9,), 1e4).double())
    assert pool_weights([good, other], torch.ones(1)).tolist() == [1.0, 0.0]
    assert pool_weights([good, held_out([-0.5] * 9)], torch.ones(1)).tolist() != [1.0, 0.0]


def test_impossible_entries_do_not_break_weights():
    weights = pool_weights([held_out([-1.0, -np.inf]), held_out([-np.inf, -1.0])], torch.ones(1))
    torch.testing.assert_close(weights, torch.tensor([0.5, 0.5]).double())


def test_held_out_pool_is_that_of_the_predictions():
    """Means, variances, log-probabilities and intervals of the pooled entries are those of the mixture itself."""
    data = make_data()
    split = hold_out(data, "forecast", horizon=6)
    rules = {"common cycle": 3.0, "mean count": 1.0}
    members = [OutputBaseline(name, split.train, NegativeBinomial(r)) for name, r in rules.items()]
    weights = torch.tensor([0.7, 0.3]).double()
    found = pool([predict_distribution(split, member) for member in members], weights)
    mixed = MixturePrediction([member.forecast(split.t[0], 0) for member in members], weights)
    truth = split.truth[0]
    torch.testing.assert_close(found.mean, mixed.mean.flatten())
    torch.testing.assert_close(found.variance, mixed.variance.flatten())
    torch.testing.assert_close(found.log_density, mixed.log_probs(truth).flatten())
    for level in (0.2, 0.5, 0.95):
        lower, upper = mixed.interval(level)
        assert torch.equal(covered(found, level), ((lower <= truth) & (truth <= upper)).flatten())
    assert not covered(found, 0.2).all()
    with pytest.raises(ValueError, match="a ComponentPrediction, one of the components, always includes noise"):
        mixed.with_noise(False)


@pytest.mark.parametrize("task", ["forecast", "impute", "reconstruct"])
def test_each_task(task, tmp_path):
    data = make_data(missing=task == "impute")
    found = auto(
        data, task, likelihood="negative-binomial", candidates=[SMALL], horizon=4 if task == "forecast" else None
    )
    assert isinstance(found, Ensemble)
    assert not found.is_gaussian
    weights = found.combination(task).weights
    torch.testing.assert_close(weights.sum(0), torch.ones(3).double())
    report = found.report
    assert isinstance(report, Report)
    others = {"mean count", "common level"} if task != "forecast" else set()
    assert {c.name for c in report.candidates} == {"small", "common cycle", *others}
    scores = {c.name: c.log_score for c in report.candidates}
    assert report.best.log_score == max(scores.values())
    assert report.ensemble.log_score > min(scores.values())
    assert "log score" in report.table().columns
    assert "log score" in str(report)
    assert Report.from_dict(report.to_dict()).to_dict() == report.to_dict()
    y = torch.tensor([[3.0, torch.nan, 4.0]]).double()
    for ask in (
        lambda one: one.forecast([64.0, 65.0]),
        lambda one: one.impute(),
        lambda one: one.impute(fill=False),
        lambda one: one.reconstruct([64.0], y, 0, fill=True),
        lambda one: one.forecast([64.0], given=y),
        lambda one: one.extended([64.0], [[1.0, 2.0, 3.0]]).forecast([65.0]),
    ):
        prediction = ask(found)
        assert isinstance(prediction, MixturePrediction)
        lower, upper = prediction.interval(0.9)
        assert (lower == lower.round()).all()
        assert (lower <= upper).all()
        assert prediction.mean.isfinite().all()
    assert found.reconstruct([64.0], y, 0, fill=True).mean[0, 0] == pytest.approx(3.0)
    assert found.forecast([64.0], given=y).mean[0, 2] == pytest.approx(4.0)
    known = data.read().isfinite()
    torch.testing.assert_close(found.impute().mean[known], data.read()[known])  # weights have the sum 1 to rounding
    assert found.generate([64.0, 65.0], 3).shape == (3, 2, 3)
    save_posterior(tmp_path / "a.safetensors", found)
    again = load_posterior(tmp_path / "a.safetensors")
    torch.testing.assert_close(again.forecast([64.0]).mean, found.forecast([64.0]).mean)
    assert again.report.to_dict() == report.to_dict()


@pytest.mark.long
def test_intervals_hold_for_new_counts():
    inside, size = [], []
    for seed in range(4):
        whole = make_data(frames=88, seed=seed)
        data = Sequences(whole.times.t[:80], whole.read()[:80])
        found = auto(data, "forecast", likelihood="negative-binomial", candidates=[SMALL], horizon=8)
        lower, upper = found.forecast(whole.times.t[80:]).interval(0.8)
        truth = whole.read()[80:]
        inside.append(((lower <= truth) & (truth <= upper)).double().mean())
        size.append((upper - lower).mean())
    assert 0.75 < torch.stack(inside).mean() < 0.95  # whole numbers hold at least 80 %
    assert torch.stack(size).mean() < 10.0


def test_origins_cover_a_cycle():
    data, counts = make_data(), NegativeBinomial()
    assert propose_origins(data, 4, counts) == 4
    assert propose_origins(data, 2, counts) == 8
    assert propose_origins(Sequences(data.times.t[:10], data.read()[:10]), 2, counts) == 4
    origins = propose_origins(data, 2, counts)
    starts = [split.train.num_frames for split in Problem(data, "forecast", 2, 0, origins).splits]
    assert starts == list(range(48, 63, 2))


def test_many_gaussian_outputs_have_three_origins():
    for outputs, origins in ((49, 4), (50, 3)):
        assert propose_origins(Sequences(torch.arange(10.0), torch.randn(10, outputs)), 1) == origins


def test_a_name_or_a_likelihood_gaussian_is_the_default():
    data = make_data(30)
    found = auto(data, "forecast", likelihood="gaussian", candidates=[], baselines=["column mean"])
    assert found.is_gaussian
    assert propose_baselines(data, "forecast", None)[0] == "column mean"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"likelihood": "cauchy"}, ValueError, "there is no likelihood 'cauchy'"),
        ({"likelihood": 3}, TypeError, "likelihood must be one of pyro_vgpds.likelihoods"),
        ({"likelihood": {"poisson": [0, 1]}}, ValueError, "ByColumn has 2 columns, but there are 3 outputs"),
        ({"likelihood": "bernoulli"}, ValueError, "data.*0 or 1"),
        ({"likelihood": "poisson", "baselines": ["last value"]}, ValueError, "baselines must be some of 'mean count'"),
        (
            {"likelihood": "student-t", "baselines": ["mean count"]},
            ValueError,
            "baselines must be some of 'column mean'",
        ),
        ({"candidates": [SMALL]}, ValueError, "the candidate 'small' must have a likelihood if auto has one"),
        (
            {"likelihood": "poisson", "candidates": [Configuration("plain")]},
            ValueError,
            "the candidate 'plain' must have a likelihood if auto has one",
        ),
    ],
)
def test_errors(options, error, message):
    with pytest.raises(error, match=message):
        auto(make_data(30), "forecast", **options)


def test_heavy_tails_are_pooled_with_gaussian_outputs():
    """A pool of both kinds: predictions are the mixture, with its densities."""
    rng = np.random.default_rng(0)
    t = np.arange(40.0)
    y = np.sin(t[:, None] / 4.0 + np.arange(3)) + 0.05 * rng.standard_t(2.0, (40, 3))
    y[rng.random(y.shape) < 0.1] = np.nan
    data = Sequences(t, y)
    names = [model.name for model in propose_models(data, "impute", "student-t")]
    assert names == ["linear mapping", "nonlinear mapping", "nonlinear mapping, Gaussian outputs"]
    small = {"latent_dim": 2, "num_inducing": 8, "num_steps": 15}
    both = [Configuration(name, likelihood=name, **small) for name in ("student-t", "gaussian")]
    chosen = auto(data, "impute", likelihood="student-t", candidates=both)
    assert all(candidate.log_score is not None for candidate in chosen.report.candidates)
    weights = torch.tensor([0.6, 0.4]).double()
    combination = Combination(weights.unsqueeze(-1).expand(-1, 3), Calibration.none(3))
    found = Ensemble([model.fit(data) for model in both], {"impute": combination})
    assert [member.likelihood is None for member in found.members] == [False, True]
    assert not found.is_gaussian
    prediction = found.impute(fill=False)
    members = [member.impute(fill=False) for member in found.members]
    expected = sum(w * member.log_probs(np.zeros((40, 3))).exp() for w, member in zip(weights, members, strict=True))
    torch.testing.assert_close(prediction.log_probs(np.zeros((40, 3))).exp(), expected)
    hidden = data.read().isnan()
    lower, upper = found.reconstruct(t, y, 0, fill=True).interval(0.9)
    assert (upper > lower)[hidden].all()
    assert torch.equal(lower[~hidden], data.read()[~hidden])


def growing(exposure=None):
    t = np.arange(12.0)
    y = np.stack([np.minimum(t, 7.0), 3.0 * t % 5.0, np.zeros(12)], 1)
    y[3, 0] = np.nan
    return Sequences(t, y, exposure=exposure)


def test_limits_of_counts_ahead():
    limits = find_growth_limits(growing(), NegativeBinomial())
    assert limits.upper.tolist() == [14.0, 8.0, 2.0]
    assert limits.lower.tolist() == [-np.inf] * 3
    mixed = ByColumn([(StudentT(), [0, 2]), (Poisson(), [1])])
    mixed.meet(3)
    assert find_growth_limits(growing(), mixed).upper.tolist() == [np.inf, 8.0, np.inf]
    assert find_growth_limits(growing(), StudentT()) is None
    assert find_growth_limits(growing(np.ones((12, 3))), NegativeBinomial()) is None
    assert find_growth_limits(growing(np.full(3, 2.0)), NegativeBinomial()).upper.tolist() == [14.0, 8.0, 2.0]


def test_means_of_a_pool_of_counts_ahead_are_limited():
    data = growing()
    small = replace(SMALL, latent_dim=1, num_inducing=5, num_steps=3)
    members = [small.fit(data, seed) for seed in (0, 1)]
    weights = torch.tensor([0.25, 0.75]).double()
    combination = Combination(weights.unsqueeze(-1).expand(-1, 3), Calibration.none(3), is_pool=True)
    ensemble = Ensemble(members, {"forecast": combination})
    found, parts = ensemble.forecast([12.0]), [member.forecast([12.0]) for member in members]
    assert found.limits.upper.tolist() == [14.0, 8.0, 2.0]
    assert ensemble.impute().limits is None
    assert ensemble.extended([12.0], [[90.0, np.nan, np.nan]], 0).forecast([13.0]).limits.upper[0] == 180.0
    low = Limits(torch.zeros(3).double(), torch.tensor([4.0, 1.0, 0.01]).double())
    assert bool((torch.stack([part.mean for part in parts]) > low.upper).any())
    limited = MixturePrediction(parts, weights, limits=low)
    means = [torch.minimum(part.mean, low.upper) for part in parts]
    mean = 0.25 * means[0] + 0.75 * means[1]
    torch.testing.assert_close(limited.mean, mean)
    variance = sum(w * (part.variance + (m - mean).square()) for w, part, m in zip(weights, parts, means, strict=True))
    torch.testing.assert_close(limited.variance, variance)
    torch.testing.assert_close(limited.with_noise(True).mean, mean)
    assert limited.with_exposure([2.0, 1.0, 1.0]).limits is None
    seen = ensemble.reconstruct([12.0], [[90.0, np.nan, np.nan]], 0, fill=True)
    known = MixturePrediction(seen.components, weights, limits=low)
    assert known.mean[0, 0] == 90.0  # it is no prediction
    torch.testing.assert_close(found.log_probs(np.ones((1, 3))), limited.log_probs(np.ones((1, 3))))


def test_weights_of_counts_ahead_belong_to_limited_means():
    """Without a limit, the member with an enormous mean has no weight."""
    rng = np.random.default_rng(0)
    density = np.log(rng.random((2, 60)))
    wild = torch.full((60,), 0.1).double()
    wild[0] = 1e4
    found = [held_out(density[0]), held_out(density[1], wild)]
    ends = torch.zeros(60, 2).double()
    found = [replace(member, ends=ends) for member in found]
    zeros = torch.zeros(60).long()
    entries = Entries(zeros, torch.arange(60.0), torch.arange(60) // 30, zeros.bool(), zeros)
    limits = Limits(torch.tensor([-np.inf]), torch.tensor([0.15]))
    free, limited = (choose_pool(found, entries, torch.ones(1), limits=each) for each in (None, limits))
    assert free.shares.tolist() == [1.0, 0.0]
    assert float(limited.shares.min()) > 0.2
    assert float(limited.found.mean.max()) <= 0.15
