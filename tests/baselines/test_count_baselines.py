# SPDX-License-Identifier: Apache-2.0
"""Baselines of counts: their means, their distributions, and what they refuse."""

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_vgpds import Sequences
from pyro_vgpds.baselines import OutputBaseline
from pyro_vgpds.baselines.counts import COUNT_RULES, common_period, join_components
from pyro_vgpds.baselines.output_fitting import fit_dispersion
from pyro_vgpds.likelihoods import NegativeBinomial


def make_counts(frames=90, period=18.0, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(float(frames))
    level = np.exp(1.0 + 1.2 * np.sin(2.0 * np.pi * t / period))
    return t, rng.poisson(level[:, None] * np.array([0.5, 1.0, 2.0, 4.0])).astype(float)


@pytest.fixture
def data():
    t, y = make_counts()
    y[40:43, 1] = np.nan
    y[60:62] = np.nan
    return Sequences(t, y, columns=list("abcd"))


def mixture(prediction, dispersion):
    """The same distributions by scipy."""
    means = prediction.means.numpy()
    return stats.nbinom(dispersion, dispersion / (dispersion + means))


def test_distribution_is_that_of_scipy(data):
    found = OutputBaseline("common cycle", data, NegativeBinomial(2.5)).forecast([90.0, 95.0])
    own = mixture(found, 2.5)
    y = np.array([[0.0, 3.0, 1.0, 12.0], [2.0, np.nan, 0.0, 40.0]])
    seen = np.isfinite(y)
    expected = np.log(own.pmf(np.nan_to_num(y)).mean(0))
    np.testing.assert_allclose(found.log_probs(y).numpy()[seen], expected[seen], rtol=1e-10)
    assert found.log_probs(y).isnan().numpy()[~seen].all()
    assert float(found.log_prob(y)) == pytest.approx(expected[seen].sum())
    np.testing.assert_allclose(found.cdf(y).numpy()[seen], own.cdf(np.nan_to_num(y)).mean(0)[seen], rtol=1e-10)
    np.testing.assert_allclose(found.mean, own.mean().mean(0))
    np.testing.assert_allclose(found.variance, own.var().mean(0) + own.mean().var(0))
    lower, upper = found.interval(0.8)
    for end, level in ((lower, 0.1), (upper, 0.9)):
        assert (own.cdf(end.numpy()).mean(0) >= level - 1e-9).all()
        assert (own.cdf(end.numpy() - 1.0).mean(0) < level).all()
    draws = found.sample(4000)
    np.testing.assert_allclose(draws.mean(0), found.mean, rtol=0.15)
    assert found.kind_of(0) == "count"
    assert found.is_whole.all()
    assert not found.is_gaussian


def test_mean_count(data):
    found = OutputBaseline("mean count", data, "negative-binomial").forecast([90.0])
    y = data.read().numpy()
    half = 0.5 * np.nanmean(y)
    expected = (np.nansum(y, 0) + half) / (np.isfinite(y).sum(0) + 0.5)
    np.testing.assert_allclose(found.mean[0], expected)


def test_levels_times_shares():
    level, share = np.array([10.0, 20.0, 40.0, 30.0]), np.array([30.0, 60.0, 90.0])
    y = level[:, None] * share
    y[3] = np.nan
    found = OutputBaseline("common level", Sequences(range(4), y), "negative-binomial").impute(fill=False)
    np.testing.assert_allclose(found.mean[:3], y[:3], rtol=0.01)
    np.testing.assert_allclose(found.mean[3], y[2], rtol=0.02)  # the last level


def test_a_cycle_has_one_component_for_each_earlier_one(data):
    assert common_period(data) == pytest.approx(18.0, rel=0.03)
    ahead = OutputBaseline("common cycle", data, "negative-binomial").forecast(np.arange(90.0, 94.0))
    assert len(ahead.means) == 5
    t, y = make_counts(frames=94)
    rate = np.exp(1.0 + 1.2 * np.sin(2.0 * np.pi * t[90:] / 18.0))[:, None] * np.array([0.5, 1.0, 2.0, 4.0])
    assert np.abs(ahead.mean.numpy() / rate - 1.0).mean() < 0.3
    last = OutputBaseline("common level", data, "negative-binomial").forecast(np.arange(90.0, 94.0))
    assert float(ahead.log_prob(y[90:])) > float(last.log_prob(y[90:]))


def test_without_a_cycle_the_level_is_the_last_one():
    t, _ = make_counts()
    data = Sequences(t, np.random.default_rng(1).poisson(3.0, (90, 4)).astype(float))
    assert common_period(data) is None
    cycle, level = (
        OutputBaseline(name, data, "negative-binomial").forecast([91.0]).mean
        for name in ("common cycle", "common level")
    )
    torch.testing.assert_close(cycle, level)


def test_known_numbers_are_unchanged(data):
    y = data.read()
    known = y.isfinite()
    for name in COUNT_RULES:
        rival = OutputBaseline(name, data, NegativeBinomial(3.0))
        found = rival.impute()
        assert torch.equal(found.mean[known], y[known])
        assert (found.variance[known] == 0).all()
        assert (found.variance[~known] > 0).all()
        lower, upper = found.interval()
        assert torch.equal(lower[known], y[known])
        assert torch.equal(upper[known], y[known])
        assert found.log_probs(y.nan_to_num(1.0))[known].isnan().all()
        assert (found.cdf(y.nan_to_num(1.0))[known] == 1.0).all()
        assert torch.equal(found.sample(2)[1][known], y[known])
        assert (rival.impute(fill=False).variance > 0).all()
        part = torch.tensor([[5.0, torch.nan, 3.0, torch.nan]]).double()
        assert rival.reconstruct([90.0], part, 0, fill=True).mean[0, 0] == 5.0
        assert rival.reconstruct([90.0], part, 0).variance.min() > 0


def test_new_sequences_and_other_data(data):
    rival = OutputBaseline("common level", data, NegativeBinomial(3.0))
    y = torch.tensor([[8.0, torch.nan, 30.0, torch.nan], [torch.nan] * 4]).double()
    found = rival.reconstruct([0.0, 1.0], y)
    assert found.mean[0, 3] > 2.0 * rival.impute().mean[:, 3].mean()
    torch.testing.assert_close(found.mean[1], found.mean[0])
    shorter = Sequences(data.times.t[:50], data.read()[:50])
    other = rival.condition(shorter)
    assert isinstance(other, OutputBaseline)
    assert other.name == "common level"
    assert float(other.likelihood.parameters.dispersion) == pytest.approx(3.0)
    longer = other.extended([50.0], [[1.0, 1.0, 1.0, 1.0]])
    assert isinstance(longer, OutputBaseline)
    assert longer.data.num_frames == 51


def test_columns_of_zeros_are_possible():
    y = np.zeros((6, 3))
    y[:, 0] = [3, 0, 0, 1, 0, 2]
    for name in COUNT_RULES:
        found = OutputBaseline(name, Sequences(range(6), y), "negative-binomial").forecast([6.0])
        assert (found.mean > 0).all()
        assert found.log_probs([[1.0, 1.0, 1.0]]).isfinite().all()


def test_dispersion_of_counts():
    rng = np.random.default_rng(0)
    mean = torch.from_numpy(rng.gamma(3.0, 2.0, 5000))
    for r in (0.5, 4.0):
        counts = torch.from_numpy(rng.negative_binomial(r, (r / (r + mean)).numpy()).astype(float))
        assert fit_dispersion(counts, mean[None]) == pytest.approx(r, rel=0.2)


def test_components_repeat_in_turn():
    few, many = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0], [5.0]])
    assert join_components([few, many]).tolist() == [[1.0, 3.0], [2.0, 4.0], [1.0, 5.0]]
    assert join_components([many]).tolist() == many.tolist()


def test_errors(data):
    with pytest.raises(ValueError, match="name must be one of 'mean count', 'common level', 'common cycle', 'column"):
        OutputBaseline("last value", data, "negative-binomial")
    with pytest.raises(ValueError, match="dispersion"):
        OutputBaseline("mean count", data, NegativeBinomial(0.0))
    with pytest.raises(ValueError, match=r"data.*a whole number of 0 or more"):
        OutputBaseline("mean count", Sequences(range(2), [[1.0], [-2.0]]), "negative-binomial")


def test_a_week_of_days_is_not_averaged_with_the_days_beside():
    rng, day = np.random.default_rng(0), np.arange(91) % 7
    rate = np.array([20.0, 22.0, 20.0, 25.0, 30.0, 40.0, 0.0])[day]
    data = Sequences(np.arange(84.0), rng.poisson(rate[:84, None] * np.ones(4)).astype(float))
    assert common_period(data) == pytest.approx(7.0, rel=0.01)
    ahead = OutputBaseline("common cycle", data, "negative-binomial").forecast(np.arange(84.0, 91.0))
    np.testing.assert_allclose(ahead.mean, np.tile(rate[84:, None], 4), rtol=0.15, atol=0.5)
