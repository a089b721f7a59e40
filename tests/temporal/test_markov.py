# SPDX-License-Identifier: Apache-2.0
"""The temporal prior in O(N) against the dense one."""

import pyro.distributions as dist
import pytest
import torch
from markov_problems import KINDS, Q, both, close, make_kernels, make_times
from torch.distributions import kl_divergence

from pyro_vgpds import OpperArchambeau, TemporalGP
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import Bias, Linear, MarkovRBF, Matern12, Matern32, Matern52, White
from pyro_vgpds.temporal import chains
from pyro_vgpds.temporal.dense import DenseCovariance


@pytest.mark.parametrize("natural", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_against_dense(kind, natural, route):
    kernel, times = make_kernels()[kind], make_times()
    g = torch.randn(3, len(times), Q)
    shift = torch.randn(len(times), Q, requires_grad=True)
    lam = torch.exp(1.5 * torch.randn(len(times), Q)).requires_grad_()
    results = []
    for prior in both(kernel, times):
        q = (OpperArchambeau.from_natural if natural else OpperArchambeau)(prior, shift, lam)
        kl = kl_divergence(q, prior)
        outputs = [q.mean, q.variance, q.mean_bar, q.eta, kl, prior.variance, q.covariance_matrix]
        loss = (g[0] * q.mean + g[1] * q.variance + g[2] * q.mean_bar).sum() + kl
        results.append([*outputs, *torch.autograd.grad(loss, [shift, lam, *kernel.parameters()])])
    for dense, ours in zip(*results, strict=True):
        close(ours, dense)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_against_dense_with_many_frames(kind, route):
    n = 400
    kernel, times = make_kernels()[kind], make_times((n,), 20.0)
    lam = torch.exp(torch.randn(n, Q)).requires_grad_()
    eta = torch.randn(n, Q)
    results = []
    for prior in both(kernel, times):
        q = OpperArchambeau.from_natural(prior, eta, lam)
        kl = kl_divergence(q, prior)
        loss = kl + q.mean.square().sum() + q.variance.log().sum()
        own, *scales = torch.autograd.grad(loss, [lam, *kernel.parameters()])
        # a scale that the data say little of has a gradient of next to nothing: all scales together are compared
        results.append([q.mean, q.variance, kl, own, torch.cat([g.flatten() for g in scales])])
    for dense, ours in zip(*results, strict=True):
        close(ours, dense)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "white" in kind or kind in ("usual", "product", "linear")])
def test_densities(kind, route):
    kernel, times = make_kernels()[kind], make_times((23, 40))
    mean_bar, lam = torch.randn(len(times), Q), 0.1 + torch.rand(len(times), Q)
    x = torch.randn(len(times), Q, requires_grad=True)
    field = dist.Normal(torch.randn(len(times), Q), 0.1 + torch.rand(len(times), Q)).to_event(2)
    results = []
    for prior in both(kernel, times):
        q = OpperArchambeau(prior, mean_bar, lam)
        values = torch.stack([prior.log_prob(x), q.log_prob(x), kl_divergence(field, prior)])
        inverse = prior.covariance.inverse_diag()
        loss = values.sum() + inverse.sum()
        results.append([values, inverse + 0 * lam, *torch.autograd.grad(loss, [x, *kernel.parameters()])])
    for dense, ours in zip(*results, strict=True):
        close(ours, dense, 1e-6)  # the jitter of a padded block is not exactly that of its sequence


@pytest.mark.parametrize("kind", ["matern12", "usual", "matern52", "product", "periodic", "white inside"])
def test_draws_are_those_of_the_cholesky_factor(kind, route):
    kernel, times = make_kernels()[kind], make_times((30,))
    noise, g = torch.randn(2, 30, Q), torch.randn(2, 30, Q)
    mean_bar, lam = torch.randn(30, Q, requires_grad=True), torch.rand(30, Q, requires_grad=True)
    results = []
    for prior in both(kernel, times):
        x = prior.covariance.correlate(noise)
        torch.manual_seed(0)
        y = OpperArchambeau(prior, mean_bar, lam).rsample((2,))
        grads = torch.autograd.grad((g * (x + y)).sum(), [mean_bar, lam, *kernel.parameters()])
        results.append([x, y, *grads])
    for dense, ours in zip(*results, strict=True):
        close(ours, dense)


def test_batches_of_parameters(route):
    times = make_times((14, 12))
    lengthscale = torch.tensor([0.3, 1.0])
    kernel = Matern32(lengthscale=dist.Delta(lengthscale)) + White(0.1)  # as a plate of two would draw it
    dense, markov = both(kernel, times)
    assert markov.batch_shape == (2,)
    mean_bar, lam, x = torch.randn(26, Q), torch.rand(26, Q), torch.randn(4, 2, 26, Q)
    results = []
    for prior in (dense, markov):
        q = OpperArchambeau(prior, mean_bar, lam)
        wide = OpperArchambeau(prior, mean_bar.expand(4, 2, -1, -1), lam)
        assert q.rsample((5,)).shape == (5, 2, 26, Q)
        results.append(
            [q.mean, q.variance, kl_divergence(q, prior), wide.mean, wide.variance, kl_divergence(wide, prior)]
        )
        results[-1] += [q.log_prob(x) - prior.log_prob(x), prior.expand((4, 2)).log_prob(x)]
        torch.manual_seed(0)
        white = prior.expand((200, 2)).rsample() / prior.variance.sqrt()
        torch.testing.assert_close(white.square().mean((0, 2, 3)), torch.ones(2), rtol=0, atol=0.1)
    for a, b in zip(*results, strict=True):
        close(b, a)


def test_draws_are_undone(route):
    kernel, times = make_kernels()["usual"], make_times((20, 15))
    noise = torch.randn(35, Q, requires_grad=True)
    covariance = both(kernel, times)[1].covariance
    with torch.no_grad():
        close(covariance.uncorrelate(covariance.correlate(noise)), noise.detach())
    with pytest.raises(NotImplementedError, match="no gradient for structure='markov'"):
        covariance.uncorrelate(noise)
    g = torch.randn(35, Q)
    grads = [
        torch.autograd.grad((g * p.covariance.correlate(noise)).sum(), [noise, *kernel.parameters()])
        for p in both(kernel, times)
    ]
    for dense, ours in zip(*grads, strict=True):
        close(ours, dense, 1e-6)


def test_frames_of_the_same_time_share_what_is_smooth(route):
    prior = TemporalGP((Matern32(1.0, 1.0) + White(0.5))(), torch.tensor([0.0, 1.0, 1.0]), 1, structure="markov")
    q = OpperArchambeau(prior, torch.tensor([[0.3], [2.0], [0.0]]), torch.tensor([[1.0], [1e8], [0.0]]))
    exact = TemporalGP((Matern32(1.0, 1.0) + White(0.5))(), torch.tensor([0.0, 1.0, 1.0]), 1, structure="dense")
    close(q.variance, OpperArchambeau(exact, q.mean_bar, q.lam).variance, 1e-7)
    assert q.variance[2, 0] > 0.5  # its own white noise
    x = q.rsample((20_000,))
    torch.testing.assert_close(x.var(0), q.variance, rtol=0.05, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lam", [1e-6, 1e8, None])
@pytest.mark.parametrize("scale", [0.1, 10.0, 3000.0])
@pytest.mark.parametrize("kind", ["matern", "sum", "rbf"])
def test_extremes(kind, scale, lam, dtype, route):
    n = 3000
    t = torch.arange(n, dtype=torch.float64)
    t[1::50] = t[0::50] + 1e-6
    kernel = {
        "matern": Matern52(1.0, scale),
        "sum": Matern32(1.0, scale) + Bias(0.5) + Linear(1e-3) + White(1e-4),
        "rbf": MarkovRBF(1.0, scale),
    }[kind].to(dtype)
    lam = (10 ** (torch.rand(n, 2) * 14 - 6) if lam is None else torch.full((n, 2), lam)).to(dtype).requires_grad_()
    eta = (lam.detach() * torch.randn(n, 2, dtype=dtype)).requires_grad_()
    prior = TemporalGP(kernel(), Times(t.to(dtype)), 2, structure="markov")
    q = OpperArchambeau.from_natural(prior, eta, lam)
    kl = kl_divergence(q, prior)
    grads = torch.autograd.grad(kl + q.mean.sum() + q.variance.sum(), [eta, lam, *kernel.parameters()])
    values = (q.mean, q.variance, kl, q.rsample(), prior.log_prob(q.mean))
    for x in (*values, *grads):
        assert torch.isfinite(x).all()
    assert {x.dtype for x in values} == {torch.float64}  # q(X) computes in double precision, also for float32
    assert {x.dtype for x in grads} == {dtype}
    assert (q.variance > 0).all()
    assert (q.variance <= 1.0001 * torch.minimum(prior.variance, 1.0 / lam)).all()


def test_precise_where_precisions_are_large():
    # frames of a path that is known almost exactly: s is 1/λ to more digits than K − K r B⁻¹ r K has
    prior = TemporalGP(Matern12(1.0, 0.01)(), torch.arange(50.0), 1, structure="markov")
    q = OpperArchambeau(prior, torch.zeros(50, 1), torch.full((50, 1), 1e12))
    torch.testing.assert_close(q.variance, torch.full((50, 1), 1.0 / (1.0 + 1e12)), rtol=1e-14, atol=0)


def test_nothing_dense_is_made(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a matrix was made")

    monkeypatch.setattr("pyro_vgpds.temporal.dense.cholesky", refuse)
    monkeypatch.setattr(DenseCovariance, "__init__", refuse)
    n = 200_000 if chains.available() else 5_000
    kernel = Matern32(1.0, 30.0) + White(0.1)
    prior = TemporalGP(kernel(), Times(torch.arange(n, dtype=torch.float64), [n - 1000, 999, 1]), 2)
    assert prior.structure == "markov"
    q = OpperArchambeau(prior, torch.randn(n, 2), torch.rand(n, 2))
    assert q.variance.shape == q.rsample().shape == (n, 2)
    (kl_divergence(q, prior) + q.log_prob(q.mean)).backward()
    # the sequence of 999 frames by dense algebra: S = (K⁻¹ + Λ)⁻¹
    rows = slice(n - 1000, n - 1)
    inverse = torch.linalg.inv(kernel().gram(prior.times.t[rows])[0].detach())
    for column in range(2):
        s = torch.linalg.inv(inverse + torch.diag(q.lam[rows, column]))
        torch.testing.assert_close(q.variance[rows, column].detach(), s.diagonal(), rtol=1e-7, atol=0)
    assert all(p.grad.abs() > 0 for p in kernel.parameters())


def test_observation_models_have_no_parameters():
    kernel = Matern32(1.0, 1.0)
    value = kernel()
    value.observation_model = lambda t: t.unsqueeze(-1) * value.variance
    with pytest.raises(ValueError, match="observation_model must not depend on parameters"):
        TemporalGP(value, torch.arange(5.0), 1, structure="markov")
