# SPDX-License-Identifier: Apache-2.0
"""Baselines of yes/no, mixed and exposed outputs: their means, the likelihood around them, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_vgpds import Sequences
from pyro_vgpds.baselines import OutputBaseline
from pyro_vgpds.baselines.output_fitting import HeldOutMeans, fit_likelihood, is_fitted
from pyro_vgpds.likelihoods import (
    Bernoulli,
    Binomial,
    ByColumn,
    Gaussian,
    NegativeBinomial,
    Poisson,
    SiteLikelihood,
    StudentT,
)


class Own(SiteLikelihood):
    num_functions = 2


def make_yes(frames=60, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(float(frames))
    rate = 1.0 / (1.0 + np.exp(-3.0 * np.sin(t[:, None] / 6.0 + np.arange(3))))
    y = (rng.random(rate.shape) < rate).astype(float)
    y[rng.random(y.shape) < 0.15] = np.nan
    return t, y, rate


def test_the_mean_of_a_column_is_a_rate():
    t, y, _ = make_yes()
    found = OutputBaseline("column mean", Sequences(t, y), "bernoulli").forecast([60.0])
    seen = np.isfinite(y)
    expected = (np.nansum(y, 0) + 0.5 * np.nanmean(y)) / (seen.sum(0) + 0.5)
    np.testing.assert_allclose(found.mean[0], expected)
    np.testing.assert_allclose(found.variance[0], expected * (1.0 - expected))
    np.testing.assert_allclose(found.log_probs([[1.0, 0.0, 1.0]])[0, 1], np.log(1.0 - expected[1]))
    assert found.kind_of(1) == "yes/no"


def test_neighbouring_frames_are_closer_to_the_rate_than_the_mean():
    t, y, rate = make_yes()
    data, hidden = Sequences(t, y), np.isnan(y)
    near, mean = (
        OutputBaseline(name, data, "bernoulli").impute().mean.numpy() for name in ("neighbouring frames", "column mean")
    )
    assert np.square(near - rate)[hidden].mean() < 0.5 * np.square(mean - rate)[hidden].mean()
    assert ((near > 0.0) & (near < 1.0))[hidden].all()
    np.testing.assert_array_equal(near[~hidden], y[~hidden])


def test_columns_of_one_kind_only_are_possible():
    y = np.ones((12, 2))
    y[:, 1] = 0.0
    for name in ("column mean", "neighbouring frames"):
        found = OutputBaseline(name, Sequences(range(12), y), Bernoulli()).forecast([12.0])
        assert found.log_probs([[0.0, 1.0]]).isfinite().all()
        assert (found.mean[0, 0] > 0.9) & (found.mean[0, 1] < 0.1)


def test_mixed_outputs():
    rng = np.random.default_rng(1)
    t = np.arange(40.0)
    y = np.stack([np.sin(t / 4.0), rng.poisson(4.0, 40), rng.integers(0, 2, 40), rng.integers(0, 6, 40)], 1)
    y[10:12] = np.nan
    data = Sequences(t, y.astype(float), columns=["angle", "count", "contact", "hits"])
    likelihood = {
        StudentT(scale=0.1, df=3.0): ["angle"],
        "poisson": ["count"],
        "bernoulli": ["contact"],
        "binomial:5": ["hits"],
    }
    found = OutputBaseline("neighbouring frames", data, likelihood).impute()
    assert found.is_whole.tolist() == [False, True, True, True]
    line = np.interp([10.0, 11.0], [9.0, 12.0], y[[9, 12], 0])
    np.testing.assert_allclose(found.mean[10:12, 0], line)
    lower, upper = found.interval(0.9)
    np.testing.assert_allclose(upper[10, 0] - lower[10, 0], 0.2 * stats.t.ppf(0.95, 3.0), rtol=1e-6)
    assert (upper[10, 3] <= 5.0) & (found.mean[10, 3] < 5.0)
    assert 0.0 < found.mean[10, 2] < 1.0


def test_an_exposure_of_each_entry():
    rng = np.random.default_rng(2)
    t, exposure = np.arange(50.0), rng.uniform(0.2, 5.0, (50, 3))
    y = rng.poisson(np.array([4.0, 8.0, 2.0]) * exposure).astype(float)
    y[20:25, 0] = np.nan
    data = Sequences(t, y, exposure=exposure)
    for name in ("mean count", "common level", "column mean", "neighbouring frames"):
        rival = OutputBaseline(name, data, "poisson")
        found, ahead = rival.impute(), rival.forecast([50.0, 51.0])
        np.testing.assert_allclose(found.mean[20:25, 0].numpy() / exposure[20:25, 0], 4.0, rtol=0.6)
        np.testing.assert_allclose(ahead.mean.mean(0), [4.0, 8.0, 2.0], rtol=0.6)  # of the exposure 1
        more = ahead.with_exposure([[1.0, 2.0, 3.0], [10.0, 1.0, 1.0]])
        np.testing.assert_allclose(more.mean, ahead.mean.numpy() * [[1.0, 2.0, 3.0], [10.0, 1.0, 1.0]])
        own = stats.poisson(more.means[0].numpy() * [[1.0, 2.0, 3.0], [10.0, 1.0, 1.0]])
        np.testing.assert_allclose(more.log_probs(np.ones((2, 3))), own.logpmf(np.ones((2, 3))), rtol=1e-9)
    flat = OutputBaseline("common level", Sequences(t, y, exposure=np.ones((50, 3))), "poisson").forecast([50.0])
    plain = OutputBaseline("common level", Sequences(t, y), "poisson").forecast([50.0])
    torch.testing.assert_close(flat.mean, plain.mean)


@pytest.mark.parametrize(("exposure", "message"), [
    ([1.0, 2.0], r"exposure must be \(D,\) or \(N, D\) with N = 1"),
    ([1.0, 0.0, 1.0], "exposure must be positive and finite, but it is 0.0 for output 1"),
])  # fmt: skip
def test_exposures_that_are_refused(exposure, message):
    data = Sequences(range(6), np.ones((6, 3)))
    with pytest.raises(ValueError, match=message):
        OutputBaseline("mean count", data, "poisson").forecast([6.0]).with_exposure(exposure)
    with pytest.raises(ValueError, match="exposure has an exposure for output 0, whose likelihood is Bernoulli"):
        OutputBaseline("column mean", data, "bernoulli").forecast([6.0]).with_exposure([2.0, 1.0, 1.0])


def held_out(error, outputs=2):
    n = len(error)
    return HeldOutMeans(error, torch.zeros(1, n).double(), torch.arange(n) % outputs, torch.ones(outputs).double())


def test_scales_and_degrees_of_freedom_are_those_of_the_errors():
    rng = np.random.default_rng(0)
    for df in (3.0, 30.0):
        error = torch.from_numpy(stats.t.rvs(df, size=8000, random_state=rng))
        error[1::2] *= 5.0
        found = fit_likelihood(StudentT(), held_out(error))
        assert float(found.df.detach()) == pytest.approx(df)
        np.testing.assert_allclose(found.scale.detach(), [1.0, 5.0], rtol=0.05)
    error = torch.from_numpy(rng.standard_normal(4000))
    np.testing.assert_allclose(fit_likelihood(Gaussian(), held_out(error)).scale.detach(), [1.0, 1.0], rtol=0.05)


def test_few_errors_of_an_output_are_those_of_all():
    error = torch.ones(101).double()
    output = torch.zeros(101).long()
    output[0], error[0] = 1, 0.0  # a single error of 0 does not mean a scale of 0
    found = HeldOutMeans(error, torch.zeros(1, 101).double(), output, torch.tensor([1.0, 1.0]).double())
    assert float(fit_likelihood(Gaussian(), found).scale[1].detach()) > 0.9


def test_parts_are_fitted_separately():
    rng = np.random.default_rng(3)
    n = 3000
    counts = torch.from_numpy(rng.negative_binomial(2.0, 2.0 / 7.0, n).astype(float))
    truth = torch.stack([counts, torch.from_numpy(rng.integers(0, 2, n).astype(float))], 1).flatten()
    means = torch.tensor([5.0, 0.5]).double().repeat(n)[None]
    output = torch.tensor([0, 1]).repeat(n)
    mixed = ByColumn([(Bernoulli(), [1]), (Poisson(), [0])])
    found = fit_likelihood(mixed, HeldOutMeans(truth, means, output, torch.ones(2).double()))
    yes, negative = found.groups
    assert isinstance(yes, Bernoulli)
    assert isinstance(negative, NegativeBinomial)
    assert list(found.groups.values()) == [[1], [0]]
    assert math.log(float(negative.dispersion.detach())) == pytest.approx(math.log(2.0), abs=0.15)


def test_likelihoods_of_the_user_have_no_baseline():
    assert is_fitted(Binomial(3))
    assert is_fitted(ByColumn([(Gaussian(), [0]), (Poisson(), [1])]))
    assert not is_fitted(Own())
    assert not is_fitted(ByColumn([(Gaussian(), [0]), (Own(), [1])]))


def test_errors():
    yes = Sequences(range(4), [[0.0], [1.0], [1.0], [0.0]])
    with pytest.raises(ValueError, match="'mean count' is a baseline of counts, but the likelihood is Bernoulli"):
        OutputBaseline("mean count", yes, "bernoulli")
    with pytest.raises(ValueError, match="one function for each output, but it is Own"):
        OutputBaseline("column mean", yes, Own())
    with pytest.raises(
        ValueError, match=r"y has 3 in output 0, frame 0 of sequence 0, but Bernoulli outputs must be 0 or 1"
    ):
        OutputBaseline("column mean", yes, Bernoulli()).reconstruct([4.0], [[3.0]])
