# SPDX-License-Identifier: Apache-2.0
import copy
import warnings
from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import make_data, make_model, make_problem, train_by_svi
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import MCMC, NUTS, SVI, JitTrace_ELBO, Predictive, Trace_ELBO, TraceMeanField_ELBO, autoguide
from pyro.nn import PyroParam, PyroSample
from pyro.optim import Adam

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, OpperArchambeau, Sequences, TemporalGP
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, Periodic, White
from pyro_vgpds.mapping import basis, group_terms, rbf_bound
from pyro_vgpds.temporal import dense


def fit_of(model, q, data, **values):
    """F̂ of the model under q(X), given values of its random parameters."""
    trace = poutine.trace(poutine.condition(model, {"x": q.mean.detach(), **values})).get_trace(data)
    return trace.nodes["y"]["fn"].integrate(q).log_prob(data.y)


def bound_by_hand(model, guide, data):
    """F = F̂ − KL from the library's parts, without Pyro."""
    prior = TemporalGP(model.temporal(), data.times, model.latent_dim)
    q = OpperArchambeau(prior, guide.mean_bar, guide.lam)
    return fit_of(model, q, data) - torch.distributions.kl_divergence(q, prior)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_loss_is_minus_the_bound(missing):
    model, guide, data = make_problem(missing=missing)
    loss = Collapsed_ELBO().differentiable_loss(model, guide, data)
    torch.testing.assert_close(-loss, bound_by_hand(model, guide, data))
    assert Collapsed_ELBO().loss(model, guide, data) == pytest.approx(loss.item())


def test_svi_trains_and_the_loss_is_deterministic():
    data = make_data(missing=0.1)
    losses = []
    for _ in range(2):
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        model = VGPDS.from_data(data, latent_dim=3, num_inducing=8)
        guide = AutoOpperArchambeau(model)
        svi = SVI(model, guide, Adam({"lr": 0.05}), Collapsed_ELBO())
        state = torch.get_rng_state()
        losses.append([svi.step(data) for _ in range(60)])
        assert torch.equal(torch.get_rng_state(), state)  # no sample was drawn
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0] - 50


def test_nothing_is_factorised_that_is_not_needed(monkeypatch):
    model, guide, data = make_problem()
    model.structure = "dense"
    names = []
    for module in (dense, basis):
        original = module.cholesky
        monkeypatch.setattr(
            module, "cholesky", lambda m, name, *a, original=original: names.append(name) or original(m, name, *a)
        )
    for module in (group_terms, rbf_bound):
        monkeypatch.setattr(module, "is_compiled", lambda *args: False)  # compiled code is not seen here
    shapes, factorise = [], torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda m: shapes.append(m.shape) or factorise(m))
    Collapsed_ELBO().loss_and_grads(model, guide, data)
    batches = len(data.times.batches)
    assert names == ["the inducing covariance K_MM"]
    assert len(shapes) == len(names) + batches + 1  # and B = I + √λ K_t √λ of each batch, B = K_MM + β Ψ2 once
    assert shapes.count((1, model.num_inducing, model.num_inducing)) == 1


def test_a_guide_written_by_hand_gives_the_same():
    data = make_data()
    model, auto = make_model(data)

    def guide(data):
        prior = TemporalGP(model.temporal(), data.times, model.latent_dim)
        pyro.sample("x", OpperArchambeau(prior, auto.mean_bar, auto.lam))

    state = torch.get_rng_state()
    loss = Collapsed_ELBO().loss(model, guide, data)
    assert torch.equal(torch.get_rng_state(), state)  # no sample is drawn
    assert loss == pytest.approx(Collapsed_ELBO().loss(model, auto, data), rel=1e-12)


def test_an_opper_archambeau_site_that_nothing_integrates_over_is_refused():
    """Its value would be its mean, and its density zero: the loss would be no bound."""
    _, guide, data = make_problem((4, 2))

    def unmarked(data):
        x = pyro.sample("x", TemporalGP(guide.model.temporal(), data.times, 2))
        pyro.sample("y", dist.Normal(x.sum(-1, keepdim=True), 1.0).expand(data.y.shape).to_event(2), obs=data.y)

    q = AutoOpperArchambeau(unmarked, mean_bar=guide.mean_bar, lam=guide.lam)
    message = "site 'x' is an OpperArchambeau, but no observed site .* is marked infer={'integrate': 'x'}"
    with pytest.raises(ValueError, match=message):
        Collapsed_ELBO().loss(unmarked, q, data)


def test_validation_of_pyro_stays_on():
    """The loss goes through Pyro's own checks of traces."""
    model, guide, data = make_problem((4, 2))

    def extra(data):
        guide_x = TemporalGP(model.temporal(), data.times, 2)
        pyro.sample("x", OpperArchambeau(guide_x, guide.mean_bar, guide.lam))
        pyro.sample("unknown", dist.Normal(0.0, 1.0))

    with (
        pytest.warns(UserWarning, match="Found non-auxiliary vars in guide but not model"),
        pytest.raises(AssertionError),
    ):
        Collapsed_ELBO().loss(model, extra, data)


def test_any_guide_with_mean_and_variance_works():
    model, _, data = make_problem()

    def guide(data):
        loc = pyro.param("loc", torch.zeros(data.num_frames, 2))
        scale = pyro.param("scale", 0.3 * torch.ones(data.num_frames, 2), constraint=constraints.positive)
        pyro.sample("x", dist.Normal(loc, scale).to_event(2))

    elbo = Collapsed_ELBO()
    first = elbo.loss(model, guide, data)
    assert elbo.loss(model, guide, data) == first
    q = dist.Normal(torch.zeros(21, 2), 0.3 * torch.ones(21, 2)).to_event(2)
    prior = TemporalGP(model.temporal(), data.times, 2)
    expected = fit_of(model, q, data) - torch.distributions.kl_divergence(q, prior)
    assert -first == pytest.approx(expected.item(), rel=1e-10)
    losses = train_by_svi(model, guide, data, 30, 0.05, elbo)
    assert losses[-1] < losses[0]


@pytest.mark.long
def test_a_guide_without_a_known_kl_is_estimated_without_bias():
    model, _, data = make_problem((4, 2))

    def guide(data):
        pyro.sample("x", dist.Laplace(torch.zeros(6, 2), 0.2 * torch.ones(6, 2)).to_event(2))

    prior = TemporalGP(model.temporal(), data.times, 2)
    q = dist.Laplace(torch.zeros(6, 2), 0.2 * torch.ones(6, 2)).to_event(2)
    x = q.sample((20_000,))
    kl = (q.log_prob(x) - prior.log_prob(x)).mean()
    loss = sum(Collapsed_ELBO().loss(model, guide, data) for _ in range(300)) / 300
    expected = kl - fit_of(model, q, data)
    assert loss == pytest.approx(expected.item(), rel=0.05)


def test_a_guide_without_moments_is_refused():
    model, _, data = make_problem((4,))

    def guide(data):
        base = dist.Normal(torch.zeros(4, 2), torch.ones(4, 2)).to_event(2)
        pyro.sample("x", dist.TransformedDistribution(base, [dist.transforms.AffineTransform(0.0, 2.0)]))

    with pytest.raises(
        TypeError, match="'y' is integrated over 'x', so the guide's distribution of 'x' must have a mean"
    ):
        Collapsed_ELBO().loss(model, guide, data)


def test_a_guide_without_the_latent_path_is_refused():
    data = make_data((4,))
    model, _ = make_model(data)

    def guide(data):
        pyro.sample("z", dist.Normal(torch.zeros(4, 2), torch.ones(4, 2)).to_event(2))

    for elbo in (Collapsed_ELBO(), Collapsed_ELBO(num_particles=2)):
        with (
            pytest.warns(UserWarning, match="Found .*vars in"),  # of Pyro
            pytest.raises(ValueError, match="guide has no latent site 'x'; its latent sites are z"),
        ):
            elbo.loss(model, guide, data)


@pytest.mark.parametrize("elbo", [Collapsed_ELBO, Trace_ELBO])
def test_a_guide_of_less_precision_is_refused(elbo):
    data = make_data((4,))
    model, _ = make_model(data)

    def guide(data):
        loc = pyro.param("loc", lambda: torch.zeros(4, 2, dtype=torch.float32))  # the default of torch
        pyro.sample("x", dist.Normal(loc, torch.ones_like(loc)).to_event(2))

    with pytest.raises(
        TypeError, match=r"'x' of the guide is torch.float32, but data and model are torch.float64. Make"
    ):
        elbo().loss_and_grads(model, guide, data)


@pytest.mark.long
def test_monte_carlo_elbos_are_above_the_collapsed_one_and_agree():
    model, guide, data = make_problem()
    collapsed = Collapsed_ELBO().loss(model, guide, data)
    losses = {}
    for elbo in (Trace_ELBO, TraceMeanField_ELBO):
        draws = torch.tensor([elbo().loss(model, guide, data) for _ in range(100)])
        losses[elbo] = draws.mean()
        error = draws.std() / 100**0.5
        assert collapsed > draws.mean() + 4 * error  # the loss of the tighter bound is lower
    assert losses[Trace_ELBO] == pytest.approx(losses[TraceMeanField_ELBO].item(), rel=0.02)


@pytest.mark.long
def test_gradients_at_a_stationary_point_are_those_of_the_papers_appendix():
    model, guide, data = make_problem((5, 3), noise=1.0)
    prior = TemporalGP(model.temporal(), data.times, 2)

    def gradients():
        mean_bar, lam = guide.mean_bar.detach().requires_grad_(), guide.lam.detach().requires_grad_()
        q = OpperArchambeau(prior, mean_bar, lam)
        mean, variance = q.mean.detach().requires_grad_(), q.variance.detach().requires_grad_()
        marginals = SimpleNamespace(mean=mean, variance=variance, batch_shape=torch.Size())
        d_mean, d_variance = torch.autograd.grad(fit_of(model, marginals, data), (mean, variance))
        bound = fit_of(model, q, data) - torch.distributions.kl_divergence(q, prior)
        return q, d_mean, d_variance, *torch.autograd.grad(bound, (mean_bar, lam), retain_graph=True)

    # appendix B: dF/d mean_bar = K (dF̂/dμ − mean_bar) and dF/dλ = −(S∘S) (dF̂/ds + ½λ)
    q, d_mean, d_variance, g_mean_bar, g_lam = gradients()
    torch.testing.assert_close(g_mean_bar, prior.covariance.matmul(d_mean - q.mean_bar), rtol=1e-8, atol=1e-8)
    s = q.covariance_matrix
    expected = -(s.square() @ (d_variance + 0.5 * q.lam).mT.unsqueeze(-1)).squeeze(-1).mT
    torch.testing.assert_close(g_lam, expected, rtol=1e-8, atol=1e-8)
    # and the fixed point λ = −2 dF̂/ds, mean_bar = dF̂/dμ, damped, leads to a point where both vanish
    for _ in range(200):
        with torch.no_grad():
            target = (-2 * d_variance).clamp_min(1e-6)
            eta = q.mean_bar + q.lam * q.mean
            eta = 0.6 * eta + 0.4 * (d_mean + target * q.mean)
            lam = 0.6 * q.lam + 0.4 * target
            mean = prior.covariance.gain(lam, eta / lam.sqrt())
            guide.set(eta - lam * mean, lam)
        q, d_mean, d_variance, g_mean_bar, g_lam = gradients()
    assert g_mean_bar.abs().max() < 1e-6
    assert g_lam.abs().max() < 1e-6
    torch.testing.assert_close(q.lam, -2 * d_variance, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q.mean_bar, d_mean, rtol=1e-5, atol=1e-5)


# the same model under Pyro's other algorithms


def hyper_model(data, own=False):
    """A model with priors on a lengthscale, the noise and a weight."""
    prior = dist.LogNormal(torch.zeros(2), 0.2).to_event(1) if own else dist.LogNormal(0.0, 0.2)
    model, _ = make_model(
        data,
        temporal=Matern32(1.0, prior) + White(0.1) + Bias(0.1),
        mapping=ARDRBF(1.0, dist.LogNormal(torch.zeros(2), 0.2).to_event(1)),
        noise=dist.LogNormal(-2.0, 0.2),
    )
    return model


@pytest.mark.long
@pytest.mark.parametrize("own", [False, True])
def test_hyperpriors(own):
    data = make_data()
    model = hyper_model(data, own)
    guide = AutoOpperArchambeau(model)
    losses = train_by_svi(model, guide, data, 60)
    assert sum(losses[-10:]) < sum(losses[:10])
    names = {name for name, _ in guide.named_parameters()}
    assert "mean_bar_unconstrained" in names
    assert "scales.temporal.parts.0.lengthscale_unconstrained" in names
    many = Collapsed_ELBO(num_particles=5, vectorize_particles=True, max_plate_nesting=0)
    assert many.loss(model, guide, data) == pytest.approx(sum(losses[-10:]) / 10, rel=0.5)


def test_vectorised_particles_are_the_mean_of_single_ones():
    data = make_data()
    model = hyper_model(data)
    guide = AutoOpperArchambeau(model)
    values = {"temporal.parts.0.lengthscale": torch.tensor([0.5, 1.0, 2.0]), "noise": torch.tensor([0.1, 0.2, 0.3])}
    values["mapping.weight"] = torch.tensor([[0.5, 1.0], [1.0, 1.0], [2.0, 0.5]])
    q_params = {"mean_bar": torch.randn(21, 2), "lam": torch.rand(21, 2) + 0.5}
    guide.set(**q_params)

    def fixed(i):
        chosen = {name: value[i] for name, value in values.items()}
        return Collapsed_ELBO().loss(poutine.condition(model, chosen), condition_guide(model, chosen, q_params), data)

    def condition_guide(model, chosen, q_params):
        def guide(data):
            with model._pyro_context, poutine.block(), poutine.condition(data=chosen):
                value = model.temporal()
            prior = TemporalGP(value, data.times, 2)
            pyro.sample("x", OpperArchambeau(prior, **q_params))

        return guide

    single = [fixed(i) for i in range(3)]
    assert len(set(single)) == 3
    plate = pyro.plate("particles", 3, dim=-1)
    together = Collapsed_ELBO(max_plate_nesting=1).loss(
        plate(poutine.condition(model, values)), plate(condition_guide(model, values, q_params)), data
    )
    # the KL of each is summed by Pyro, as are the conditioned priors
    assert together == pytest.approx(sum(single), rel=1e-8)


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        autoguide.AutoDelta,
        autoguide.AutoNormal,
        autoguide.AutoDiagonalNormal,
        autoguide.AutoMultivariateNormal,
        lambda m: autoguide.AutoLowRankMultivariateNormal(m, rank=3),
        autoguide.AutoNormalMessenger,
        AutoOpperArchambeau,
    ],
)
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_autoguides(make, elbo):
    data = make_data((5, 3), missing=0.1)
    model = hyper_model(data)
    guide = make(model)
    losses = train_by_svi(model, guide, data, 40, 0.05, elbo())
    assert sum(losses[-5:]) < sum(losses[:5])


def test_autodelta_under_the_collapsed_elbo_is_the_map_model():
    model, _, data = make_problem((5, 3))
    guide = autoguide.AutoDelta(model)
    elbo = Collapsed_ELBO()
    loss = elbo.loss(model, guide, data)
    x = guide.median(data)["x"]
    trace = poutine.trace(poutine.condition(model, {"x": x})).get_trace(data)
    assert -loss == pytest.approx(trace.log_prob_sum().item(), rel=1e-8)


def test_nuts():
    data = make_data((4, 2))
    model = hyper_model(data)
    mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=8, warmup_steps=8, disable_progbar=True)
    mcmc.run(data)
    samples = mcmc.get_samples()
    assert samples["x"].shape == (8, 6, 2)
    assert samples["temporal.parts.0.lengthscale"].shape == (8,)
    assert len(samples["x"].unique(dim=0)) > 4  # the chain moves

    def joint(values):
        return poutine.trace(poutine.condition(model, values)).get_trace(data).log_prob_sum().item()

    posterior = [joint({name: value[i] for name, value in samples.items()}) for i in range(8)]
    assert sorted(posterior)[4] > max(joint({}) for _ in range(8))  # and finds what the prior does not
    out = Predictive(model, samples)(Sequences([data.times.t[:4], data.times.t[4:]]))
    assert out["y"].shape == (8, 6, 5)


@pytest.mark.long
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("random", [False, True])
def test_predictive_draws_from_the_prior(parallel, random):
    data = make_data((4, 2))
    model = hyper_model(data) if random else make_model(data)[0]
    times = Sequences([data.times.t[:4], data.times.t[4:]])
    out = Predictive(model, num_samples=400, parallel=parallel)(times)
    assert out["x"].shape == (400, 6, 2)
    assert out["y"].shape == (400, 6, 5)
    value = Matern32(1.0 if random else 0.9, 1.0)()
    offset = 0.2 if random else 0.17  # white and bias
    expected = value.diag(data.times.t)[0, 0] + offset
    torch.testing.assert_close(out["x"].var(0).mean(), expected, rtol=0.1, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("parallel", [False, True])
def test_predictive_with_a_guide(parallel):
    data = make_data((4, 2))
    model = hyper_model(data)
    guide = AutoOpperArchambeau(model)
    svi = SVI(model, guide, Adam({"lr": 0.02}), Collapsed_ELBO())
    svi.step(data)
    names = {name for name, _ in guide.named_parameters()}
    times = Sequences([data.times.t[:4], data.times.t[4:]])
    out = Predictive(model, guide=guide, num_samples=300, parallel=parallel)(times)
    assert out["y"].shape == (300, 6, 5)
    assert {name for name, _ in guide.named_parameters()} == names  # none was invented for y
    x = Predictive(guide, num_samples=300, parallel=parallel)(data)["x"]
    assert x.shape == (300, 6, 2)
    with torch.no_grad():
        torch.testing.assert_close(x.mean(0), guide.median(data)["x"], rtol=0, atol=0.3)


def test_a_guide_for_other_frames_is_refused():
    _, guide, _ = make_problem((4, 2))
    with pytest.raises(
        ValueError, match=r"this guide is for \(6, 2\) = .* on \(3, 2\). Make one guide for each data set"
    ):
        guide(Sequences(torch.arange(3.0)))


def test_without_a_start_the_guide_begins_at_the_prior():
    model, _, data = make_problem((4, 2))
    guide = AutoOpperArchambeau(model)
    assert not hasattr(guide, "lam")
    Collapsed_ELBO().loss(model, guide, data)
    assert guide.mean_bar.abs().max() == 0
    assert (guide.lam == 1).all()


@pytest.mark.parametrize(
    ("mean_bar", "lam", "message"),
    [
        (torch.zeros(3), torch.ones(3), r"must both be \(N, Q\), but got \(3,\) and \(3,\)"),
        (torch.zeros(3, 2), torch.ones(2, 2), r"must both be \(N, Q\)"),
        (torch.zeros(3, 2), torch.zeros(3, 2), "lam finite and positive"),
        (torch.full((3, 2), float("nan")), None, "mean_bar must be finite"),
    ],
)
def test_bad_parameters_of_the_guide(mean_bar, lam, message):
    model, _ = make_model(make_data((3,)))
    with pytest.raises(ValueError, match=message):
        AutoOpperArchambeau(model, mean_bar=mean_bar, lam=lam)


def test_state_dicts_round_trip():
    data = make_data()
    model = VGPDS.from_data(data, 2, 5, temporal=Periodic(period=1.0).fix("period") + Matern32() + White(0.1))
    guide = AutoOpperArchambeau(model)
    train_by_svi(model, guide, data, 5, 0.05)
    loss = Collapsed_ELBO().loss(model, guide, data)
    states = copy.deepcopy((model.state_dict(), guide.state_dict()))
    pyro.clear_param_store()
    fresh = VGPDS.from_data(data, 2, 5, temporal=Periodic(period=9.0).fix("period") + Matern32() + White(0.7))
    fresh_guide = AutoOpperArchambeau(fresh)
    fresh.load_state_dict(states[0])
    fresh_guide.load_state_dict(states[1])
    assert Collapsed_ELBO().loss(fresh, fresh_guide, data) == loss


def test_priors_can_be_given_to_a_finished_model():
    data = make_data((4, 2))
    model = VGPDS.from_data(data, 2, 4, temporal=Matern32() + White(0.1))
    model.temporal[0].lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    model.noise = PyroSample(dist.LogNormal(-2.0, 1.0))
    trace = poutine.trace(model).get_trace(data)
    assert {"temporal.parts.0.lengthscale", "noise"} <= set(trace.stochastic_nodes)
    # with the parameters given, the rest of the model is that of these values
    values = {"temporal.parts.0.lengthscale": torch.tensor(0.7), "noise": torch.tensor(0.2), "x": model.start.x}
    given = poutine.trace(poutine.condition(model, values)).get_trace(data)
    pyro.clear_param_store()
    fixed = VGPDS.from_data(data, 2, 4, temporal=Matern32(lengthscale=0.7) + White(0.1))
    fixed.inducing = PyroParam(model.inducing.detach(), event_dim=2)
    fixed.set_noise(0.2)
    expected = poutine.trace(poutine.condition(fixed, {"x": model.start.x})).get_trace(data)
    for site in ("x", "y"):
        actual = given.nodes[site]["fn"].log_prob(given.nodes[site]["value"])
        torch.testing.assert_close(actual, expected.nodes[site]["fn"].log_prob(given.nodes[site]["value"]))


def test_a_second_model_is_warned_of_the_first_ones_parameters():
    data = make_data((4, 2))
    first, guide = make_model(data)
    Collapsed_ELBO().loss(first, guide, data)
    second, second_guide = make_model(data, noise=0.5)
    with pytest.warns(UserWarning, match=r"parameter store holds .* of an earlier model.*clear_param_store"):
        Collapsed_ELBO().loss(second, second_guide, data)
    pyro.clear_param_store()
    third, third_guide = make_model(data, noise=0.5)
    Collapsed_ELBO().loss(third, third_guide, data)
    assert third.noise.item() == pytest.approx(0.5)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_padded_sequences_under_monte_carlo_elbos(elbo):
    data = make_data((8, 9))  # one batch, with a frame of padding
    assert data.times.batches[0].mask is not None
    model, guide = make_model(data)
    svi = SVI(model, guide, Adam({"lr": 0.01}), elbo())
    first = guide.lam.detach().clone()
    for _ in range(3):
        svi.step(data)
    moved = (guide.lam.detach() / first).log().abs()  # Adam moves every parameter that has a gradient
    assert ((moved > 1e-4) & (moved < 0.1)).all()


@pytest.mark.parametrize("elbo", [Collapsed_ELBO, Trace_ELBO])
def test_vectorised_particles_have_gradients(elbo):
    data = make_data((5, 3))
    model = hyper_model(data)
    guide = AutoOpperArchambeau(model)
    elbo().loss(model, guide, data)
    svi = SVI(model, guide, Adam({"lr": 0.01}), elbo(num_particles=4, vectorize_particles=True, max_plate_nesting=0))
    first = guide.lam.detach().clone()
    svi.step(data)
    svi.step(data)
    moved = (guide.lam.detach() / first).log().abs()
    assert ((moved > 1e-4) & (moved < 0.1)).all()


def test_a_noise_prior_may_replace_any_noise():
    data = make_data((5, 3))
    each = VGPDS.from_data(data, 2, 4, noise_per_output=True)
    shared = VGPDS.from_data(data, 2, 4)
    cases = [
        (each, PyroSample(dist.LogNormal(-2.0, 1.0)), torch.tensor(0.3)),
        (shared, PyroSample(dist.LogNormal(torch.full((5,), -2.0), 1.0).to_event(1)), torch.linspace(0.1, 0.5, 5)),
    ]
    for model, prior, value in cases:
        pyro.clear_param_store()
        guide = AutoOpperArchambeau(model)
        model.set_noise(value)
        expected = bound_by_hand(model, guide, data)
        model.noise = prior
        with pyro.get_param_store().scope():
            q = guide.posterior(data)
            actual = fit_of(model, q, data, noise=value) - torch.distributions.kl_divergence(q, q.prior)
        torch.testing.assert_close(actual, expected)


def test_a_model_in_another_dtype_than_its_data_is_said():
    data = make_data((5, 3))
    model = VGPDS.from_data(data, 2, 4, mapping=ARDRBF()).to(torch.float32)
    with pytest.raises(TypeError, match=r"data is torch\.float64, but the model is torch\.float32"):
        Collapsed_ELBO().loss(model, AutoOpperArchambeau(model), data)
    small = Sequences([data.times.t[:5], data.times.t[5:]], [data.y[:5], data.y[5:]], dtype=torch.float32)
    exact = VGPDS.from_data(data, 2, 4, mapping=ARDRBF())
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    loss = Collapsed_ELBO().loss(model, AutoOpperArchambeau(model), small)
    pyro.clear_param_store()
    assert loss == pytest.approx(Collapsed_ELBO().loss(exact, AutoOpperArchambeau(exact), data), rel=5e-3)


def test_compiled_elbos_take_the_data_as_a_keyword():
    """``JitTrace_ELBO`` traces its positional arguments, which must be tensors; keywords it passes on."""
    model, _, data = make_problem()
    guide, results = autoguide.AutoNormal(model), []
    guide(data)
    parameters = [*model.parameters(), *guide.parameters()]
    for elbo in (Trace_ELBO(), JitTrace_ELBO(ignore_jit_warnings=True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch.jit
            elbo.loss_and_grads(model, guide, data=data)  # compiles
        for parameter in parameters:
            parameter.grad = None
        pyro.set_rng_seed(1)
        loss = elbo.loss_and_grads(model, guide, data=data)
        results.append([torch.tensor(loss), *(parameter.grad.clone() for parameter in parameters)])
    torch.testing.assert_close(*results)


def test_compiled_elbos_need_the_dense_form():
    model, _, data = make_problem()
    model.structure = "markov"
    elbo = JitTrace_ELBO(ignore_jit_warnings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.jit
        with pytest.raises(RuntimeError, match=r"cannot trace the Markov form.*structure='dense'"):
            elbo.loss_and_grads(model, autoguide.AutoNormal(model), data=data)
