# SPDX-License-Identifier: Apache-2.0
"""Errors of predictions, against their definitions written out."""

import math

import numpy as np
import pytest
import torch

from pyro_vgpds import metrics

TRUTH = np.array([[1.0, 2.0], [np.nan, 4.0], [3.0, np.nan]])
GUESS = np.array([[1.5, 1.0], [np.nan, 4.0], [0.0, 7.0]])  # what the truth does not have may be anything


def test_mean_errors():
    errors = np.array([-0.5, 1.0, 0.0, 3.0])
    assert metrics.mse(TRUTH, GUESS) == pytest.approx((errors**2).mean())
    assert metrics.mae(TRUTH, torch.tensor(GUESS)) == pytest.approx(np.abs(errors).mean())
    assert metrics.ra(TRUTH, GUESS) == pytest.approx(180 / math.pi * np.sqrt((errors**2).mean()))


def test_sc():
    scale = np.array([2.0, 0.5])
    degrees = 180 / math.pi
    expected = ((-0.5 * 2 * degrees) ** 2 + (3.0 * 2 * degrees) ** 2 + (1.0 * 0.5 * degrees) ** 2) / 2
    assert metrics.sc(TRUTH, GUESS, scale) == pytest.approx(expected)
    # a column that was seen throughout is no part of the mean
    wide = np.concatenate([TRUTH, np.full((3, 1), np.nan)], 1)
    assert metrics.sc(wide, np.zeros((3, 3)) + np.pad(GUESS, ((0, 0), (0, 1))), [2.0, 0.5, 9.0]) == pytest.approx(
        expected
    )


def test_coverage_and_nlpd():
    assert metrics.coverage(TRUTH, np.nan_to_num(GUESS) - 1, np.nan_to_num(GUESS) + 1) == pytest.approx(3 / 4)
    variance = np.array([[0.5, 1.0], [1.0, 2.0], [4.0, -1.0]])  # the last does not count
    normal = torch.distributions.Normal(
        torch.tensor(GUESS), torch.tensor(variance).clamp_min(0.1).sqrt(), validate_args=False
    )
    log_prob = normal.log_prob(torch.tensor(TRUTH))
    expected = -float(log_prob[~torch.isnan(torch.tensor(TRUTH))].mean())
    assert metrics.nlpd(TRUTH, GUESS, variance) == pytest.approx(expected)
    rng = np.random.default_rng(0)
    draws = rng.standard_normal(20_000)
    assert metrics.coverage(draws, np.full_like(draws, -1.96), np.full_like(draws, 1.96)) == pytest.approx(
        0.95, abs=0.01
    )


def test_errors():
    with pytest.raises(ValueError, match=r"prediction must have the shape of truth, \(3, 2\), but got \(2, 3\)"):
        metrics.mse(TRUTH, GUESS.T)
    with pytest.raises(ValueError, match="truth must have entries that are not NaN"):
        metrics.mae(np.full(3, np.nan), np.zeros(3))
    with pytest.raises(ValueError, match="prediction must be finite where truth is not NaN"):
        metrics.mse([1.0, 2.0], [1.0, np.nan])
    with pytest.raises(ValueError, match=r"scale \(d,\), but got \(3, 2\) and \(3,\)"):
        metrics.sc(TRUTH, GUESS, np.ones(3))
    with pytest.raises(ValueError, match="lower must not be greater than upper"):
        metrics.coverage([1.0], [2.0], [0.0])
    with pytest.raises(ValueError, match="variance must be positive where truth is not NaN"):
        metrics.nlpd([1.0], [1.0], [0.0])
