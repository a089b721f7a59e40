# SPDX-License-Identifier: Apache-2.0
"""A model whose outputs are not Gaussian is a Pyro program: every algorithm of Pyro takes it."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import train_by_svi
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, autoguide
from pyro.infer.inspect import get_model_relations
from pyro.optim import Adam

from pyro_vgpds import (
    VGPDS,
    AmortizedOpperArchambeau,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    NaturalGradient,
    Posterior,
    Sequences,
    fit,
)
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White
from pyro_vgpds.likelihoods import Bernoulli, Binomial, NegativeBinomial, Poisson, StudentT

FAMILIES = {"counts": NegativeBinomial, "yes": Bernoulli, "successes": lambda: Binomial(5), "heavy": StudentT}


def make_outputs(kind: str, frames: int = 12, outputs: int = 3, seed: int = 0) -> Sequences:
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, frames)
    f = np.sin(4 * t)[:, None] * rng.normal(size=outputs)
    chance = 1 / (1 + np.exp(-f))
    y = {
        "counts": lambda: rng.poisson(np.exp(f + 0.5)),
        "yes": lambda: rng.random(f.shape) < chance,
        "successes": lambda: rng.binomial(5, chance),
        "heavy": lambda: f + 0.1 * rng.standard_t(3, size=f.shape),
    }[kind]().astype(float)
    y[1, 0] = np.nan
    return Sequences(t, y)


def make(kind: str, latent_dim: int = 1, num_inducing: int = 5, likelihood=None, **options):
    data = make_outputs(kind, **options)
    pyro.set_rng_seed(0)
    return VGPDS.from_data(data, latent_dim, num_inducing, likelihood=likelihood or FAMILIES[kind]()), data


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_trace_has_the_log_joint_of_x_f_and_y(kind):
    data, x, f = make_outputs(kind), 3.0 * torch.linspace(-2, 2, 12).unsqueeze(-1), torch.randn(12, 3)
    model = VGPDS(
        Matern32() + White(0.1), ARDRBF(1.2, [1.5]) + Bias(0.3), x[::3], None, torch.tensor([0.1, 0.2, 0.3]),
        likelihood=FAMILIES[kind](), output_scale=torch.tensor([0.5, 1.0, 2.0]),
    )  # fmt: skip
    trace = poutine.trace(poutine.condition(model, {"x": x, "f": f})).get_trace(data)
    gp = torch.distributions.MultivariateNormal(torch.zeros(12), model.mapping().cov(x, x).detach())
    expected = trace.nodes["x"]["fn"].log_prob(x)
    given = model.output_likelihood().distribution(f)
    for d in range(3):
        g = (f[:, d] - model.output_mean[d]) / model.output_scale[d]
        expected = expected + gp.log_prob(g) - 12 * model.output_scale[d].log()
        seen = data.y[:, d].isfinite()
        expected = expected + given.log_prob(data.y.nan_to_num(1.0))[seen, d].sum()
    torch.testing.assert_close(trace.log_prob_sum(), expected, rtol=1e-5, atol=1e-3)  # the jitter of K_NN
    assert trace.nodes["y"]["is_observed"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_draws_of_the_prior(kind):
    model, data = make(kind)
    found = Predictive(model, num_samples=4)(Sequences(data.times.t))
    assert {name: tuple(value.shape[1:]) for name, value in found.items()} == {"x": (12, 1), "f": (12, 3), "y": (12, 3)}
    y = found["y"]
    assert kind == "heavy" or bool((y == y.round()).all() and (y >= 0).all())
    parallel = Predictive(model, num_samples=4, parallel=True)(Sequences(data.times.t))
    assert parallel["y"].shape == (4, 12, 3)


def test_the_graph_of_the_model():
    model, data = make("counts")
    found = get_model_relations(model, model_args=(data,))
    assert found["sample_sample"] == {"x": [], "f": ["x"], "y": ["f"]}
    assert found["observed"] == ["y"]


@pytest.mark.parametrize("guide_class", [autoguide.AutoNormal, autoguide.AutoDelta])
@pytest.mark.parametrize("kind", ["counts", "heavy"])
def test_autoguides_have_the_same_loss_with_either_elbo(kind, guide_class):
    # a guide with a site f of its own: nothing is integrated out
    model, data = make(kind)
    guide = guide_class(model)
    losses = train_by_svi(model, guide, data, 30, 0.02, Trace_ELBO())
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    values = []
    for elbo in (Trace_ELBO(), Collapsed_ELBO()):
        pyro.set_rng_seed(1)
        values.append(elbo.loss(model, guide, data))
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_an_autoguide_without_f_gets_the_collapsed_bound():
    model, data = make("counts")
    guide = autoguide.AutoDelta(poutine.block(model, hide=["f"]))
    losses = train_by_svi(model, guide, data, 40)
    assert losses[-1] < losses[0]
    point = Collapsed_ELBO().loss(model, guide, data)
    assert point == pytest.approx(Collapsed_ELBO().loss(model, guide, data))  # nothing is drawn
    assert Posterior(model, guide, data).bound == pytest.approx(-point, abs=0.5)  # its factors are at their optimum


@pytest.mark.parametrize("guide_class", [autoguide.AutoNormal, autoguide.AutoDelta])
@pytest.mark.parametrize("kind", FAMILIES)
def test_predictions_with_autoguides(kind, guide_class):
    model, data = make(kind)
    guide = guide_class(model)
    train_by_svi(model, guide, data, 5, 0.02, Trace_ELBO())
    post = Posterior(model, guide, data)
    mapping = post.training.likelihood
    again = mapping.settled(post.q)
    assert float(again.integrate(post.q).log_prob(data.y)) == pytest.approx(
        float(mapping.integrate(post.q).log_prob(data.y)), abs=1e-4
    )
    assert bool(torch.isfinite(post.forecast([1.1]).mean).all())
    lower, upper = post.impute(fill=False).interval(0.9)
    assert bool((lower <= upper).all())
    # natural steps and updates of the factors can only add to the bound, except for a point, which has no KL
    if guide_class is autoguide.AutoNormal:
        assert post.condition(data).bound > post.bound


def test_nuts_on_a_small_problem():
    model, data = make("counts", frames=6, outputs=2, num_inducing=4)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=12, warmup_steps=12, disable_progbar=True)
    mcmc.run(data)
    draws = mcmc.get_samples()
    assert draws["x"].shape == (12, 6, 1)
    assert draws["f"].shape == (12, 6, 2)
    assert all(bool(torch.isfinite(value).all()) for value in draws.values())
    assert len(draws["f"].unique(dim=0)) > 1  # some proposals were accepted


@pytest.mark.parametrize("kind", ["counts", "yes", "successes"])
def test_plain_loops_reach_the_bound_of_fit(kind):
    bounds = {}
    for way in ("fit", "natural", "adam") if kind == "counts" else ("fit", "natural"):
        model, data = make(kind)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        guide = AutoOpperArchambeau(model)
        if way == "fit":
            bounds[way] = fit(model, guide, data, num_steps=60, warmup=0, tolerance=1e-8, progress=False).bound
            continue
        pyro.clear_param_store()
        svi = SVI(model, guide, Adam({"lr": 0.05}), Collapsed_ELBO())
        if way == "adam":
            for _ in range(250):
                svi.step(data)
        else:
            with NaturalGradient(guide, data) as natural:
                for _ in range(40):
                    svi.step(data)
                    natural.step(0.5)
        bounds[way] = -Collapsed_ELBO().loss(model, guide, data)
    assert bounds["natural"] == pytest.approx(bounds["fit"], abs=1e-3)
    assert bounds.get("adam", bounds["fit"]) == pytest.approx(bounds["fit"], abs=2e-2)


def test_a_differentiable_loss_needs_a_step_of_the_factors():
    model, data = make("counts")
    guide = AutoOpperArchambeau(model)
    elbo = Collapsed_ELBO()
    elbo.loss(model, guide, data)
    before = model.sites.state.clone()
    elbo.differentiable_loss(model, guide, data).backward()
    elbo.differentiable_loss(model, guide, data).backward()  # the first is forgotten: its gradients count once
    assert torch.equal(model.sites.state, before)
    model.sites.step()
    by_hand = model.sites.state.clone()
    model.sites.set(before)
    elbo.loss_and_grads(model, guide, data)
    torch.testing.assert_close(model.sites.state, by_hand)


def test_scaled_and_masked_models():
    states, losses = [], []
    for factor in (1.0, 0.25):
        pyro.clear_param_store()
        model, data = make("counts")
        guide = AutoOpperArchambeau(model)
        scaled = poutine.scale(model, factor), poutine.scale(guide, factor)
        losses.append(Collapsed_ELBO().loss_and_grads(*scaled, data) / factor)
        states.append(model.sites.state.clone())
    assert losses[0] == pytest.approx(losses[1])
    torch.testing.assert_close(states[0], states[1])
    Collapsed_ELBO().loss_and_grads(poutine.mask(model, mask=False), poutine.mask(guide, mask=False), data)
    assert torch.equal(model.sites.state, states[1])  # masked outputs tell nothing


def test_priors_on_kernel_and_likelihood_parameters():
    data = make_outputs("counts")
    model = VGPDS.from_data(
        data, 1, 5, mapping=ARDRBF(1.0, dist.LogNormal(torch.zeros(1), 1.0).to_event(1)) + Bias(0.1),
        likelihood=NegativeBinomial(dispersion=dist.LogNormal(torch.ones(3), 0.5).to_event(1)),
    )  # fmt: skip
    guide = AutoOpperArchambeau(model)
    losses = train_by_svi(model, guide, data, 25, 0.03, Collapsed_ELBO(num_particles=2))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert {"output_likelihood.dispersion", "mapping.parts.0.weight"} <= set(guide(data))
    post = Posterior(model, guide, data)
    assert torch.equal(post.likelihood.parameters.dispersion, post.origin.values["output_likelihood.dispersion"])
    assert post.condition(data).bound >= post.bound - 1e-3


@pytest.mark.parametrize("on", ["likelihood", "mapping"])
def test_several_draws_at_a_time_are_refused(on):
    model, data = make("counts", likelihood=NegativeBinomial(dispersion=dist.LogNormal(1.0, 0.5)))
    if on == "mapping":
        model = VGPDS.from_data(data, 1, 5, mapping=ARDRBF(dist.LogNormal(0.0, 1.0)), likelihood=NegativeBinomial())
    guide = AutoOpperArchambeau(model)
    many = Collapsed_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=0)
    with pytest.raises(ValueError, match="one draw of the hyperparameters at a time"):
        many.loss(model, guide, data)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_amortised_guide_reads_functions(kind):
    model, data = make(kind, latent_dim=2, frames=20, outputs=4)
    guide = AmortizedOpperArchambeau(model, data, num_hidden=4)
    inputs = guide._inputs(data)
    assert inputs.shape == (20, 8)
    assert not inputs.requires_grad
    assert bool(torch.isfinite(inputs).all() and 0.5 < inputs.abs().max() < 20.0)
    assert inputs[1, 0] == 0.0 == inputs[1, 4]
    result = fit(model, guide, data, num_steps=15, progress=False)
    assert result.bound > result.history[0].bound
    post = Posterior(model, guide, data)
    assert post.bound == pytest.approx(result.bound)
    torch.testing.assert_close(guide._inputs(data), inputs)  # learned parameters do not change what it reads
    assert guide.gap(data) >= 0.0
    new = make_outputs(kind, 7, 4, seed=1)
    encoded = post.reconstruct(new.times.t, new.y, encode=True)
    assert encoded.bound <= post.reconstruct(new.times.t, new.y).bound + 1e-6


def test_the_amortised_guide_with_a_prior_on_the_dispersion():
    model, data = make("counts", likelihood=NegativeBinomial(dispersion=dist.LogNormal(1.0, 0.5)))
    guide = AmortizedOpperArchambeau(model, data, num_hidden=4)
    torch.testing.assert_close(guide._inputs(data), guide._inputs(data))
    assert SVI(model, guide, Adam({"lr": 0.01}), Collapsed_ELBO()).step(data) > 0.0


@pytest.mark.parametrize("likelihood", [NegativeBinomial, Poisson])
def test_an_evaluation_with_gradients_updates_the_factors(likelihood):
    y = torch.poisson(2.0 * torch.ones(12, 3))
    data = Sequences(torch.arange(12.0), y)
    model = VGPDS.from_data(data, 1, 4, likelihood=likelihood())
    guide, elbo = AutoOpperArchambeau(model), Collapsed_ELBO()
    elbo.loss(model, guide, data)
    best = model.sites.state.clone()
    model.sites.set(0.7 * best)
    bad = -elbo.loss(model, guide, data)
    assert torch.equal(model.sites.state, 0.7 * best)  # a loss alone leaves them
    for _ in range(20):
        elbo.loss_and_grads(model, guide, data)
    assert not torch.equal(model.sites.state, 0.7 * best)
    assert -elbo.loss(model, guide, data) > bad + 1e-3


def test_training_leaves_factors_at_their_optimum():
    y = torch.poisson(2.0 * torch.ones(15, 3))
    data = Sequences(torch.arange(15.0), y)
    model = VGPDS.from_data(data, 1, 4, likelihood=NegativeBinomial())
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, num_steps=60)
    for _ in range(50):
        Collapsed_ELBO().loss_and_grads(model, guide, data)
    assert -Collapsed_ELBO().loss(model, guide, data) == pytest.approx(result.bound, abs=1e-2)
