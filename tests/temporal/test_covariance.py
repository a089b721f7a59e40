# SPDX-License-Identifier: Apache-2.0
"""Every form of K_t implements the abstract class, and gives what the explicit matrices give."""

import inspect

import pytest
import torch
from markov_problems import make_times

from pyro_vgpds import OpperArchambeau, TemporalGP
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.temporal import dense
from pyro_vgpds.temporal.covariance import TemporalCovariance
from pyro_vgpds.temporal.dense import DenseCovariance
from pyro_vgpds.temporal.diagonal import DiagonalCovariance
from pyro_vgpds.temporal.markov import MarkovCovariance

FORMS = {"dense": DenseCovariance, "diagonal": DiagonalCovariance, "markov": MarkovCovariance}
LENGTHS = (6, 1, 5)
N, Q = sum(LENGTHS), 2
ROWS = torch.tensor([7, 2, 11, 3])


def make_kernel(name):
    own = torch.tensor([0.5, 1.5])
    return White(own) if name == "diagonal" else Matern32(own, 0.7) + White(0.1) + Bias(0.2)


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param](make_kernel(request.param)(), make_times(LENGTHS), 0.0)


@pytest.fixture
def k(form):
    """K_t (Q, N, N), from the kernel."""
    blocks = [form.kernel.gram(form.times.t[rows]) for rows in form.times.slices()]
    return torch.stack([torch.block_diag(*[block[q] for block in blocks]) for q in range(Q)])


@pytest.fixture
def sites():
    return torch.randn(N, Q), 0.1 + 3 * torch.rand(N, Q)


def times_vector(matrix, v):
    return (matrix @ v.mT.unsqueeze(-1)).squeeze(-1).mT


def posterior_of(k, lam):
    return torch.linalg.inv(torch.linalg.inv(k) + torch.diag_embed(lam.mT))


def diagonal_of(matrix):
    return matrix.diagonal(dim1=-2, dim2=-1).mT


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def test_every_form_is_complete():
    assert set(TemporalCovariance.__subclasses__()) == set(FORMS.values())
    names = [name for name in vars(TemporalCovariance) if not name.startswith("_") and name != "name"]
    assert TemporalCovariance.__abstractmethods__ < set(names)
    for name, form in FORMS.items():
        assert form.name == name
        assert not inspect.isabstract(form)
        for method in names:
            stated, own = getattr(TemporalCovariance, method), getattr(form, method)
            if callable(stated):
                assert list(inspect.signature(own).parameters) == list(inspect.signature(stated).parameters)

    class Incomplete(DenseCovariance):
        gain = TemporalCovariance.gain

    with pytest.raises(TypeError, match="gain"):
        Incomplete(make_kernel("dense")(), make_times(LENGTHS), None)


def test_prior(form, k):
    v = torch.randn(3, N, Q)
    assert form.batch_shape == ()
    close(form.matrix(), k)
    close(form.diag(), diagonal_of(k))
    close(form.matmul(v), times_vector(k, v))
    with torch.no_grad():
        close(form.correlate(v), times_vector(torch.linalg.cholesky(k), v))
        close(form.uncorrelate(form.correlate(v)), v)
    square, logdet = form.whiten(v)
    close(square, (v * times_vector(torch.linalg.inv(k), v)).sum(-2))
    close(logdet, torch.logdet(k))
    close(form.inverse_diag(), diagonal_of(torch.linalg.inv(k)))


def test_posterior(form, k, sites):
    mean_bar, lam = sites
    s = posterior_of(k, lam)
    mu, variance, same, logdet = form.posterior(mean_bar, lam)
    close(mu, times_vector(k, mean_bar))
    close(variance, diagonal_of(s))
    close(logdet, torch.logdet(torch.eye(N) + lam.mT.sqrt().unsqueeze(-1) * k * lam.mT.sqrt().unsqueeze(-2)))
    assert torch.equal(same, mean_bar)
    for a, b in zip(form.posterior_from_natural(mean_bar + lam * mu, lam), form.posterior(*sites), strict=True):
        close(a, b)
    close(form.posterior_matrix(lam), s)
    close(form.posterior_block(lam, ROWS), s[:, ROWS][..., ROWS])
    v = torch.randn(3, N, Q)
    close(form.gain(lam, v), times_vector(s, lam.sqrt() * v))


def test_rows_of_the_posterior(form, k, sites):
    mean_bar, lam = sites
    path = form.posterior_path(form.posterior(mean_bar, lam), lam, ROWS)
    s = posterior_of(k, lam)[:, ROWS][..., ROWS]
    close(path.mean, times_vector(k, mean_bar)[ROWS])
    close(path.variance, diagonal_of(s))
    close(path.covariance_matrix, s)
    x = torch.randn(len(ROWS), Q)
    exact = torch.distributions.MultivariateNormal(path.mean.mT, 0.5 * (s + s.mT))
    torch.testing.assert_close(path.log_prob(x), exact.log_prob(x.mT).sum(), rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        draws = path.rsample((20_000,)) - path.mean
    torch.testing.assert_close(torch.einsum("siq,sjq->qij", draws, draws) / 20_000, s, rtol=0, atol=0.05)
    wide = path.expand((3,))
    assert wide.rsample((5,)).shape == (5, 3, len(ROWS), Q)
    assert wide.covariance_matrix.shape == (3, Q, len(ROWS), len(ROWS))


@pytest.mark.parametrize("name", FORMS)
def test_forecast_is_the_formula(name, sites):
    mean_bar, lam = sites
    structure = None if name == "diagonal" else name
    prior = TemporalGP(make_kernel(name)(), make_times(LENGTHS), Q, structure=structure)
    assert prior.structure == name
    rows = prior.times.slices()[2]
    old, new = prior.times.t[rows], torch.tensor([4.0, 0.3, float(prior.times.t[rows.start]), -1.0, 4.0])
    cross, within = (prior.kernel.gram(old, new), prior.kernel.gram(new))
    noise = torch.diag_embed(1.0 / lam[rows].mT)
    solved = torch.linalg.solve(prior.kernel.gram(old) + noise, cross)
    path = OpperArchambeau(prior, mean_bar, lam).forecast(new, 2)
    close(path.mean, times_vector(cross.mT, mean_bar[rows]))
    close(path.covariance_matrix, (within - cross.mT @ solved).expand(Q, 5, 5))
    close(path.variance, diagonal_of(path.covariance_matrix))


@pytest.mark.parametrize("name", FORMS)
def test_gradients_of_forecasts(name):
    kernel, times, new = make_kernel(name), make_times((3, 2)), torch.tensor([2.0, 0.5])
    mean_bar, lam = torch.randn(5, Q, requires_grad=True), (0.1 + torch.rand(5, Q)).requires_grad_()

    def outputs(mean_bar, lam, *_):
        prior = TemporalGP(kernel(), times, Q, structure=None if name == "diagonal" else name)
        path = OpperArchambeau(prior, mean_bar, lam).forecast(new, 0)
        return path.mean, path.variance, path.covariance_matrix

    assert torch.autograd.gradcheck(outputs, (mean_bar, lam, *kernel.parameters()), eps=1e-6, atol=1e-7)


def test_dense_forecasts_factorise_each_sequence_once(sites, monkeypatch):
    seen = []
    original = dense._factor_b
    monkeypatch.setattr(dense, "_factor_b", lambda block, lam: seen.append(block.shape[-1]) or original(block, lam))
    q = OpperArchambeau(TemporalGP(make_kernel("dense")(), make_times(LENGTHS), Q, structure="dense"), *sites)
    first = q.forecast(torch.tensor([0.1, 0.2]), 0).variance
    assert torch.equal(q.forecast(torch.tensor([0.1, 0.2]), 0).variance, first)
    q.forecast(torch.tensor([0.3]), 2)
    assert seen == [6, 5]


def test_equality():
    times = make_times(LENGTHS)
    for name, form in FORMS.items():
        one = form(make_kernel(name)(), times, None)
        assert one.equals(one)
        assert one.equals(form(make_kernel(name)(), times, None))
        assert not one.equals(form((make_kernel(name) + White(0.1))(), times, None))
        assert not one.equals(form(make_kernel(name)(), make_times((6, 6)), None))
        other = FORMS["markov" if name == "dense" else "dense"]
        assert not one.equals(other(make_kernel(name)(), times, None))
