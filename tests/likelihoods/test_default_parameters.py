# SPDX-License-Identifier: Apache-2.0
"""Parameters of likelihoods that are not given: chosen from the data, and fixed if they were fixed."""

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, fit
from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.likelihoods import NegativeBinomial, Poisson, StudentT
from pyro_vgpds.likelihoods.factors import spread


def signals(frames=60, width=4, seed=0):
    rng = np.random.default_rng(seed)
    t = np.linspace(0.0, 6.0, frames)
    y = np.sin(t[:, None] + np.arange(width)) + 0.05 * rng.standard_normal((frames, width))
    return Sequences(t, y)


def trained(data, likelihood, num_steps, **options):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, 2, 10, likelihood=likelihood, **options)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=num_steps, learning_rate=0.3, progress=False)
    return model, guide


def test_fixed_parameters_that_were_not_given_stay_fixed():
    rng = np.random.default_rng(0)
    data = Sequences(np.arange(20.0), rng.poisson(3.0, (20, 3)).astype(float))
    likelihood = NegativeBinomial().fix("dispersion")
    model = VGPDS.from_data(data, 2, 5, likelihood=likelihood)
    assert likelihood.is_fixed("dispersion")
    assert likelihood.dispersion.tolist() == pytest.approx([5.0] * 3)
    assert not [name for name, _ in model.named_parameters() if "dispersion" in name]


def test_a_fixed_scale_is_chosen_from_the_data():
    data = signals()
    likelihood = StudentT().fix("scale")
    VGPDS.from_data(data, 2, 10, likelihood=likelihood)
    assert likelihood.is_fixed("scale")
    torch.testing.assert_close(likelihood.scale, 0.1 * spread(data.y))


@pytest.mark.parametrize("likelihood", [StudentT, Poisson, NegativeBinomial])
def test_a_mapping_without_an_offset(likelihood):
    rng = np.random.default_rng(0)
    data = Sequences(np.arange(30.0), rng.poisson(3.0, (30, 4)).astype(float))
    model, guide = trained(data, likelihood(), 3, mapping=ARDRBF())
    post = Posterior(model, guide, data)
    assert bool(torch.isfinite(post.impute(fill=False).mean).all())
    new = post.reconstruct(np.arange(5.0), data.y[:5].numpy())
    assert bool(torch.isfinite(new.mean).all())
