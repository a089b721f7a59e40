# SPDX-License-Identifier: Apache-2.0
"""Correlations of latent dimensions in frames with missing outputs, against the joint precision of all points."""

import pytest
import torch
from problems import fit_posterior, make_data, make_model

from pyro_vgpds import VGPDS, Posterior, Sequences
from pyro_vgpds.kernels import ARDLinear, Matern32, White
from pyro_vgpds.prediction import correlations
from pyro_vgpds.prediction.correlations import covariances
from pyro_vgpds.temporal.distributions import OpperArchambeau

FRAMES, LATENT, OUTPUTS = 30, 3, 8


def linear_posterior(temporal):
    """A linear mapping of outputs of which most are missing in the middle frames."""
    generator = torch.Generator().manual_seed(0)
    t = torch.arange(float(FRAMES))
    x = torch.stack([torch.sin((0.3 + 0.2 * k) * t) for k in range(LATENT)], -1)
    y = x @ torch.randn(LATENT, OUTPUTS, generator=generator) + 0.1 * torch.randn(FRAMES, OUTPUTS, generator=generator)
    y[8:20, 2:] = torch.nan
    data = Sequences(t, y)
    model = VGPDS.from_data(data, LATENT, temporal=temporal, mapping=ARDLinear())
    return fit_posterior(model, data, 30)


def precisions(posterior):
    """Σ_d β_d J_d J_dᵀ over the observed outputs of each frame (N, Q, Q), by differences of predicted means."""
    inducing, q, found = posterior.inducing, posterior.q, []
    v = inducing.mean().new_empty(inducing.basis.size, inducing.num_outputs)
    for part in inducing.columns():
        v[:, part.outputs] = part.mean
    for k in range(q.mean.shape[1]):
        moved = torch.zeros_like(q.mean)
        moved[:, k] = 1e-5
        up, down = (inducing.whitened(q.mean + sign * moved, q.variance) @ v for sign in (1.0, -1.0))
        found.append((up - down) / 2e-5)
    slopes = torch.stack(found, 1)
    seen = torch.isfinite(posterior.data.read()).double()
    return torch.einsum("nqd,nd,d,nrd->nqr", slopes, seen, 1.0 / posterior.noise_variance, slopes)


def joint_covariances(prior, told):
    """Cov x_n (N, Q, Q) by the inverse of the precision of all points, with K_t of each dimension."""
    n, q = told.shape[:2]
    precision = torch.zeros(n, q, n, q)
    for k in range(q):
        precision[:, k, :, k] = torch.linalg.inv(prior.covariance_matrix[k])
    precision[torch.arange(n), :, torch.arange(n), :] += told
    covariance = torch.linalg.inv(precision.reshape(n * q, n * q)).reshape(n, q, n, q)
    return covariance[torch.arange(n), :, torch.arange(n), :]


def exact_and_found(posterior):
    told, prior = precisions(posterior).detach(), posterior.q.prior
    lam = told.diagonal(dim1=-2, dim2=-1).clone()
    q, rows = OpperArchambeau(prior, torch.zeros_like(lam), lam), torch.arange(FRAMES)
    partial = ~torch.isfinite(posterior.data.read()).all(1)
    with torch.no_grad():
        parts = list(covariances(q, posterior.inducing, rows))
    frames, found = (torch.cat(part) for part in zip(*parts, strict=True))
    assert frames.tolist() == list(range(8, 20))
    told[~partial] = torch.diag_embed(lam[~partial])  # complete frames stay as they are
    return joint_covariances(prior, told)[frames], found, q.variance[frames]


@pytest.mark.parametrize("temporal", [White(1.0).fix(), Matern32(1.0, 4.0) + White(0.01)])
def test_covariances_are_those_of_the_joint_precision(temporal):
    exact, found, variance = exact_and_found(linear_posterior(temporal))
    # S is factorised with a jitter of 1.5e-8 of its scale
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)
    assert (exact.diagonal(dim1=-2, dim2=-1) / variance).max() > 2.0  # independent dimensions are too certain


def test_windows_of_frames_are_nearly_exact(monkeypatch):
    monkeypatch.setattr(correlations, "_SIZE", 24)  # windows of eight frames
    exact, found, variance = exact_and_found(linear_posterior(Matern32(1.0, 4.0) + White(0.01)))
    wanted = exact.diagonal(dim1=-2, dim2=-1).log()
    before, after = ((part.log() - wanted).abs().mean() for part in (variance, found.diagonal(dim1=-2, dim2=-1)))
    assert 1e-3 < after < 0.5 * before


def test_slopes_are_derivatives_of_the_means():
    data = make_data(missing=0.2)
    posterior = Posterior(*make_model(data), data)
    q, inducing = posterior.q, posterior.inducing
    slopes, step = inducing.slopes(q.mean, q.variance), 1e-5
    for k in range(q.mean.shape[1]):
        moved = torch.zeros_like(q.mean)
        moved[:, k] = step
        wanted = (inducing.whitened(q.mean + moved, q.variance) - inducing.whitened(q.mean - moved, q.variance)) / (
            2.0 * step
        )
        torch.testing.assert_close(slopes[:, k], wanted.detach(), rtol=1e-6, atol=1e-8)


def test_variances_have_the_linearised_effect_of_the_excess():
    data = make_data(missing=0.2)
    posterior = Posterior(*make_model(data), data, residual=None)
    found, q, inducing = posterior.correlations, posterior.q, posterior.inducing
    frames, covariance = found.excess
    assert torch.linalg.eigvalsh(covariance).min() > -1e-12
    independent = torch.empty(data.y.shape)
    for rows, statistics in inducing.frames(q.mean, q.variance):
        for index, _, _, variance in inducing.moments(statistics):
            independent[rows, index] = variance
    v = torch.empty(inducing.basis.size, inducing.num_outputs)
    for part in inducing.columns():
        v[:, part.outputs] = part.mean
    slopes = inducing.slopes(q.mean, q.variance)[frames] @ v
    wanted = independent.clone()
    wanted[frames] += torch.einsum("pqd,pqr,prd->pd", slopes, covariance, slopes)
    plain = posterior.impute(fill=False, include_noise=False)
    torch.testing.assert_close(plain.variance, wanted)
    torch.testing.assert_close(plain.covariance.diagonal(dim1=-2, dim2=-1), wanted)
    torch.testing.assert_close(plain.latent.variance, q.variance + found.variance)


def test_draws_have_the_moments_of_the_prediction():
    data = make_data(missing=0.3)
    found = Posterior(*make_model(data), data).impute(fill=False)
    torch.manual_seed(0)
    draws = found.sample(20_000)
    assert ((draws.mean(0) - found.mean).abs() < 5.0 / 20_000**0.5 * found.stddev).all()
    torch.testing.assert_close(draws.var(0), found.variance, rtol=0.1, atol=0.0)


def test_weak_correlations_do_not_count(monkeypatch):
    data = make_data(missing=0.2)
    posterior, other = (Posterior(*make_model(data), data) for _ in range(2))
    monkeypatch.setattr(correlations, "_SMALL", 1e9)
    assert posterior.correlations is None
    monkeypatch.setattr(correlations, "_SMALL", 0.0)
    assert other.correlations.excess.frames.tolist() == (~torch.isfinite(data.y).all(1)).nonzero().flatten().tolist()


def test_without_missing_outputs_nothing_changes():
    data = make_data()
    posterior = Posterior(*make_model(data), data)
    assert posterior.correlations is None
    assert posterior.impute().latent.variance.equal(posterior.q.variance)


@pytest.mark.parametrize("outputs", [3, 30])
def test_outputs_of_a_group_count_together(outputs, monkeypatch):
    """More outputs in a group than inducing inputs enter by a factor of the sum of their products."""
    monkeypatch.setattr(correlations, "_SMALL", 0.0)
    data = make_data(outputs=outputs)
    y = data.read().clone()
    y[2:5, : outputs // 2] = torch.nan
    data = Sequences(list(data.times.t.split(data.lengths)), list(y.split(data.lengths)))
    posterior = Posterior(*make_model(data), data)
    q, rows = posterior.q, torch.arange(data.num_frames)
    partial = ~torch.isfinite(y).all(1)
    with torch.no_grad():
        ((frames, found),) = covariances(q, posterior.inducing, rows)
    told = precisions(posterior).detach()
    ratio = (q.lam / told.diagonal(dim1=-2, dim2=-1)).sqrt()
    told = ratio.unsqueeze(-1) * told * ratio.unsqueeze(-2)
    told[~partial] = torch.diag_embed(q.lam[~partial])
    torch.testing.assert_close(found, joint_covariances(q.prior, told)[frames].detach(), rtol=1e-4, atol=1e-7)


def test_roots_of_many_groups_may_be_added_in_batches(monkeypatch):
    data = make_data(missing=0.2)
    one, other = (Posterior(*make_model(data), data) for _ in range(2))
    whole = one.correlations.excess.covariance
    monkeypatch.setattr(correlations, "_batches", lambda roots, columns: ([each] for each in roots))
    torch.testing.assert_close(other.correlations.excess.covariance, whole, rtol=1e-10, atol=1e-12)
    roots = [(torch.ones(4), torch.ones(2, count)) for count in (1, 2, 3, 1)]
    monkeypatch.undo()
    sizes = [[root.shape[1] for _, root in batch] for batch in correlations._batches(roots, 3)]
    assert sizes == [[1, 2], [3], [1]]


def test_reconstruction_of_hidden_columns_is_less_certain():
    """The frames of a new sequence are those of an imputation if the sequence is trained with the same gaps."""
    data = make_data()
    posterior = Posterior(*make_model(data), data)
    y = data.read()[:7].clone()
    whole = posterior.reconstruct(data.times.t[:7], y)
    y[:, 2:] = torch.nan
    part = posterior.reconstruct(data.times.t[:7], y)
    torch.testing.assert_close(whole.latent.variance, whole.path.variance)
    assert (part.latent.variance >= part.path.variance - 1e-12).all()
    assert (part.latent.variance > 1.01 * part.path.variance).any()
    assert (part.latent.variance.sum() > whole.latent.variance.sum()).all()
