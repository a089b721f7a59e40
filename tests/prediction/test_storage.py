# SPDX-License-Identifier: Apache-2.0
"""Posteriors from files predict what they predicted before, bit for bit."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from problems import GOLDEN, make_data, make_model

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    FileFormatError,
    Posterior,
    PosteriorMixture,
    Solver,
    fit,
    load,
    load_metadata,
    load_posterior,
    save,
    save_posterior,
)
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.kernels import Bias, Kernel, Matern32, White

T_NEW = torch.tensor([1.3, 2.1, 3.2])
NOISE = [0.05, 0.2, 0.1, 0.02, 0.4]


def make_posterior(lags=(), settings=None, temporal=None, seed=0, **options):
    data = make_data(missing=0.2)
    data = data.lagged(lags) if lags else data
    torch.manual_seed(seed)
    model = VGPDS.from_data(data, 2, 6, temporal, **options)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=4, progress=False)
    return Posterior(model, guide, data, **(settings or {}))


def assert_same(a, b):
    seen = make_data(missing=0.2).y[:3]
    for sequence in (0, None):
        torch.manual_seed(0)
        one = [a.forecast(T_NEW, sequence), a.impute(), a.reconstruct(T_NEW, seen, solver=Solver(2, 5))]
        torch.manual_seed(0)
        other = [b.forecast(T_NEW, sequence), b.impute(), b.reconstruct(T_NEW, seen, solver=Solver(2, 5))]
        for x, y in zip(one, other, strict=True):
            assert torch.equal(x.mean, y.mean)
            assert torch.equal(x.variance, y.variance)
            assert x.columns == y.columns
        torch.manual_seed(0)
        draws = a.generate(T_NEW, 3, sequence)
        torch.manual_seed(0)
        assert torch.equal(b.generate(T_NEW, 3, sequence), draws)


CASES = {
    "plain": {},
    "noise": {"settings": {"noise_variance": 0.3}},
    "noise each": {"settings": {"noise_variance": NOISE}, "noise_per_output": True},
    "scale": {"settings": {"output_scale": [1.0, 2.0, 0.5, 3.0, 0.1]}, "scale_outputs": True},
    "residual": {"settings": {"residual": Matern32(2.0, 0.5).fix("variance") + White(0.4), "noise_variance": NOISE}},
    "lags": {"lags": (-1, 2), "settings": {"noise_variance": NOISE, "residual": Bias() + White()}},
    "priors": {"temporal": Matern32(0.9, dist.LogNormal(0.0, 1.0)) + White(0.1)},
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_round_trip(tmp_path, case):
    posterior = make_posterior(**CASES[case])
    path = tmp_path / "posterior.safetensors"
    save_posterior(path, posterior, metadata={"unit": "cm"})
    again = load_posterior(path)
    assert isinstance(again, Posterior)
    assert again.bound == posterior.bound
    assert torch.equal(again.noise_variance, posterior.noise_variance)
    assert again.data.lags == posterior.data.lags
    assert_same(posterior, again)
    assert load_metadata(path) == {"unit": "cm"}
    model, guide, data = load(path)  # the model alone
    assert data.lengths == posterior.data.lengths
    assert torch.equal(guide.lam, posterior.q.lam)
    assert Posterior(model, guide, data).bound == Posterior(*posterior.origin[:2], posterior.data).bound
    small = load_posterior(path, dtype=torch.float32)
    assert small.forecast(T_NEW, 0).mean.dtype == torch.float32


@pytest.mark.long
def test_mixtures_round_trip_and_share_their_data(tmp_path):
    parts = [make_posterior(), make_posterior(seed=1, settings={"noise_variance": NOISE})]
    parts.append(make_posterior(lags=(-1, 2), seed=2))
    mixture = PosteriorMixture(parts, [0.2, 0.5, 0.3])
    path = tmp_path / "mixture.safetensors"
    save_posterior(path, mixture, metadata={"names": ["a"]})
    again = load_posterior(path)
    assert isinstance(again, PosteriorMixture)
    assert torch.equal(again.weights, mixture.weights)
    assert again.posteriors[1].data is again.posteriors[0].data
    assert again.posteriors[2].data.lags == (-1, 2)
    assert sum(name.endswith("data.y") for name in read_file(path, "mixture")[1]) == 2
    assert_same(mixture, again)
    assert load_metadata(path) == {"names": ["a"]}
    with pytest.raises(FileFormatError, match=r"holds a mixture of several models\. Use load_posterior"):
        load(path)


def test_it_is_the_posterior_of_the_moment_it_was_made(tmp_path):
    posterior = make_posterior()
    model, guide = posterior.origin[:2]
    fit(model, guide, posterior.data, num_steps=2, progress=False)
    save_posterior(tmp_path / "a", posterior)
    assert load_posterior(tmp_path / "a").bound == posterior.bound
    model.temporal.fix()
    with pytest.raises(ValueError, match="the model was changed after the posterior was made"):
        save_posterior(tmp_path / "a", posterior)


def test_files_of_models_are_posteriors(tmp_path):
    data = make_data()
    model, guide = make_model(data)
    save(tmp_path / "a", model, guide, data)
    assert load_posterior(tmp_path / "a").bound == Posterior(model, guide, data).bound
    answers = np.load(GOLDEN / "old_answers.npz")
    prediction = load_posterior(GOLDEN / "old_scaled.safetensors").forecast([2.0, 2.5], sequence=1)
    np.testing.assert_allclose(prediction.mean.numpy(), answers["scaled_mean"], rtol=1e-9)


class Odd(Kernel):
    """A kernel that the library does not have."""


def test_what_cannot_be_saved_or_read(tmp_path):
    path = tmp_path / "a"
    posterior = make_posterior(settings={"residual": Bias() + White()})
    with pytest.raises(TypeError, match="posterior must be a Posterior or PosteriorMixture, but got int"):
        save_posterior(path, 3)
    save_posterior(path, posterior)
    header, tensors = read_file(path, "model")
    for kind in ("__import__", "Odd"):
        changed = header | {"prediction": {"residual": {"kind": kind, "parameters": {}}}}
        write_file(path, "model", changed, tensors)
        with pytest.raises(FileFormatError, match="does not describe a posterior"):
            load_posterior(path)
    write_file(path, "mixture", {"members": [{}]}, tensors)
    with pytest.raises(FileFormatError, match="does not describe a posterior"):
        load_posterior(path)
    write_file(path, "checkpoint", {}, tensors)
    with pytest.raises(FileFormatError, match="holds a checkpoint, but a model is expected"):
        load_posterior(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match="not a complete pyro_vgpds file"):
        load_posterior(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_posterior(tmp_path / "nowhere")
