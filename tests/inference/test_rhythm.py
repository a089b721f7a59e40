# SPDX-License-Identifier: Apache-2.0
"""Whether a sequence oscillates: random walks do not, noisy oscillators do; the evidence against dense Gaussians."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from pyro_vgpds import VGPDS, Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference import rhythm, scales
from pyro_vgpds.inference.pca import pca
from pyro_vgpds.inference.rhythm import oscillates
from pyro_vgpds.kernels import Bias, Cosine, Matern12, Matern32, White

FRAMES, OUTPUTS = 90, 24


def mixed(kernel, seed, count=12):
    """Outputs (N, D) that mix independent paths of a kernel, with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(float(FRAMES)).double()
    with torch.no_grad():
        root = torch.linalg.cholesky(kernel().gram(t)[0].double() + 1e-8 * torch.eye(FRAMES).double())
    paths = root @ torch.randn(FRAMES, count, generator=generator).double()
    y = paths @ torch.randn(count, OUTPUTS, generator=generator).double()
    return t, y + 0.1 * torch.randn(FRAMES, OUTPUTS, generator=generator).double()


def points(t, y):
    """Components with their variance, and their times."""
    data = Sequences(t, y)
    x, share = pca(data, 20, data.output_means, data.output_scales)
    return data.times, x * share.sqrt()


@pytest.mark.parametrize("kernel", [Matern12(1.0, 200.0), Matern32(1.0, 15.0)], ids=["random walk", "smooth"])
def test_slow_paths_do_not_oscillate_although_their_components_do(kernel):
    found, same_frames = [], 0.0
    for seed in range(6):
        times, x = points(*mixed(kernel, seed))
        found.append(oscillates(times, x))
        osc, plain = (path() + White(1e-2) + Bias(0.1) for path in (rhythm.oscillator, rhythm.smooth_path))
        unit = x / x.square().mean(0).sqrt()
        for chosen in (osc, plain):
            scales.choose_scales(chosen, times, unit, torch.ones(x.shape[1]))
            chosen.per_dimension(x.shape[1])
        with torch.no_grad():
            gain = scales.evidence(osc, times, unit) - scales.evidence(plain, times, unit)
        same_frames += float(gain[:8].sum())
    assert same_frames > 0.0  # the frames that the components come from say the opposite
    assert sum(found) <= 1  # of 6: half of 90 frames is a small sample


@pytest.mark.parametrize("seed", range(4))
def test_noisy_oscillators_oscillate(seed):
    assert oscillates(*points(*mixed(Matern32(1.0, 40.0) * Cosine(1.0, 9.0), seed)))


def test_few_frames_cannot_tell():
    t, y = mixed(Matern32(1.0, 40.0) * Cosine(1.0, 9.0), 0)
    times, x = points(t, y)
    assert not oscillates(Times(times.t[:15], [15]), x[:15])


def test_the_gain_is_that_of_dense_gaussians():
    t, y = mixed(Matern12(1.0, 30.0), 1)
    _, x = points(t, y)
    a, b = slice(0, 45), slice(45, 90)
    known, new = x[a] - x[a].mean(0), x[b] - x[b].mean(0)
    values, vectors = torch.linalg.eigh(known.mT @ known / 45)
    values, vectors = values.flip(0), vectors.flip(1)
    count = next(q for q in range(1, 21) if values[:q].sum() >= rhythm._VARIANCE * values.sum())
    total = 0.0
    for path, sign in ((rhythm.oscillator(), 1.0), (rhythm.smooth_path(), -1.0)):
        kernel = path + White(1e-2) + Bias(0.1)
        unit = known @ vectors[:, :count] / values[:count].sqrt()
        scales.choose_scales(kernel, Times(t[a], [45]), unit, values[:count] / values.sum())
        kernel.per_dimension(count)
        with torch.no_grad():
            grams = kernel().gram(t[b]) + scales._NOISE * torch.eye(45)
        for q in range(count):
            path_b = new @ vectors[:, q] / values[q].sqrt()
            variance = float(path_b @ torch.linalg.solve(grams[q], path_b)) / 45
            density = MultivariateNormal(torch.zeros(45).double(), variance * grams[q]).log_prob(path_b)
            constant = 0.5 + 0.5 * math.log(2.0 * math.pi)
            total += sign * float(values[q] / values.sum()) * (float(density) / 45 + constant)
    with torch.no_grad():
        assert rhythm._gain(t, x, a, b) == pytest.approx(total, abs=1e-8)


def test_the_default_kernel_of_a_single_sequence():
    slow, fast = (VGPDS.from_data(Sequences(*mixed(kernel, 0))) for kernel in (
        Matern12(1.0, 200.0), Matern32(1.0, 12.0) * Cosine(1.0, 9.0)
    ))  # fmt: skip
    assert not any(isinstance(leaf, Cosine) for leaf in slow.temporal.leaves())
    assert any(isinstance(leaf, Cosine) for leaf in fast.temporal.leaves())
    t, y = mixed(Matern12(1.0, 200.0), 0)
    several = VGPDS.from_data(Sequences([t[:45], t[45:]], [y[:45], y[45:]]))
    assert any(isinstance(leaf, Cosine) for leaf in several.temporal.leaves())
