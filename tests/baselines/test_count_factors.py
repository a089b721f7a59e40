# SPDX-License-Identifier: Apache-2.0
"""The negative-binomial factor model, against its posterior written out and a recovery of simulated rates."""

import numpy as np
import pytest

from pyro_vgpds.baselines import NegativeBinomialFactors, column_mean

stats = pytest.importorskip("scipy.stats")


def simulated(seed=0, n=80, d=8):
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.choice([1.0, 1.0, 1.0, 3.0], n))
    x = np.stack([np.sin(t / 7), np.cos(t / 11)], 1)
    exposure = rng.uniform(0.5, 2.0, d)
    mean = exposure * np.exp(1.0 + x @ rng.standard_normal((2, d)))
    y = rng.negative_binomial(5.0, 5.0 / (5.0 + mean)).astype(float)
    return t, y, mean, exposure


def log_posterior(y, t, mean, r, c, path, persistence, starts):
    """The counts by scipy, the factors step by step."""
    total = np.nansum(stats.nbinom.logpmf(y, r, r / (r + mean)))
    total -= 0.5 * (c**2).sum() + 0.5 * (np.log(r) ** 2).sum()
    step = np.median([t[n] - t[n - 1] for n in range(1, len(t)) if n not in starts])
    for n in range(len(t)):
        decay = 0.0 if n in starts else persistence ** ((t[n] - t[n - 1]) / step)
        before = path[n - 1] if n else 0.0 * path[0]
        total -= 0.5 * ((path[n] - decay * before) ** 2).sum() / (1 - decay**2)
    return total


def test_the_objective_and_its_maximum():
    t, y, _, exposure = simulated(n=30, d=4)
    y[3:6, 1] = np.nan
    model = NegativeBinomialFactors.fit([t[:18], t[18:]], [y[:18], y[18:]], 2, 0.8, exposure, num_steps=2000)
    r, c, a, x = (v.numpy() for v in (model.dispersion, model.loadings, model.offset, model.path))

    def value(r, c, a, x):
        return log_posterior(y, t, exposure * np.exp(x @ c.T + a), r, c, x, 0.8, {0, 18})

    np.testing.assert_allclose(model.mean, exposure * np.exp(x @ c.T + a), rtol=1e-10)
    assert value(r, c, a, x) == pytest.approx(model.objective, rel=1e-10)
    rng = np.random.default_rng(0)
    for _ in range(20):  # no direction is uphill
        moved = [v * np.exp(1e-3 * rng.standard_normal(v.shape)) for v in (r, c, a, x)]
        assert value(*moved) < model.objective + 1e-5


def test_log_prob():
    t, y, _, _ = simulated()
    model = NegativeBinomialFactors.fit(t, y, 1, num_steps=20)
    mean, r = model.mean.numpy(), model.dispersion.numpy()
    y[2, 3] = np.nan
    np.testing.assert_allclose(model.log_prob(y), stats.nbinom.logpmf(y, r, r / (r + mean)), rtol=1e-8)
    with pytest.raises(ValueError, match=r"y must be \(80, 8\), but got \(3, 8\)"):
        model.log_prob(y[:3])


def test_hidden_counts():
    t, y, mean, exposure = simulated(n=150)
    hidden = np.random.default_rng(1).random(y.shape) < 0.2
    given = np.where(hidden, np.nan, y)
    model = NegativeBinomialFactors.fit(t, given, 2, 0.9, exposure)
    guesses = (model.mean.numpy(), column_mean(t, given).numpy())
    error, rival = (np.log(guess[hidden]) - np.log(mean[hidden]) for guess in guesses)
    assert (error**2).mean() < 0.25 * (rival**2).mean()
    again = NegativeBinomialFactors.fit(t, given, 2, 0.9, exposure)
    np.testing.assert_array_equal(model.mean, again.mean)


def test_forecasts_return_to_the_mean():
    t, y, _, _ = simulated()
    y[70:] = np.nan
    t = t.copy()
    t[70:] = t[69] + 200.0 * np.arange(1, 11)
    model = NegativeBinomialFactors.fit(t, y, 2)
    np.testing.assert_allclose(model.path[75:], 0.0, atol=1e-2)
    np.testing.assert_allclose(model.mean[79], model.offset.exp(), rtol=0.05)


def test_errors():
    t, y, _, exposure = simulated()
    bad = y.copy()
    bad[4, 2] = 0.5
    with pytest.raises(ValueError, match=r"y must be counts .* but entry \(4, 2\) is 0.5"):
        NegativeBinomialFactors.fit(t, bad)
    with pytest.raises(ValueError, match="exposure must be positive"):
        NegativeBinomialFactors.fit(t, y, exposure=np.append(exposure[1:], 0.0))
    with pytest.raises(ValueError, match="exposure must be a number, \\(8,\\) or \\(80, 8\\), but got \\(3,\\)"):
        NegativeBinomialFactors.fit(t, y, exposure=exposure[:3])
    with pytest.raises(ValueError, match="persistence must be between 0 and 1, but got 1"):
        NegativeBinomialFactors.fit(t, y, persistence=1.0)
