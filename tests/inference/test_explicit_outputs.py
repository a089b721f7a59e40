# SPDX-License-Identifier: Apache-2.0
"""Batches of outputs that are not Gaussian: equal to the collapsed bound at the optimum, unbiased, ordinary in Pyro."""

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from batch_problems import assert_near, batch_terms, trained
from problems import train_by_svi
from pyro.infer import Predictive, Trace_ELBO

from pyro_vgpds import (
    VGPDS,
    AutoExplicit,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    MinibatchNaturalGradient,
    NaturalGradient,
    Posterior,
    SequenceDataset,
    Sequences,
    Subsampled,
    fit,
    load_posterior,
    save_posterior,
)
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.likelihoods import Binomial
from pyro_vgpds.mapping.explicit_outputs import ExplicitOutputs
from pyro_vgpds.mapping.inducing_gaussian import InducingPrior

COUNT = 4
EXACT = ["student_t", "bernoulli", "binomial", "negative_binomial"]  # whose factors are bounds


def problem(name, num_steps=4):
    base = make_sequences(num_sequences=COUNT, num_outputs=3, length=(8, 12)).sequences()
    f = base.read()
    f = (f - f.mean(0)) / f.std(0)
    likelihood = name
    if name == "student_t":
        y = f + 0.1 * torch.randn_like(f)
    elif name == "bernoulli":
        y = (torch.rand_like(f) < f.sigmoid()).to(f)
    elif name == "binomial":
        y = torch.distributions.Binomial(5, logits=f).sample()
        likelihood = Binomial(5)
    else:
        y = torch.poisson(2.0 * (0.7 * f).exp())
    y[2:5, 1] = torch.nan
    data = Sequences(list(base.times.t.split(base.lengths)), list(y.split(base.lengths)))
    return trained(data, num_steps, likelihood=likelihood)


@pytest.mark.parametrize("name", [*EXACT, "poisson"])
def test_all_sequences_with_a_full_step_are_the_collapsed_bound(name):
    model, guide, data = problem(name)
    everything, found = SequenceDataset(data).batch(range(COUNT)), []
    explicit = AutoExplicit.from_collapsed(guide, data)
    for natural, own, called in (
        (NaturalGradient(guide, data), guide, data),
        (MinibatchNaturalGradient(explicit, 1.0), explicit, everything),
    ):
        model.zero_grad()
        model.sites.is_held = True
        with natural:
            loss = Collapsed_ELBO().loss_and_grads(model, own, called)
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            found.append([torch.tensor(loss), *gradients, *natural.derivatives()])
            natural.step(0.5)
        if own is guide:
            model.sites.step(0.5)
        model.sites.is_held = False
    assert_near([found[1][0]], [found[0][0]], 1e-8)
    assert_near([explicit.factors], [model.sites.state], 1e-8)
    # with draws, the collapsed bound also differentiates the q(U) that its factors give
    if name != "poisson":
        assert_near(found[1], found[0], 1e-8)
        q = guide.posterior(data)
        assert_near([explicit.eta, explicit.lam], [q.eta, q.lam], 1e-8)
        bound = Posterior(model, guide, data).bound
        assert explicit.collect(2) == pytest.approx(bound, rel=1e-9)
        assert Posterior(model, explicit.collapsed(), data).bound == pytest.approx(bound, rel=1e-9)


def test_a_mapping_without_constants():
    """Its statistics with the weights of factors come from other compiled loops than those of a sum of kernels."""
    _, _, data = problem("bernoulli", num_steps=1)
    model = VGPDS.from_data(data, 2, 6, mapping=ARDRBF(), likelihood="bernoulli")
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=4, tolerance=0.0)
    explicit = AutoExplicit.from_collapsed(guide, data)
    assert explicit.collect(2) == pytest.approx(Posterior(model, guide, data).bound, rel=1e-6)


@pytest.mark.parametrize("name", ["bernoulli", "student_t"])
def test_averages_over_all_batches_are_those_of_all_sequences(name):
    model, guide, data = problem(name)
    explicit, many = AutoExplicit.from_collapsed(guide, data), SequenceDataset(data)
    explicit.collect()

    def evaluate(indices):
        return batch_terms(model, explicit, many.batch(indices))

    parts = [evaluate(indices) for indices in itertools.combinations(range(COUNT), 2)]
    assert_near([torch.stack(part).mean(0) for part in zip(*parts, strict=True)], evaluate(range(COUNT)), 1e-10)
    # an evaluation with gradients updates the factors of its own frames only
    before, own = explicit.factors.clone(), torch.zeros(data.num_frames, dtype=torch.bool)
    Collapsed_ELBO().loss_and_grads(model, explicit, many.batch([2]))
    own[many.rows([2])] = True
    assert torch.equal((explicit.factors != before).any(0).any(-1), own)


@pytest.mark.parametrize("name", ["bernoulli", "poisson"])
def test_training_learns_resumes_and_leaves_a_model_that_predicts(name, tmp_path):
    model, guide, data = problem(name, num_steps=2)
    first = Posterior(model, guide, data).bound
    state = {key: value.clone() for key, value in model.state_dict().items()}
    sites = guide.mean_bar.detach().clone(), guide.lam.detach().clone()
    pyro.set_rng_seed(1)
    result = fit(model, guide, data, batch_size=2, epochs=6)
    assert result.bound > first
    post = Posterior(model, guide, data)
    assert post.bound == pytest.approx(result.bound, rel=1e-3 if name == "poisson" else 1e-7)  # draws differ
    assert torch.isfinite(post.forecast([2.0], sequence=1).mean).all()

    class Stop(Exception):  # noqa: N818
        pass

    def stop(record):
        if record.step == 5:
            raise Stop

    def again(seed, **options):
        model.load_state_dict(state)
        guide.set(*sites)
        pyro.set_rng_seed(seed)
        return fit(model, guide, data, batch_size=2, epochs=6, **options)

    with pytest.raises(Stop):
        again(1, checkpoint=tmp_path / "state", checkpoint_steps=1, callback=stop)
    resumed = again(99, resume=tmp_path / "state")
    assert [r.bound for r in resumed.history] == [r.bound for r in result.history]
    assert resumed.bound == result.bound


def test_sample_first_then_all_sequences_with_factors_in_a_file(tmp_path):
    model, guide, sample = problem("bernoulli")
    items = [(t.numpy(), y.numpy()) for t, y in zip(
        sample.times.t.split(sample.lengths), sample.read().split(sample.lengths), strict=True)]  # fmt: skip
    many = SequenceDataset([*items, *items])
    bounds = []
    state = {key: value.clone() for key, value in model.state_dict().items()}
    for store in (None, tmp_path / "sites.bin"):
        model.load_state_dict(state)
        pyro.set_rng_seed(0)
        explicit = AutoExplicit.from_sample(guide, sample, many, store=store)
        assert explicit.factors.isnan().all()
        bounds.append(fit(model, explicit, many, batch_size=3, epochs=2).bound)
        assert not explicit.factors.isnan().any()
    assert bounds[0] == bounds[1]
    found = np.fromfile(tmp_path / "sites.bin")[2 * explicit.eta.numel() :]
    assert np.array_equal(found, explicit.factors.flatten().numpy())


@pytest.mark.parametrize("name", ["student_t", "bernoulli", "poisson"])
@pytest.mark.parametrize("chosen", [[], [2]])
def test_predictions_without_the_data(name, chosen, tmp_path):
    model, guide, data = problem(name)
    whole = Posterior(model, guide, data, residual=None)
    explicit = AutoExplicit.from_collapsed(guide, data)
    some = Posterior(model, *explicit.part(chosen))
    assert some.bound == pytest.approx(whole.bound, rel=1e-2 if name == "poisson" else 1e-9)  # draws differ
    new, wanted = some.forecast([0.3], None), whole.forecast([0.3], None)
    torch.testing.assert_close(new.mean, wanted.mean, rtol=1e-8, atol=1e-8)
    if chosen:
        torch.testing.assert_close(some.forecast([2.0], 0).mean, whole.forecast([2.0], 2).mean, rtol=1e-7, atol=1e-7)
    t, y = data.times.t[:6], data.read()[:6].clone()
    y[:, 2:] = torch.nan
    assert some.log_density(t, y) == pytest.approx(float(whole.log_density(t, y)), abs=2e-2)
    assert torch.isfinite(some.reconstruct(t, y).mean).all()
    save_posterior(tmp_path / "post", some)
    explicit.part([0])  # gives the model the factors of other sequences
    assert load_posterior(tmp_path / "post").bound == some.bound
    with pytest.raises(ValueError, match="needs natural steps with all training sequences in memory"):
        some.extended(9.0 + 0.1 * torch.arange(8.0), data.read()[:8], 0)


def test_log_density_given_u_is_the_mean_over_functions():
    model, guide, data = problem("negative_binomial")
    q = guide.posterior(data)
    with torch.no_grad():
        gp, value = model.functions(q.mean), model.output_likelihood()
        prior = InducingPrior(gp.kernel, gp.inducing, torch.ones(1), 3)
        u = prior.sample()
        outputs = ExplicitOutputs(gp, u, prior, value, data)
        k, mean = outputs._functions()
        spare = (gp.kernel.cov_diag(gp.x) - k.square().sum(-1)).clamp_min(0.0).sqrt().unsqueeze(-1)
        draws = torch.stack([
            value.log_prob(mean + gp.output_scale * spare * torch.randn_like(mean), data.y).sum() for _ in range(4000)
        ])  # fmt: skip
        assert abs(float(draws.mean() - outputs.log_prob(data.y))) < 5 * float(draws.std()) / len(draws) ** 0.5
        assert outputs.sample().shape == data.y.shape
        assert bool((outputs.sample() >= 0).all())


def test_plain_svi_and_other_guides():
    model, _, data = problem("bernoulli")
    subsampled, batch = Subsampled(model, 2), SequenceDataset(data).batch([0, 2])
    free = AutoExplicit(subsampled, data, free=True)
    everything = SequenceDataset(data).batch(range(COUNT))
    first = Collapsed_ELBO().loss(subsampled, free, everything)
    train_by_svi(subsampled, free, data, 40, 0.03)
    assert Collapsed_ELBO().loss(subsampled, free, everything) < first - 5.0

    def mean_field(batch):
        pyro.sample("u", dist.Normal(torch.zeros(6, 3), 0.5).to_event(2))
        with pyro.poutine.scale(scale=batch.scale):
            x = model.start.x[batch.rows]
            pyro.sample("x", dist.Normal(x, 0.3 * torch.ones_like(x)).to_event(2))

    # the bound with factors at their optimum is below the expectation over draws, and close to it
    analytic = Collapsed_ELBO().loss(model, mean_field, batch)
    draws = torch.tensor([Trace_ELBO().loss(model, mean_field, batch) for _ in range(300)])
    error = 5 * float(draws.std()) / 300**0.5
    assert -error < analytic - float(draws.mean()) < error + 0.1 * abs(analytic)
    drawn = Predictive(pyro.poutine.uncondition(model), num_samples=2)(batch)
    assert drawn["y"].shape == (2, batch.sequences.num_frames, 3)
    elbo = Collapsed_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=0)
    with pytest.raises(ValueError, match="vectorize_particles"):
        elbo.loss(model, AutoExplicit(model, data), batch)
