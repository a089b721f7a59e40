# SPDX-License-Identifier: Apache-2.0
"""Lengthscales and periods that are chosen from the data, against brute force and against those of generated paths."""

import itertools
import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from problems import cosines
from torch.distributions import MultivariateNormal

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, fit
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference import scales
from pyro_vgpds.inference.scales import choose_scales, dominant_period
from pyro_vgpds.kernels import RBF, Bias, Cosine, Matern32, Periodic, White


def draw(kernel, times, count=1, seed=0):
    """Paths (N, count) of a kernel, scaled to unit variance, independent in each sequence."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for rows in times.slices():
        t = times.t[rows]
        with torch.no_grad():
            root = torch.linalg.cholesky(kernel().gram(t)[0] + 1e-8 * torch.eye(len(t)))
        parts.append(root @ torch.randn(len(t), count, generator=generator))
    x = torch.cat(parts)
    return x / x.square().mean(0).sqrt()


def evenly(*lengths, step=0.1):
    return Times(torch.cat([step * torch.arange(float(n)) for n in lengths]), lengths)


def evidence(kernel, times, x):
    """The log-density (Q,) of the paths with more noise, as a dense Gaussian for each sequence."""
    total = torch.zeros(x.shape[1])
    for rows in times.slices():
        t = times.t[rows]
        k = kernel().gram(t)[0] + scales._NOISE * torch.eye(len(t))
        total += MultivariateNormal(torch.zeros(len(t)), k).log_prob(x[rows].mT)
    return total


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_the_lengthscale_of_generated_paths_is_found(true):
    times = evenly(80, 80)
    x = draw(Matern32(1.0, true), times, 4)
    kernel = Matern32() + White(1e-3)
    choose_scales(kernel, times, x, torch.ones(4))
    found = kernel[0].lengthscale.detach()
    assert found.shape == (4,)
    assert (found / true).log().abs().mean() < math.log(2.5)
    assert not kernel[0].unset


@pytest.mark.parametrize("true", [0.6, 1.7, 5.0])
def test_the_period_of_generated_paths_is_found(true):
    times = evenly(120)
    x = draw(Matern32(1.0, 8.0 * true) * Cosine(1.0, true), times, 3, seed=1)
    kernel = Matern32().fix("variance") * Cosine().fix("variance") + White(1e-2)
    choose_scales(kernel, times, x, torch.ones(3))
    found = kernel[0][1].period.detach()
    assert found.shape == (3,)
    assert (found / true).log().abs().max() < math.log(1.35)
    assert (kernel[0][0].lengthscale > true).all()  # it does not fade within one period


def test_each_dimension_has_its_own():
    times = evenly(160)
    fast, slow = draw(Cosine(1.0, 0.8), times), draw(Matern32(1.0, 6.0), times)
    kernel = Matern32() * Cosine() + White(1e-2)
    choose_scales(kernel, times, torch.cat([fast, slow], 1), torch.ones(2))
    period, lengthscale = kernel[0][1].period.detach(), kernel[0][0].lengthscale.detach()
    assert period[0].item() == pytest.approx(0.8, rel=0.2)
    assert period[1] > 3.0  # no oscillation of its own
    assert lengthscale[1] > 1.0


@pytest.mark.parametrize("oscillates", [False, True])
def test_it_is_the_best_point_of_the_grid(oscillates):
    times = evenly(30, 25)
    x = draw(Matern32(1.0, 0.8) * Cosine(1.0, 1.3), times, 3, seed=2)
    kernel = (Matern32() * Cosine() if oscillates else Matern32()) + White(0.02)
    choose_scales(kernel, times, x, torch.ones(3))
    step, span = 0.1, 2.9
    periods = scales._periods(times, x, step, span) if oscillates else [math.inf]
    best, at = torch.full((3,), -math.inf), [None] * 3
    for period, scale in itertools.product(periods, scales._grid(step, 4.0 * span, 12)):
        if not (scale > period / 3.0 or period > 2.0 * span):
            continue
        trial = Matern32(1.0, scale) * Cosine(1.0, period) if oscillates else Matern32(1.0, scale)
        values = evidence(trial + White(0.02), times, x)
        for q in range(3):
            if values[q] > best[q] + 1e-9:
                best[q], at[q] = values[q], (scale, period)
    smooth = kernel[0][0] if oscillates else kernel[0]
    torch.testing.assert_close(smooth.lengthscale.detach(), torch.tensor([scale for scale, _ in at]))
    if oscillates:
        torch.testing.assert_close(kernel[0][1].period.detach(), torch.tensor([period for _, period in at]))


def test_only_open_parameters_are_chosen():
    times = evenly(40)
    x = draw(Matern32(1.0, 1.0), times, 2)
    prior = dist.LogNormal(0.0, 1.0)
    kernel = RBF(1.0, 0.123) + Matern32().fix() * Cosine(period=7.0) + RBF().set("lengthscale", prior) + Bias(0.3)
    choose_scales(kernel, times, x, torch.ones(2))
    given, (smooth, cosine), random, bias = kernel
    assert given.lengthscale.item() == pytest.approx(0.123)
    assert cosine.period.item() == pytest.approx(7.0)
    assert random.prior("lengthscale") is prior
    assert bias.variance.item() == pytest.approx(0.3)
    assert smooth.lengthscale.shape == (2,)
    assert smooth.is_fixed("lengthscale")
    assert smooth.is_fixed("variance")
    turning = Matern32() * Cosine().fix("period")
    choose_scales(turning, times, x, torch.ones(2))
    assert turning[1].is_fixed("period")
    assert turning[0].is_learned("lengthscale")


def test_too_short_sequences_keep_the_defaults():
    kernel = Matern32() * Cosine()
    choose_scales(kernel, Times(torch.tensor([0.0, 1.0, 0.5]), (2, 1)), torch.randn(3, 2), torch.ones(2))
    assert kernel[0].lengthscale.item() == kernel[1].period.item() == 1.0


def test_a_periodic_kernel_has_one_period_of_the_sinusoid_that_fits_best():
    times = Times(torch.rand(90, generator=torch.Generator().manual_seed(0)).sort().values * 9.0, (90,))
    x = torch.stack([torch.sin(2 * math.pi * times.t / 1.7), torch.randn(90)], 1)
    share = torch.tensor([1.0, 0.05])
    kernel = Periodic() + White(0.1)
    choose_scales(kernel, times, x, share)
    assert kernel[0].period.item() == pytest.approx(1.7, rel=0.05)
    # slow twin: the least squares fit of a sinusoid at each frequency
    y = x * share.sqrt()
    found = dominant_period(times, y, 0.1, 9.0)

    def left(period):
        angle = (2 * math.pi * (times.t - times.t[0]) / period).numpy()
        basis = np.stack([np.cos(angle), np.sin(angle)], 1)
        centred = (y - y.mean(0)).numpy()
        return float(((centred - basis @ np.linalg.lstsq(basis, centred, rcond=None)[0]) ** 2).sum())

    assert all(left(found) <= left(period) + 1e-6 for period in np.linspace(0.3, 9.0, 200) if abs(period - found) > 0.1)


def test_long_data_use_their_first_frames():
    long = evenly(1000)
    x = draw(Matern32(1.0, 1.0), long, 1)
    kernel, head = Matern32() + White(0.01), Matern32() + White(0.01)
    choose_scales(kernel, long, x, torch.ones(1))
    n = scales._FRAMES
    choose_scales(head, Times(long.t[:n], (n,)), x[:n], torch.ones(1))
    torch.testing.assert_close(kernel[0].lengthscale, head[0].lengthscale)


def test_the_default_kernel_finds_rhythms_in_outputs():
    t = 0.1 * np.arange(120)
    rng = np.random.default_rng(0)
    wave = np.stack([np.sin(2 * np.pi * t / 1.1), np.cos(2 * np.pi * t / 1.1)], 1) * 3.0
    y = wave @ rng.standard_normal((2, 8)) + 0.05 * rng.standard_normal((120, 8))
    model = VGPDS.from_data(Sequences(t, y), latent_dim=2)
    waves = cosines(model)
    assert len(waves) == 3
    for number, wave in enumerate(waves, 1):  # the cycle and its harmonics
        assert (number * wave.period / 1.1).log().abs().max() < math.log(1.02)


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_a_clear_cycle_is_found(noise):
    times = evenly(200)
    angle = 2.0 * math.pi * times.t / 1.7
    x = torch.stack([angle.cos(), (2.0 * angle).sin(), torch.zeros_like(angle)], 1) + noise * torch.randn(200, 3)
    assert scales.main_cycle(times, x * torch.tensor([1.0, 0.5, 0.2])) == pytest.approx(1.7, rel=0.02)


def test_days_with_two_peaks_have_the_period_of_a_day():
    """The strongest oscillation is twice as fast as the cycle; without a difference of the peaks it is the cycle."""
    times = Times(torch.arange(240.0, dtype=torch.float64), (240,))
    hour = times.t % 24
    peaks = [(-0.5 * ((hour - at) / 2.0).square()).exp() for at in (6.0, 18.0)]
    for second, period in ((0.4, 24.0), (1.0, 12.0)):
        x = (peaks[0] + second * peaks[1] + 0.05 * torch.randn(240)).unsqueeze(-1)
        assert scales.main_cycle(times, x) == pytest.approx(period, rel=0.02)
    slow = torch.randn(240).cumsum(0) / 8.0  # has power at all low frequencies
    x = torch.stack([peaks[0] + peaks[1], slow * float(peaks[0].std())], 1)
    assert scales.main_cycle(times, x) == pytest.approx(12.0, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_random_walks_have_no_clear_cycle(seed):
    torch.manual_seed(seed)
    times = evenly(200)
    assert scales.main_cycle(times, torch.randn(200, 4)) is None
    assert scales.main_cycle(times, torch.randn(200, 4).cumsum(0)) is None


def test_a_cycle_needs_frames_and_several_periods():
    angle = 2.0 * math.pi * torch.arange(200) / 200
    assert scales.main_cycle(evenly(200), angle.sin().unsqueeze(-1)) is None  # seen once
    assert scales.main_cycle(evenly(10), (20.0 * angle[:10]).sin().unsqueeze(-1)) is None


def two_cycles(dimensions, period=50.0, length=110):
    """A cycle whose harmonics are not oscillations of their own."""
    generator = torch.Generator().manual_seed(0)
    angle = 2.0 * math.pi * torch.arange(float(length)).unsqueeze(-1) / period
    size = (1.0, 0.45, 0.4, 0.3)
    phase = 6.0 * torch.rand(len(size), dimensions, generator=generator)
    return sum(a * ((k + 1) * angle + phase[k]).sin() for k, a in enumerate(size))


def test_a_cycle_of_many_dimensions_that_is_seen_twice():
    x = two_cycles(8)
    assert scales.main_cycle(evenly(110), x) is None
    assert scales.repeated_cycle(evenly(110), x) == pytest.approx(5.0, rel=0.02)  # frames are 0.1 apart
    assert scales.repeated_cycle(evenly(110), x[:, :1]) is None  # one dimension can repeat by chance
    assert scales.repeated_cycle(evenly(110), torch.cat([50.0 * x[:, :1], x[:, 1:]], 1)) is None  # almost one
    assert scales.repeated_cycle(evenly(20), x[:20]) is None
    assert scales.repeated_cycle(evenly(220), two_cycles(8, length=220)) is None  # seen often: not for this rule


def strides(length, asymmetry):
    """A stride of 26 frames whose two steps differ a little, in one dimension."""
    angle = 2.0 * math.pi * torch.arange(float(length)).unsqueeze(-1) / 26.0
    return (2.0 * angle).sin() + 0.5 * (4.0 * angle).cos() + asymmetry * (angle.sin() + (3.0 * angle).cos())


def test_a_stride_that_is_seen_twice_is_not_taken_for_two_cycles():
    x = strides(62, 0.4)
    step = scales.main_cycle(evenly(62), x)
    assert step == pytest.approx(1.3, rel=0.03)  # frames are 0.1 apart
    assert scales.repeated_cycle(evenly(62), x, step) == pytest.approx(2.6, rel=0.03)
    assert scales.repeated_cycle(evenly(62), x) is None  # one dimension, unless a part of the cycle oscillates
    assert scales.repeated_cycle(evenly(62), x, 0.5 * step) is None  # a quarter
    assert scales.repeated_cycle(evenly(62), x, 0.8 * step) is None
    assert scales.repeated_cycle(evenly(62), strides(62, 0.0), step) is None  # steps that are alike
    assert scales.repeated_cycle(evenly(150), strides(150, 0.4), step) is None  # seen often: not for this rule


@pytest.mark.parametrize("seed", range(3))
def test_a_cycle_in_noise_is_not_taken_for_half_of_one(seed):
    torch.manual_seed(seed)
    x = strides(62, 0.0) @ torch.ones(1, 3) + 0.5 * torch.randn(62, 3)
    step = scales.main_cycle(evenly(62), x)
    assert step == pytest.approx(1.3, rel=0.05)
    assert scales.repeated_cycle(evenly(62), x, step) is None


def test_the_default_kernel_has_strides_and_not_only_steps():
    y = strides(62, 0.4).double() @ torch.randn(1, 6).double() + 0.02 * torch.randn(62, 6).double()
    model = VGPDS.from_data(Sequences(torch.arange(62.0).double(), y))
    periods = [float(leaf.period.detach().mean()) for leaf in cosines(model)]
    assert periods == pytest.approx([26.0, 13.0, 26.0 / 3.0], rel=0.03)


def test_random_paths_of_many_dimensions_do_not_repeat():
    torch.manual_seed(0)
    for length in (60, 150):
        for _ in range(20):
            assert scales.repeated_cycle(evenly(length), torch.randn(length, 5).cumsum(0)) is None


def test_the_default_kernel_has_a_cycle_that_is_seen_twice():
    y = two_cycles(8).double() + 0.1 * torch.randn(110, 8).double()
    t = torch.arange(110.0).double()
    model = VGPDS.from_data(Sequences(t[:90], y[:90]))
    guide = AutoOpperArchambeau(model)
    fit(model, guide, Sequences(t[:90], y[:90]), progress=False)
    ahead = Posterior(model, guide, Sequences(t[:90], y[:90])).forecast(t[90:])
    assert float((ahead.mean - y[90:]).square().mean().sqrt()) < 0.3 * float(y.std())


def test_thinned_times_give_no_warning():
    """Warnings are errors in tests; days without weekends are not evenly spaced."""
    t = torch.arange(700.0).double()
    t = t[t % 7 < 5]
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((len(t), 5)).cumsum(0))
    assert scales.repeated_cycle(Times(t, [len(t)]), x) is None
