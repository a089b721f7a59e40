# SPDX-License-Identifier: Apache-2.0
"""New frames are taken in without training: forecasts continue from the new end, as if q(X) had been found for all."""

import numpy as np
import pandas
import pyro
import pytest
import torch
from problems import fit_posterior

from pyro_vgpds import (
    VGPDS,
    Posterior,
    PosteriorMixture,
    Sequences,
    Solver,
    load_posterior,
    save_posterior,
)
from pyro_vgpds.data.parts import merge_frames, split_outputs, take_frames
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.prediction import condition
from pyro_vgpds.selection.named_baselines import make_baseline

SOLVER = Solver(num_starts=2, num_steps=60)
NAN = float("nan")


def train(data, steps=80, **options):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, 3, 20, temporal=Matern32().fix("variance") + White(1e-2) + Bias(0.1), **options)
    return fit_posterior(model, data, steps)


@pytest.fixture(scope="module")
def problem():
    """Two drawn sequences, of which the last 20 frames are not known yet, and a model of the rest."""
    torch.set_default_dtype(torch.float64)
    full = make_sequences(num_sequences=2, num_outputs=8, length=(60, 61), seed=1).sequences()
    t, y = split_outputs(full)
    return t, y, train(take_frames(full, [slice(0, 40), slice(0, 40)]), 150)


def close(a, b, **tolerance):
    torch.testing.assert_close(a.mean, b.mean, **tolerance)
    torch.testing.assert_close(a.variance, b.variance, **tolerance)


def error(prediction, truth):
    return float((prediction.mean - truth).square().mean().sqrt())


def test_frames_without_information_change_nothing(problem):
    t, y, post = problem
    nothing = torch.full_like(y[0][40:50], NAN)
    for more in (post.extended(t[0][40:50], nothing, sequence=0), post.extended(t[0][40:50], nothing, 0, free=True)):
        assert more.data.lengths == (50, 40)
        assert more.bound == pytest.approx(post.bound, abs=1e-6)
        for s in (0, 1):
            close(more.forecast(t[s][50:55], s), post.forecast(t[s][50:55], s), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(more.impute().split()[0].mean[:40], post.impute().split()[0].mean)


def test_forecasts_from_the_new_end_are_better(problem):
    t, y, post = problem
    more = post.extended([t[0][40:50], t[1][40:50]], [y[0][40:50], y[1][40:50]], [0, 1], solver=SOLVER)
    assert more.data.lengths == (50, 50)
    for s in (0, 1):
        ahead = slice(50, 55)
        assert error(more.forecast(t[s][ahead], s), y[s][ahead]) < 0.6 * error(
            post.forecast(t[s][ahead], s), y[s][ahead]
        )
    assert post.data.lengths == (40, 40)  # this one does not change


def test_as_if_q_had_been_found_for_all_frames(problem):
    t, y, post = problem
    quick, free = (post.extended(t[0][40:50], y[0][40:50], 0, free=f, solver=SOLVER) for f in (False, True))
    # the best q(X) for the joined data at these hyperparameters, from the better of two starts
    best = max((condition(p, quick.data, num_steps=300) for p in (post, free)), key=lambda p: p.bound)
    assert quick.bound < free.bound <= best.bound + 1e-3
    ahead, scale = t[0][50:54], y[0].std(0)
    for one, most in ((quick, 0.06), (free, 0.05)):
        gap = (one.forecast(ahead, 0).mean - best.forecast(ahead, 0).mean) / scale
        assert float(gap.square().mean().sqrt()) < most
    for name, value in post.origin.model.state_dict().items():  # hyperparameters and inducing inputs stay
        assert torch.equal(value, quick.origin.model.state_dict()[name])
        assert torch.equal(value, free.origin.model.state_dict()[name])


def test_one_frame_after_the_other_is_all_at_once(problem):
    t, y, post = problem
    at_once = post.extended(t[0][40:43], y[0][40:43], 0, solver=SOLVER)
    step_by_step = post
    for i in range(40, 43):
        step_by_step = step_by_step.extended(t[0][i : i + 1], y[0][i : i + 1], 0, solver=SOLVER)
    gap = (at_once.forecast(t[0][43:46], 0).mean - step_by_step.forecast(t[0][43:46], 0).mean) / y[0].std(0)
    assert float(gap.square().mean().sqrt()) < 0.05


def test_the_mapping_learns_from_new_frames(problem):
    t, y, post = problem
    more = post.extended(t[0][40:50], y[0][40:50], 0, solver=SOLVER)
    assert float((more.inducing_mean - post.inducing_mean).abs().max()) > 1e-3
    # it is the mapping of a reconstruction of the same frames
    again = post.reconstruct(t[0][40:50], y[0][40:50], 0, solver=SOLVER)
    torch.testing.assert_close(more.impute(fill=False).mean[40:50], again.mean, rtol=1e-5, atol=1e-5)
    assert more.bound == pytest.approx(again.bound, rel=1e-7)


def test_partly_observed_frames(problem):
    t, y, post = problem
    seen = y[0][40:50].clone()
    seen[:, 3:] = NAN
    more = post.extended(t[0][40:50], seen, 0, solver=SOLVER)
    assert error(more.forecast(t[0][50:53], 0), y[0][50:53]) < error(post.forecast(t[0][50:53], 0), y[0][50:53])
    filled = more.impute().split()[0]
    assert torch.equal(filled.mean[40:50, :3], y[0][40:50, :3])


def test_late_numbers_of_known_frames(problem):
    t, y, post = problem
    seen = y[0][40:46].clone()
    seen[3:, :4] = NAN
    early = post.extended(t[0][40:46], seen, 0, solver=SOLVER)
    late = y[0][43:48].clone()
    late[:3, 4:] = NAN  # known already
    more = early.extended(t[0][43:48], late, 0, solver=SOLVER)
    assert more.data.lengths == (48, 40)
    assert torch.equal(more.data.read()[:48], y[0][:48])
    twin = post.extended(t[0][40:48], y[0][40:48], 0, free=True, solver=SOLVER)
    gap = (more.forecast(t[0][48:51], 0).mean - twin.forecast(t[0][48:51], 0).mean) / y[0].std(0)
    assert float(gap.square().mean().sqrt()) < 0.1


def test_a_new_sequence(problem):
    t, y, post = problem
    more = post.extended(t[1][:30], y[1][:30] + 0.1, None, solver=SOLVER)
    assert more.data.lengths == (40, 40, 30)
    assert more.forecast(t[1][30:32], 2).mean.shape == (2, 8)
    close(more.forecast(t[0][40:41], 0), post.forecast(t[0][40:41], 0), rtol=0.2, atol=0.2)


def test_frames_before_the_first(problem):
    t, y, post = problem
    more = post.extended(t[0][:2] - 1.0, y[0][:2], 0, solver=SOLVER)
    assert torch.equal(more.data.times.t[:42], torch.cat([t[0][:2] - 1.0, t[0][:40]]))
    assert torch.equal(more.data.read()[:42], torch.cat([y[0][:2], y[0][:40]]))


def test_options_of_the_posterior_stay(problem, tmp_path):
    t, y, post = problem
    origin = post.origin
    wide = Posterior(origin.model, origin.guide, post.data, noise_variance=0.2, residual=Bias() + White())
    more = wide.extended(t[0][40:44], y[0][40:44], 0, solver=SOLVER)
    assert more.noise_variance.tolist() == wide.noise_variance.tolist()
    assert more.correlation is not None
    save_posterior(tmp_path / "more.safetensors", more)
    again = load_posterior(tmp_path / "more.safetensors")
    close(again.forecast(t[0][44:46], 0), more.forecast(t[0][44:46], 0), rtol=1e-9, atol=1e-12)


def test_mixtures(problem):
    t, y, post = problem
    other = Posterior(post.origin.model, post.origin.guide, post.data, noise_variance=0.1)
    both = PosteriorMixture([post, other], [0.3, 0.7])
    more = both.extended(t[0][40:44], y[0][40:44], sequence=0, solver=SOLVER)
    parts = [p.extended(t[0][40:44], y[0][40:44], 0, solver=SOLVER).forecast(t[0][44:46], 0) for p in (post, other)]
    torch.testing.assert_close(more.forecast(t[0][44:46], 0).mean, 0.3 * parts[0].mean + 0.7 * parts[1].mean)
    assert more.data.lengths == (44, 40)


def test_baselines(problem):
    t, y, post = problem
    last = make_baseline("last value", post.data)
    more = last.extended(t[0][40:44], y[0][40:44], 0)
    torch.testing.assert_close(more.forecast(t[0][44:46], 0).mean, y[0][43].expand(2, -1))
    assert more.data.lengths == (44, 40)


@pytest.mark.long
def test_ensembles(problem):
    t, y, post = problem
    held = post.calibrate("forecast", horizon=4)
    more = held.extended(t[0][40:50], y[0][40:50], 0)
    assert more.data.lengths == (50, 40)
    assert error(more.forecast(t[0][50:53], 0), y[0][50:53]) < error(held.forecast(t[0][50:53], 0), y[0][50:53])


@pytest.mark.long
def test_lags():
    full = make_sequences(num_sequences=1, num_outputs=4, length=(50, 51), seed=3).sequences()
    (t,), (y,) = split_outputs(full)
    post = train(take_frames(full, [slice(0, 35)]).lagged([-2, 1]), 40)
    more = post.extended(t[35:42], y[35:42], solver=SOLVER)
    assert more.data.lags == (-2, 1)
    assert more.num_outputs == 4
    np.testing.assert_array_equal(more.data.read(), take_frames(full, [slice(0, 42)]).lagged([-2, 1]).read())
    assert error(more.forecast(t[42:45]), y[42:45]) < error(post.forecast(t[42:45]), y[42:45])


def test_dates_and_names():
    rng = np.random.default_rng(0)
    hours = pandas.date_range("2024-05-06", periods=40, freq="h")
    values = np.sin(2 * np.pi * np.arange(40)[:, None] / 12 + np.arange(4)) + 0.05 * rng.standard_normal((40, 4))
    frame = pandas.DataFrame(values, hours, list("abcd"))
    data = Sequences([hours[:30], hours[:20]], [frame.iloc[:30], frame.iloc[:20]], names=["north", "south"])
    post = train(data, 20)
    more = post.extended(hours[30:34], frame.iloc[30:34, [2, 0]], "north", solver=SOLVER)
    assert more.data.lengths == (34, 20)
    assert more.data.names == ["north", "south"]
    assert more.data.time_origin == data.time_origin
    np.testing.assert_array_equal(more.forecast(hours[34:36], "north").dates, hours[34:36].to_numpy())
    assert torch.isnan(more.data.read()[30:34, [1, 3]]).all()
    third = more.extended(hours[5:9], frame.iloc[5:9], None, solver=SOLVER)
    assert third.data.names == ["north", "south", "2"]
    with pytest.raises(ValueError, match=r"0 to 1, or one of the names 'north', 'south', or None .* but got 'east'"):
        more.extended(hours[34:36], frame.iloc[34:36], "east")


def test_errors(problem):
    t, y, post = problem
    with pytest.raises(
        ValueError, match="sequence is required because there are 2 training sequences: 0 to 1, or None"
    ):
        post.extended(t[0][40:42], y[0][40:42])
    with pytest.raises(ValueError, match="y has 3 outputs, but the model has 8"):
        post.extended(t[0][40:42], y[0][40:42, :3], 0)
    with pytest.raises(ValueError, match="sequence has 1 entries, but t has 2 sequences"):
        post.extended([t[0][40:42], t[1][40:42]], [y[0][40:42], y[1][40:42]], [0])
    with pytest.raises(ValueError, match="y is required"):
        post.extended(t[0][40:42], None, 0)
    with pytest.raises(TypeError, match="solver must be a Solver"):
        post.extended(t[0][40:42], y[0][40:42], 0, solver=3)


def test_merged_frames():
    t, y = torch.tensor([0.0, 2.0, 3.0]), torch.tensor([[1.0, NAN], [2.0, 20.0], [3.0, 30.0]])
    found = merge_frames(t, y, torch.tensor([3.0, 1.0, 0.0]), torch.tensor([[NAN, 33.0], [NAN, 10.0], [NAN, 5.0]]))
    assert found[0].tolist() == [0.0, 1.0, 2.0, 3.0]
    np.testing.assert_array_equal(found[1], [[1.0, 5.0], [NAN, 10.0], [2.0, 20.0], [3.0, 33.0]])
