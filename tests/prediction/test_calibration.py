# SPDX-License-Identifier: Apache-2.0
"""Errors of hidden outputs: which frames and outputs are used, and the estimate against all frames."""

import math

import numpy as np
import pyro
import pytest
import torch
from problems import fit_posterior, make_data, make_model

from pyro_vgpds import VGPDS, Posterior, Sequences, Solver
from pyro_vgpds.kernels import ARDRBF, Bias, Cosine, Matern32, White
from pyro_vgpds.prediction.path_search import kl_of

FEW = Solver(num_starts=1, num_steps=2)


@pytest.fixture(scope="module")
def long():
    """A model of 400 frames and 6 outputs, of which the last is noisy."""
    pyro.set_rng_seed(0)
    t = 0.1 * torch.arange(400.0)
    y = torch.stack([(1 + 0.3 * d) * torch.sin(t + d) for d in range(6)], 1)
    y = y + 0.1 * torch.randn(400, 6)
    y[:, 5] += torch.randn(400)
    data = Sequences(t, y)
    model = VGPDS.from_data(data, 3, 15, Matern32() * Cosine() + White(1e-2) + Bias(0.1), ARDRBF())
    return fit_posterior(model, data, 20)


@pytest.fixture
def tried(monkeypatch):
    """The times and outputs that are reconstructed."""
    calls = []
    original = Posterior.reconstruct

    def keep(self, t, y, **options):
        calls.append((t, y))
        return original(self, t, y, **options)

    monkeypatch.setattr(Posterior, "reconstruct", keep)
    return calls


def test_windows_are_consecutive_frames_at_random_places(long, tried):
    t, starts = long.data.times.t, set()
    for _ in range(5):
        long.hidden_variance(num_frames=20, solver=FEW)
    assert len(tried) == 10
    for times, y in tried:
        first = int((t == times[0]).nonzero())
        assert torch.equal(times, t[first : first + 20])
        assert y.shape == (20, 6)
        starts.add(first)
    assert len(starts) > 2
    tried.clear()
    long.hidden_variance(solver=FEW)
    assert {len(times) for times, _ in tried} == {250}
    tried.clear()
    long.hidden_variance(num_frames=1000, solver=FEW)
    assert all(torch.equal(times, t) for times, _ in tried)


def test_the_last_window_ends_with_the_sequence(long, tried, monkeypatch):
    monkeypatch.setattr(torch, "randint", lambda high, size: torch.tensor(high - 1))
    long.hidden_variance(num_frames=399, solver=FEW)
    assert torch.equal(tried[0][0], long.data.times.t[1:])


@pytest.mark.parametrize(("share", "parts"), [(1e-9, 6), (0.3, 3), (0.5, 2), (0.99, 2)])
def test_every_output_is_hidden_once_in_at_most_as_many_parts(long, tried, share, parts):
    long.hidden_variance(share, num_frames=5, solver=FEW)
    assert len(tried) == parts
    assert torch.stack([y.isnan().all(0) for _, y in tried]).sum(0).tolist() == [1] * 6


def test_windows_agree_with_all_frames(long):
    pyro.set_rng_seed(1)
    full = torch.stack([long.hidden_variance(num_frames=400) for _ in range(4)])  # the hidden halves differ
    part = torch.stack([long.hidden_variance(num_frames=100) for _ in range(12)])
    error = (full.var(0) / len(full) + part.var(0) / len(part)).sqrt()
    assert ((part.mean(0) - full.mean(0)).abs() < 4.0 * error + 0.02 * full.mean(0)).all()
    assert (part.mean(0) / full.mean(0)).log().abs().max() < math.log(1.3)
    assert full.mean(0)[5] > 5.0 * full.mean(0)[:5].max()  # so that a mix of the outputs would fail


def test_an_output_without_numbers_in_the_window_gets_the_error_of_the_others(long):
    y = long.data.read().clone()
    y[50:, 2] = torch.nan
    y[::40, 2] = long.data.read()[::40, 2]
    data = Sequences(long.data.times.t, y)
    model, guide = long.origin.model, long.origin.guide
    posterior = Posterior(model, guide, data)
    torch.manual_seed(3)
    got = posterior.hidden_variance(num_frames=10, solver=FEW)
    assert bool((got > 0).all())
    torch.manual_seed(3)
    start = int(torch.randperm(1)) + int(torch.randint(391, ()))
    unseen = y[start : start + 10].isnan().all(0)
    assert unseen.tolist() == [False, False, True, False, False, False]
    variance = data.output_variances
    ratio = got[~unseen].sum() / variance[~unseen].sum()  # each other output has ten numbers
    torch.testing.assert_close(got[2], ratio * variance[2])


def test_progress(long, capsys):
    options = {"num_frames": 5, "solver": FEW}
    long.hidden_variance(**options)
    assert capsys.readouterr().err == ""
    long.hidden_variance(1e-9, **options, progress=True)
    shown = capsys.readouterr().err
    assert "hidden variance: 100%" in shown
    assert "6/6" in shown
    assert "reconstruction" not in shown


@pytest.mark.parametrize(("options", "total"), [({}, 120), ({"free": True}, 160)])
def test_progress_of_a_reconstruction(capsys, options, total):
    data = make_data()
    posterior = Posterior(*make_model(data), data)
    rows = data.times.slices()[0]
    t, y = data.times.t[rows], data.y[rows].clone()
    y[:, 3:] = np.nan
    solver = Solver(num_steps=40)
    expected = posterior.reconstruct(t, y, solver=solver, **options)
    assert capsys.readouterr().err == ""
    posterior.reconstruct(t, y, solver=solver, progress=None, **options)  # not a terminal
    assert capsys.readouterr().err == ""
    got = posterior.reconstruct(t, y, solver=solver, progress=True, **options)
    assert f"{total}/{total}" in capsys.readouterr().err
    assert torch.equal(got.mean, expected.mean)


def test_kl_of_all_sequences_is_the_sum_of_each():
    data = make_data()
    q = Posterior(*make_model(data), data).training.q
    each = [kl_of(q, [i]) for i in range(data.num_sequences)]
    assert kl_of(q, list(range(data.num_sequences))) == pytest.approx(sum(each), rel=1e-10)
    assert min(each) > 0.0


def test_bad_input_is_named(long):
    for bad in (0, 2.5):
        with pytest.raises(ValueError, match="num_frames must be a whole number"):
            long.hidden_variance(num_frames=bad)
    with pytest.raises(TypeError, match="solver must be a Solver"):
        long.hidden_variance(solver=3)
