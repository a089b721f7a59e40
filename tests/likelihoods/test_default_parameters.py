# SPDX-License-Identifier: Apache-2.0
"""Parameters of likelihoods that are not given: chosen from the data, with limits, and fixed if they were fixed."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, fit, load, save
from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.likelihoods import ByColumn, NegativeBinomial, Poisson, StudentT
from pyro_vgpds.likelihoods.factors import spread


def signals(outliers=0.0, frames=60, width=4, seed=0):
    rng = np.random.default_rng(seed)
    t = np.linspace(0.0, 6.0, frames)
    y = np.sin(t[:, None] + np.arange(width)) + 0.05 * rng.standard_normal((frames, width))
    y[:, 0] += np.where(rng.random(frames) < outliers, 30.0 * rng.standard_normal(frames), 0.0)
    return Sequences(t, y)


def trained(data, likelihood, num_steps, **options):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, 2, 10, likelihood=likelihood, **options)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=num_steps, learning_rate=0.3, progress=False)
    return model, guide


def test_degrees_of_freedom_of_each_output_stay_above_the_limit():
    data = signals(outliers=0.3)
    model, _ = trained(data, StudentT(), 25)
    df = model.output_likelihood.df.detach()
    assert df.shape == (4,)
    assert 4.0 < float(df[0]) < 4.5  # the output with outliers, at the limit
    assert bool((df[1:] > 5.0).all())  # the others do not have its tails
    free = StudentT(df=10.0)  # a number that is given has no limit, and is one for all outputs
    trained(data, free, 25)
    assert free.df.dim() == 0
    assert float(free.df.detach()) < 4.0


def test_limit_is_kept_in_files(tmp_path):
    data = signals()
    model, guide = trained(data, "student-t", 2)
    path = tmp_path / "model.safetensors"
    save(path, model, guide, data)
    loaded = load(path)[0].output_likelihood
    assert loaded.constraint("df").lower_bound == 4.0
    assert torch.equal(loaded.df, model.output_likelihood.df)


@pytest.mark.parametrize(
    ("likelihood", "name", "value"),
    [(StudentT().fix("df"), "df", 10.0), (NegativeBinomial().fix("dispersion"), "dispersion", 5.0)],
)
def test_fixed_parameters_that_were_not_given_stay_fixed(likelihood, name, value):
    rng = np.random.default_rng(0)
    data = Sequences(np.arange(20.0), rng.poisson(3.0, (20, 3)).astype(float))
    model = VGPDS.from_data(data, 2, 5, likelihood=likelihood)
    assert likelihood.is_fixed(name)
    assert getattr(likelihood, name).tolist() == pytest.approx([value] * 3)
    assert name not in {key.split(".")[-1].removesuffix("_unconstrained") for key, _ in model.named_parameters()}


def test_a_fixed_scale_is_chosen_from_the_data():
    data = signals()
    likelihood = StudentT().fix("scale")
    VGPDS.from_data(data, 2, 10, likelihood=likelihood)
    assert likelihood.is_fixed("scale")
    torch.testing.assert_close(likelihood.scale, 0.1 * spread(data.y))


def test_degrees_of_freedom_of_some_columns():
    rng = np.random.default_rng(0)
    y = np.stack([rng.standard_normal(20), rng.poisson(3.0, 20), rng.standard_normal(20)], 1)
    heavy = StudentT()
    likelihood = ByColumn([(heavy, [0, 2]), (Poisson(), [1])])
    VGPDS.from_data(Sequences(np.arange(20.0), y), 2, 5, likelihood=likelihood)
    assert heavy.df.shape == (2,)


@pytest.mark.parametrize("likelihood", [StudentT, Poisson, NegativeBinomial])
def test_a_mapping_without_an_offset(likelihood):
    rng = np.random.default_rng(0)
    data = Sequences(np.arange(30.0), rng.poisson(3.0, (30, 4)).astype(float))
    model, guide = trained(data, likelihood(), 3, mapping=ARDRBF())
    post = Posterior(model, guide, data)
    assert bool(torch.isfinite(post.impute(fill=False).mean).all())
    new = post.reconstruct(np.arange(5.0), data.y[:5].numpy())
    assert bool(torch.isfinite(new.mean).all())
