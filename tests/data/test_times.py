# SPDX-License-Identifier: Apache-2.0
"""The different time steps of sequences."""

import torch

from pyro_vgpds.data import Times
from pyro_vgpds.kernels import Bias, Cosine, Matern32, White
from pyro_vgpds.temporal.dense import DenseCovariance
from pyro_vgpds.temporal.markov import MarkovCovariance


def test_regular_times_have_one_step_in_spite_of_rounding():
    t = 0.1 * torch.arange(1000)  # the differences have many different last digits
    assert len(t.diff().unique()) > 10
    steps, which = Times(torch.cat([t, t + 7.0]), [1000, 1000]).steps
    assert len(steps) <= 4
    assert torch.allclose(steps[which][1:1000], torch.full((999,), 0.1), rtol=1e-10)
    assert steps[which][[0, 1000]].tolist() == [0.0, 0.0]


def test_steps_reproduce_irregular_times():
    t = torch.rand(50).cumsum(0)
    times = Times(t, [20, 30])
    steps, which = times.steps
    expected = t.diff(prepend=t[:1])
    expected[[0, 20]] = 0.0
    assert torch.allclose(steps[which], expected, rtol=0.0, atol=1e-12)


def test_times_of_zero_have_a_step_of_zero():
    assert Times(torch.zeros(1)).steps[0].tolist() == [0.0]


def test_shared_transitions_equal_dense_covariances_with_gradients():
    """Regular times share the matrices of a step; a missing frame makes another step."""
    t = 0.05 * torch.cat([torch.arange(30), torch.arange(5, 40)])
    t = t[torch.arange(65) != 40]
    times, b = Times(t, [30, 34]), torch.randn(64, 2)
    kernel = Matern32(1.3, [0.4, 0.9]) * Cosine(period=[0.7, 2.0]) + White(0.1) + Bias(0.2)
    results = []
    for form in (MarkovCovariance, DenseCovariance):
        kernel.zero_grad()
        product = form(kernel(), times, None).matmul(b)
        (product * product.detach().cos()).sum().backward()
        results.append([product.detach(), *(p.grad.clone() for p in kernel.parameters())])
    assert len(times.steps[0]) <= 6  # fewer than the frames, so that they are shared
    for got, want in zip(*results, strict=True):
        assert torch.allclose(got, want, rtol=1e-8, atol=1e-10)
