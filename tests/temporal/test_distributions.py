# SPDX-License-Identifier: Apache-2.0
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import kl_divergence

from pyro_vgpds import OpperArchambeau, TemporalGP, linalg
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import RBF, Bias, Linear, Matern32, Periodic, White
from pyro_vgpds.temporal import GaussianPosterior, dense, gaussian
from pyro_vgpds.temporal.rounding import check_divergence

LENGTHS = (5, 1, 8, 6, 30)
Q = 3


def make_times(lengths=LENGTHS) -> Times:
    return Times(torch.cat([torch.rand(n).sort().values * 3 for n in lengths]), lengths)


def make_kernels():
    return {
        "shared": Matern32(0.9, 0.7) + White(0.05) + Bias(0.1),
        "own": Matern32(torch.tensor([0.9, 1.2, 0.4]), torch.tensor([0.7, 0.2, 1.5])) + White(0.05),
        "mixed": RBF(1.0, torch.tensor([0.3, 0.5, 1.0])) * Periodic(1.0, 1.0, 2.0) + Linear(0.3) + White(0.1),
        "diagonal": White(torch.tensor([0.5, 1.0, 2.0])),
    }


KINDS = list(make_kernels())


def make(kind, lengths=LENGTHS):
    times = make_times(lengths)
    prior = TemporalGP(make_kernels()[kind](), times, Q)
    return prior, OpperArchambeau(prior, torch.randn(len(times), Q), 0.1 + 5 * torch.rand(len(times), Q))


def dense_prior(kind, times):
    """K_t as one matrix for each latent dimension, entry by entry: zero between sequences."""
    kernel = make_kernels()[kind]()
    blocks = [kernel.gram(times.t[rows]).expand(Q, -1, -1) for rows in times.slices()]
    return torch.stack([torch.block_diag(*[block[q] for block in blocks]) for q in range(Q)])


@pytest.mark.parametrize("kind", KINDS)
def test_against_explicit_inverses(kind):
    prior, q = make(kind)
    k = dense_prior(kind, prior.times)
    torch.testing.assert_close(prior.covariance_matrix, k)
    torch.testing.assert_close(prior.variance, k.diagonal(dim1=-2, dim2=-1).mT)
    assert prior.mean.shape == prior.event_shape
    mu = (k @ q.mean_bar.mT.unsqueeze(-1)).squeeze(-1)
    s = torch.linalg.inv(torch.linalg.inv(k) + torch.diag_embed(q.lam.mT))
    torch.testing.assert_close(q.mean, mu.mT, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(q.variance, s.diagonal(dim1=-2, dim2=-1).mT, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(q.covariance_matrix, s, rtol=1e-8, atol=1e-8)
    exact_p = torch.distributions.MultivariateNormal(torch.zeros_like(mu), k)
    exact_q = torch.distributions.MultivariateNormal(mu, 0.5 * (s + s.mT))
    torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(exact_q, exact_p).sum(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_densities(kind):
    prior, q = make(kind)
    x = torch.randn(prior.event_shape)
    k = prior.covariance_matrix
    if kind != "diagonal":  # the only place with jitter
        k = k + linalg.default_jitter(k.dtype) * torch.diag_embed(k.diagonal(dim1=-2, dim2=-1))
    exact = torch.distributions.MultivariateNormal(torch.zeros(Q, len(x)), k).log_prob(x.mT).sum()
    torch.testing.assert_close(prior.log_prob(x), exact, rtol=1e-6, atol=1e-6)
    s = torch.linalg.inv(torch.linalg.inv(k) + torch.diag_embed(q.lam.mT))
    exact = torch.distributions.MultivariateNormal(q.mean.mT, 0.5 * (s + s.mT)).log_prob(x.mT).sum()
    torch.testing.assert_close(q.log_prob(x), exact, rtol=1e-5, atol=1e-5)


def test_jitter_does_not_come_between_q_and_its_prior():
    # K_t of a smooth kernel is singular to machine precision: its log-density is jitter's, its ratio to q is not.
    times = Times(torch.linspace(0, 1, 60))
    x = torch.sin(times.t)[:, None]
    for jitter in (None, 1e-6, 1e-4):
        prior = TemporalGP(RBF(1.0, 0.5)(), times, 1, jitter=jitter)
        q = OpperArchambeau(prior, 0.1 * torch.ones(60, 1), 20 * torch.ones(60, 1))
        ratio = q.log_prob(x) - prior.log_prob(x)
        eta = q.mean_bar + q.lam * q.mean
        b = torch.eye(60) + 20 * prior.covariance_matrix[0]
        expected = (eta * (x - 0.5 * q.mean) - 0.5 * q.lam * x**2).sum() + 0.5 * torch.logdet(b)
        torch.testing.assert_close(ratio, expected, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_moments(kind):
    prior, q = make(kind, (4, 1, 3))
    for p, mean, covariance in (
        (prior, torch.zeros_like(prior.mean), prior.covariance_matrix),
        (q, q.mean, q.covariance_matrix),
    ):
        x = p.rsample((40_000,))
        assert x.shape == (40_000, 8, Q)
        torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=0.04)
        centred = (x - x.mean(0)).permute(2, 1, 0)
        torch.testing.assert_close(centred @ centred.mT / 40_000, covariance, rtol=0, atol=0.08)


@pytest.mark.parametrize("kind", KINDS)
def test_block_diagonal_is_separate_sequences(kind):
    prior, q = make(kind)
    x = torch.randn(prior.event_shape)
    log_prob = kl = 0.0
    for rows in prior.times.slices():
        alone = TemporalGP(make_kernels()[kind](), prior.times.t[rows], Q)
        part = OpperArchambeau(alone, q.mean_bar[rows], q.lam[rows])
        torch.testing.assert_close(part.mean, q.mean[rows])
        torch.testing.assert_close(part.variance, q.variance[rows])
        log_prob = log_prob + torch.stack([part.log_prob(x[rows]), alone.log_prob(x[rows])])
        kl = kl + kl_divergence(part, alone)
    # each sequence's jitter is relative to its own scale, so only the ratio is exact
    torch.testing.assert_close(log_prob[0] - log_prob[1], q.log_prob(x) - prior.log_prob(x))
    torch.testing.assert_close(kl, kl_divergence(q, prior))


def test_no_matrix_of_all_frames_is_made(monkeypatch):
    seen = []
    original = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda a, **k: seen.append(a.shape) or original(a, **k))
    _, q = make("mixed", (20, 22, 3, 21, 3))
    q.rsample()
    q.log_prob(q.mean)
    assert all(shape[-1] <= 22 for shape in seen)
    assert any(shape[-3] == 3 for shape in seen)  # and those of similar length go together


def test_a_diagonal_prior_makes_no_matrix_at_all(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a matrix was made")

    monkeypatch.setattr(dense, "cholesky", refuse)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", refuse)
    monkeypatch.setattr(dense.DenseCovariance, "__init__", refuse)
    n = 200_000  # a matrix of which would be 320 GB
    prior = TemporalGP(White(1.0)(), Times(torch.arange(n, dtype=torch.float64)), 2)
    mean, lam = torch.randn(n, 2), torch.rand(n, 2)
    q = OpperArchambeau(prior, mean, lam)
    s = 1.0 / (1.0 + lam)
    torch.testing.assert_close(q.variance, s)
    torch.testing.assert_close(q.rsample().var(), (mean.var() + s.mean()), rtol=0.02, atol=0)
    torch.testing.assert_close(kl_divergence(q, prior), 0.5 * (s + mean.square() - 1.0 - s.log()).sum())
    torch.testing.assert_close(q.log_prob(q.mean), -0.5 * (2 * torch.pi * s).log().sum())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    times = make_times((4, 1, 3, 4))
    kernel = make_kernels()[kind]
    mean_bar = torch.randn(len(times), Q, requires_grad=True)
    lam = (0.1 + 3 * torch.rand(len(times), Q)).requires_grad_()

    def outputs(mean_bar, lam, *_):
        prior = TemporalGP(kernel(), times, Q)
        q = OpperArchambeau(prior, mean_bar, lam)
        return q.mean, q.variance, kl_divergence(q, prior)

    assert torch.autograd.gradcheck(outputs, (mean_bar, lam, *kernel.parameters()), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_natural_parameters(kind):
    prior, q = make(kind, (4, 1, 3, 4))
    natural = OpperArchambeau.from_natural(prior, q.eta, q.lam)
    for name in ("mean", "variance", "covariance_matrix", "mean_bar", "eta"):
        torch.testing.assert_close(getattr(natural, name), getattr(q, name), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kl_divergence(natural, prior), kl_divergence(q, prior))
    x = torch.randn(prior.event_shape)
    torch.testing.assert_close(natural.log_prob(x), q.log_prob(x))
    kernel, times = make_kernels()[kind], prior.times
    eta, lam = q.eta.detach().requires_grad_(), q.lam.detach().requires_grad_()

    def outputs(eta, lam, *_):
        prior = TemporalGP(kernel(), times, Q)
        q = OpperArchambeau.from_natural(prior, eta, lam)
        return q.mean, q.variance, kl_divergence(q, prior)

    assert torch.autograd.gradcheck(outputs, (eta, lam, *kernel.parameters()), eps=1e-6, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_samples_and_densities_have_gradients(kind):
    times = make_times((3, 2))
    kernel = make_kernels()[kind]
    mean_bar = torch.randn(5, Q, requires_grad=True)
    lam = (0.1 + 3 * torch.rand(5, Q)).requires_grad_()
    x = torch.randn(5, Q, requires_grad=True)

    def outputs(mean_bar, lam, x, *_):
        prior = TemporalGP(kernel(), times, Q)
        q = OpperArchambeau(prior, mean_bar, lam)
        torch.manual_seed(0)
        return q.rsample(), q.log_prob(x), prior.log_prob(x)

    assert torch.autograd.gradcheck(outputs, (mean_bar, lam, x, *kernel.parameters()), eps=1e-6, atol=1e-6)


def test_batches_of_parameters():
    times = make_times((4, 2))
    lengthscale = torch.tensor([0.3, 1.0])
    kernel = Matern32(lengthscale=dist.Delta(lengthscale)) + White(0.1)  # as a plate of two would draw it
    prior = TemporalGP(kernel(), times, Q)
    assert prior.batch_shape == (2,)
    mean_bar, lam = torch.randn(6, Q), torch.rand(6, Q)
    q = OpperArchambeau(prior, mean_bar, lam)
    assert q.batch_shape == (2,)
    assert q.rsample((5,)).shape == (5, 2, 6, Q)
    x = torch.randn(2, 6, Q)
    for i in range(2):
        alone = TemporalGP((Matern32(lengthscale=float(lengthscale[i])) + White(0.1))(), times, Q)
        part = OpperArchambeau(alone, mean_bar, lam)
        torch.testing.assert_close(q.mean[i], part.mean)
        torch.testing.assert_close(q.variance[i], part.variance)
        torch.testing.assert_close(q.log_prob(x)[i], part.log_prob(x[i]))
        torch.testing.assert_close(kl_divergence(q, prior)[i], kl_divergence(part, alone))


@pytest.mark.parametrize(
    ("kind", "structure"), [("shared", "dense"), ("own", "dense"), ("own", "markov"), ("diagonal", None)]
)
@pytest.mark.parametrize("make_q", [OpperArchambeau, OpperArchambeau.from_natural], ids=["mean_bar", "eta"])
def test_gradients_of_batches_of_sites(make_q, kind, structure):
    """Of paths that share one K_t, and some of them the precisions."""
    times, kernel = make_times((4, 2)), make_kernels()[kind]
    given = torch.randn(2, 3, 6, Q, requires_grad=True), (0.1 + torch.rand(3, 6, Q)).requires_grad_()

    def total(first, lam):
        prior = TemporalGP(kernel(), times, Q, structure=structure)
        q = make_q(prior, first, lam)
        return (q.mean.sin() + q.variance.log()).sum() + kl_divergence(q, prior).sum()

    leaves = *given, *kernel.parameters()
    found = torch.autograd.grad(total(*given), leaves)
    parts = sum(total(given[0][i, j], given[1][j]) for i in range(2) for j in range(3))
    for one, other in zip(found, torch.autograd.grad(parts, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["shared", "diagonal"])
def test_expand(kind):
    prior, q = make(kind, (3, 2))
    for p in (prior, q):
        wide = p.expand((4,))
        assert wide.batch_shape == (4,)
        assert wide.mean.shape == wide.variance.shape == wide.rsample().shape == (4, 5, Q)
        assert wide.rsample((2,)).shape == (2, 4, 5, Q)
        x = torch.randn(4, 5, Q)
        torch.testing.assert_close(wide.log_prob(x), torch.stack([p.log_prob(v) for v in x]))
    assert kl_divergence(q.expand((4,)), prior.expand((4,))).shape == (4,)


@pytest.mark.parametrize("kind", KINDS)
def test_kl_of_a_mean_field_q(kind):
    prior, _ = make(kind, (4, 2))
    q = dist.Normal(torch.randn(6, Q), 0.1 + torch.rand(6, Q)).to_event(2)
    k = prior.covariance_matrix
    exact = kl_divergence(
        torch.distributions.MultivariateNormal(q.mean.mT, torch.diag_embed(q.variance.mT)),
        torch.distributions.MultivariateNormal(torch.zeros(Q, 6), k),
    )
    torch.testing.assert_close(kl_divergence(q, prior), exact.sum(), rtol=1e-5, atol=1e-5)
    with pytest.raises(NotImplementedError, match=r"independent Normals of event shape \(6, 3\), but got Laplace"):
        kl_divergence(dist.Laplace(torch.zeros(6, Q), torch.ones(6, Q)).to_event(2), prior)


def test_kl_needs_the_same_prior():
    times = make_times((4,))
    make_prior = lambda scale: TemporalGP((Matern32(1.0, scale) + White(0.1))(), times, 2)  # noqa: E731
    q = OpperArchambeau(make_prior(0.5), torch.randn(4, 2), torch.rand(4, 2))
    torch.testing.assert_close(kl_divergence(q, make_prior(0.5)), kl_divergence(q, q.prior))
    with pytest.raises(ValueError, match="needs a q with the same prior"):
        kl_divergence(q, make_prior(0.6))


def test_wrong_shapes():
    prior, _ = make("shared", (3, 2))
    with pytest.raises(ValueError, match=r"mean_bar must end in \(5, 3\) = \(frames, latent dimensions\)"):
        OpperArchambeau(prior, torch.zeros(4, 3), torch.ones(5, 3))
    with pytest.raises(ValueError, match=r"lam must end in \(5, 3\)"):
        OpperArchambeau(prior, torch.zeros(5, 3), torch.ones(5, 2))
    with pytest.raises(ValueError, match=r"eta must end in \(5, 3\).* but its shape is \(5, 2\)"):
        OpperArchambeau.from_natural(prior, torch.zeros(5, 2), torch.ones(5, 3))
    with pytest.raises(ValueError, match="has parameters for 3 latent dimensions, but latent_dim is 2"):
        TemporalGP(make_kernels()["own"](), prior.times, 2)
    with pytest.raises(ValueError, match="lengths positive with sum N"):
        Times(torch.zeros(3), (1, 1))


@pytest.mark.parametrize("lam", [1e-12, 1.0, 1e8])
def test_extreme_precisions(lam):
    times = Times(torch.linspace(0, 10, 40))
    prior = TemporalGP((Matern32(1.0, 1.0) + White(1e-3))(), times, 1)
    q = OpperArchambeau(prior, torch.randn(40, 1), torch.full((40, 1), lam))
    s = torch.linalg.inv(torch.linalg.inv(prior.covariance_matrix[0]) + lam * torch.eye(40))
    torch.testing.assert_close(q.variance[:, 0], s.diagonal(), rtol=1e-6, atol=0)
    draws = q.rsample((4000,))
    torch.testing.assert_close(draws.var(0), q.variance, rtol=0.15, atol=0)
    assert ((draws.mean(0) - q.mean).abs() < 5 * (q.variance / 4000).sqrt()).all()


@pytest.mark.parametrize(("structure", "smooth"), [("dense", RBF), ("markov", Matern32)])
def test_float32_is_computed_in_float64(structure, smooth):
    times = Times(torch.linspace(0, 10, 200, dtype=torch.float32))
    kernel = (smooth(1.0, 2.0) + White(1e-4)).to(torch.float32)
    prior = TemporalGP(kernel(), times, 2, structure=structure)
    q = OpperArchambeau(prior, torch.randn(200, 2, dtype=torch.float32), torch.ones(200, 2, dtype=torch.float32))
    assert q.mean.dtype == q.variance.dtype == q.rsample().dtype == torch.float64
    exact = TemporalGP(kernel.to(torch.float64)(), Times(times.t.double()), 2)
    wide = OpperArchambeau(exact, q.mean_bar.double(), q.lam.double())
    torch.testing.assert_close(q.variance, wide.variance, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(q.mean, wide.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(wide, exact), rtol=1e-6, atol=0.0)


def test_covariances_under_a_prior_of_great_variance_are_positive():
    t = torch.linspace(0.0, 2e4, 250).double()
    prior = TemporalGP(Linear(1.0)(), t, 1)
    q = OpperArchambeau(prior, torch.zeros(250, 1).double(), torch.full((250, 1), 10.0).double())
    rows = torch.arange(100, 250)
    new = torch.linspace(2e4, 3e4, 9).double()
    raw = torch.linalg.eigvalsh(prior.covariance.posterior_matrix(q.lam))
    assert bool((raw[..., 0] < -1e-6 * raw[..., -1]).all())  # or this is no test
    paths = [q.frames(rows), q.forecast(new, 0)]
    for matrix in (q.covariance_matrix, q.covariance_of(rows), *(path.covariance_matrix for path in paths)):
        values = torch.linalg.eigvalsh(matrix)
        assert bool((values[..., 0] > -1e-8 * values[..., -1]).all())
    assert all(bool((each.variance >= 0.0).all()) for each in (q, *paths))
    # S of a rank-one K = v vᵀ is v vᵀ / (1 + 10 v·v)
    torch.testing.assert_close(q.covariance_matrix[0].trace(), torch.tensor(0.1).double(), rtol=1e-2, atol=0.0)


def test_a_divergence_below_zero_is_rounding_and_an_error(monkeypatch):
    prior, _ = make("shared")
    mean, variance = torch.randn(prior.event_shape), 0.1 + torch.rand(prior.event_shape)
    q = dist.Normal(mean, variance.sqrt()).to_event(2)
    own, point = GaussianPosterior(prior, mean, variance), GaussianPosterior(prior, 0.0 * mean, 0.0 * variance)
    assert float(kl_divergence(q, prior).detach()) == pytest.approx(float(own.kl().detach()), rel=1e-6)
    assert torch.isfinite(point.kl())
    monkeypatch.setattr(prior.covariance, "whiten", lambda x: (torch.zeros(Q), torch.full((Q,), -1e4)))
    monkeypatch.setattr(gaussian, "_factor", lambda block: 1e-9 * torch.linalg.cholesky(block))
    monkeypatch.setattr(torch, "cholesky_inverse", torch.zeros_like)
    with pytest.raises(linalg.NumericalError, match="dominated by rounding error"):
        kl_divergence(q, prior)
    with pytest.raises(linalg.NumericalError, match="dominated by rounding error"):
        GaussianPosterior(prior, 0.0 * mean, variance).kl()
    assert (
        float(GaussianPosterior(prior, 0.0 * mean, 0.0 * variance).kl().detach()) < 0.0
    )  # a density may have any value


def test_a_divergence_that_is_not_finite_is_an_error():
    with pytest.raises(linalg.NumericalError, match="not finite"):
        check_divergence(torch.tensor(torch.nan), torch.ones(()))
    check_divergence(torch.tensor(-1e-12).double(), torch.tensor(1.0).double())
