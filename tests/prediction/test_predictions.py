# SPDX-License-Identifier: Apache-2.0
"""What people ask of a Prediction: intervals, densities, arrays and frames."""

import math
import sys

import numpy as np
import pytest
import torch
from problems import make_model, make_problem
from torch.distributions import MultivariateNormal, Normal

from pyro_vgpds import Posterior, Sequences
from pyro_vgpds.kernels import Matern32, White

T_NEW = torch.tensor([1.3, -0.4, 0.2])


@pytest.fixture
def posterior():
    model, guide, data = make_problem()
    return Posterior(model, guide, data)


def test_intervals(posterior):
    prediction = posterior.forecast(T_NEW, 0)
    lower, upper = prediction.interval(0.9)
    normal = Normal(prediction.mean, prediction.stddev)
    torch.testing.assert_close(normal.cdf(lower), torch.full((3, 5), 0.05))
    torch.testing.assert_close(normal.cdf(upper), torch.full((3, 5), 0.95))
    for bad in (0.0, 1.0, 95, math.nan):
        with pytest.raises(ValueError, match="probability must be between 0 and 1"):
            prediction.interval(bad)


def test_log_prob_leaves_out_what_is_nan(posterior):
    y = torch.randn(3, 5)
    y[0, 2] = y[2] = torch.nan
    prediction = posterior.forecast(T_NEW, 0)
    known = torch.isfinite(y)
    wanted = Normal(prediction.mean, prediction.stddev).log_prob(torch.nan_to_num(y))[known].sum()
    torch.testing.assert_close(prediction.log_prob(y), wanted)
    torch.testing.assert_close(prediction.log_prob(y.tolist()), wanted)
    full = posterior.forecast(T_NEW, 0, full_cov=True)
    wanted = torch.zeros(())
    for i in range(2):
        k = known[i]
        wanted = wanted + MultivariateNormal(full.mean[i][k], full.covariance[i][k][:, k]).log_prob(y[i][k])
    torch.testing.assert_close(full.log_prob(y), wanted)
    with pytest.raises(ValueError, match=r"y must have the shape \(3, 5\), but its shape is \(5, 3\)"):
        prediction.log_prob(y.mT)


def test_sample_counts(posterior):
    assert posterior.forecast(T_NEW, 0).sample(2).shape == (2, 3, 5)
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="num_samples must be a whole number of at least 1"):
            posterior.forecast(T_NEW, 0).sample(bad)


def test_covariance_of_what_was_filled_in():
    model, guide, data = make_problem(missing=0.4)
    filled = Posterior(model, guide, data).impute()
    torch.testing.assert_close(filled.covariance.diagonal(dim1=-2, dim2=-1), filled.variance)
    truth = torch.where(torch.isfinite(data.y), data.y + 100.0, 0.0)  # what was observed does not count
    hidden = torch.isnan(data.y)
    wanted = Normal(filled.mean[hidden], filled.stddev[hidden]).log_prob(truth[hidden]).sum()
    torch.testing.assert_close(filled.log_prob(truth), wanted)


def test_arrays_and_frames_with_dates_and_names():
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2021-03-01", periods=10, freq="D")
    frame = pandas.DataFrame(np.random.default_rng(0).standard_normal((10, 2)), index=days, columns=["a", "b"])
    data = Sequences.from_frame(frame)
    model, guide = make_model(data, temporal=Matern32(0.9, "2d") + White(0.02))
    posterior = Posterior(model, guide, data)
    later = pandas.date_range("2021-03-10 12:00", periods=3, freq="12h")
    prediction = posterior.forecast(later)
    table = prediction.to_pandas()
    assert list(table.columns) == ["a", "b"]
    assert (table.index == later).all()
    assert table.index.name == "time"
    np.testing.assert_allclose(prediction.to_pandas("stddev") ** 2, prediction.to_pandas("variance"))
    arrays = prediction.to_numpy()
    assert set(arrays) == {"t", "mean", "variance", "latent_mean", "latent_variance"}
    np.testing.assert_array_equal(arrays["t"], later.to_numpy())
    np.testing.assert_allclose(arrays["mean"], table)
    with pytest.raises(ValueError, match="what must be"):
        prediction.to_pandas("median")
    seconds = posterior.forecast((later - days[0]).total_seconds().to_numpy())  # numbers count from the first date
    torch.testing.assert_close(seconds.mean, prediction.mean)
    assert repr(prediction) == "Prediction(3 times from 2021-03-10T12:00:00 to 2021-03-11T12:00:00, 2 outputs)"
    assert repr(posterior.forecast(days[:1])).startswith("Prediction(1 time from 2021-03-01 to 2021-03-01, ")
    reconstructed = posterior.reconstruct(later, [[0.1, np.nan]] * 3, 0)
    assert (reconstructed.to_pandas().index == later).all()


def test_arrays_of_plain_numbers(posterior):
    prediction = posterior.forecast(T_NEW, 0)
    arrays = prediction.to_numpy()
    np.testing.assert_array_equal(arrays["t"], T_NEW.numpy())
    assert arrays["latent_mean"].shape == (3, 2)
    assert prediction.dates is None
    assert prediction.columns is None
    assert repr(prediction) == "Prediction(3 times from 1.3 to 0.2, 5 outputs)"
    assert repr(prediction.with_noise(False)) == "Prediction(3 times from 1.3 to 0.2, 5 outputs without noise)"
    mean, variance = prediction.latent
    assert torch.equal(mean, prediction.latent.mean)
    assert torch.equal(variance, prediction.latent.variance)


def test_pandas_is_an_extra(posterior, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install pyro_vgpds\[data\]"):
        posterior.forecast(T_NEW, 0).to_pandas()


def test_some_frames(posterior):
    whole = posterior.forecast(T_NEW, 0)
    part = whole.select(slice(1, 3))
    assert part.shape == (2, 5)
    assert torch.equal(part.mean, whole.mean[1:])
    assert torch.equal(part.stddev, whole.stddev[1:])
    assert torch.equal(part.interval(0.9)[1], whole.interval(0.9)[1][1:])
    assert part.sample(4).shape == (4, 2, 5)
    y = torch.randn(2, 5)
    torch.testing.assert_close(part.log_prob(y), Normal(part.mean, part.stddev).log_prob(y).sum())
    assert repr(part) == "Selection(2 times from -0.4 to 0.2, 5 outputs)"
