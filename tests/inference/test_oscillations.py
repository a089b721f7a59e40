# SPDX-License-Identifier: Apache-2.0
"""Whether a sequence oscillates, against dense Gaussians, and whether counts have a cycle."""

import math

import numpy as np
import pyro
import pytest
import torch
from problems import cosines
from torch.distributions import MultivariateNormal

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, fit
from pyro_vgpds.baselines.counts import common_period
from pyro_vgpds.data.durations import UNITS, parse_duration
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference import oscillations, scales
from pyro_vgpds.inference.oscillations import oscillates
from pyro_vgpds.inference.pca import pca
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
        osc, plain = (path() + White(1e-2) + Bias(0.1) for path in (oscillations.oscillator, oscillations.smooth_path))
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
    count = next(q for q in range(1, 21) if values[:q].sum() >= oscillations._VARIANCE * values.sum())
    total = 0.0
    for path, sign in ((oscillations.oscillator(), 1.0), (oscillations.smooth_path(), -1.0)):
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
        assert oscillations._gain(t, x, a, b) == pytest.approx(total, abs=1e-8)


def test_the_default_kernel_of_a_single_sequence():
    slow, fast = (VGPDS.from_data(Sequences(*mixed(kernel, 0))) for kernel in (
        Matern12(1.0, 200.0), Matern32(1.0, 12.0) * Cosine(1.0, 9.0)
    ))  # fmt: skip
    assert not cosines(slow)
    assert cosines(fast)
    t, y = mixed(Matern12(1.0, 200.0), 0)
    several = VGPDS.from_data(Sequences([t[:45], t[45:]], [y[:45], y[45:]]))
    assert cosines(several)


def test_the_slow_path_has_the_longest_span():
    data = Sequences([[0.0, 2.0, 10.0, 11.0], [1.0, 4.0, 5.0]], [np.eye(4, 3), np.eye(3)])
    level, trend = (leaf for leaf in VGPDS.from_data(data).temporal.leaves() if leaf.is_fixed("lengthscale"))
    for leaf in (level, trend):
        torch.testing.assert_close(leaf.lengthscale, torch.tensor(11.0).double().expand_as(leaf.lengthscale))
        assert leaf.is_learned("variance")


@pytest.mark.long
def test_forecasts_of_random_walks_continue_from_their_last_values():
    """A path without a level and a trend returns to the mean of the data."""
    error = {"default": 0.0, "stationary": 0.0}
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        y = torch.randn(134, 8, generator=generator).double().cumsum(0)
        data = Sequences(torch.arange(120.0).double(), y[:120])
        for name, kernel in (("default", None), ("stationary", Matern32() + White(1e-2) + Bias(0.1))):
            pyro.clear_param_store()
            pyro.set_rng_seed(seed)
            model = VGPDS.from_data(data, temporal=kernel)
            guide = AutoOpperArchambeau(model)
            fit(model, guide, data, 60, progress=False)
            ahead = Posterior(model, guide, data).forecast(torch.arange(120.0, 134.0).double(), 0)
            error[name] += float((ahead.mean - y[120:]).square().sum())
    assert error["default"] < 0.9 * error["stationary"], error


def seasonal(seed, frames=160, period=40.0, size=1.5):
    """Counts of 30 districts (N, D), most of them 0, with seasons of different heights, or none."""
    rng = np.random.default_rng(seed)
    t = np.arange(float(frames))
    height = size * (1.0 + 0.3 * rng.standard_normal(1 + int(frames / period)))[(t / period).astype(int)]
    walk = np.cumsum(0.05 * rng.standard_normal(frames))
    rate = np.exp(height * np.cos(2.0 * np.pi * t / period) + walk - walk.mean() - 2.0)[:, None] * rng.gamma(
        2.0, 0.5, 30
    )
    y = rng.poisson(rate).astype(float)
    y[5:9] = np.nan
    return Sequences(t, y)


@pytest.mark.parametrize("seed", range(3))
def test_counts_have_the_cycle_of_their_average(seed):
    model = VGPDS.from_data(seasonal(seed), 4, 10, likelihood="poisson")
    waves = cosines(model)
    periods = [float(leaf.period.detach()) for leaf in waves]
    assert periods == pytest.approx([40.0, 20.0, 40.0 / 3.0], rel=0.05)
    assert [k * period for k, period in enumerate(periods, 1)] == pytest.approx([periods[0]] * 3)
    assert all(leaf.is_fixed("period") and leaf.is_learned("variance") for leaf in waves)


def test_the_period_is_that_whose_harmonics_fit_best():
    t = torch.arange(70.0).double()  # 3.5 periods: the grid of the periodogram is coarse
    x = sum((torch.cos(2.0 * math.pi * k * t / 19.7 + k) / k for k in (1, 2, 3)), torch.zeros(70).double())
    found, on_grid = oscillations.average_cycle(Times(t, [70]), x), scales.main_cycle(Times(t, [70]), x[:, None], 0.0)
    assert found == pytest.approx(19.7, rel=0.002)
    assert abs(found - 19.7) < 0.4 * abs(on_grid - 19.7)


def test_counts_without_a_cycle_have_a_plain_path():
    found = 0
    for seed in range(6):
        model = VGPDS.from_data(seasonal(seed, size=0.0), 4, 10, likelihood="poisson")
        found += bool(cosines(model))
    assert found == 0


def test_several_sequences_of_counts_have_a_plain_path():
    data = seasonal(0)
    t, y = (part.split([80, 80]) for part in (data.times.t, data.y))
    model = VGPDS.from_data(Sequences(list(t), list(y)), 4, 10, likelihood="poisson")
    assert not cosines(model)


def test_what_one_half_predicts_of_the_other_against_least_squares():
    rng = np.random.default_rng(0)
    t = np.sort(rng.random(50) * 30.0)
    x = np.sin(2.0 * np.pi * t / 7.0) + 0.03 * t + 0.3 * rng.standard_normal(50)
    error = total = 0.0
    for known, new in ((range(25), range(25, 50)), (range(25, 50), range(25))):
        rows = {name: [[f(2.0 * np.pi * k * t[n] / 7.0) for f in (np.cos, np.sin) for k in (1, 2, 3)] for n in index]
                for name, index in (("known", known), ("new", new))}  # fmt: skip
        a, b = (np.array(rows[name]) - np.mean(rows[name], 0) for name in ("known", "new"))
        penalised = np.vstack([a, math.sqrt(0.01 * 25) * np.eye(6)])
        weights = np.linalg.lstsq(penalised, np.concatenate([x[known] - x[known].mean(), np.zeros(6)]), rcond=None)[0]
        error += np.square(x[new] - x[new].mean() - b @ weights).sum()
        total += np.square(x[new] - x[new].mean()).sum()
    found = oscillations.predicted_share(torch.from_numpy(t), torch.from_numpy(x)[:, None], 7.0)
    assert found == pytest.approx(1.0 - error / total, abs=1e-10)
    assert found > 0.5


def wave(t, period, seed=0):
    """Harmonics of a period with noise, (N,)."""
    waves = [np.cos(2.0 * np.pi * k * t / period + k) / k for k in (1, 2)]
    return torch.from_numpy(sum(waves) + 0.2 * np.random.default_rng(seed).standard_normal(len(t)))


@pytest.mark.parametrize(
    ("unit", "step", "frames", "period"),
    [("y", "1w", 160, 51.0 / 52.2), ("w", "1d", 40, 1.03), ("d", "2h", 40, 0.97), ("y", "30.4375d", 40, 1.03)],
)
def test_dates_have_the_periods_of_the_calendar(unit, step, frames, period):
    t = parse_duration(step) * np.arange(float(frames))
    x = wave(t, period * UNITS[unit])  # as if seasons came earlier or later by chance
    times = Times(torch.from_numpy(t), [frames])
    assert oscillations.average_cycle(times, x, is_dated=True) == UNITS[unit]
    assert oscillations.average_cycle(times, x) == pytest.approx(period * UNITS[unit], rel=0.01)


def test_two_years_of_dates_are_enough_for_a_year():
    t = UNITS["w"] * np.arange(104.0)
    x = wave(t, UNITS["y"])
    assert oscillations.average_cycle(Times(torch.from_numpy(t), [104]), x, is_dated=True) == UNITS["y"]
    assert oscillations.average_cycle(Times(torch.from_numpy(t), [104]), x) is None
    first = Times(torch.from_numpy(t[:90]), [90])
    assert oscillations.average_cycle(first, x[:90], is_dated=True) is None


def test_a_cycle_of_dates_that_is_not_in_the_calendar():
    t = UNITS["h"] * np.arange(24.0 * 20.0)
    tide = 24.84 * UNITS["h"]
    found = oscillations.average_cycle(Times(torch.from_numpy(t), [len(t)]), wave(t, tide), is_dated=True)
    assert found == pytest.approx(tide, rel=0.002)


def test_few_paths_without_a_cycle_have_a_year():
    t, found = UNITS["w"] * torch.arange(157.0).double(), 0
    for seed in range(40):
        walk = torch.from_numpy(np.cumsum(np.random.default_rng(seed).standard_normal(157)))
        found += oscillations.average_cycle(Times(t, [157]), walk, is_dated=True) is not None
    assert found <= 2


def test_dated_counts_have_the_cycle_of_the_year():
    weeks = np.datetime64("2021-01-04") + np.timedelta64(7, "D") * np.arange(120)
    data = Sequences(weeks, seasonal(1, frames=120, period=51.0).read())
    model = VGPDS.from_data(data, 4, 10, likelihood="poisson")
    assert [float(leaf.period) for leaf in cosines(model)] == pytest.approx([UNITS["y"] / k for k in (1, 2, 3)])
    assert common_period(data) == UNITS["y"]


def test_averages_in_which_no_cycle_can_be_seen():
    times = Times(torch.arange(40.0).double(), [40])
    assert oscillations.average_cycle(times, torch.full((40,), torch.nan).double()) is None
    assert oscillations.average_cycle(times, torch.ones(40).double()) is None
