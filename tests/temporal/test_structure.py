# SPDX-License-Identifier: Apache-2.0
"""The choice of the structure, and models that are the same with each."""

import pyro
import pytest
import torch
from markov_problems import both, close, make_data, make_pair
from torch.distributions import kl_divergence

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    OpperArchambeau,
    TemporalGP,
    fit,
    load,
    save,
)
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import RBF, Linear, MarkovRBF, Matern32, White
from pyro_vgpds.temporal import recursions


def test_choice():
    matern, rbf = (Matern32(1.0, 1.0) + White(0.1))(), (RBF(1.0, 1.0) + White(0.1))()
    short, long = Times(torch.arange(20.0)), Times(torch.arange(600.0))
    assert TemporalGP(matern, short, 2).structure == ("markov" if recursions.is_compiled(short.t) else "dense")
    assert TemporalGP(matern, Times(torch.arange(4.0)), 2).structure == "dense"
    assert TemporalGP(matern, Times(torch.arange(20.0), (1,) * 20), 2).structure == "dense"
    assert TemporalGP(matern, long, 2).structure == "markov"
    assert TemporalGP(rbf, long, 2).structure == "dense"
    assert TemporalGP((Matern32(1.0, 1.0) + Linear(1.0))(), short, 2).structure == "dense"  # not a program
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
        with pytest.raises(ValueError, match="needs a q with the same prior"):
            kl_divergence(q, other)


@pytest.mark.long
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


def test_a_million_short_sequences_are_no_loop_over_pairs():
    n = 50_000
    times = Times(torch.arange(2.0 * n), [2] * n)
    assert times.starts[-1] == 2 * n - 2
    prior = TemporalGP((Matern32(1.0, 1.0) + White(0.1))(), times, 1)
    assert prior.structure == "markov" or not recursions.is_compiled(times.t)


def test_a_prior_at_other_times_keeps_the_form_that_was_asked_for():
    prior = TemporalGP(Matern32(1.0, 0.5)(), torch.linspace(0, 1, 4).double(), 2, structure="markov")
    later, back = torch.tensor([2.0, 3.0]).double(), torch.tensor([3.0, 2.0]).double()
    assert prior.at(later).structure == prior.at(Times(later, [1, 1])).structure == "markov"
    assert prior.at(back).structure == "dense"  # a Markov form needs increasing times
    assert prior.at(later).covariance_matrix.allclose(prior.at(back).covariance_matrix.flip(-1, -2))
    assert TemporalGP(RBF()(), later, 2).at(back).event_shape == (2, 2)
