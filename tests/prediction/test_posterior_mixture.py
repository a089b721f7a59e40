# SPDX-License-Identifier: Apache-2.0
"""Mixtures of trained models: moments, quantiles, draws and densities against those of torch's mixtures."""

import math

import pytest
import torch
from problems import make_data, make_model
from torch.distributions import Categorical, MixtureSameFamily, Normal

from pyro_vgpds import Posterior, PosteriorMixture, Solver
from pyro_vgpds.kernels import RBF, Matern32

T_NEW = torch.tensor([1.3, -0.4, 0.2])
WEIGHTS = [0.2, 0.5, 0.3]


def make_posteriors():
    data = make_data(missing=0.2)
    kernels = [Matern32(0.9, 0.7), RBF(1.0, 0.5), RBF(0.5, 2.0)]
    pairs = [make_model(data, temporal=kernel, noise=0.05 * (i + 1)) for i, kernel in enumerate(kernels)]
    return data, [Posterior(model, guide, data, residual=None) for model, guide in pairs]


def reference(prediction):
    parts = prediction.components
    mean, sd = (torch.stack([getattr(p, name) for p in parts], -1) for name in ("mean", "stddev"))
    return MixtureSameFamily(Categorical(torch.tensor(WEIGHTS).expand(mean.shape)), Normal(mean, sd))


def test_forecasts_have_the_moments_of_a_mixture():
    _, posteriors = make_posteriors()
    mixture = PosteriorMixture(posteriors, WEIGHTS)
    prediction = mixture.forecast(T_NEW, 0)
    wanted = reference(prediction)
    torch.testing.assert_close(prediction.mean, wanted.mean)
    torch.testing.assert_close(prediction.variance, wanted.variance)
    lower, upper = prediction.interval(0.8)
    torch.testing.assert_close(wanted.cdf(lower), torch.full((3, 5), 0.1))
    torch.testing.assert_close(wanted.cdf(upper), torch.full((3, 5), 0.9))
    quiet = prediction.with_noise(False)
    noises = sum(w * 0.05 * (i + 1) for i, w in enumerate(WEIGHTS))
    torch.testing.assert_close(prediction.variance - quiet.variance, torch.full((3, 5), noises))
    assert set(prediction.to_numpy()) == {"t", "mean", "variance"}
    assert repr(prediction) == "MixturePrediction(3 times from 1.3 to 0.2, 5 outputs)"
    assert repr(mixture).startswith("PosteriorMixture(3 models of Sequences(")


def test_draws_have_the_moments():
    _, posteriors = make_posteriors()
    mixture = PosteriorMixture(posteriors, WEIGHTS)
    prediction = mixture.forecast(T_NEW, None)
    draws = mixture.generate(T_NEW, 20_000)
    assert ((draws.mean(0) - prediction.mean).abs() / prediction.stddev).max() < 5.0 / math.sqrt(20_000)
    assert (draws.var(0) / prediction.variance - 1.0).abs().max() < 0.08


def test_densities():
    data, posteriors = make_posteriors()
    mixture = PosteriorMixture(posteriors)
    y = torch.randn(3, 5)
    y[0, 0] = torch.nan
    parts = [p.forecast(T_NEW, 0).log_prob(y) for p in posteriors]
    wanted = torch.stack(parts).logsumexp(0) - math.log(3)
    torch.testing.assert_close(mixture.forecast(T_NEW, 0).log_prob(y), wanted)
    t = T_NEW.sort()[0]
    parts = [p.log_density(t, y, solver=Solver(num_starts=1, num_steps=5)) for p in posteriors]
    scored = mixture.log_density(t, y, solver=Solver(num_starts=1, num_steps=5))
    torch.testing.assert_close(scored, torch.stack(parts).logsumexp(0) - math.log(3))
    assert mixture.log_density([t, t], [y, y], solver=Solver(num_starts=1, num_steps=5)).shape == (2,)
    filled = mixture.impute()
    seen = torch.isfinite(data.y)
    torch.testing.assert_close(filled.mean[seen], data.y[seen])
    lower, upper = filled.interval(0.9)
    torch.testing.assert_close(lower[seen], data.y[seen])
    torch.testing.assert_close(upper[seen], data.y[seen])
    partly = mixture.reconstruct(t, y, fill=True, solver=Solver(num_starts=1, num_steps=5))
    torch.testing.assert_close(partly.mean[1:], y[1:])


def test_bad_input_is_named():
    _, posteriors = make_posteriors()
    other = make_data(lengths=(6,))
    model, guide = make_model(other)
    with pytest.raises(ValueError, match="at least one Posterior"):
        PosteriorMixture([])
    with pytest.raises(ValueError, match=r"same lengths of sequences, but posteriors\[3\] has \(6,\)"):
        PosteriorMixture([*posteriors, Posterior(model, guide, other)])
    for bad in ([1.0], [0.5, 0.5, 0.5], [1.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match="weights must be 3 positive numbers with sum 1"):
            PosteriorMixture(posteriors, bad)
    with pytest.raises(ValueError, match="num_samples"):
        PosteriorMixture(posteriors).forecast(T_NEW, 0).sample(0)
