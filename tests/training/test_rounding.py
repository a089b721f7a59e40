# SPDX-License-Identifier: Apache-2.0
"""Training at the limit of the digits: outputs without noise, starts with little noise, float32."""

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, Sequences, fit
from pyro_vgpds.kernels import ARDRBF, RBF, Linear, Matern32, Matern52
from pyro_vgpds.mapping import bound


def _lines(num_frames, num_outputs):
    rng = np.random.default_rng(100 * num_frames + num_outputs)
    t = np.linspace(0, 1, num_frames)
    rng.uniform(0, 6, num_outputs)
    return Sequences(t, t[:, None] * rng.standard_normal(num_outputs))


def _sines(num_frames, num_outputs):
    t = np.linspace(0, 1, num_frames)
    return Sequences(t, np.sin(2 * np.pi * t[:, None] + np.arange(num_outputs)))


@pytest.mark.parametrize(
    ("data", "latent", "inducing", "kernel", "per_output"),
    [
        (_lines(5, 5), 2, 5, Matern52, False),
        (_lines(8, 2), 2, 8, Matern52, True),
        (_lines(8, 5), 2, 8, Matern32, True),
        (_sines(40, 1), 1, 20, RBF, True),
    ],
)
def test_outputs_without_noise_converge_to_a_point_that_is_safe_elsewhere(data, latent, inducing, kernel, per_output):
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, latent, inducing, kernel(), noise_per_output=per_output)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, num_steps=250)
    assert result.stopped == "converged"
    # the same in other parameters, with other rounding errors
    post = Posterior(model, guide, data)
    assert post.bound == pytest.approx(result.bound, abs=0.1 * data.num_observed)
    assert result.bound == pytest.approx(max(record.bound for record in result.history), abs=0.1 * data.num_observed)
    found = post.reconstruct(data.times.t, data.y, sequence=None)
    assert float((found.mean - data.y).square().mean()) < 1e-3 * float(data.y.var())


@pytest.mark.parametrize("num_outputs", [1, 2, 5])
@pytest.mark.parametrize("noise", [1e-6, 1e-9])
def test_four_frames_and_a_start_with_hardly_any_noise_are_left(noise, num_outputs):
    data = _sines(4, num_outputs)
    torch.manual_seed(0)
    inducing = torch.randn(4, 1).double()
    model = VGPDS(Matern52(1.0, 0.3), ARDRBF(1.0, [1.0]), inducing, torch.tensor(noise), torch.zeros(num_outputs))
    model.double()
    result = fit(model, AutoOpperArchambeau(model), data, num_steps=60)
    assert result.history[0].bound < -1e4
    assert result.stopped != "stuck"
    assert result.bound > 0.5 * result.history[0].bound
    assert result.num_steps - result.num_undone >= 10


def test_a_start_close_to_the_limit_of_rounding_errors_is_trained_all_the_same(monkeypatch):
    monkeypatch.setattr(bound, "_MARGIN", 1e14)
    data = _sines(12, 3)
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, 2, 6)
    with bound.strict_rounding(), pytest.raises(ArithmeticError, match="ill-conditioned"):
        Collapsed_ELBO().loss(model, AutoOpperArchambeau(model), data)
    result = fit(model, AutoOpperArchambeau(model), data, num_steps=5)
    assert result.bound > result.history[0].bound + 10.0


def test_lbfgs_in_float32_continues_after_its_first_evaluations(tmp_path):
    data = Sequences([np.linspace(0, 1, 15)], [_sines(15, 3).y.numpy()], dtype=torch.float32)
    results = []
    for options in ({"num_steps": 45}, {"num_steps": 25, "checkpoint": tmp_path / "c"}, {"resume": tmp_path / "c"}):
        pyro.set_rng_seed(0)
        model = VGPDS.from_data(data, 2, 6)
        results.append(fit(model, AutoOpperArchambeau(model), data, method="lbfgs", warmup=0, **options))
    assert results[0].num_steps > 40
    assert results[0].bound > results[0].history[20].bound
    assert results[2].bound >= results[1].bound


@pytest.mark.parametrize("structure", ["dense", "markov"])
@pytest.mark.parametrize("make", [Linear, lambda: Linear() * Matern32(lengthscale=8.0)])
def test_a_time_at_which_the_prior_has_no_variance_is_trained_like_one_beside_it(make, structure):
    y = np.sin(np.arange(30)[:, None] / 4 + np.arange(5)) + 0.1 * np.random.default_rng(0).standard_normal((30, 5))
    bounds = []
    for first in (0.0, 1e-7):  # the variance at t = 0 is 0
        data = Sequences(first + np.arange(30.0), y)
        pyro.set_rng_seed(0)
        model = VGPDS.from_data(data, 2, 6, make(), structure=structure)
        guide = AutoOpperArchambeau(model)
        result = fit(model, guide, data, num_steps=20)
        assert result.num_undone == 0
        bounds.append(result.bound)
        post = Posterior(model, guide, data, residual=Linear() * Matern32(lengthscale=8.0))
        assert bool(torch.isfinite(post.impute().variance).all())
        assert bool(torch.isfinite(post.reconstruct(data.times.t, data.y, sequence=None).mean).all())
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-3)


def test_adam_continues_while_the_bound_comes_back_from_a_fall():
    data = _sines(40, 5)
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, 2, 8, RBF())
    result = fit(model, AutoOpperArchambeau(model), data, 70, "adam", learning_rate=10.0)
    best = max(record.bound for record in result.history)
    assert result.history[-1].bound < best - 0.05 * data.num_observed  # the steps are too long
    assert (result.stopped, result.num_steps, result.bound) == ("steps", 70, best)
