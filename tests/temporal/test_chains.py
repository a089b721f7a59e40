# SPDX-License-Identifier: Apache-2.0
"""The compiled loops and the scans that replace them."""

from __future__ import annotations

import pytest
import torch
from markov_problems import Q, close, make_kernels, make_times
from torch.distributions import kl_divergence

from pyro_vgpds import OpperArchambeau, TemporalGP
from pyro_vgpds.kernels import Bias, Matern32, Periodic
from pyro_vgpds.temporal import chains, scan


def test_scans_go_in_blocks(monkeypatch):
    monkeypatch.setattr(chains, "available", lambda: False)
    kernel, times = make_kernels()["white inside"], make_times((9,))
    noise = torch.randn(9, Q, requires_grad=True)

    def run():
        prior = TemporalGP(kernel(), times, Q, structure="markov")
        q = OpperArchambeau.from_natural(prior, noise, noise.exp())
        loss = q.mean.sum() + q.variance.sum() + kl_divergence(q, prior) + prior.covariance.correlate(noise).sum()
        return torch.autograd.grad(loss + prior.log_prob(noise), [noise, *kernel.parameters()])

    whole = run()
    monkeypatch.setattr(scan, "_NUMBERS", 2 * 9 * kernel().state_dim ** 2)
    for a, b in zip(run(), whole, strict=True):
        close(a, b, 1e-12)


needs_compiler = pytest.mark.skipif(not chains.available(), reason="the compiled loops were not built")


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_segments(threads, monkeypatch):
    kernel = Matern32(torch.rand(9) + 0.5, torch.rand(9) + 0.5) + Bias(1.0)
    times = make_times((30, 20))
    eta, lam = torch.randn(50, 9), torch.rand(50, 9)

    def run():
        prior = TemporalGP(kernel(), times, 9, structure="markov")
        q = OpperArchambeau.from_natural(prior, eta, lam)
        return torch.autograd.grad(q.mean.sum() + q.variance.sum() + kl_divergence(q, prior), kernel.parameters())

    expected = run()
    torch.set_num_threads(threads)
    for a, b in zip(run(), expected, strict=True):
        close(a, b, 1e-12)


@needs_compiler
def test_long_chains_are_run_in_segments():
    # a state of 27 numbers keeps 50 kB a frame for the way back, so that 3,000 frames are more than one segment
    kernel = Periodic(1.0, 1.0, 50.0)
    prior = TemporalGP(kernel(), torch.arange(3000.0), 1, structure="markov")
    q = OpperArchambeau(prior, torch.zeros(3000, 1), torch.full((3000, 1), 0.1, requires_grad=True))
    loss = q.variance.sum()
    step = 1e-6
    g = torch.autograd.grad(loss, kernel.lengthscale_unconstrained)[0]
    values = []
    for sign in (1, -1):
        moved = Periodic(1.0, float((kernel.lengthscale.detach().log() + sign * step).exp()), 50.0)
        prior = TemporalGP(moved(), torch.arange(3000.0), 1, structure="markov")
        values.append(OpperArchambeau(prior, torch.zeros(3000, 1), torch.full((3000, 1), 0.1)).variance.sum())
    torch.testing.assert_close(g, (values[0] - values[1]) / (2 * step), rtol=1e-5, atol=1e-8)


@needs_compiler
def test_compiled_loops_refuse_other_tensors():
    a = q = torch.zeros(1, 5, 2, 2)
    h, index, lam = torch.zeros(5, 2), torch.zeros(3, dtype=torch.long), torch.ones(3, 5)
    chains.variance(a, q, h, index, lam)
    with pytest.raises(ValueError, match=r"need float64 CPU tensors, but got torch\.float32"):
        chains.variance(a, q, h, index, lam.float())
    with pytest.raises(ValueError, match=r"a and q must be .* but got \["):
        chains.variance(a, q[:, :4], h, index, lam)
    with pytest.raises(ValueError, match=r"a and q must be .* but got \["):
        chains.variance(a, q, h, index, lam[:2])
    with pytest.raises(ValueError, match=r"index must have an entry from 0 to 0 for each chain, but got \[1, 1, 1\]"):
        chains.variance(a, q, h, index + 1, lam)
