# SPDX-License-Identifier: Apache-2.0
"""Where q(X) of many sequences starts, after a model was trained on a sample of them."""

import numpy as np
import torch
from problems import make_model

from pyro_vgpds import Sequences
from pyro_vgpds.inference.site_store import linear_encoder, regression_encoder


def make_sample(bend, lengths=(60, 50, 55, 65), seed=3):
    """Latent points in two dimensions, of which outputs are linear functions of x + bend x³, and little noise."""
    rng = np.random.default_rng(seed)
    x = [rng.uniform(-1.5, 1.5, (n, 2)) for n in lengths]
    loadings = np.random.default_rng(0).standard_normal((2, 4))
    y = [(part + bend * part**3) @ loadings + 1e-3 * rng.standard_normal((len(part), 4)) for part in x]
    data = Sequences([np.arange(len(part)) / 10.0 for part in x], y)
    return data, torch.from_numpy(np.concatenate(x))


def errors(encoder, bend):
    """Squared errors of latent points that the encoder has not seen, (Q,), and the precision of its sites."""
    data, x = make_sample(bend, (40, 30), seed=8)
    eta, lam = (part.detach() for part in encoder(data))
    return (eta / lam - x).square().mean(0), lam


def test_points_that_are_linear_in_the_outputs():
    data, x = make_sample(0.0)
    model, _ = make_model(data)
    off, lam = errors(regression_encoder(model, data, x), 0.0)
    assert bool((off < 1e-3).all())
    assert torch.equal(lam, lam[:1].expand_as(lam))
    assert bool((lam[0] > 1e3).all())


def test_points_that_are_not_linear_are_regressed_on_functions_of_the_outputs():
    data, x = make_sample(2.0)
    model, _ = make_model(data)
    encoder = regression_encoder(model, data, x)
    (off, lam), (linear, fixed) = errors(encoder, 2.0), errors(linear_encoder(model, data, x), 2.0)
    assert float(off.sum()) < 0.2 * float(linear.sum())
    assert torch.allclose(fixed, torch.full_like(fixed, 10.0))
    assert bool(((lam[0] * off).log().abs() < np.log(4.0)).all())  # the precision is that of the predictions
    state = torch.get_rng_state()
    again = regression_encoder(model, data, x)
    assert torch.equal(errors(again, 2.0)[0], off)
    assert torch.equal(torch.get_rng_state(), state)


def test_one_sequence_and_very_few_frames():
    for lengths in ((80,), (20, 10)):
        data, x = make_sample(0.0, lengths)
        model, _ = make_model(data)
        eta, lam = (part.detach() for part in regression_encoder(model, data, x)(data))
        assert bool(((eta / lam - x).square().mean(0) < 0.02).all())
