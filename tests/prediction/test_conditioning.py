# SPDX-License-Identifier: Apache-2.0
"""A trained model on other data: q is the best one at fixed hyperparameters, and nothing else changes."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import make_data, make_model, make_problem

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, PosteriorMixture, Sequences, fit
from pyro_vgpds.data.parts import take_frames, with_outputs
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.prediction import condition
from pyro_vgpds.prediction.conditioning import _sites


def make_posterior(lengths=(14, 9), steps=60, **options):
    model, guide, data = make_problem(lengths, missing=0.1, **options)
    fit(model, guide, data, steps, progress=False)
    return Posterior(model, guide, data, residual=None)


def polished(posterior):
    """The bound after L-BFGS on mean_bar and lam themselves, from the posterior's q(X), with fixed hyperparameters."""
    model, guide, data = posterior.origin.model, posterior.origin.guide, posterior.data
    with pyro.get_param_store().scope():
        pyro.clear_param_store()
        free = [guide.mean_bar_unconstrained, guide.lam_unconstrained]
        optimiser = torch.optim.LBFGS(free, max_iter=100, history_size=50, line_search_fn="strong_wolfe")
        elbo = Collapsed_ELBO()

        def closure():
            optimiser.zero_grad()
            loss = elbo.differentiable_loss(model, guide, data)
            loss.backward(inputs=free)
            return loss

        optimiser.step(closure)
        return -elbo.loss(model, guide, data)


def hyperparameters(posterior):
    return {name: value.clone() for name, value in posterior.origin.model.state_dict().items()}


@pytest.mark.long
def test_q_is_the_best_one_at_these_hyperparameters():
    posterior = make_posterior()
    shorter = take_frames(posterior.data, [slice(0, 10), slice(2, 9)])
    first = Posterior(*start(posterior, shorter), shorter).bound
    quick, found = posterior.condition(shorter), condition(posterior, shorter, num_steps=300)
    assert first + 0.5 < quick.bound <= found.bound + 1e-3
    assert -1e-6 < polished(found) - found.bound < 0.05


def start(posterior, data):
    """Model and guide before the first step of conditioning."""
    model, _ = make_model(posterior.data)
    model.load_state_dict(posterior.origin.states[0])
    return model, AutoOpperArchambeau(model, **_sites(posterior, data, range(data.num_sequences)))


def test_hyperparameters_and_the_original_stay():
    posterior = make_posterior(steps=10)
    model, guide = posterior.origin.model, posterior.origin.guide
    before = {name: p.detach().clone() for name, p in [*model.named_parameters(), *guide.named_parameters()]}
    stored = {name: p.detach().clone() for name, p in pyro.get_param_store().items()}
    mean = posterior.forecast([3.5], 0).mean
    other = posterior.condition(take_frames(posterior.data, [slice(0, 8), slice(0, 5)]))
    for name, parameter in [*model.named_parameters(), *guide.named_parameters()]:
        assert torch.equal(parameter, before[name]), name
    assert pyro.get_param_store().keys() == stored.keys()
    for name, parameter in pyro.get_param_store().items():
        assert torch.equal(parameter, stored[name]), name
    assert torch.equal(posterior.forecast([3.5], 0).mean, mean)
    for name, value in hyperparameters(other).items():
        assert torch.equal(value, hyperparameters(posterior)[name]), name
    assert all(p.requires_grad for p in other.origin.model.parameters())
    assert other.data.lengths == (8, 5)


def test_the_same_data_give_the_same_posterior():
    posterior = make_posterior(steps=200)
    again = posterior.condition(posterior.data)
    assert -1e-3 < again.bound - posterior.bound < 0.5
    assert (again.forecast([3.2, 3.4], 1).mean - posterior.forecast([3.2, 3.4], 1).mean).abs().max() < 0.02


def test_q_starts_at_the_sites_of_the_same_times():
    posterior = make_posterior(steps=5)
    t, y = posterior.data.times.t, posterior.data.y
    new_t = torch.cat([t[2:5], t[4:6].mean()[None], t[5:7]])
    new_y = torch.cat([y[2:5], torch.zeros(1, 5), y[5:7]])
    fresh = torch.tensor([0.1, 0.2])
    data = Sequences([fresh, new_t, t[14:]], [torch.zeros(2, 5), new_y, y[14:]])
    sites = _sites(posterior, data, [None, 0, 1])
    model = posterior.origin.model
    guide = AutoOpperArchambeau(model, **sites)
    with torch.no_grad():
        q = guide.posterior(data)
    old = torch.tensor([2, 3, 4, 5, 6, *range(14, 23)])
    new = torch.tensor([2, 3, 4, 6, 7, *range(8, 17)])
    torch.testing.assert_close(q.lam[new], posterior.q.lam[old])
    torch.testing.assert_close(q.eta[new], posterior.q.eta[old], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(q.eta[[0, 1, 5]], torch.zeros(3, 2), rtol=0, atol=1e-6)  # no information


def test_sequences_in_another_order():
    posterior = make_posterior(steps=30)
    straight = posterior.condition(posterior.data)
    t, y = (part.split(posterior.data.lengths) for part in (posterior.data.times.t, posterior.data.y))
    swapped = posterior.condition(Sequences([t[1], t[0]], [y[1], y[0]]), [1, 0])
    assert swapped.bound == pytest.approx(straight.bound, rel=1e-6)
    torch.testing.assert_close(swapped.forecast([3.5], 0).mean, straight.forecast([3.5], 1).mean, rtol=1e-4, atol=1e-4)
    new = posterior.condition(take_frames(posterior.data, [slice(0, 14), slice(0, 0)]), [None])
    assert new.data.num_sequences == 1
    assert new.bound == pytest.approx(
        posterior.condition(take_frames(posterior.data, [slice(0, 14), slice(0, 0)]), [0]).bound, abs=2.0
    )


def test_more_hidden_entries_are_not_used():
    posterior = make_posterior(steps=40)
    hidden = posterior.data.y.clone()
    hidden[3, 2] = torch.nan
    a = posterior.condition(with_outputs(posterior.data, hidden))
    changed = posterior.data.y.clone()
    changed[3, 2] += 100.0
    origin = posterior.origin  # the same kernel of residuals, which is chosen with the entry
    b = Posterior(origin.model, origin.guide, with_outputs(posterior.data, changed), residual=origin.residual)
    c = b.condition(with_outputs(posterior.data, hidden))
    torch.testing.assert_close(a.impute().mean, c.impute().mean)
    assert a.impute().mean[3, 2] == pytest.approx(posterior.impute(fill=False).mean[3, 2].item(), abs=0.5)


def test_settings_of_the_prediction_are_kept():
    model, guide, data = make_problem((14, 9))
    posterior = Posterior(
        model, guide, data, noise_variance=0.3, output_scale=torch.full((5,), 2.0), residual=Bias(0.5) + White(0.5)
    )
    other = posterior.condition(take_frames(data, [slice(0, 8), slice(0, 5)]))
    torch.testing.assert_close(other.noise_variance, posterior.noise_variance)
    torch.testing.assert_close(other.origin.output_scale, posterior.origin.output_scale)
    assert repr(other.origin.residual) == repr(posterior.origin.residual)


def test_lags_are_made():
    base = make_data((15, 12), outputs=3)
    data = base.lagged([-1])
    model = VGPDS.from_data(data, 2, 8, Matern32() + White(1e-2))
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, 5, progress=False)
    other = Posterior(model, guide, data).condition(take_frames(base, [slice(0, 9), slice(0, 9)]))
    assert other.data.lags == (-1,)
    assert other.data.num_base_outputs == 3
    assert other.forecast([3.5], 0).mean.shape == (1, 3)


def test_hyperparameters_with_priors_stay_at_their_medians():
    model, guide, data = make_problem((14, 9), temporal=Matern32(0.9, dist.LogNormal(0.0, 1.0)) + White(0.05))
    fit(model, guide, data, 10, progress=False)
    posterior = Posterior(model, guide, data)
    other = posterior.condition(take_frames(data, [slice(0, 14), slice(0, 5)]))
    t = torch.tensor([0.0, 0.5, 1.0])
    wanted, found = (p.q.prior.kernel.gram(t) for p in (posterior, other))
    torch.testing.assert_close(found, wanted)


def test_mixtures_are_conditioned_one_by_one():
    posterior = make_posterior(steps=5)
    other = make_posterior(steps=5, temporal=Matern32(0.5, 2.0))
    mixture = PosteriorMixture([posterior, other], [0.3, 0.7])
    shorter = take_frames(posterior.data, [slice(0, 10), slice(0, 6)])
    found = mixture.condition(shorter)
    assert found.weights.tolist() == [0.3, 0.7]
    assert found.data.lengths == (10, 6)
    for part, member in zip(found.posteriors, (posterior, other), strict=True):
        torch.testing.assert_close(part.forecast([3.5], 0).mean, member.condition(shorter).forecast([3.5], 0).mean)


def test_data_that_do_not_fit():
    posterior = make_posterior(steps=1)
    with pytest.raises(ValueError, match="data has 3 outputs, but the model has 5"):
        posterior.condition(make_data((5, 6), outputs=3))
    message = (
        "sequences must name for each of the 2 sequences of data one of the 2 training sequences, or None, but got"
    )
    for bad in ([0], [0, 2], [-1, 0]):
        with pytest.raises(ValueError, match=message):
            posterior.condition(posterior.data, bad)
    with pytest.raises(ValueError, match="for each of the 3 sequences of data one of the 2 training sequences"):
        posterior.condition(make_data((5, 6, 7)))
