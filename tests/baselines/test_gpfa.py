# SPDX-License-Identifier: Apache-2.0
"""GPFA, against the joint Gaussian of all outputs."""

import numpy as np
import pytest
import torch

from pyro_vgpds.baselines import GPFA


def simulated(seed=0, count=6, n=20, d=7, lengthscale=(2.0, 6.0)):
    rng = np.random.default_rng(seed)
    t = np.arange(float(n))
    c, y = rng.standard_normal((d, 2)), []
    for _ in range(count):
        k = [np.exp(-0.5 * ((t[:, None] - t) / ell) ** 2) + 1e-6 * np.eye(n) for ell in lengthscale]
        x = np.stack([rng.multivariate_normal(np.zeros(n), one) for one in k], 1)
        y.append(x @ c.T + 3.0 + 0.3 * rng.standard_normal((n, d)))
    return [t] * count, y


def dense(model, t, y):
    """Posterior means (n, K) and the log-likelihood, from the covariance of all observed entries of one sequence."""
    n, k = len(t), len(model.lengthscale)
    c = model.loadings.numpy()
    prior = np.zeros((n, k, n, k))
    for q, ell in enumerate(model.lengthscale.numpy()):
        prior[:, q, :, q] = (1 - 1e-3) * np.exp(-0.5 * ((t[:, None] - t) / ell) ** 2) + 1e-3 * np.eye(n)
    seen = ~np.isnan(y)
    cross = np.einsum("nkmj,dj->nkmd", prior, c)[:, :, seen]
    covariance = np.einsum("dk,nkme->ndme", c, np.einsum("nkmj,ej->nkme", prior, c))
    covariance = covariance[seen][:, seen] + np.diag(np.broadcast_to(model.noise.numpy(), y.shape)[seen])
    residual = (y - model.offset.numpy())[seen]
    fit = np.linalg.solve(covariance, residual)
    log_likelihood = -0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + residual @ fit)
    return cross @ fit, log_likelihood


def test_latents_equal_the_dense_posterior():
    t, y = simulated()
    rng = np.random.default_rng(1)
    times = [np.sort(rng.random(9) * 10), t[0], t[1], np.array([0.0, 1.0, 5.0])]
    outputs = [rng.standard_normal((len(one), 7)) for one in times]
    outputs[0][rng.random((9, 7)) < 0.4] = np.nan
    outputs[3][1] = np.nan
    model = GPFA.fit(t, y, num_factors=2, num_steps=5)
    found, means = model.latent(times, outputs), model.predict(times, outputs)
    for one, latent, mean, part in zip(times, found, means, outputs, strict=True):
        expected, _ = dense(model, one, part)
        np.testing.assert_allclose(latent, expected, atol=1e-8)
        np.testing.assert_allclose(mean, expected @ model.loadings.numpy().T + model.offset.numpy(), atol=1e-8)
    filled = model.fill(times[0], outputs[0])
    np.testing.assert_allclose(filled, np.where(np.isnan(outputs[0]), means[0], outputs[0]), atol=1e-12)


def test_em_climbs_and_finds_the_time_scales():
    t, y = simulated(count=10, n=25)
    y[0][4:8, :3] = np.nan
    bounds = []
    for steps in (1, 2, 4, 8, 30):
        model = GPFA.fit(t, y, num_factors=2, num_steps=steps, lengthscale=4.0)
        bounds.append(sum(dense(model, one, part)[1] for one, part in zip(t, y, strict=True)))
    assert bounds == sorted(bounds)
    found = sorted(model.lengthscale.tolist())
    assert 1.5 < found[0] < 2.7
    assert 4.0 < found[1] < 8.0
    np.testing.assert_allclose(model.noise.sqrt(), 0.3, atol=0.06)


def test_hidden_columns_are_predicted():
    t, y = simulated(count=12)
    model = GPFA.fit(t[:10], y[:10], num_factors=2, num_steps=30)
    hidden = [np.where(np.arange(7) < 2, np.nan, part) for part in y[10:]]
    error = np.concatenate([p[:, :2] for p in model.fill(t[10:], hidden)]) - np.concatenate(y[10:])[:, :2]
    assert np.sqrt((error**2).mean()) < 0.6
    whole = model.fill(t[10], hidden[0])
    torch.testing.assert_close(whole, model.fill(t[10:], hidden)[0])  # sequences do not depend on each other


def test_errors():
    t, y = simulated()
    with pytest.raises(ValueError, match="num_factors must be at most 7, the outputs, but got 8"):
        GPFA.fit(t, y, num_factors=8)
    with pytest.raises(ValueError, match="lengthscale must be positive, but got 0"):
        GPFA.fit(t, y, num_factors=2, lengthscale=0.0)
    with pytest.raises(ValueError, match="column 2 of y was never observed"):
        GPFA.fit(t[0], np.where(np.arange(7) == 2, np.nan, y[0]))
    with pytest.raises(ValueError, match="y must have 7 columns, but got 6"):
        GPFA.fit(t, y, num_factors=2, num_steps=1).latent(t[0], y[0][:, :6])
