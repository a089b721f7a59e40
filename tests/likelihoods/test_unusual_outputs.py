# SPDX-License-Identifier: Apache-2.0
"""Outputs that a likelihood does not allow, and unusual ones that it does."""

import math

import numpy as np
import pytest
import torch
from problems import fit_posterior

from pyro_vgpds import VGPDS, Posterior, Sequences
from pyro_vgpds.likelihoods import Bernoulli, Binomial, NegativeBinomial, Poisson, StudentT
from pyro_vgpds.prediction import BayesClassifier

NAN = float("nan")


def counts(rows: int = 20, columns: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rate = np.exp(np.sin(np.linspace(0, 6, rows))[:, None] * np.linspace(-1, 1, columns))
    return rng.poisson(rate).astype(float)


def trained(y: np.ndarray, likelihood) -> Posterior:
    data = Sequences(np.arange(len(y)) / 5.0, y)
    torch.manual_seed(0)
    model = VGPDS.from_data(data, 1, 6, likelihood=likelihood)
    return fit_posterior(model, data, 15)


@pytest.mark.parametrize(
    ("likelihood", "value", "message"),
    [
        (Poisson(), -1.0, "data has -1 in output 1 ('b'), frame 2 of sequence 1, but Poisson outputs must be a count"),
        (
            NegativeBinomial(),
            0.5,
            "data has 0.5 in output 1 ('b'), frame 2 of sequence 1, but NegativeBinomial outputs",
        ),
        (Bernoulli(), 2.0, "data has 2 in output 1 ('b'), frame 2 of sequence 1, but Bernoulli outputs must be 0 or 1"),
        (Binomial(3), 4.0, "data has 4 in output 1 ('b'), frame 2 of sequence 1, but Binomial outputs must be a whole"),
    ],
)
def test_values_that_are_not_possible_are_named(likelihood, value, message):
    y = [np.tile([0.0, 1.0], (4, 1)), np.tile([1.0, 0.0], (4, 1))]
    y[1][2, 1] = value
    y[0][0, 0] = NAN  # not observed: never tested
    data = Sequences([np.arange(4.0), np.arange(4.0)], y, columns=["a", "b"])
    with pytest.raises(ValueError) as error:
        VGPDS.from_data(data, 1, 3, likelihood=likelihood)
    assert message in str(error.value)


@pytest.mark.parametrize("total", [0, 1.5, -3, [[1, 2]]])
def test_totals_that_are_no_numbers_of_trials(total):
    with pytest.raises(ValueError, match="total must be a whole number of at least 1"):
        Binomial(total)


@pytest.mark.parametrize(
    "make", [lambda: NegativeBinomial(-1.0), lambda: StudentT(df=0.0), lambda: StudentT(scale=NAN)]
)
def test_parameters_out_of_range(make):
    with pytest.raises(ValueError, match="must be positive and finite"):
        make()


@pytest.mark.parametrize("likelihood", [Poisson, NegativeBinomial])
def test_a_column_of_zeros_is_allowed_for_counts(likelihood):
    y = counts()
    y[:, 1] = 0.0
    post = trained(y, likelihood())
    ahead = post.forecast([4.1, 4.3])
    assert bool(torch.isfinite(ahead.mean).all())
    assert float(ahead.mean[:, 1].max()) < float(ahead.mean[:, [0, 2]].min())
    assert 0.0 <= float(ahead.mean[:, 1].max()) < 0.5


def test_a_constant_yes_is_allowed():
    y = (counts() > 0).astype(float)
    y[:, 0] = 1.0
    probability = trained(y, Bernoulli()).impute(fill=False).mean
    assert bool((probability[:, 0] > 0.8).all())
    assert bool(((probability > 0.0) & (probability < 1.0)).all())


@pytest.mark.parametrize("likelihood", [Bernoulli, Poisson, NegativeBinomial, None])
@pytest.mark.parametrize("value", [0.0, 1.0, NAN])
def test_new_frames_that_are_all_alike_or_unknown(likelihood, value):
    y = (counts() > 0).astype(float)
    post = trained(y, None if likelihood is None else likelihood())
    t, new = [9.1], np.full((1, y.shape[1]), value)
    for later in (post.extended(t, new), post.condition(Sequences(t, new), [None])):
        assert bool(torch.isfinite(later.forecast([9.2]).mean).all())
    found = post.reconstruct(t, new, sequence=None)
    assert bool(torch.isfinite(found.mean).all())
    assert bool((found.variance > 0.0).all())
    assert math.isfinite(float(post.log_density(t, new)))


def test_a_column_that_was_never_observed_is_an_error():
    y = counts()
    y[:, 2] = NAN
    with pytest.raises(ValueError, match="outputs 2 of data were never observed"):
        trained(y, Poisson())


def test_lags_need_gaussian_outputs():
    data = Sequences(np.arange(20.0), counts()).lagged([1])
    with pytest.raises(ValueError, match="data with lags need Gaussian outputs, but the likelihood is Poisson"):
        VGPDS.from_data(data, 1, 5, likelihood=Poisson())


def test_all_predictions_of_counts():
    """Everything that a posterior offers has whole numbers, rates or finite scores."""
    post, new = trained(counts(), NegativeBinomial()), counts(6, seed=1)
    t = np.arange(6) / 5.0
    longer = post.extended(4.0 + t, new, sequence=0)
    assert longer.data.lengths == (26,)
    given = new.copy()
    given[:, 0] = NAN
    known = post.forecast(4.0 + t, sequence=0, given=given)
    assert torch.equal(known.mean[:, 1:], torch.from_numpy(new[:, 1:]))
    draws = post.generate(4.0 + t, num_samples=3)
    assert torch.equal(draws, draws.round())
    assert bool((draws >= 0.0).all())
    drawn = post.as_model(sequence=0)(4.0 + t)
    assert torch.equal(drawn, drawn.round())
    lower, upper = known.interval(0.9)
    assert torch.equal(lower, lower.round())
    assert bool((lower <= upper).all())
    other = trained(5.0 + counts(seed=2), NegativeBinomial())
    assert BayesClassifier({"few": post, "many": other}).predict(t, new) == "few"


def test_frames_beyond_the_data_have_exposure_one_if_exposures_differ_by_frame():
    rng = np.random.default_rng(0)
    exposure = rng.uniform(0.5, 4.0, (30, 3))
    y, t = rng.poisson(2.0 * exposure).astype(float), np.arange(30) / 5.0
    data = Sequences(t, y, exposure=exposure)
    torch.manual_seed(0)
    model = VGPDS.from_data(data, 1, 6, likelihood=Poisson())
    post = fit_posterior(model, data, 15)
    new = rng.poisson(2.0, (5, 3)).astype(float)
    for found in (post.forecast([6.1]), post.reconstruct(t[:5], new), post.forecast([6.1, 6.2], given=new[:2])):
        assert bool(((found.rate.mean > 0.5) & (found.rate.mean < 8.0)).all())  # 2 is the rate of exposure 1
    assert math.isfinite(float(post.log_density(t[:5], new)))
    own = post.impute(fill=False).mean / torch.from_numpy(exposure)
    assert bool(((own > 0.5) & (own < 8.0)).all())
    with pytest.raises(ValueError, match="extended cannot determine the exposure of new frames"):
        post.extended([6.1], new[:1])
