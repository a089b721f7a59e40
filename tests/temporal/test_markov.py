# SPDX-License-Identifier: Apache-2.0
"""The temporal prior in O(N) against the dense one."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import make_data
from torch.distributions import kl_divergence

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    OpperArchambeau,
    Posterior,
    TemporalGP,
    fit,
    load,
    save,
)
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import RBF, Bias, Linear, MarkovRBF, Matern12, Matern32, Matern52, Periodic, White
from pyro_vgpds.temporal import chains, markov, recursions, scan
from pyro_vgpds.temporal import distributions as temporal

Q = 3


def make_kernels():
    own = torch.tensor([0.2, 0.7, 2.0])
    return {
        "matern12": Matern12(0.8, own),
        "matern32": Matern32(0.8, 0.5),
        "matern52": Matern52(torch.tensor([0.5, 1.0, 1.5]), 0.6) + White(0.05),
        "markov_rbf": MarkovRBF(0.9, own),
        "linear": Linear(0.3) + White(0.01),
        "bias": Bias(0.5) + White(0.1),
        "usual": Matern32(0.9, 0.7) + White(0.05) + Bias(0.1),
        "trend": Matern12(0.4, 1.0) + Linear(0.5) + Bias(2.0) + White(0.02),
        "periodic": Periodic(0.8, 1.2, 1.3) + White(0.1),
        "product": Matern32(1.0, 2.0) * Linear(0.4) + Matern12(0.5, own) * Matern52(1.0, 1.0) + White(0.1),
        "quasiperiodic": Matern32(1.0, 2.0) * Periodic(1.0, 1.5, 1.1) + Bias(0.2),
        "white inside": (Matern32(1.0, 0.4) + White(0.2)) * (Linear(0.4) + White(0.3)) + Matern52(1.0, own),
        "times white": Matern32(1.0, 0.4) + Linear(0.3) * White(0.5),
    }


KINDS = list(make_kernels())


@pytest.fixture(params=["compiled", "scan"])
def route(request, monkeypatch):
    if request.param == "scan":
        monkeypatch.setattr(chains, "available", lambda: False)
    elif not chains.available():
        pytest.skip("the compiled loops were not built")
    return request.param


def make_times(lengths=(23, 1, 2, 40), span=3.0) -> Times:
    return Times(torch.cat([torch.rand(n).sort().values * span for n in lengths]), lengths)


def both(kernel, times, latent_dim=Q):
    return [TemporalGP(kernel(), times, latent_dim, structure=s) for s in ("dense", "markov")]


def close(a, b, tolerance=1e-8):
    """The largest difference beside the largest number."""
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * b.abs().max() + 1e-12, (a - b).abs().max() / b.abs().max()


# state-space forms


@pytest.mark.parametrize("kind", KINDS)
def test_forms_are_those_of_the_kernel(kind):
    value = make_kernels()[kind]()
    t = torch.rand(6).sort().values * 4
    dt = torch.tensor([0.0, 1e-3, 0.1, 1.0, 20.0])
    d = value.state_dim
    p = value.stationary_covariance().unsqueeze(-3)
    a = value.transition_matrix(dt)
    assert a.shape[-3:] == (5, d, d)
    torch.testing.assert_close(
        a.expand_as(a + p), torch.linalg.matrix_exp(value.design_matrix().unsqueeze(-3) * dt[:, None, None]) + 0 * p,
        rtol=0, atol=1e-10,
    )  # fmt: skip
    torch.testing.assert_close(value.process_noise(dt) + 0 * p, p - a @ p @ a.mT, rtol=0, atol=1e-12)
    h = value.observation_model(t)
    step = value.transition_matrix((t[:, None] - t).clamp_min(0.0).flatten()).unflatten(-3, (6, 6))
    lower = (h[:, None, None] @ step @ p.unsqueeze(-3) @ h[:, :, None]).squeeze((-1, -2)).tril()
    white = value.white(t) if isinstance(value.white(t), torch.Tensor) else torch.zeros(6)
    k = lower + lower.tril(-1).mT + torch.diag_embed(white)
    torch.testing.assert_close(k.expand_as(value.gram(t)), value.gram(t), rtol=0, atol=1e-11)


@pytest.mark.parametrize("kernel", [Matern12(1.0, 1.0), Matern32(1.0, 1.0), Matern52(1.0, 1.0)])
def test_noise_of_short_steps_has_all_its_digits(kernel):
    # to lowest order Q[0, 0] is q dt^(2d − 1) / ((2d − 1) (d − 1)!²), in units of the state
    d = kernel().state_dim
    dt = torch.tensor([1e-5])
    rate = (2 * d - 1) ** 0.5
    scale = {1: 2.0, 2: 4.0 / 3.0, 3: 16.0 / 3.0 / 20.0}[d]
    noise = kernel().process_noise(dt)[0, 0]
    torch.testing.assert_close(noise[0, 0], scale * (rate * dt[0]) ** (2 * d - 1), rtol=1e-4, atol=0)
    torch.linalg.cholesky(noise)


@pytest.mark.parametrize("lengthscale", [0.3, 1.0, 4.0])
def test_periodic_leaves_out_what_it_says(lengthscale):
    value = Periodic(1.0, lengthscale, 1.0)()
    assert 0 <= 1.0 - value.stationary_covariance()[0].diagonal()[[0, *range(1, value.state_dim, 2)]].sum() < 1e-11
    assert Periodic(1.0, 0.05, 1.0)().state_dim is None  # too many harmonics


@pytest.mark.parametrize(("order", "error"), [(2, 0.14), (4, 0.022), (6, 4.4e-3), (8, 9.2e-4), (10, 2.1e-4)])
def test_markov_rbf_is_as_close_as_it_says(order, error):
    d = torch.linspace(0, 8, 400)
    zero = torch.zeros(1)
    difference = MarkovRBF(1.0, 1.0, order=order)().gram(zero, d) - RBF(1.0, 1.0)().gram(zero, d)
    assert 0.5 * error < difference.abs().max() < error
    with pytest.raises(ValueError, match="order must be a whole number from 1 to 12"):
        MarkovRBF(order=13)


# against the dense prior


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


def test_samples_have_the_moments(route):
    prior = both(make_kernels()["usual"], make_times((4, 1, 3)))[1]
    q = OpperArchambeau(prior, torch.randn(8, Q), 5 * torch.rand(8, Q))
    for p in (prior, q):
        x = p.rsample((10_000,))
        assert x.shape == (10_000, 8, Q)
        torch.testing.assert_close(x.mean(0), p.mean, rtol=0, atol=0.06)
        centred = (x - x.mean(0)).permute(2, 1, 0)
        torch.testing.assert_close(centred @ centred.mT / 10_000, p.covariance_matrix, rtol=0, atol=0.08)


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


# what forecasting and long or odd sequences ask for


@pytest.mark.parametrize("kind", ["matern12", "usual", "trend", "markov_rbf", "quasiperiodic"])
@pytest.mark.parametrize("natural", [False, True])
def test_new_frames_without_sites(kind, natural, route):
    kernel = make_kernels()[kind]
    t = torch.rand(30).sort().values * 3
    t[11] = t[10]  # the same time twice, and two that are nearly the same
    t[21] = t[20] + 1e-9
    lam, shift = torch.rand(30, Q), torch.randn(30, Q)
    new = torch.arange(30) % 3 == 2
    lam[new], shift[new] = 0.0, 0.0
    lam.requires_grad_()
    results = []
    for prior in both(kernel, Times(t)):
        q = (OpperArchambeau.from_natural if natural else OpperArchambeau)(prior, shift, lam)
        kl = kl_divergence(q, prior)
        g = torch.autograd.grad(kl + q.variance.sum(), lam)[0]
        results.append([q.mean, q.variance, kl, q.mean_bar, g])
    for dense, ours in zip(*results, strict=True):
        close(ours, dense, 1e-7)
    assert q.mean_bar[new].abs().max() < 1e-12
    with torch.no_grad():
        white = (q.rsample((3,)) - q.mean) / q.variance.sqrt()
    assert 0.4 < white.square().mean() < 2.5
    # the old frames are as they are without the new ones
    alone = TemporalGP(kernel(), t[~new], Q, structure="markov")
    q_old = (OpperArchambeau.from_natural if natural else OpperArchambeau)(alone, shift[~new], lam[~new].detach())
    close(q.mean[~new], q_old.mean)
    close(q.variance[~new], q_old.variance)


@pytest.mark.parametrize("kind", ["matern12", "usual", "trend", "quasiperiodic"])
def test_forecast(kind, route, monkeypatch):
    kernel, times = make_kernels()[kind], make_times((20, 1, 15))
    mean_bar, lam = torch.randn(36, Q), torch.rand(36, Q)
    new = torch.cat([torch.tensor([4.5, 0.2, -1.0]), times.t[21:23], 3 * torch.rand(4)])  # in no order, some known
    monkeypatch.setattr(markov, "_COLUMNS", 2 * 24 * Q)
    for sequence in (2, None):
        results = []
        for prior in both(kernel, times):
            path = OpperArchambeau(prior, mean_bar, lam).forecast(new, sequence)
            assert path.event_shape == (9, Q)
            assert path.rsample((2,)).shape == (2, 9, Q)
            results.append([path.mean, path.variance, path.covariance_matrix])
        for dense, ours in zip(*results, strict=True):
            close(ours, dense)
    with torch.no_grad():
        dense, ours = (OpperArchambeau(p, mean_bar, lam) for p in both(kernel, times))
        rows = torch.tensor([3, 35, 22, 20])
        close(ours.covariance_of(rows), dense.covariance_of(rows))
        if kind == "usual":
            draws = ours.forecast(new, 2).rsample((5_000,))
            torch.testing.assert_close(draws.var(0), dense.forecast(new, 2).variance, rtol=0.15, atol=0.01)


def test_draws_are_undone(route):
    kernel, times = make_kernels()["usual"], make_times((20, 15))
    noise = torch.randn(35, Q, requires_grad=True)
    covariance = both(kernel, times)[1].covariance
    with torch.no_grad():
        close(covariance.uncorrelate(covariance.correlate(noise)), noise.detach())
    with pytest.raises(NotImplementedError, match="no gradient for a Markov prior"):
        covariance.uncorrelate(noise)
    g = torch.randn(35, Q)
    grads = [
        torch.autograd.grad((g * p.covariance.correlate(noise)).sum(), [noise, *kernel.parameters()])
        for p in both(kernel, times)
    ]
    for dense, ours in zip(*grads, strict=True):
        close(ours, dense, 1e-6)


def test_prediction_is_the_same(route):
    results = []
    for structure in ("dense", "markov"):
        model, guide, data = make_pair(structure)
        torch.manual_seed(1)
        post = Posterior(model, guide, data)
        y = make_data((12,), seed=3).y.clone()
        y[:, :2] = torch.nan
        t = torch.linspace(0.1, 2.9, 12)
        answers = [post.forecast(torch.linspace(2.0, 4.0, 7), sequence=0), post.reconstruct(t, y)]
        answers += [post.reconstruct(t, y, sequence=0, factorised=True)]
        results.append([part for answer in answers for part in (answer.mean, answer.variance)])
    for dense, ours in zip(*results, strict=True):
        close(ours, dense, 1e-5)


def test_frames_of_the_same_time_share_what_is_smooth(route):
    prior = TemporalGP((Matern32(1.0, 1.0) + White(0.5))(), torch.tensor([0.0, 1.0, 1.0]), 1, structure="markov")
    q = OpperArchambeau(prior, torch.tensor([[0.3], [2.0], [0.0]]), torch.tensor([[1.0], [1e8], [0.0]]))
    exact = TemporalGP((Matern32(1.0, 1.0) + White(0.5))(), torch.tensor([0.0, 1.0, 1.0]), 1, structure="dense")
    close(q.variance, OpperArchambeau(exact, q.mean_bar, q.lam).variance, 1e-7)
    assert q.variance[2, 0] > 0.5  # its own white noise
    x = q.rsample((20_000,))
    torch.testing.assert_close(x.var(0), q.variance, rtol=0.05, atol=1e-3)


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
    for x in (q.mean, q.variance, kl, q.rsample(), prior.log_prob(q.mean), *grads):
        assert torch.isfinite(x).all()
        assert x.dtype == dtype
    assert (q.variance > 0).all()
    assert (q.variance <= 1.0001 * torch.minimum(prior.variance, 1.0 / lam)).all()


def test_precise_where_precisions_are_large():
    # frames of a path that is known almost exactly: s is 1/λ to more digits than K − K r B⁻¹ r K has
    prior = TemporalGP(Matern12(1.0, 0.01)(), torch.arange(50.0), 1, structure="markov")
    q = OpperArchambeau(prior, torch.zeros(50, 1), torch.full((50, 1), 1e12))
    torch.testing.assert_close(q.variance, torch.full((50, 1), 1.0 / (1.0 + 1e12)), rtol=1e-14, atol=0)


def test_float32_is_as_good_as_its_inputs():
    times = Times(torch.linspace(0, 10, 200, dtype=torch.float32))
    kernel = (Matern32(1.0, 2.0) + White(1e-4)).to(torch.float32)
    prior = TemporalGP(kernel(), times, 2, structure="markov")
    q = OpperArchambeau(prior, torch.randn(200, 2, dtype=torch.float32), 100 * torch.rand(200, 2, dtype=torch.float32))
    exact = TemporalGP(kernel.to(torch.float64)(), Times(times.t.double()), 2, structure="dense")
    wide = OpperArchambeau(exact, q.mean_bar.double(), q.lam.double())
    torch.testing.assert_close(q.variance.double(), wide.variance, rtol=1e-6, atol=0)
    torch.testing.assert_close(q.mean.double(), wide.mean, rtol=1e-5, atol=1e-5)


def test_nothing_dense_is_made(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a matrix was made")

    monkeypatch.setattr("pyro_vgpds.temporal.dense.cholesky", refuse)
    for module in (temporal, markov):
        monkeypatch.setattr(module, "DenseCovariance", refuse)
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


# the choice, and the model


def test_choice():
    matern, rbf = (Matern32(1.0, 1.0) + White(0.1))(), (RBF(1.0, 1.0) + White(0.1))()
    short, long = Times(torch.arange(20.0)), Times(torch.arange(600.0))
    assert TemporalGP(matern, short, 2).structure == "dense"
    assert TemporalGP(matern, long, 2).structure == "markov"
    assert TemporalGP(rbf, long, 2).structure == "dense"
    assert TemporalGP((Matern32(1.0, 1.0) * RBF(1.0, 1.0))(), long, 2).structure == "dense"
    assert TemporalGP(White(1.0)(), long, 2).structure == "diagonal"
    assert TemporalGP(matern, short, 2, structure="markov").structure == "markov"
    assert TemporalGP(matern, long, 2, structure="dense").structure == "dense"
    prior = TemporalGP(matern, long, 2)
    assert repr(prior) == "TemporalGP(frames=600, latent_dim=2, structure='markov')"
    q = OpperArchambeau(prior, torch.zeros(600, 2), torch.ones(600, 2))
    assert repr(q) == "OpperArchambeau(frames=600, latent_dim=2, structure='markov')"


def test_errors():
    times = Times(torch.arange(20.0))
    with pytest.raises(ValueError, match="structure must be one of 'dense', 'markov' or None, but got 'fast'"):
        TemporalGP(Matern32(1.0, 1.0)(), times, 2, structure="fast")
    with pytest.raises(ValueError, match="structure='markov' needs a kernel with a state-space form"):
        TemporalGP(RBF(1.0, 1.0)(), times, 2, structure="markov")
    with pytest.raises(ValueError, match="structure='markov' needs a kernel with a state-space form"):
        VGPDS.from_data(make_data(), 2, 3, temporal=RBF(), structure="markov")
    with pytest.raises(ValueError, match="structure must be one of"):
        VGPDS.from_data(make_data(), 2, 3, structure="fast")
    dense, markov = both(Matern32(1.0, 1.0), times, 2)
    q = OpperArchambeau(markov, torch.zeros(20, 2), torch.ones(20, 2))
    kl_divergence(q, TemporalGP(Matern32(1.0, 1.0)(), times, 2, structure="markov"))
    for other in (dense, TemporalGP(Matern32(1.0, 1.1)(), times, 2, structure="markov")):
        with pytest.raises(ValueError, match="for a q that stands on the same prior"):
            kl_divergence(q, other)


def test_observation_models_have_no_parameters():
    kernel = Matern32(1.0, 1.0)
    value = kernel()
    value.observation_model = lambda t: t.unsqueeze(-1) * value.variance
    with pytest.raises(ValueError, match="observation_model must not depend on parameters"):
        TemporalGP(value, torch.arange(5.0), 1, structure="markov")


def make_pair(structure, **options):
    pyro.clear_param_store()
    torch.manual_seed(0)
    data = make_data((40, 25), missing=0.1)
    temporal = Matern32() + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, 2, 8, temporal=temporal, structure=structure, **options)
    return model, AutoOpperArchambeau(model), data


def test_training_is_the_same(route):
    histories = []
    for structure in ("dense", "markov"):
        model, guide, data = make_pair(structure)
        assert guide.posterior(data).prior.structure == structure
        result = fit(model, guide, data, num_steps=15, progress=False)
        histories.append(torch.tensor([record.bound for record in result.history]))
        assert structure in repr(model)
    torch.testing.assert_close(*histories, rtol=1e-6, atol=1e-6)


def test_bound_and_gradients_are_the_same(route):
    results = []
    for structure in ("dense", "markov"):
        model, guide, data = make_pair(structure)
        loss = Collapsed_ELBO().differentiable_loss(model, guide, data)
        parameters = [*model.parameters(), *guide.parameters()]
        results.append([loss, *torch.autograd.grad(loss, parameters)])
    for dense, ours in zip(*results, strict=True):
        close(ours, dense)


def test_structure_is_saved(tmp_path):
    model, guide, data = make_pair("markov")
    save(tmp_path / "model", model, guide, data)
    loss = Collapsed_ELBO().loss(model, guide, data)
    pyro.clear_param_store()
    again = load(tmp_path / "model")
    assert again[0].structure == "markov"
    assert Collapsed_ELBO().loss(*again) == pytest.approx(loss, rel=1e-12)
    torch.manual_seed(0)
    model = VGPDS.from_data(data, 2, 8, temporal=MarkovRBF(order=4) + White(0.1))
    save(tmp_path / "model", model, AutoOpperArchambeau(model), data)
    assert load(tmp_path / "model")[0].temporal[0].order == 4
    assert "order=4" in repr(model.temporal)


# the compiled loops


def test_scans_go_in_blocks(monkeypatch):
    monkeypatch.setattr(chains, "available", lambda: False)
    kernel, times = make_kernels()["white inside"], make_times((9,))
    noise = torch.randn(9, Q, requires_grad=True)

    def run():
        prior = TemporalGP(kernel(), times, Q, structure="markov")
        q = OpperArchambeau.from_natural(prior, noise, noise.exp())
        loss = q.mean.sum() + q.variance.sum() + kl_divergence(q, prior) + prior.covariance.correlate(noise).sum()
        return torch.autograd.grad(loss + prior.log_prob(noise), [noise, *kernel.parameters()])

    whole = run()
    monkeypatch.setattr(scan, "_NUMBERS", 2 * 9 * kernel().state_dim ** 2)
    for a, b in zip(run(), whole, strict=True):
        close(a, b, 1e-12)


needs_compiler = pytest.mark.skipif(not chains.available(), reason="the compiled loops were not built")


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_segments(threads, monkeypatch):
    kernel = Matern32(torch.rand(9) + 0.5, torch.rand(9) + 0.5) + Bias(1.0)
    times = make_times((30, 20))
    eta, lam = torch.randn(50, 9), torch.rand(50, 9)

    def run():
        prior = TemporalGP(kernel(), times, 9, structure="markov")
        q = OpperArchambeau.from_natural(prior, eta, lam)
        return torch.autograd.grad(q.mean.sum() + q.variance.sum() + kl_divergence(q, prior), kernel.parameters())

    expected = run()
    torch.set_num_threads(threads)
    for a, b in zip(run(), expected, strict=True):
        close(a, b, 1e-12)


@needs_compiler
def test_long_chains_are_run_in_segments():
    # a state of 27 numbers keeps 50 kB a frame for the way back, so that 3,000 frames are more than one segment
    kernel = Periodic(1.0, 1.0, 50.0)
    prior = TemporalGP(kernel(), torch.arange(3000.0), 1, structure="markov")
    q = OpperArchambeau(prior, torch.zeros(3000, 1), torch.full((3000, 1), 0.1, requires_grad=True))
    loss = q.variance.sum()
    step = 1e-6
    g = torch.autograd.grad(loss, kernel.lengthscale_unconstrained)[0]
    values = []
    for sign in (1, -1):
        moved = Periodic(1.0, float((kernel.lengthscale.detach().log() + sign * step).exp()), 50.0)
        prior = TemporalGP(moved(), torch.arange(3000.0), 1, structure="markov")
        values.append(OpperArchambeau(prior, torch.zeros(3000, 1), torch.full((3000, 1), 0.1)).variance.sum())
    torch.testing.assert_close(g, (values[0] - values[1]) / (2 * step), rtol=1e-5, atol=1e-8)


@needs_compiler
def test_compiled_loops_refuse_other_tensors():
    a = q = torch.zeros(1, 5, 2, 2)
    h, index, lam = torch.zeros(5, 2), torch.zeros(3, dtype=torch.long), torch.ones(3, 5)
    chains.variance(a, q, h, index, lam)
    with pytest.raises(ValueError, match="float64"):
        chains.variance(a, q, h, index, lam.float())
    with pytest.raises(ValueError, match="must be"):
        chains.variance(a, q[:, :4], h, index, lam)
    with pytest.raises(ValueError, match="must be"):
        chains.variance(a, q, h, index, lam[:2])
    with pytest.raises(ValueError, match="index must name one of the kernels"):
        chains.variance(a, q, h, index + 1, lam)


def test_a_million_short_sequences_are_no_loop_over_pairs():
    n = 50_000
    times = Times(torch.arange(2.0 * n), [2] * n)
    assert times.starts[-1] == 2 * n - 2
    prior = TemporalGP((Matern32(1.0, 1.0) + White(0.1))(), times, 1)
    assert prior.structure == "markov" or not recursions.is_compiled(times.t)
