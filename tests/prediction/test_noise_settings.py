# SPDX-License-Identifier: Apache-2.0
"""NoiseSettings of predictions: what they mean, and that the chosen ones are no worse than those of training."""

import math

import numpy as np
import pytest
import torch
from problems import fit_posterior, make_data, make_model

from pyro_vgpds import VGPDS, Posterior, Sequences
from pyro_vgpds.evaluation import hold_out
from pyro_vgpds.evaluation.scores import relative_error
from pyro_vgpds.kernels import RBF
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.prediction import noise_settings
from pyro_vgpds.prediction.noise_settings import TRAINED, NoiseSettings, apply_settings, choose_settings


def make_posterior(data, **options):
    model, guide = make_model(data, **options)
    return Posterior(model, guide, data, residual=None)


def test_kernels_of_residuals():
    t = torch.tensor([0.0, 0.5, 3.0])
    lag = (t[:, None] - t).abs()
    eye = torch.eye(3)
    assert TRAINED.kernel() is None
    drift = NoiseSettings(residual=(0.6, 2.0)).kernel()().gram(t)[0]
    torch.testing.assert_close(drift, 0.6 * torch.exp(-lag / 2.0) + 0.4 * eye)
    smooth = NoiseSettings(residual=(0.6, 2.0), smooth=True).kernel()().gram(t)[0]
    d = math.sqrt(3.0) * lag / 2.0
    torch.testing.assert_close(smooth, 0.6 * (1.0 + d) * torch.exp(-d) + 0.4 * eye)
    offset = NoiseSettings(residual=(0.5, math.inf)).kernel()().gram(t)[0]
    torch.testing.assert_close(offset, torch.full((3, 3), 0.5) + 0.5 * eye)


def test_settings_are_those_of_a_posterior_made_by_hand():
    posterior = make_posterior(make_data((14, 9), missing=0.1))
    assert apply_settings(posterior, TRAINED) is posterior
    found = apply_settings(posterior, NoiseSettings(noise=2.0, residual=(0.5, 0.8)))
    noise = 2.0 * (posterior.noise_variance + posterior.residual_variance())
    by_hand = Posterior(
        posterior.origin.model,
        posterior.origin.guide,
        posterior.data,
        noise_variance=noise,
        residual=NoiseSettings(residual=(0.5, 0.8)).kernel(),
    )
    torch.testing.assert_close(found.noise_variance, noise)
    for a, b in ((found.impute(), by_hand.impute()), (found.forecast([3.1], 0), by_hand.forecast([3.1], 0))):
        torch.testing.assert_close(a.mean, b.mean)
        torch.testing.assert_close(a.variance, b.variance)


@pytest.mark.parametrize("task", ["impute", "reconstruct", "forecast"])
def test_the_choice_is_no_worse_than_the_settings_of_training(task):
    data = make_data((30, 25), missing=0.1)
    split = hold_out(data, task, horizon=4)
    posterior = make_posterior(split.train)
    chosen, found = choose_settings(posterior, split)
    scale = split.train.output_scales
    assert relative_error(found, scale) <= relative_error(split.predict(posterior), scale)
    again = split.predict(apply_settings(posterior, chosen))
    torch.testing.assert_close(found.mean, again.mean)
    torch.testing.assert_close(found.variance, again.variance)


def test_drifting_residuals_are_used():
    """Outputs with a slow drift each, which a path of two dimensions cannot explain."""
    rng = np.random.default_rng(0)
    t = 0.1 * np.arange(80)
    drift = np.cumsum(rng.standard_normal((80, 8)), 0) * 0.15
    y = np.sin(t[:, None] + np.arange(8)) + drift
    data = Sequences(t, y)
    split = hold_out(data, "impute", share=0.1)
    posterior = make_posterior(split.train, temporal=RBF(1.0, 2.0), noise=0.3)
    chosen, found = choose_settings(posterior, split)
    assert chosen.residual is not None
    scale = split.train.output_scales
    assert relative_error(found, scale) < 0.8 * relative_error(split.predict(posterior), scale)


def test_smooth_parts_of_each_output_are_used():
    """Outputs with a shared path and a smooth part of their own; many latent dimensions have fitted most of both."""
    rng = np.random.default_rng(1)
    t = np.arange(70.0)
    root = np.linalg.cholesky(RBF(1.0, 3.0)().gram(torch.as_tensor(t))[0].detach().numpy() + 1e-6 * np.eye(70))
    y = np.sin(t[:, None] / 7.0 + np.arange(30)) + 0.7 * root @ rng.standard_normal((70, 30))
    split = hold_out(Sequences(t, y), "impute", share=0.1)
    torch.manual_seed(0)
    model = VGPDS.from_data(split.train)
    posterior = fit_posterior(model, split.train, 30)
    chosen, found = choose_settings(posterior, split)
    assert chosen.smooth
    scale = split.train.output_scales
    assert relative_error(found, scale) < 0.9 * relative_error(split.predict(posterior), scale)


def test_settings_that_fail_are_not_chosen(monkeypatch):
    data = make_data((30, 25))
    split = hold_out(data, "reconstruct")
    posterior = make_posterior(split.train)
    original = noise_settings.apply_settings

    def fail(some, which):
        if which != TRAINED:
            raise NumericalError("not positive definite")
        return original(some, which)

    monkeypatch.setattr(noise_settings, "apply_settings", fail)
    assert choose_settings(posterior, split)[0] == TRAINED

    def always(some, which):
        raise NumericalError("not positive definite")

    monkeypatch.setattr(noise_settings, "apply_settings", always)
    with pytest.raises(NumericalError, match="not positive definite"):
        choose_settings(posterior, split)
