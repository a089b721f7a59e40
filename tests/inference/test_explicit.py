# SPDX-License-Identifier: Apache-2.0
"""Explicit inducing variables: equal to the collapsed bound at the optimum, unbiased in batches, ordinary in Pyro."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from batch_problems import assert_near, batch_terms, several_sequences, trained
from problems import train_by_svi
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam
from torch.distributions import Independent, Normal, kl_divergence

from pyro_vgpds import (
    VGPDS,
    AutoExplicit,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    MinibatchNaturalGradient,
    NaturalGradient,
    Posterior,
    SequenceDataset,
    Subsampled,
    fit,
)
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.mapping import Dual, ExplicitGP, InducingGaussian, InducingPrior
from pyro_vgpds.mapping.frame_sums import added_sums, frame_sums

COUNT = 5


def problem(gaps=True, per_output=True, structure=None):
    """Sequences with gaps of all kinds, and a model with a well-conditioned K_MM."""
    return trained(several_sequences(COUNT, gaps), noise_per_output=per_output, structure=structure)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("per_output", [False, True])
def test_all_sequences_with_a_full_step_are_the_collapsed_bound(gaps, per_output):
    model, guide, data = problem(gaps, per_output)
    everything, found = SequenceDataset(data).batch(range(COUNT)), []
    explicit = AutoExplicit.from_collapsed(guide, data)
    for natural, own, called in (
        (NaturalGradient(guide, data), guide, data),
        (MinibatchNaturalGradient(explicit, 1.0), explicit, everything),
    ):
        model.zero_grad()
        with natural:
            loss = Collapsed_ELBO().loss_and_grads(model, own, called)
            found.append([torch.tensor(loss), *(p.grad.clone() for p in model.parameters()), *natural.derivatives()])
            natural.step(0.5)
    assert_near(found[1], found[0], 1e-8)
    # q(U) stays at that optimum, and q(X) has taken the same step
    new = guide.posterior(data)
    assert_near([explicit.eta, explicit.lam], [new.eta, new.lam], 1e-8)
    bound = Posterior(model, guide, data).bound
    assert explicit.collect(2) == pytest.approx(bound, rel=1e-9)
    assert -Collapsed_ELBO().loss(model, explicit, everything) == pytest.approx(bound, rel=1e-9)
    assert -Collapsed_ELBO().loss(model, explicit, data) == pytest.approx(bound, rel=1e-9)


def test_averages_over_all_batches_are_those_of_all_sequences():
    model, guide, data = problem()
    explicit, many = AutoExplicit.from_collapsed(guide, data), SequenceDataset(data)
    explicit.collect()

    def evaluate(indices):
        return batch_terms(model, explicit, many.batch(indices))

    parts = [evaluate(indices) for indices in itertools.combinations(range(COUNT), 2)]
    assert_near([torch.stack(part).mean(0) for part in zip(*parts, strict=True)], evaluate(range(COUNT)), 1e-10)
    # batches of one epoch have different sizes, by which they count
    epoch = [(evaluate(part), len(part)) for part in many.parts(torch.randperm(COUNT), 2)]
    weighted = [sum(n * x for x, n in zip(part, [n for _, n in epoch], strict=True)) / COUNT
                for part in zip(*[part for part, _ in epoch], strict=True)]  # fmt: skip
    assert_near(weighted, evaluate(range(COUNT)), 1e-10)


def test_a_batch_moves_its_own_sequences_only_and_without_its_scale():
    model, guide, data = problem()
    explicit, many = AutoExplicit.from_collapsed(guide, data), SequenceDataset(data)
    explicit.collect()
    batch = many.batch([3, 1])
    before = explicit.eta.clone()
    with MinibatchNaturalGradient(explicit, 1e-12) as natural:  # q(U) hardly moves
        Collapsed_ELBO().loss_and_grads(model, explicit, batch)
        natural.step(1.0)
    moved = (explicit.eta != before).any(-1)
    assert moved[batch.rows].all()
    assert int(moved.sum()) == len(batch.rows)
    # at the optimal q(U) of all sequences the derivatives of one are those of the collapsed bound
    with NaturalGradient(guide, data) as collapsed:
        Collapsed_ELBO().loss_and_grads(model, guide, data)
        collapsed.step(1.0)
        assert_near([explicit.eta[batch.rows]], [collapsed.eta[batch.rows]], 1e-6)


def test_expected_log_density_is_the_mean_over_draws():
    model, guide, data = problem()
    explicit = AutoExplicit.from_collapsed(guide, data)
    explicit.collect()
    q = guide.posterior(data)
    gp = model.likelihood(q.mean, data)
    prior = InducingPrior(gp.kernel, gp.inducing, gp.noise, 4)
    u = explicit.dual.posterior(gp.noise)
    exact = ExplicitGP(gp, u.mean, prior).integrate(q, u).log_prob(data.y)
    draws = []
    for _ in range(3000):
        x = q.mean + q.variance.sqrt() * torch.randn_like(q.mean)
        draws.append(ExplicitGP(model.likelihood(x, data), u.sample(), prior).log_prob(data.y).detach())
    draws = torch.stack(draws)
    assert abs(float(draws.mean() - exact.detach())) < 5 * float(draws.std()) / len(draws) ** 0.5


def test_gaussian_of_any_form_against_torch():
    mean, root = torch.randn(4, 3), torch.randn(2, 4, 4).tril()
    root.diagonal(dim1=-2, dim2=-1).abs_().add_(0.5)
    q = InducingGaussian(mean, root, torch.rand(4, 3) + 0.1, torch.tensor([1, 0, 1]), orthogonal=False)
    full = torch.distributions.MultivariateNormal(mean.mT, q.covariance_matrix)
    standard = torch.distributions.MultivariateNormal(torch.zeros(4), torch.eye(4))
    torch.testing.assert_close(q.kl_to_prior(), kl_divergence(full, standard).sum())
    value = torch.randn(4, 3)
    torch.testing.assert_close(q.log_prob(value), full.log_prob(value.mT).sum())
    a = torch.randn(2, 4, 4)
    a = a @ a.mT
    second = q.covariance_matrix + mean.mT.unsqueeze(-1) * mean.mT.unsqueeze(-2)
    wanted = torch.stack([(a[1] * second[0]).sum(), torch.tensor(0.0), (a[0] * second[2]).sum()])
    torch.testing.assert_close(q.quadratic(a, torch.tensor([1, -1, 0])), wanted)
    draws = q.sample((20000,))
    torch.testing.assert_close(draws.mean(0), mean, atol=0.1, rtol=0.0)
    torch.testing.assert_close(draws.var(0), q.variance, atol=0.0, rtol=0.1)
    # independent Normals are one of these
    normal = Independent(Normal(mean, torch.rand(4, 3) + 0.1), 2)
    prior = InducingPrior(ARDRBF()(), torch.randn(4, 2), torch.ones(1), 3)
    wanted = kl_divergence(normal, Independent(Normal(torch.zeros(4, 3), 1.0), 2))
    torch.testing.assert_close(kl_divergence(normal, prior), wanted)


def test_statistics_are_carried_to_other_inducing_inputs():
    """At rest nothing changes; after small moves q(U) still describes the same function."""
    model, guide, data = problem(gaps=False)
    q = guide.posterior(data)
    gp = model.likelihood(q.mean, data)
    prior = InducingPrior(gp.kernel, gp.inducing, gp.noise, 4)
    sums = frame_sums(gp, q.mean, q.variance, prior.factor, gp.groups(data.y, columns=True))
    dual = Dual.empty(6, 4).carried(prior).moved(sums, 1.0, 1.0)
    again = InducingPrior(gp.kernel, gp.inducing.clone(), gp.noise, 4)
    torch.testing.assert_close(dual.carried(again).a, dual.a, rtol=1e-10, atol=0.0)
    moved = InducingPrior(gp.kernel, gp.inducing + 0.02 * torch.randn(6, 2), gp.noise, 4)

    def functions(dual, prior):
        k = torch.linalg.solve_triangular(prior.factor, gp.kernel.cov(q.mean, prior.inducing).mT, upper=False).mT
        return k @ dual.posterior(gp.noise).mean

    truth = functions(dual, prior)
    off, spoiled = functions(dual.carried(moved), moved) - truth, functions(dual, moved) - truth
    assert float(off.detach().abs().mean()) < 0.3 * float(spoiled.detach().abs().mean())


def test_sums_of_parts_with_other_gaps_are_sums_of_all():
    model, guide, data = problem()
    q = guide.posterior(data)
    many, slices = SequenceDataset(data), data.times.slices()
    gp = model.likelihood(q.mean, data)
    factor = gp.inducing_factor()

    def sums(indices):
        part = many.sequences(indices)
        rows = torch.cat([torch.arange(slices[i].start, slices[i].stop) for i in indices])
        own = model.likelihood(q.mean[rows], part)
        return frame_sums(own, q.mean[rows], q.variance[rows], factor, own.groups(part.y, columns=True))

    whole, total = sums(range(COUNT)), added_sums(added_sums(sums([0, 3]), sums([2])), sums([1, 4]))
    for name in ("v", "rows", "square", "log_scale"):
        torch.testing.assert_close(getattr(total, name), getattr(whole, name), msg=name)
    torch.testing.assert_close(total.a[total.of_output], whole.a[whole.of_output])
    torch.testing.assert_close(total.slack[total.of_output], whole.slack[whole.of_output])


# plain Pyro


@pytest.mark.parametrize("per_output", [False, True])
def test_plain_svi_with_free_parameters(per_output):
    model, _, data = problem(per_output=per_output)
    subsampled = Subsampled(model, 2)
    guide = AutoExplicit(subsampled, data, free=True)
    svi = SVI(subsampled, guide, Adam({"lr": 0.03}), Collapsed_ELBO())
    everything = SequenceDataset(data).batch(range(COUNT))
    first = Collapsed_ELBO().loss(subsampled, guide, everything)
    for _ in range(60):
        svi.step(data)
    assert Collapsed_ELBO().loss(subsampled, guide, everything) < first - 20.0
    # the plate is part of the trace, and a batch of all sequences has all its terms
    trace = pyro.poutine.trace(subsampled).get_trace(data)
    assert trace.nodes["sequences"]["value"].shape == (2,)
    assert trace.nodes["y"]["scale"] == COUNT / 2
    assert trace.nodes["u"]["scale"] == 1.0


@pytest.mark.parametrize("free", [False, True])
def test_gradients_against_finite_differences(free):
    model, _, data = problem()
    guide = AutoExplicit(model, data, free=free)
    if not free:
        guide.collect()
    batch = SequenceDataset(data).batch([0, 3])
    tensors = [*model.parameters(), *guide.parameters()]
    names = [name for name, _ in (*model.named_parameters(), *guide.named_parameters())]

    def loss():
        if free:
            return Collapsed_ELBO().differentiable_loss(model, guide, batch).detach()
        with torch.no_grad():  # q(U) in dual form follows the kernel: as a constant it is that of the first point
            return Collapsed_ELBO().loss(model, frozen, batch)

    if not free:
        q = guide.dual.carried(InducingPrior(model.mapping(), model.inducing, model.noise + 1e-6, 4))
        u = q.posterior(model.noise + model.least_noise)
        guide.inducing_posterior = lambda prior: u
        frozen = guide
    value = Collapsed_ELBO().differentiable_loss(model, guide, batch)
    gradients = torch.autograd.grad(value, tensors, allow_unused=True)
    for name, tensor, gradient in zip(names, tensors, gradients, strict=True):
        direction, step = torch.randn_like(tensor), 1e-5
        ends = []
        for sign in (1.0, -1.0):
            tensor.data.add_(direction, alpha=sign * step)
            ends.append(float(loss()))
            tensor.data.sub_(direction, alpha=sign * step)
        slope = (ends[0] - ends[1]) / (2.0 * step)
        found = 0.0 if gradient is None else float((gradient * direction).sum())
        assert found == pytest.approx(slope, rel=2e-4, abs=2e-4), name


def test_other_guides_and_elbos():
    model, _, data = problem(gaps=True)
    batch = SequenceDataset(data).batch([0, 2, 4])

    def mean_field(batch):
        n = batch.sequences.num_frames
        x = pyro.param("x_loc", lambda: model.start.x[batch.rows].clone())
        pyro.sample("u", dist.Normal(pyro.param("u_loc", torch.zeros(6, 4)), 0.1).to_event(2))
        with pyro.poutine.scale(scale=batch.scale):
            pyro.sample("x", dist.Normal(x, 0.3 * torch.ones(n, 2)).to_event(2))

    analytic = Collapsed_ELBO().loss(model, mean_field, batch)
    assert analytic == Collapsed_ELBO().loss(model, mean_field, batch)  # no draw is used
    draws = torch.tensor([Trace_ELBO().loss(model, mean_field, batch) for _ in range(300)])
    assert abs(float(draws.mean()) - analytic) < 5 * float(draws.std()) / 300**0.5
    assert TraceMeanField_ELBO().loss(model, mean_field, batch) != analytic
    auto = AutoNormal(model)
    losses = train_by_svi(model, auto, batch, 150, 0.05, Trace_ELBO())
    assert sum(losses[-20:]) < sum(losses[:20])

    # a guide whose q(u) is neither: u is drawn, x is integrated
    def drawn(batch):
        n = batch.sequences.num_frames
        pyro.sample("u", dist.Laplace(torch.zeros(6, 4), 0.1).to_event(2))
        with pyro.poutine.scale(scale=batch.scale):
            pyro.sample("x", dist.Normal(model.start.x[batch.rows], torch.ones(n, 2)).to_event(2))

    found = {Collapsed_ELBO().loss(model, drawn, batch) for _ in range(2)}
    assert len(found) == 2


def test_prior_draws_of_a_batch():
    model, _, data = problem(gaps=False)
    batch = SequenceDataset(data).batch([1])
    times = SequenceDataset(data).sequences([1])
    draws = Predictive(pyro.poutine.uncondition(model), num_samples=3)(batch)
    assert draws["y"].shape == (3, times.num_frames, 4)
    assert draws["u"].shape == (3, 6, 4)


def test_priors_on_hyperparameters():
    model, _, data = problem()
    model.set_noise(dist.LogNormal(-3.0, 1.0))
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=3)
    result = fit(model, guide, data, batch_size=2, epochs=2)
    assert guide.has_random_parameters
    assert len(result.history) == 7
    explicit = AutoExplicit.from_collapsed(guide, data)
    assert explicit.collect() == pytest.approx(Posterior(model, guide, data).bound, rel=1e-8)


# storage and errors


def test_sites_in_a_file_equal_those_in_memory(tmp_path):
    model, _, data = problem()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    bounds = []
    for store in (None, tmp_path / "sites.bin"):
        model.load_state_dict(state)
        pyro.set_rng_seed(1)
        guide = AutoExplicit(model, data, store=store)
        bounds.append(fit(model, guide, data, batch_size=2, epochs=2).bound)
    assert bounds[0] == bounds[1]
    assert (tmp_path / "sites.bin").stat().st_size == 16 * data.num_frames * 2
    stored = torch.from_file(str(tmp_path / "sites.bin"), size=2 * data.num_frames * 2, dtype=torch.float64)
    assert torch.equal(stored[: data.num_frames * 2], guide.eta.flatten())


def test_from_a_sample():
    data = make_sequences(num_sequences=8, num_outputs=5, length=(20, 25)).sequences()
    many = SequenceDataset(data)
    sample = many.sequences(range(3))
    model = VGPDS.from_data(sample, latent_dim=2, num_inducing=10)
    with pytest.raises(ValueError, match="the model has no initial latent points of these sequences"):
        AutoExplicit(model, many)
    cold = AutoExplicit(model, many, start=sample).collect()
    guide = AutoOpperArchambeau(model)
    fit(model, guide, sample, num_steps=20)
    wide = AutoExplicit.from_sample(guide, sample, many)
    trained = wide.collect()
    assert trained > cold
    assert fit(model, wide, many, batch_size=4, epochs=4, learning_rate=0.02).bound > trained
    collapsed = wide.collapsed()
    assert Posterior(model, wide, data).bound == pytest.approx(Posterior(model, collapsed, data).bound, rel=1e-8)


def test_float32_and_device_keep_the_sites_in_float64():
    _, guide, data = problem()
    explicit = AutoExplicit.from_collapsed(guide, data)
    eta = explicit.eta.clone()
    explicit.float()
    assert explicit.eta.dtype == torch.float64
    assert torch.equal(explicit.eta, eta)


def test_errors(tmp_path):
    model, guide, data = problem()
    many = SequenceDataset(data)
    explicit = AutoExplicit(model, data)
    with pytest.raises(TypeError, match="model must be a VGPDS, or Subsampled"):
        AutoExplicit(lambda batch: None, data)
    with pytest.raises(ValueError, match="start must be η and λ, tensors of shape"):
        AutoExplicit(model, data, start=(explicit.eta, explicit.lam[:3]))
    for wrong in (-explicit.lam, explicit.lam / 0.0):
        with pytest.raises(ValueError, match="η and λ of start must be finite and λ positive"):
            AutoExplicit(model, data, start=(explicit.eta, wrong))
    with pytest.raises(TypeError, match="start must be a function of Sequences, but calling it failed: bad operand"):
        AutoExplicit(model, data, start=abs)
    with pytest.raises(ValueError, match="or a function that returns them, but got 65"):
        AutoExplicit(model, data, start=lambda sequences: sequences.num_frames)
    with pytest.raises(ValueError, match="sequences must be different sequences from 0 to 4, but 9 is not one"):
        explicit.part([9])
    with pytest.raises(ValueError, match=r"free=True needs q\(X\) in memory"):
        AutoExplicit(model, data, free=True, store=tmp_path / "s")
    (tmp_path / "here").touch()
    with pytest.raises(ValueError, match=r"store must be the name of a new file, but .* exists already"):
        AutoExplicit(model, data, store=tmp_path / "here")
    with pytest.raises(ValueError, match="which does not exist"):
        AutoExplicit(model, data, store=tmp_path / "no" / "s")
    with pytest.raises(ValueError, match="but the model was called on"):
        Collapsed_ELBO().loss(model, explicit, many.sequences([1]))
    with pytest.raises(ValueError, match="batch_size is 9, but there are only 5 sequences"):
        Subsampled(model, 9)(data)
    with pytest.raises(TypeError, match="guide must be an AutoExplicit, but got AutoOpperArchambeau"):
        MinibatchNaturalGradient(guide)
    with pytest.raises(ValueError, match="guide must not be free"):
        MinibatchNaturalGradient(AutoExplicit(model, data, free=True))
    with MinibatchNaturalGradient(explicit) as natural:
        with pytest.raises(RuntimeError, match="needs a backward pass"):
            natural.step(0.5)
        with pytest.raises(RuntimeError, match="already has a MinibatchNaturalGradient"):
            natural.__enter__()
    elbo = Collapsed_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=0)
    with pytest.raises(ValueError, match="takes one draw at a time"):
        elbo.loss(model, explicit, many.batch([0]))
