# SPDX-License-Identifier: Apache-2.0
"""Forecasts and rows of q(X): GaussianPath from every form of the prior."""

import pytest
import torch
from markov_problems import Q, both, close, make_data, make_kernels, make_pair, make_times
from torch.distributions import kl_divergence

from pyro_vgpds import OpperArchambeau, Posterior, TemporalGP
from pyro_vgpds.data.times import Times
from pyro_vgpds.temporal import markov


@pytest.mark.parametrize("kind", ["matern12", "usual", "trend", "markov_rbf", "quasiperiodic"])
@pytest.mark.parametrize("natural", [False, True])
def test_new_frames_without_sites(kind, natural, route):
    kernel = make_kernels()[kind]
    t = torch.rand(30).sort().values * 3
    t[11] = t[10]  # the same time twice, and two that are nearly the same
    t[21] = t[20] + 1e-9
    lam, shift = torch.rand(30, Q), torch.randn(30, Q)
    new = torch.arange(30) % 3 == 2
    lam[new], shift[new] = 0.0, 0.0
    lam.requires_grad_()
    results = []
    for prior in both(kernel, Times(t)):
        q = (OpperArchambeau.from_natural if natural else OpperArchambeau)(prior, shift, lam)
        kl = kl_divergence(q, prior)
        g = torch.autograd.grad(kl + q.variance.sum(), lam)[0]
        results.append([q.mean, q.variance, kl, q.mean_bar, g])
    for dense, ours in zip(*results, strict=True):
        close(ours, dense, 1e-7)
    assert q.mean_bar[new].abs().max() < 1e-12
    with torch.no_grad():
        white = (q.rsample((3,)) - q.mean) / q.variance.sqrt()
    assert 0.4 < white.square().mean() < 2.5
    # the old frames are as they are without the new ones
    alone = TemporalGP(kernel(), t[~new], Q, structure="markov")
    q_old = (OpperArchambeau.from_natural if natural else OpperArchambeau)(alone, shift[~new], lam[~new].detach())
    close(q.mean[~new], q_old.mean)
    close(q.variance[~new], q_old.variance)


@pytest.mark.parametrize("kind", ["usual", "trend", "quasiperiodic"])
def test_columns_of_the_covariance_share_a_filter(kind, route):
    """Values and gradients, also for precisions in batches, which the means of a batch have of their own."""
    kernel, times, rows = make_kernels()[kind], make_times((12, 7)), torch.tensor([2, 15, 3])
    lam, shift = torch.rand(19, Q).requires_grad_(), torch.randn(4, 19, Q)
    results = []
    for prior in both(kernel, times):
        block = prior.covariance.posterior_block(lam, rows)
        gain = prior.covariance.gain(lam, shift)
        batch = prior.covariance.gain(torch.stack([lam, 2.0 * lam]).unsqueeze(1), shift)
        loss = block.square().sum() + gain.sin().sum() + batch.cos().sum()
        results.append([block, gain, batch, *torch.autograd.grad(loss, [lam])])
    for dense, ours in zip(*results, strict=True):
        close(ours.detach(), dense.detach(), 1e-7)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["matern12", "usual", "trend", "quasiperiodic"])
def test_forecast(kind, route, monkeypatch):
    kernel, times = make_kernels()[kind], make_times((20, 1, 15))
    mean_bar, lam = torch.randn(36, Q), torch.rand(36, Q)
    new = torch.cat([torch.tensor([4.5, 0.2, -1.0]), times.t[21:23], 3 * torch.rand(4)])  # in no order, some known
    monkeypatch.setattr(markov, "_COLUMNS", 2 * 24 * Q)
    for sequence in (2, None):
        results = []
        for prior in both(kernel, times):
            path = OpperArchambeau(prior, mean_bar, lam).forecast(new, sequence)
            assert path.event_shape == (9, Q)
            assert path.rsample((2,)).shape == (2, 9, Q)
            results.append([path.mean, path.variance, path.covariance_matrix])
        for dense, ours in zip(*results, strict=True):
            close(ours, dense)
    with torch.no_grad():
        dense, ours = (OpperArchambeau(p, mean_bar, lam) for p in both(kernel, times))
        rows = torch.tensor([3, 35, 22, 20])
        close(ours.covariance_of(rows), dense.covariance_of(rows))
        if kind == "usual":
            draws = ours.forecast(new, 2).rsample((5_000,))
            torch.testing.assert_close(draws.var(0), dense.forecast(new, 2).variance, rtol=0.15, atol=0.01)


@pytest.mark.long
def test_prediction_is_the_same(route):
    results = []
    for structure in ("dense", "markov"):
        model, guide, data = make_pair(structure)
        torch.manual_seed(1)
        post = Posterior(model, guide, data)
        y = make_data((12,), seed=3).y.clone()
        y[:, :2] = torch.nan
        t = torch.linspace(0.1, 2.9, 12)
        answers = [post.forecast(torch.linspace(2.0, 4.0, 7), sequence=0), post.reconstruct(t, y)]
        answers += [post.reconstruct(t, y, sequence=0, factorised=True)]
        results.append([part for answer in answers for part in (answer.mean, answer.variance)])
    for dense, ours in zip(*results, strict=True):
        close(ours, dense, 1e-5)
