# SPDX-License-Identifier: Apache-2.0
"""The kernel of residuals that predictions have by default."""

import numpy as np
import pyro
import torch
from problems import fit_posterior, make_data, make_model, make_problem

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, load_posterior, save, save_posterior
from pyro_vgpds.evaluation import hold_out
from pyro_vgpds.evaluation.scores import relative_error
from pyro_vgpds.kernels import RBF, Matern32, White
from pyro_vgpds.prediction.residual_choice import choose_residual, typical_step


def own_parts(noise):
    """Outputs with a shared path, and a smooth part and noise of their own."""
    rng, t = np.random.default_rng(1), 0.5 * np.arange(70.0)
    root = np.linalg.cholesky(RBF(1.0, 1.5)().gram(torch.as_tensor(t))[0].detach().numpy() + 1e-6 * np.eye(70))
    smooth = np.sin(t[:, None] / 3.5 + np.arange(20)) + (0.7 - noise) * root @ rng.standard_normal((70, 20))
    return Sequences(t, smooth + noise * rng.standard_normal((70, 20)))


def train(data):
    torch.manual_seed(0)
    return fit_posterior(VGPDS.from_data(data, latent_dim=6), data, 30)


def test_smooth_parts_of_each_output_are_carried(tmp_path):
    split = hold_out(own_parts(0.0), "impute", share=0.2)
    white = train(split.train)
    model, guide = white.origin.model, white.origin.guide
    before = pyro.util.get_rng_state()["torch"]
    posterior = Posterior(model, guide, split.train)
    assert torch.equal(pyro.util.get_rng_state()["torch"], before)
    kernel = posterior.origin.residual
    assert repr(kernel) == repr(choose_residual(white))
    scale = split.train.output_scales
    assert relative_error(split.predict(posterior), scale) < 0.9 * relative_error(split.predict(white), scale)
    given = Posterior(model, guide, split.train, residual=kernel).impute()
    torch.testing.assert_close(posterior.impute().mean, given.mean)
    # files have the kernel; those of models alone choose it again, and white noise stays white
    for one, expected in ((posterior, kernel), (white, None)):
        save_posterior(tmp_path / "a", one)
        assert repr(load_posterior(tmp_path / "a").origin.residual) == repr(expected)
    save(tmp_path / "b", model, guide, split.train)
    again = load_posterior(tmp_path / "b")
    torch.testing.assert_close(again.impute().mean, posterior.impute().mean)
    assert repr(posterior.condition(split.train).origin.residual) == repr(kernel)


def test_white_residuals_stay_white():
    split = hold_out(own_parts(0.6), "impute", share=0.2)
    assert choose_residual(train(split.train)) is None


def test_single_entries_count_where_the_own_gaps_are_long():
    data, rng = own_parts(0.25), np.random.default_rng(0)
    y = data.y.clone()
    for column, start in enumerate(rng.integers(5, 53, 20)):
        y[start : start + 12, column] = torch.nan
    split = hold_out(Sequences(data.times.t, y), "impute", pattern="entries")
    white = train(split.train)
    posterior = Posterior(white.origin.model, white.origin.guide, split.train)
    assert repr(posterior.origin.residual) == repr(Matern32(1.0, 2.0) + White(0.7))
    scale = split.train.output_scales
    assert relative_error(split.predict(posterior), scale) < 0.97 * relative_error(split.predict(white), scale)


def test_nothing_is_chosen_if_nothing_is_missing_or_too_little_is_known():
    assert choose_residual(train(own_parts(0.0))) is None
    data = make_data(lengths=(4,))
    data.y[0, 0] = torch.nan
    few = Sequences(data.times.t, data.y)
    few.y[2:] = torch.nan
    model, guide = make_model(data)
    assert Posterior(model, guide, Sequences(few.times.t, few.y)).origin.residual is None


def test_guides_of_other_kinds_have_white_residuals():
    model, guide, data = make_problem(missing=0.2)
    q = guide.posterior(data)
    mean, scale = q.mean.detach(), q.variance.detach().sqrt()

    def other(data):
        return pyro.sample("x", pyro.distributions.Normal(mean, scale).to_event(2))

    assert Posterior(model, other, data).origin.residual is None


def test_given_kernels_are_not_replaced():
    model, guide, data = make_problem(missing=0.2)
    kernel = Matern32(1.0, 0.4) + White(0.3)
    assert repr(Posterior(model, guide, data, residual=kernel).origin.residual) == repr(kernel)
    assert Posterior(model, guide, data, residual=None).correlation is None
    assert isinstance(guide, AutoOpperArchambeau)


def test_typical_steps():
    assert typical_step(Sequences([[0.0, 2.0, 4.0, 9.0], [1.0, 3.0]], [torch.zeros(4, 1), torch.zeros(2, 1)])) == 2.0
    assert typical_step(Sequences([[0.0], [1.0]], [torch.zeros(1, 1), torch.zeros(1, 1)])) == 1.0
