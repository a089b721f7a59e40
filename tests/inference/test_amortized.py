# SPDX-License-Identifier: Apache-2.0
"""The amortised guide: its sites, training, refinement and files."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import make_data, make_model, make_problem, train_by_svi
from torch.distributions import kl_divergence

from pyro_vgpds import (
    VGPDS,
    AmortizedOpperArchambeau,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    NaturalGradient,
    OpperArchambeau,
    Posterior,
    Sequences,
    fit,
    load,
    load_posterior,
    save,
    save_posterior,
)
from pyro_vgpds.files.container import read_file
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.kernels import Matern32, White


def make(missing=0.15, **options):
    data = make_data(missing=missing)
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=6)
    return model, AmortizedOpperArchambeau(model, data, num_hidden=8, **options), data


def by_hand(guide, data):
    """The sites and q(X), written out."""
    model, y = guide.model, data.read()
    seen = torch.isfinite(y)
    inputs = torch.cat([((y - model.output_mean) / model.output_scale).nan_to_num(0.0), seen.double()], -1)
    result = guide.network(inputs)
    lam = result[:, 2:].exp()
    eta = lam * result[:, :2]
    prior = guide.posterior(data).prior
    inverse = torch.linalg.inv(prior.covariance_matrix)
    s = torch.linalg.inv(inverse + torch.diag_embed(lam.mT))
    return eta, lam, (s @ eta.mT.unsqueeze(-1)).squeeze(-1).mT, s.diagonal(dim1=-2, dim2=-1).mT


def test_new_sequences_are_encoded_as_by_hand():
    _, guide, data = make()
    new = make_data(lengths=(3, 8), missing=0.3, seed=5)
    torch.nn.init.normal_(guide.network.outer.weight, 0.0, 0.1)
    for some in (data, new):
        eta, lam, mean, variance = by_hand(guide, some)
        torch.testing.assert_close(guide.encode(some), (eta, lam))
        q = guide.posterior(some)
        torch.testing.assert_close(q.mean, mean)
        torch.testing.assert_close(q.variance, variance)
        assert q.event_shape == (some.num_frames, 2)


def test_frames_without_outputs_follow_their_neighbours():
    _, guide, data = make(missing=0.0)
    y = data.read()[:7].clone()
    y[3] = float("nan")
    gap, without = (Sequences(data.times.t[rows], y[rows]) for rows in (slice(0, 7), [0, 1, 2, 4, 5, 6]))
    eta, lam = guide.encode(gap)
    assert lam[3].max() < 1e-12
    torch.testing.assert_close(eta[4:], guide.encode(without)[0][3:])
    with torch.no_grad():
        whole, rest = guide.posterior(gap), guide.posterior(without)
        torch.testing.assert_close(whole.mean[3], rest.forecast(data.times.t[3:4], 0).mean[0])
        torch.testing.assert_close(whole.variance[3], rest.forecast(data.times.t[3:4], 0).variance[0])


def test_the_network_starts_at_the_initial_latent_points():
    model, guide, data = make(missing=0.0)
    eta, lam = guide.encode(data)
    torch.testing.assert_close(lam, torch.full_like(lam, 10.0))
    error = (eta / lam - model.start.x).square().mean() / model.start.x.var()
    assert error < 0.1
    wide = Sequences(data.times.t[:3], torch.randn(3, 40))  # more inputs than frames
    big = VGPDS.from_data(wide, latent_dim=2, num_inducing=3)
    near = AmortizedOpperArchambeau(big, wide)
    eta, lam = near.encode(wide)
    assert (eta / lam - big.start.x).abs().max() < 0.2


def test_gradients_reach_everything():
    model, guide, data = make()
    torch.nn.init.normal_(guide.network.outer.weight, 0.0, 0.1)
    loss = Collapsed_ELBO().differentiable_loss(model, guide, data)
    assert loss.item() == Collapsed_ELBO().loss(model, guide, data)  # no sample
    loss.backward()
    for name, parameter in [*guide.named_parameters(), *model.named_parameters()]:
        assert parameter.grad is not None, name
        if not name.endswith("unconstrained"):
            assert parameter.grad.abs().max() > 0, name
    weight = guide.network.inner.weight
    step = torch.zeros_like(weight)
    step[2, 3] = 1e-4
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * step
            losses.append(Collapsed_ELBO().loss(model, guide, data))
            weight -= sign * step
    assert (losses[0] - losses[1]) / 2e-4 == pytest.approx(float(weight.grad[2, 3]), rel=1e-5, abs=1e-6)


def test_svi_and_fit_train_the_network():
    model, guide, data = make()
    before = guide.network.inner.weight.detach().clone()
    losses = train_by_svi(model, guide, data, 15, 0.01)
    assert losses[-1] < losses[0]
    assert not guide.network.inner.weight.equal(before)
    first = Collapsed_ELBO().loss(model, guide, data)
    pyro.clear_param_store()
    for method in (None, "lbfgs"):
        result = fit(model, guide, data, num_steps=15, method=method)
        assert result.method == (method or "adam")
        assert result.bound > -first
        first = -result.bound
        assert result.bound == pytest.approx(-Collapsed_ELBO().loss(model, guide, data), abs=1e-7)
    with pytest.raises(ValueError, match="method='natural' needs an AutoOpperArchambeau, but got AmortizedOpperArch"):
        fit(model, guide, data, method="natural")
    with pytest.raises(TypeError, match=r"take natural steps with guide.refine\(data\)"):
        NaturalGradient(guide, data)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_refinement_closes_the_gap(missing):
    model, guide, data = make(missing)
    fit(model, guide, data, num_steps=20)
    own = Posterior(model, guide, data)
    assert isinstance(own.q, OpperArchambeau)
    assert own.bound == pytest.approx(-Collapsed_ELBO().loss(model, guide, data), abs=1e-7)
    copied, fine = guide.refine(data, num_steps=0), guide.refine(data)
    assert isinstance(fine, AutoOpperArchambeau)
    same = Posterior(model, copied, data)
    assert same.bound == pytest.approx(own.bound, abs=1e-7)
    torch.testing.assert_close(same.q.mean, own.q.mean)
    refined = Posterior(model, fine, data)
    assert refined.bound > own.bound
    gap = guide.gap(data)
    assert gap >= 0
    assert gap == pytest.approx(refined.bound - own.bound, abs=1e-6)
    assert guide.gap(data, num_steps=0) == 0.0
    assert guide.gap(data, num_steps=2) <= gap
    # the steps are those of NaturalGradient
    with NaturalGradient(copied, data) as natural:
        for _ in range(2):
            Collapsed_ELBO().loss_and_grads(model, copied, data)
            natural.step(0.3)
    torch.testing.assert_close(guide.refine(data, 2, natural_rate=0.3).lam, copied.lam)
    assert fit(model, fine, data, num_steps=3).bound > refined.bound  # and on, with the hyperparameters
    new = make_data(lengths=(6,), seed=3)
    assert guide.gap(new) >= 0
    for options, match in (
        ({"num_steps": -1}, "num_steps must be"),
        ({"natural_rate": 0.0}, "natural_rate must be in"),
        ({"tolerance": -1.0}, "tolerance must be finite and 0 or more, but got -1.0"),
    ):
        with pytest.raises(ValueError, match=match):
            guide.refine(data, **options)


def test_predictions_without_an_optimisation():
    model, guide, data = make()
    fit(model, guide, data, num_steps=15)
    post = Posterior(model, guide, data)
    new = make_data(lengths=(5,), missing=0.3, seed=4)
    t, y = new.times.t, new.read()
    quick = post.reconstruct(t, y, encode=True)
    with torch.no_grad():
        q = guide.posterior(new)
    torch.testing.assert_close(quick.latent.mean, q.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(quick.path.variance, q.variance, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(post.project(t, y, encode=True).mean, quick.latent.mean)
    assert quick.num_steps == 0
    assert post.reconstruct(t, y).bound > quick.bound
    # the bound on both data sets, with q(X, X*) = q(X) q(X*)
    both = data.joined(new)
    mean, variance = (torch.cat(pair) for pair in ((post.q.mean, q.mean), (post.q.variance, q.variance)))
    joint = dist.Normal(mean, variance.sqrt()).to_event(2)
    with torch.no_grad():
        expected = float(model.likelihood(mean, both).integrate(joint).log_prob(both.y))
    kl = float(kl_divergence(post.q, post.q.prior)) + float(kl_divergence(q, q.prior))
    assert quick.bound == pytest.approx(expected - kl, abs=1e-5)
    assert post.reconstruct(t + 10.0, y, 0, encode=True).mean.shape == (5, 5)
    with torch.no_grad():
        guide.network.linear.bias += 1.0  # later training does not change it
    assert post.reconstruct(t, y, encode=True).mean.equal(quick.mean)
    other = Posterior(model, guide.refine(data), data)
    for options in ({"free": True}, {}):
        with pytest.raises(ValueError, match="encode=True needs a posterior whose guide is an AmortizedOpperArch"):
            (post if options else other).reconstruct(t, y, encode=True, **options)


def test_hyperpriors():
    model, _, data = make_problem(temporal=Matern32(0.9, dist.LogNormal(-0.5, 0.3)) + White(0.02))
    guide = AmortizedOpperArchambeau(model, data)
    train_by_svi(model, guide, data, 3, 0.01)
    post = Posterior(model, guide, data)
    fine = guide.refine(data)
    assert Posterior(model, fine, data).bound > post.bound
    name = "locs.temporal.parts.0.lengthscale_unconstrained"
    torch.testing.assert_close(fine.state_dict()[name], guide.state_dict()[name])
    assert post.condition(data).bound > post.bound


class Recurrent(torch.nn.Module):
    """Reads the frames before and after each frame."""

    def __init__(self, num_outputs, latent_dim):
        super().__init__()
        self.inner = torch.nn.GRU(2 * num_outputs, 3, bidirectional=True)
        self.outer = torch.nn.Linear(6, 2 * latent_dim)

    def forward(self, inputs):
        return self.outer(self.inner(inputs)[0])


def test_networks_over_time_read_one_sequence_at_a_time():
    model, _ = make_model(data := make_data())
    guide = AmortizedOpperArchambeau(model, network=Recurrent(5, 2))
    together = guide.encode(data)
    for rows in data.times.slices():
        alone = guide.encode(Sequences(data.times.t[rows], data.read()[rows]))
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[rows], b)
    fit(model, guide, data, num_steps=2, progress=False)
    assert guide.gap(data) > 0.0
    post, t = Posterior(model, guide, data), [data.times.t[:4], data.times.t[:6]]
    y = [data.read()[:4], data.read()[:6]]
    both = post.reconstruct(t, y, encode=True).latent.mean
    for part, times, rows in zip(both.split([4, 6]), t, y, strict=True):
        torch.testing.assert_close(part, post.reconstruct(times, rows, encode=True).latent.mean)


def test_own_networks():
    model, _ = make_model(data := make_data())
    network = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.ReLU(), torch.nn.Linear(7, 4)).float()
    guide = AmortizedOpperArchambeau(model, network=network)
    assert guide.network is network
    assert next(network.parameters()).dtype == torch.float64  # that of the model
    assert Posterior(model, guide, data).forecast([3.5], 0).mean.shape == (1, 5)
    for other in (torch.nn.Linear(10, 3), torch.nn.LSTM(10, 4)):
        with pytest.raises(ValueError, match=r"network must return \(7, 4\) = \(frames, twice the latent dim"):
            AmortizedOpperArchambeau(model, network=other).encode(data)
    with pytest.raises(TypeError, match=r"network must be a torch.nn.Module, but got function"):
        AmortizedOpperArchambeau(model, network=lambda x: x)
    with pytest.raises(ValueError, match="num_hidden is for the default network"):
        AmortizedOpperArchambeau(model, network=network, num_hidden=3)
    with pytest.raises(ValueError, match="num_hidden must be"):
        AmortizedOpperArchambeau(model, num_hidden=0)
    with pytest.raises(TypeError, match="model must be a VGPDS, but got function"):
        AmortizedOpperArchambeau(lambda data: None)
    with pytest.raises(ValueError, match=r"data must be Sequences\(t, y\) with outputs"):
        guide.encode(Sequences(data.times.t[:7]))
    with pytest.raises(ValueError, match="data must have the 5 outputs of the model"):
        guide.encode(Sequences(data.times.t[:7], data.y[:7, :4]))
    with pytest.raises(ValueError, match=r"data must be Sequences\(t, y\) with outputs"):
        guide(Sequences(data.times.t[:7]))
    with pytest.raises(NotImplementedError, match="OpperArchambeauGuide must define make_posterior"):
        OpperArchambeauGuide(model)(data)


def test_files(tmp_path):
    model, guide, data = make()
    fit(model, guide, data, num_steps=5)
    post = Posterior(model, guide, data)
    new = make_data(lengths=(5,), seed=4)
    expected = post.reconstruct(new.times.t, new.read(), encode=True)
    save(tmp_path / "a", model, guide, data)
    save_posterior(tmp_path / "b", post)
    assert read_file(tmp_path / "a", "model")[0]["guide"] == {"kind": "AmortizedOpperArchambeau"}
    again, its_guide, its_data = load(tmp_path / "a")
    assert isinstance(its_guide, AmortizedOpperArchambeau)
    for loaded in (Posterior(again, its_guide, its_data), load_posterior(tmp_path / "b")):
        assert loaded.bound == post.bound
        assert loaded.reconstruct(new.times.t, new.read(), encode=True).mean.equal(expected.mean)
    network = torch.nn.Linear(10, 4)
    own = AmortizedOpperArchambeau(model, network=network)
    with pytest.raises(TypeError, match=r"save knows the default network only, but the guide has Linear"):
        save(tmp_path / "c", model, own, data)
    other = AmortizedOpperArchambeau(model, network=torch.nn.Linear(10, 4))
    other.load_state_dict(own.state_dict())  # the way for those: tensors by name
    torch.testing.assert_close(other.encode(data), own.encode(data))
