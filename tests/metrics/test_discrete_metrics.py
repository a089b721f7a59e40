# SPDX-License-Identifier: Apache-2.0
"""Scores of counts and yes/no outputs, against loops over the entries and against scipy."""

import math

import numpy as np
import pytest
import torch

from pyro_vgpds import metrics

stats = pytest.importorskip("scipy.stats")
NAN = np.nan


def some_counts(seed=0, shape=(40, 6), rate=2.0):
    rng = np.random.default_rng(seed)
    mean = rng.gamma(rate, 1.0, shape)
    truth = rng.poisson(mean).astype(float)
    truth[rng.random(shape) < 0.2] = NAN
    return truth, mean


def test_log_score():
    truth, mean = some_counts()
    log_prob = stats.poisson.logpmf(truth, mean)
    expected = np.mean([log_prob[i] for i in np.ndindex(truth.shape) if not math.isnan(truth[i])])
    assert metrics.log_score(truth, log_prob) == pytest.approx(expected)
    assert metrics.log_score(torch.tensor(truth), torch.tensor(log_prob)) == pytest.approx(expected)
    assert metrics.log_score([1.0, 2.0], [-1.0, -math.inf]) == -math.inf
    with pytest.raises(ValueError, match=r"log_prob must have the shape of truth, \(2,\), but got \(3,\)"):
        metrics.log_score([1.0, 2.0], [0.0, 0.0, 0.0])
    for bad in (NAN, math.inf):
        with pytest.raises(ValueError, match=r"log_prob must be a number or minus infinity.*entry \(1,\) is (nan|inf)"):
            metrics.log_score([1.0, 2.0, NAN], [0.0, bad, NAN])


def test_poisson_log_prob():
    truth, mean = some_counts()
    mean[0, 0] = -3.0  # below the floor
    found = metrics.poisson_log_prob(truth, np.where(np.isnan(truth), NAN, mean))
    np.testing.assert_allclose(found, stats.poisson.logpmf(truth, np.maximum(mean, 1e-4)), rtol=1e-12)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(truth))
    assert metrics.poisson_log_prob([0.0], [0.0], floor=0.5)[0] == pytest.approx(-0.5)
    for floor in (0.0, -1.0, NAN):
        with pytest.raises(ValueError, match="floor must be"):
            metrics.poisson_log_prob([0.0], [0.0], floor=floor)


@pytest.mark.parametrize("bad", [-1.0, 0.5, math.inf])
def test_counts_are_checked(bad):
    with pytest.raises(ValueError, match=rf"truth must be counts .*entry \(1, 0\) is {bad:g}"):
        metrics.poisson_log_prob([[1.0], [bad]], [[1.0], [1.0]])
    with pytest.raises(ValueError, match=rf"truth must be counts .*entry \(1, 0\) is {bad:g}"):
        metrics.bits_per_spike([[1.0], [bad]], [[1.0], [1.0]], [1.0])


def test_bits_per_spike():
    truth, mean = some_counts(1)
    base = np.array([1.0, 0.0, 2.0, 3.0, 0.5, 1.0])  # a neuron without spikes in training gets the floor
    gain = spikes = 0.0
    for n, d in np.ndindex(truth.shape):
        if not math.isnan(truth[n, d]):
            gain += stats.poisson.logpmf(truth[n, d], max(mean[n, d], 1e-4))
            gain -= stats.poisson.logpmf(truth[n, d], max(base[d], 1e-4))
            spikes += truth[n, d]
    assert metrics.bits_per_spike(truth, mean, base) == pytest.approx(gain / (spikes * math.log(2)), rel=1e-12)
    own = np.broadcast_to(base, truth.shape)
    assert metrics.bits_per_spike(truth, own, base) == 0.0
    with pytest.raises(ValueError, match="truth must have at least one spike"):
        metrics.bits_per_spike([[0.0, NAN]], [[1.0, 1.0]], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"base_rate \(D,\), but got \(40, 6\) and \(5,\)"):
        metrics.bits_per_spike(truth, mean, base[:5])
    with pytest.raises(ValueError, match="mean must be finite where truth is not NaN"):
        metrics.bits_per_spike(truth, np.full(truth.shape, NAN), base)


def test_brier_score():
    rng = np.random.default_rng(2)
    p = rng.random((30, 4))
    truth = (rng.random((30, 4)) < p).astype(float)
    truth[3] = NAN
    expected = np.mean([(p[i] - truth[i]) ** 2 for i in np.ndindex(truth.shape) if i[0] != 3])
    assert metrics.brier_score(truth, p) == pytest.approx(expected)
    assert metrics.brier_score([0.0, 1.0], [0.0, 1.0]) == 0.0
    with pytest.raises(ValueError, match=r"truth must be 0, 1 or NaN, but entry \(1,\) is 2"):
        metrics.brier_score([0.0, 2.0], [0.0, 1.0])
    with pytest.raises(ValueError, match=r"probability must be in \[0, 1\], but entry \(0,\) is 1.1"):
        metrics.brier_score([0.0, 1.0], [1.1, 1.0])


def cdf(truth, mean):
    return stats.poisson.cdf(truth - 1, mean), stats.poisson.cdf(truth, mean)


def test_randomized_pit_is_uniform():
    truth, mean = some_counts(3, (200, 50), rate=0.7)
    pit = metrics.randomized_pit(truth, *cdf(truth, mean))
    np.testing.assert_array_equal(np.isnan(pit), np.isnan(truth))
    assert stats.kstest(pit[~np.isnan(pit)], "uniform").pvalue > 0.01
    np.testing.assert_array_equal(pit, metrics.randomized_pit(truth, *cdf(truth, mean), seed=0))
    assert np.nanmax(np.abs(pit - metrics.randomized_pit(truth, *cdf(truth, mean), seed=1))) > 0.1
    wrong = metrics.randomized_pit(truth, *cdf(truth, 2 * mean))
    assert stats.kstest(wrong[~np.isnan(wrong)], "uniform").pvalue < 1e-6


@pytest.mark.parametrize("probability", [0.5, 0.8, 0.95])
def test_discrete_coverage(probability):
    truth, mean = some_counts(4, (200, 50), rate=0.7)
    below, at_most = cdf(truth, mean)
    found = metrics.discrete_coverage(truth, below, at_most, probability)
    assert found == pytest.approx(probability, abs=0.015)
    ends = 0.5 - 0.5 * probability, 0.5 + 0.5 * probability
    pits = [metrics.randomized_pit(truth, below, at_most, seed) for seed in range(40)]
    shares = [np.mean([(ends[0] <= u) & (u <= ends[1]) for u in pit[~np.isnan(pit)]]) for pit in pits]
    assert found == pytest.approx(np.mean(shares), abs=4 * np.std(shares) / math.sqrt(len(shares)))
    # closed intervals of whole numbers cover more than that
    low, high = (stats.poisson.ppf(end, mean) for end in ends)
    assert metrics.coverage(truth, low, high) > found + 0.01


def test_discrete_coverage_of_continuous_outputs():
    rng = np.random.default_rng(5)
    truth = rng.standard_normal(500)
    u = stats.norm.cdf(truth)
    ends = stats.norm.ppf([0.1, 0.9])
    expected = metrics.coverage(truth, np.full(500, ends[0]), np.full(500, ends[1]))
    assert metrics.discrete_coverage(truth, u, u, 0.8) == expected


def test_sample_cdf():
    rng = np.random.default_rng(6)
    truth, mean = some_counts(6, (30, 5))
    samples = rng.poisson(mean, (20, *mean.shape)).astype(float)
    below, at_most = metrics.sample_cdf(truth, samples)
    for i in np.ndindex(truth.shape):
        if math.isnan(truth[i]):
            assert math.isnan(below[i])
            assert math.isnan(at_most[i])
        else:
            draws = [sample[i] for sample in samples]
            assert below[i] == sum(draw < truth[i] for draw in draws) / 21
            assert at_most[i] == (sum(draw <= truth[i] for draw in draws) + 1) / 21
    # exactly uniform for few draws as well
    truth, mean = some_counts(7, (300, 50), rate=0.7)
    pit = metrics.randomized_pit(truth, *metrics.sample_cdf(truth, rng.poisson(mean, (3, *mean.shape))))
    assert stats.kstest(pit[~np.isnan(pit)], "uniform").pvalue > 0.01
    with pytest.raises(ValueError, match=r"samples must be \(S, 2\) with S >= 1, as truth, but got \(0, 2\)"):
        metrics.sample_cdf([1.0, 2.0], np.zeros((0, 2)))
    with pytest.raises(ValueError, match=r"samples must be \(S, 2\) with S >= 1, as truth, but got \(2,\)"):
        metrics.sample_cdf([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"samples must be numbers .*entry \(0, 1\) is nan"):
        metrics.sample_cdf([1.0, 2.0], [[1.0, NAN]])


def test_errors_of_distributions():
    with pytest.raises(ValueError, match=r"below must be in \[0, 1\], but entry \(0,\) is -0.5"):
        metrics.randomized_pit([1.0], [-0.5], [0.5])
    with pytest.raises(ValueError, match=r"at_most must be in \[below, 1\], but entry \(1,\) is 0.2"):
        metrics.discrete_coverage([1.0, 1.0], [0.5, 0.5], [0.5, 0.2])
    with pytest.raises(ValueError, match="at_most must be finite where truth is not NaN"):
        metrics.discrete_coverage([1.0], [0.5], [NAN])
    with pytest.raises(ValueError, match="probability must be between 0 and 1"):
        metrics.discrete_coverage([1.0], [0.5], [0.6], 1.0)
    with pytest.raises(ValueError, match=r"seed must be a whole number from 0 to 2\*\*32 - 1, but got -1"):
        metrics.randomized_pit([1.0], [0.5], [0.6], seed=-1)
