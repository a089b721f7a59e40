# SPDX-License-Identifier: Apache-2.0
"""Functions are less certain in gaps of partly observed frames."""

import copy
import math

import numpy as np
import pytest
import torch
from problems import fit_posterior, make_data, make_model, make_problem

from pyro_vgpds import VGPDS, Posterior, Sequences, load_posterior, save_posterior
from pyro_vgpds.evaluation import hold_out
from pyro_vgpds.kernels import Matern32, White
from pyro_vgpds.likelihoods import Poisson
from pyro_vgpds.prediction.descriptions import build_posterior, describe_posterior
from pyro_vgpds.prediction.fitted import predict_with
from pyro_vgpds.prediction.widening import gap_factors, gap_lengths


@pytest.fixture(scope="module")
def split():
    """Outputs with a shared path and smooth parts of their own, of which blocks are hidden."""
    rng, t = np.random.default_rng(1), np.arange(70.0)
    root = np.linalg.cholesky(np.exp(-0.5 * ((t[:, None] - t) / 3.0) ** 2) + 1e-6 * np.eye(70))
    y = np.sin(t[:, None] / 7.0 + np.arange(20)) + 0.7 * root @ rng.standard_normal((70, 20))
    return hold_out(Sequences(t, y), "impute", share=0.2, pattern="blocks")


@pytest.fixture(scope="module")
def chosen(split):
    """The default posterior of a trained model."""
    torch.manual_seed(0)
    plain = fit_posterior(VGPDS.from_data(split.train, latent_dim=6), split.train, 40)
    assert plain.origin.widening is False
    return Posterior(plain.origin.model, plain.origin.guide, plain.data)


def naive_factors(missing, observed, sequences):
    """Each entry by counting its neighbours."""
    found = np.ones(missing.shape)
    for i, d in np.argwhere(missing & observed[:, None]):
        rows = next(rows for rows in sequences if rows.start <= i < rows.stop)
        first = last = i
        while first > rows.start and missing[first - 1, d]:
            first -= 1
        while last < rows.stop - 1 and missing[last + 1, d]:
            last += 1
        found[i, d] = math.sqrt(min(last - first + 1, 10))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_factors_are_those_of_a_loop(seed):
    rng = np.random.default_rng(seed)
    missing = rng.random((60, 4)) < (0.3, 0.5, 0.8, 1.0, 0.0)[seed]
    missing[20:23] = True
    missing[30:45, 1] = True
    observed, sequences = ~missing.all(1), [slice(0, 25), slice(25, 26), slice(26, 60)]
    found = gap_factors(torch.as_tensor(missing), torch.as_tensor(observed), sequences)
    np.testing.assert_allclose(found, naive_factors(missing, observed, sequences))


def test_lengths_of_gaps():
    missing = torch.tensor([[1, 0], [0, 0], [1, 0], [1, 0], [0, 0], [1, 0]], dtype=torch.bool)
    assert gap_lengths(missing).T.tolist() == [[1, 0, 2, 2, 0, 1], [0] * 6]


def test_intervals_of_blocks_are_wider(chosen, split):
    def inside(posterior):
        found = split.predict(posterior)
        return float(((found.truth - found.mean).abs() < 1.96 * found.variance.sqrt()).double().mean())

    assert chosen.origin.widening is True
    assert inside(predict_with(chosen, widening=False)) + 0.1 < inside(chosen) < 0.95


def test_only_the_function_in_gaps_of_partly_observed_frames_is_wider(chosen, split):
    narrow, y = predict_with(chosen, widening=False), split.train.read()
    missing, observed = y.isnan().numpy(), y.isfinite().any(1).numpy()
    factors = torch.as_tensor(naive_factors(missing, observed, [slice(0, 70)]))
    for fill in (False, True):
        wide, own = (p.impute(fill=fill, include_noise=False) for p in (chosen, narrow))
        torch.testing.assert_close(wide.variance, factors * own.variance)
        noisy = [p.impute(fill=fill) for p in (chosen, narrow)]
        torch.testing.assert_close(noisy[0].mean, noisy[1].mean)
        torch.testing.assert_close(noisy[0].variance - wide.variance, noisy[1].variance - own.variance)
        torch.testing.assert_close(noisy[0].covariance.diagonal(dim1=-2, dim2=-1), noisy[0].variance)
        torch.testing.assert_close(noisy[0].with_noise(False).variance, wide.variance)
    ahead = [p.forecast([71.0], 0).variance for p in (chosen, narrow)]
    torch.testing.assert_close(*ahead)


@pytest.mark.parametrize("residual", [None, Matern32(1.0, 2.0) + White(0.1)])
def test_draws_have_the_widened_moments(chosen, residual):
    posterior = predict_with(chosen, residual=residual)
    for noise in (True, False):
        found = posterior.impute(include_noise=noise)
        torch.manual_seed(0)
        draws = found.sample(3000)
        hidden = found.variance > 0.0
        torch.testing.assert_close(draws[:, ~hidden], found.mean[~hidden].expand(3000, -1))
        z = (draws.mean(0) - found.mean)[hidden] / found.stddev[hidden]
        assert float(z.abs().mean()) < 0.03
        assert abs(float((draws.var(0) / found.variance)[hidden].median()) - 1.0) < 0.03


def test_blocks_of_frames_and_outputs_have_their_factors(chosen, monkeypatch):
    whole = chosen.impute().variance
    monkeypatch.setattr("pyro_vgpds.mapping.inducing._FRAMES", 7 * chosen.inducing.basis.size**2)
    monkeypatch.setattr("pyro_vgpds.mapping.inducing._BLOCK", 1)
    torch.testing.assert_close(chosen.impute().variance, whole)


def test_files_and_other_data_keep_it(chosen, tmp_path):
    narrow = predict_with(chosen, widening=False)
    for one in (chosen, narrow):
        save_posterior(tmp_path / "a", one)
        again = load_posterior(tmp_path / "a")
        assert again.origin.widening is one.origin.widening
        torch.testing.assert_close(again.impute().variance, one.impute().variance)
        assert one.condition(one.data).origin.widening is one.origin.widening
        assert copy.deepcopy(one).origin.widening is one.origin.widening


def test_files_without_it_have_the_variances_of_the_model(chosen):
    header, tensors = describe_posterior(chosen)
    del header["prediction"]["widening"]
    again = build_posterior(header, tensors, chosen.data)
    assert again.origin.widening is False
    torch.testing.assert_close(again.impute().variance, predict_with(chosen, widening=False).impute().variance)


def test_complete_data_have_the_same_predictions():
    data = make_data()
    model, guide = make_model(data)
    plain, wide = (Posterior(model, guide, data, widening=flag) for flag in (False, True))
    for fill in (False, True):
        one, other = (p.impute(fill=fill) for p in (plain, wide))
        torch.testing.assert_close(one.variance, other.variance, rtol=0.0, atol=0.0)
        draws = []
        for found in (one, other):
            torch.manual_seed(0)
            draws.append(found.sample(3))
        torch.testing.assert_close(*draws, rtol=0.0, atol=0.0)


def test_defaults_and_errors():
    model, guide, data = make_problem(missing=0.2)
    assert Posterior(model, guide, data).origin.widening is True
    assert Posterior(model, guide, data, widening=False).origin.widening is False
    for residual in (None, Matern32() + White()):
        assert Posterior(model, guide, data, residual=residual).origin.widening is False
        assert Posterior(model, guide, data, residual=residual, widening=True).origin.widening is True
    with pytest.raises(TypeError, match="widening must be True or False, but got 'wide'"):
        Posterior(model, guide, data, widening="wide")


def test_outputs_that_are_not_gaussian():
    y = torch.arange(40.0).reshape(20, 2) % 7
    y[3:6, 0] = torch.nan
    counts = Sequences(torch.arange(20.0), y)
    model = VGPDS.from_data(counts, latent_dim=2, num_inducing=8, likelihood=Poisson())
    white = fit_posterior(model, counts, 1)
    guide = white.origin.guide
    posterior = Posterior(model, guide, counts)
    assert posterior.origin.widening is False
    torch.testing.assert_close(posterior.impute().variance, white.impute().variance)
    with pytest.raises(ValueError, match="widening needs Gaussian outputs"):
        Posterior(model, guide, counts, widening=True)


def test_lagged_data_have_gaps_of_their_own_outputs(split):
    y = split.train.read().clone()
    y[30:33] = torch.nan  # lost frames, of which the first has lagged copies
    data = Sequences(split.train.times.t, y).lagged([-1])
    posterior = fit_posterior(VGPDS.from_data(data, latent_dim=3), data, 5)
    wide = predict_with(posterior, widening=True)
    own = [p.impute(fill=False, include_noise=False).variance for p in (wide, posterior)]
    missing = y.isnan()
    torch.testing.assert_close(own[0][30:33], own[1][30:33])
    assert bool((own[0][missing] >= own[1][missing]).all())
    torch.testing.assert_close(own[0][~missing], own[1][~missing])
    assert float((own[0] / own[1]).max()) == pytest.approx(math.sqrt(10.0))
