# SPDX-License-Identifier: Apache-2.0
"""Generalised linear models, against a general optimiser of their objective written out."""

import math

import numpy as np
import pytest
import torch

from pyro_vgpds.baselines import GLM

stats = pytest.importorskip("scipy.stats")
optimize = pytest.importorskip("scipy.optimize")


def problem(family, seed=0, n=80):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3))
    eta = x @ np.array([[0.5, -1.0], [0.0, 0.3], [-0.5, 0.2]]) + np.array([0.5, -1.0])
    y = rng.poisson(np.exp(eta)) if family == "poisson" else rng.random(eta.shape) < 1 / (1 + np.exp(-eta))
    y = y.astype(float)
    y[rng.random(y.shape) < 0.2] = np.nan
    return x, y, 0.3 * rng.standard_normal((n, 2))


def objective(w, x, y, offset, family, penalty):
    """Minus the log-likelihood plus the penalties, entry by entry."""
    seen = ~np.isnan(y)
    total = 0.0
    for n in np.flatnonzero(seen):
        eta = x[n] @ w[:-1] + w[-1] + offset[n]
        if family == "poisson":
            total -= y[n] * eta - math.exp(eta) - math.lgamma(y[n] + 1)
        else:
            total -= y[n] * eta - math.log1p(math.exp(eta))
    if family == "poisson":
        centre = math.log((y[seen].sum() + 0.5) / (np.exp(offset[seen]).sum() + 0.5))
    else:
        share = (y[seen].sum() + 0.5) / (seen.sum() + 1.0)
        centre = math.log(share / (1 - share))
    return total + 0.5 * penalty * (w[:-1] ** 2).sum() + 0.5 * (w[-1] - centre) ** 2


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
@pytest.mark.parametrize("penalty", [0.0, 3.0])
def test_newton_finds_the_maximum(family, penalty):
    x, y, offset = problem(family)
    model = GLM.fit(x, torch.tensor(y), family, penalty, offset)
    for d in range(2):
        found = np.append(model.weights[:, d].numpy(), float(model.intercept[d]))
        arguments = (x, y[:, d], offset[:, d], family, penalty)
        best = optimize.minimize(objective, np.zeros(4), arguments, tol=1e-10)
        np.testing.assert_allclose(found, best.x, atol=2e-5)
        assert objective(found, *arguments) <= best.fun + 1e-8


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
def test_means_and_log_probabilities(family):
    x, y, offset = problem(family)
    model = GLM.fit(x, y, family, 1.0, offset)
    eta = x @ model.weights.numpy() + model.intercept.numpy() + offset
    mean = np.exp(eta) if family == "poisson" else 1 / (1 + np.exp(-eta))
    np.testing.assert_allclose(model.predict(x, offset), mean, rtol=1e-12)
    kind = stats.poisson if family == "poisson" else stats.bernoulli
    expected = np.where(np.isnan(y), np.nan, kind.logpmf(np.nan_to_num(y).astype(int), mean))
    np.testing.assert_allclose(model.log_prob(x, y, offset), expected, rtol=1e-10, atol=1e-12)


def test_extreme_outputs():
    x = np.linspace(-1, 1, 50)[:, None]
    zero = GLM.fit(x, np.zeros((50, 1)))
    assert 0 < float(zero.predict(x).max()) < 0.05
    separable = GLM.fit(x, (x > 0).astype(float), "bernoulli", penalty=0.0)
    p = separable.predict(x)
    assert bool(p.isfinite().all())
    assert float(p[0]) < 0.01 < 0.99 < float(p[-1])
    large = GLM.fit(x, np.round(np.exp(6 + 3 * x)))
    assert float(large.weights) == pytest.approx(3.0, abs=0.02)
    never = GLM.fit(x, np.full((50, 1), np.nan))  # nothing observed: the prior
    assert float(never.weights) == 0.0


def test_offset_is_exposure():
    x, y, _ = problem("poisson")
    hours = np.full((len(x), 1), 10.0)
    plain, per_hour = GLM.fit(x, y), GLM.fit(x, y, offset=np.log(hours))
    np.testing.assert_allclose(per_hour.weights, plain.weights, atol=2e-3)
    np.testing.assert_allclose(per_hour.intercept, plain.intercept - math.log(10), atol=2e-3)


def test_errors():
    x, y, _ = problem("poisson")
    with pytest.raises(ValueError, match=r"y must be counts .* entry \(0, 0\) is -1"):
        GLM.fit(x, np.full((80, 1), -1.0))
    with pytest.raises(ValueError, match=r"y must be 0 or 1 or NaN, but entry \(0, 0\) is 0.5"):
        GLM.fit(x, np.full((80, 1), 0.5), "bernoulli")
    with pytest.raises(ValueError, match="family must be one of 'poisson', 'bernoulli', but got 'normal'"):
        GLM.fit(x, y, "normal")
    with pytest.raises(ValueError, match="as many rows, but have 79 and 80"):
        GLM.fit(x[1:], y)
    with pytest.raises(ValueError, match=r"x must be finite, but entry \(2, 1\) is nan"):
        GLM.fit(np.where(np.arange(240).reshape(80, 3) == 7, np.nan, x), y)
    with pytest.raises(ValueError, match=r"offset must be \(80, 2\) or \(80, 1\), but got \(80, 3\)"):
        GLM.fit(x, y, offset=np.zeros((80, 3)))
    with pytest.raises(ValueError, match="offset must be finite"):
        GLM.fit(x, y, offset=np.full((80, 1), -np.inf))
    with pytest.raises(ValueError, match=r"x must have two axes, but its shape is \(80,\)"):
        GLM.fit(x[:, 0], y)
    with pytest.raises(ValueError, match="penalty must be finite and 0 or more"):
        GLM.fit(x, y, penalty=-1.0)
    model = GLM.fit(x, y)
    with pytest.raises(ValueError, match="x must have 3 columns, but got 2"):
        model.predict(x[:, :2])
    with pytest.raises(ValueError, match=r"y must be \(80, 2\), but got \(80, 1\)"):
        model.log_prob(x, y[:, :1])
