# SPDX-License-Identifier: Apache-2.0
"""A cycle that only some of the outputs have."""

from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from problems import cosines

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, fit
from pyro_vgpds.inference import partial_cycle as module
from pyro_vgpds.inference.partial_cycle import partial_cycle
from pyro_vgpds.inference.scales import sinusoid_powers
from pyro_vgpds.inference.start import default_temporal
from pyro_vgpds.kernels import Cosine


def make_days(seed=0, n=210, outputs=10, weekly=2):
    """Outputs that follow two random walks; a few of them have a week besides."""
    rng = np.random.default_rng(seed)
    t = np.arange(float(n))
    slow = np.cumsum(rng.standard_normal((n, 2)), 0) * 0.15
    week = [2.0 * np.sin(2 * np.pi * t / 7 + c) * (c < weekly) for c in range(outputs)]
    return t, slow @ rng.standard_normal((2, outputs)) + np.stack(week, 1) + 0.5 * rng.standard_normal((n, outputs))


def periods(model):
    return [float(leaf.period.detach().mean()) for leaf in cosines(model)]


@pytest.mark.parametrize("seed", range(5))
def test_the_week_of_some_outputs_is_found(seed):
    t, y = make_days(seed)
    assert partial_cycle(Sequences(t, y)) == pytest.approx(7.0, abs=0.02)
    assert partial_cycle(Sequences(t, y[:, 2:])) is None


def test_what_it_does_not_depend_on():
    t, y = make_days()
    wanted = partial_cycle(Sequences(t, y))
    y[:, 5] = 3.0
    y[20:, 6] = np.nan
    assert partial_cycle(Sequences(t, y * 1e3 + 1e6)) == pytest.approx(wanted, rel=3e-3)
    y[50:60] = np.nan
    assert partial_cycle(Sequences(t, y)) == pytest.approx(wanted, rel=5e-3)
    assert partial_cycle(Sequences(t + 1e6, y)) == pytest.approx(wanted, rel=5e-3)


def test_a_shape_with_two_peaks_has_the_whole_period():
    t = np.arange(300.0)
    day = np.sin(2 * np.pi * t / 12) + 0.5 * np.sin(2 * np.pi * t / 24)
    y = np.stack([day + 0.3 * np.random.default_rng(0).standard_normal(300), np.sin(t**1.5)], 1)
    assert partial_cycle(Sequences(t, y)) == pytest.approx(24.0, rel=0.01)


@pytest.mark.parametrize("kind", ["walk", "noise"])
def test_random_walks_and_noise_have_none(kind):
    for seed in range(20):
        e = np.random.default_rng(seed).standard_normal((60 + 10 * seed, 10))
        y = e.cumsum(0) if kind == "walk" else e
        assert partial_cycle(Sequences(np.arange(len(y)), y)) is None


def test_data_that_are_not_searched(monkeypatch):
    t, y = make_days()
    assert partial_cycle(Sequences([t, t], [y, y])) is None
    assert partial_cycle(Sequences(t[:30], y[:30])) is None
    assert partial_cycle(Sequences(t, np.where(np.arange(210)[:, None] % 3, np.nan, y))) is None  # few are observed
    monkeypatch.setattr(module, "_OUTPUTS", 9)
    assert partial_cycle(Sequences(t, y)) is None


def test_powers_are_those_of_least_squares():
    rng = np.random.default_rng(0)
    t, x = torch.arange(40.0).double(), torch.from_numpy(rng.standard_normal((40, 3)))
    frequencies, power = sinusoid_powers(Sequences(t, x).times, x, 1.0, 39.0)
    for i in (3, 50, 120):
        angle = 2.0 * np.pi * float(frequencies[i]) * t
        basis = torch.stack([angle.cos(), angle.sin()], 1)
        centred = x - x.mean(0)
        explained = basis @ torch.linalg.lstsq(basis, centred).solution
        assert power[i].tolist() == pytest.approx(explained.square().sum(0).tolist(), rel=1e-3)


def test_the_default_model_forecasts_the_week_of_some_outputs():
    error, weeks = [], []
    for seed in (0, 1):
        t, y = make_days(seed)
        data = Sequences(t[:-14], y[:-14])
        pyro.set_rng_seed(0)
        model = VGPDS.from_data(data)
        assert periods(model)[0] == pytest.approx(7.0, abs=0.1)
        guide = AutoOpperArchambeau(model)
        fit(model, guide, data)
        found = Posterior(model, guide, data).forecast(t[-14:]).mean.numpy()
        error.append(np.sqrt(np.mean((found - y[-14:])[:, :2] ** 2)))
        weeks.append(y[:-14, :2].std())
    # without the period it was 0.8 of the standard deviation
    assert np.mean(error) < 0.5 * np.mean(weeks)


@pytest.mark.parametrize(("oscillates", "cosines"), [(False, 3), (True, 4)])
def test_outputs_that_oscillate_besides_keep_their_oscillator(oscillates, cosines):
    """Such as 50 Hz of the mains in a recording of waves that drift in frequency."""
    start = SimpleNamespace(cycle=None, cycle_of_some=lambda data: 7.0, oscillates=oscillates, span=100.0)
    found = [leaf for leaf in default_temporal(start, None).leaves() if isinstance(leaf, Cosine)]
    assert len(found) == cosines
    assert [float(leaf.period.detach()) for leaf in found[:3]] == pytest.approx([7.0, 7.0 / 2, 7.0 / 3])
