# SPDX-License-Identifier: Apache-2.0
"""Latent paths in windows of time: the kernel against loops, the start, and a model of trials."""

import math

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import VGPDS, Sequences
from pyro_vgpds.experiments.count_models import CountModel
from pyro_vgpds.experiments.windows import Window, WindowPaths
from pyro_vgpds.kernels import ARDLinear
from pyro_vgpds.likelihoods import Poisson

PATHS = WindowPaths(num_windows=2, num_each=2, stop=0.3, width=0.1, lengthscale=2.0)


def trials(count=24, neurons=10, bins=12):
    """Counts of neurons with a signal in the first half of a trial and another one in the second half."""
    rng = np.random.default_rng(3)
    t = np.linspace(0.0, 0.33, bins)
    early, late = (np.exp(-0.5 * ((t - c) / 0.1) ** 2) for c in (0.0, 0.3))
    loadings, scores = rng.standard_normal((2, neurons)), rng.standard_normal((count, 2))
    y = [rng.poisson(np.exp(0.8 + np.outer(a * early, loadings[0]) + np.outer(b * late, loadings[1])))
         for a, b in scores]  # fmt: skip
    return Sequences([t] * count, [one.astype(float) for one in y]), scores


def test_window_is_a_product_of_bells():
    t, c, w = [0.0, 0.1, 0.4], [-0.1, 0.3], [0.2, 0.5]
    value = Window(c, w)()
    found, other = value.gram(torch.tensor(t).double()), value.gram(torch.tensor(t).double(), torch.zeros(1).double())
    for q in range(2):
        bell = [math.exp(-((s - c[q]) ** 2) / (2 * w[q] ** 2)) for s in t]
        zero = math.exp(-(c[q] ** 2) / (2 * w[q] ** 2))
        assert found[q].tolist() == [pytest.approx([a * b for b in bell], rel=1e-6) for a in bell]
        assert other[q, :, 0].tolist() == pytest.approx([a * zero for a in bell], rel=1e-6)
    torch.testing.assert_close(value.diag(torch.tensor(t).double()), found.diagonal(dim1=-2, dim2=-1))


def test_start_has_the_components_of_each_window():
    data, scores = trials()
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(
        data, 4, temporal=PATHS.temporal(), mapping=PATHS.mapping(), likelihood=Poisson(), static_dim=0
    )
    before = model.start.x.clone()
    PATHS.start(model, data)
    x = model.start.x.reshape(24, 12, 4)
    assert not torch.equal(before, model.start.x)
    bell = torch.exp(-0.5 * ((data.times.t[:12] - PATHS.centres()[2]) / PATHS.width).square())
    score = x[:, -1, 2:] / bell[-1]
    torch.testing.assert_close(x[:, :, 2:], score.unsqueeze(1) * bell[:, None])  # constant, apart from the window
    torch.testing.assert_close(score.mT @ score / 24, torch.eye(2).double())  # uncorrelated, of size one
    # the signal of the second half is a linear function of the components of the second window
    fitted = np.linalg.lstsq(score.numpy(), scores[:, 1], rcond=None)
    assert fitted[1][0] < 0.25 * (scores[:, 1] ** 2).sum()
    (weight,) = (leaf.weight for leaf in model.mapping.leaves() if isinstance(leaf, ARDLinear))
    assert bool((weight[0::2] >= weight[1::2]).all())  # the larger component first


def test_hidden_neurons_follow_the_others():
    data, _ = trials(30)
    lengths = list(data.lengths)
    y = list(data.y.split(lengths))
    train = Sequences([t.numpy() for t in data.times.t.split(lengths)][:24], [one.numpy() for one in y[:24]])
    hidden = np.arange(10) % 4 == 3
    new = [np.where(hidden, np.nan, one.numpy()) for one in y[24:]]
    test = Sequences([t.numpy() for t in data.times.t.split(lengths)][24:], new)
    model = CountModel(
        Poisson, latent_dim=4, temporal=PATHS.temporal, mapping=PATHS.mapping, static_dim=0, start=PATHS.start,
        num_steps=15,
    )  # fmt: skip
    answer = model.predict(train, test)
    truth = np.concatenate([one.numpy() for one in y[24:]])[:, hidden]
    usual = train.y.numpy().mean(0)[hidden]
    predicted = answer.mean[:, hidden]
    own, base = ((truth * np.log(m) - m).mean() for m in (predicted, np.broadcast_to(usual, truth.shape)))
    assert own > base + 0.05
    assert answer.latent.shape == (6 * 12, 4)
