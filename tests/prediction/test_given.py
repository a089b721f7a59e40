# SPDX-License-Identifier: Apache-2.0
"""Forecasts that use outputs which are known ahead, such as a temperature that drives the others."""

import numpy as np
import pandas
import pyro
import pytest
import torch
from problems import fit_posterior

from pyro_vgpds import VGPDS, PosteriorMixture, Sequences
from pyro_vgpds.kernels import Bias, Matern32, White

N, TRAINED = 180, 150


@pytest.fixture(scope="module")
def problem():
    """Two autoregressive inputs and three outputs that are functions of them, and a model of the first frames."""
    torch.set_default_dtype(torch.float64)
    rng = np.random.default_rng(1)
    inputs = np.zeros((N, 2))
    for i in range(1, N):
        inputs[i] = 0.9 * inputs[i - 1] + 0.45 * rng.standard_normal(2)
    loads = [np.tanh(inputs[:, 0] + a) + b * inputs[:, 1] for a, b in ((-0.5, 0.3), (0.5, -0.2), (0.0, 0.5))]
    y = np.stack([*loads, *inputs.T], 1) + [0.05, 0.05, 0.05, 0.02, 0.02] * rng.standard_normal((N, 5))
    frame = pandas.DataFrame(y, np.arange(float(N)), ["north", "south", "west", "temperature", "wind"])
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    data = Sequences.from_frame(frame.iloc[:TRAINED])
    # The inputs are stationary. With a slow path one of them alone has two explanations here, and the worse one wins.
    model = VGPDS.from_data(data, num_inducing=30, temporal=Matern32() + White(1e-2) + Bias(0.1))
    return fit_posterior(model, data, 60), frame.iloc[TRAINED:]


def error(prediction, frame):
    return float(np.sqrt(np.mean((prediction.mean[:, :3].numpy() - frame.to_numpy()[:, :3]) ** 2)))


@pytest.mark.long
def test_known_inputs_are_used(problem):
    post, future = problem
    given = future[["temperature", "wind"]]
    alone, known = post.forecast(future.index), post.forecast(future.index, given=given)
    assert error(known, future) < 0.25 * error(alone, future)
    assert error(post.forecast(future.index, given=given[["temperature"]]), future) < 0.9 * error(alone, future)
    np.testing.assert_array_equal(known.mean[:, 3:], given)
    assert float(known.variance[:, 3:].abs().max()) == 0.0
    lower, upper = (end[:, :3].numpy() for end in known.interval(0.95))
    assert 0.8 < np.mean((lower < future.to_numpy()[:, :3]) & (future.to_numpy()[:, :3] < upper)) <= 1.0


def test_it_is_a_reconstruction(problem):
    post, future = problem
    few = future.iloc[:4]
    y = few.to_numpy().copy()
    y[:, :3] = np.nan
    for given in (y, few[["wind", "temperature"]]):
        found = post.forecast(few.index, given=given, include_noise=False)
        twin = post.reconstruct(few.index, y, 0, fill=True, include_noise=False)
        torch.testing.assert_close(found.mean, twin.mean)
        torch.testing.assert_close(found.variance, twin.variance)
    assert found.covariance.shape == (4, 5, 5)


@pytest.mark.long
def test_mixtures_and_ensembles(problem):
    post, future = problem
    few = future.iloc[:6]
    given = few[["temperature", "wind"]]
    both = PosteriorMixture([post, post]).forecast(few.index, given=given)
    torch.testing.assert_close(both.mean, post.forecast(few.index, given=given).mean)
    held = post.calibrate("forecast", horizon=6)
    found = held.forecast(few.index, given=given)
    assert error(found, few) < error(held.forecast(few.index), few)
    np.testing.assert_array_equal(found.mean[:, 3:], given)


def test_a_series_is_a_column(problem):
    post, future = problem
    few = future.iloc[:2]
    found = post.forecast(few.index, given=few["wind"]).mean
    assert found.equal(post.forecast(few.index, given=few[["wind"]]).mean)


def test_errors(problem):
    post, future = problem
    few = future.iloc[:2]
    with pytest.raises(ValueError, match="full_cov=True cannot be combined with given"):
        post.forecast(few.index, given=few, full_cov=True)
    with pytest.raises(ValueError, match="given has 2 outputs, but the model has 5"):
        post.forecast(few.index, given=few.to_numpy()[:, :2])
    with pytest.raises(ValueError, match="given has 1 rows, but t has 2 times"):
        post.forecast(few.index, given=few.iloc[:1])
    with pytest.raises(ValueError, match="given must have columns of the training data, but it has 'sun'"):
        post.forecast(few.index, given=few.rename(columns={"wind": "sun"}))
    with pytest.raises(ValueError, match="given must have columns of the training data, but it has 'sun'"):
        post.forecast(few.index, given=few["wind"].rename("sun"))
    with pytest.raises(ValueError, match="t must increase"):
        post.forecast(few.index[::-1], given=few)
