# SPDX-License-Identifier: Apache-2.0
"""Predictions of counts: mixtures, selections, scores, and what needs Gaussian outputs."""

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, PosteriorMixture, Sequences
from pyro_vgpds.evaluation import backtest
from pyro_vgpds.kernels import Bias, White
from pyro_vgpds.likelihoods import NegativeBinomial


@pytest.fixture(scope="module")
def posts():
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 14)
    y = rng.poisson(np.exp(np.sin(4 * t)[:, None] + [0.3, 0.6, 2.0])).astype(float)
    y[1, 0] = np.nan
    data, found = Sequences(t, y), []
    for dispersion in (0.5, 20.0):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = VGPDS.from_data(data, 1, 5, likelihood=NegativeBinomial(dispersion))
        found.append(Posterior(model, AutoOpperArchambeau(model), data))
    return found


def test_mixtures_have_the_distribution_of_their_components(posts):
    mixture = PosteriorMixture(posts, [0.3, 0.7])
    found = mixture.forecast([0.55, 1.1])
    y = torch.tensor([[0.0, 3.0, 9.0], [2.0, 1.0, 30.0]])
    weights = torch.tensor([0.3, 0.7])[:, None, None]
    chance = (weights * torch.stack([part.cdf(y) for part in found.components])).sum(0)
    torch.testing.assert_close(found.cdf(y), chance)
    logs = torch.stack([part.log_probs(y) for part in found.components])
    torch.testing.assert_close(found.log_probs(y), (weights * logs.exp()).sum(0).log())
    assert not found.is_gaussian
    assert bool(found.is_whole.all())
    for level, end in zip((0.05, 0.95), found.interval(0.9), strict=True):
        assert torch.equal(end, end.round())
        assert bool((found.cdf(end) >= level - 1e-8).all())
        assert bool((found.cdf(end - 1.0) < level).all())


def test_known_numbers_of_a_mixture(posts):
    found = PosteriorMixture(posts).impute()
    lower, upper = found.interval(0.9)
    known = posts[0].data.y.isfinite()
    assert torch.equal(lower[known], posts[0].data.y[known])
    assert torch.equal(upper[known], lower[known])
    assert bool(found.log_probs(posts[0].data.y.nan_to_num(1.0))[known].isnan().all())


def test_selected_frames_have_their_own_distribution(posts):
    whole = posts[0].impute(fill=False)
    part, y = whole.select(slice(3, 7)), posts[0].data.y
    torch.testing.assert_close(part.log_probs(y[3:7]), whole.log_probs(y)[3:7])
    torch.testing.assert_close(part.cdf(y[3:7]), whole.cdf(y)[3:7])
    assert not part.is_gaussian


def test_probabilities_add_up_and_draws_agree(posts):
    found = posts[1].forecast([0.5])
    total = torch.stack([found.log_probs(torch.full((1, 3), float(k))).exp() for k in range(80)])
    torch.testing.assert_close(total.sum(0), torch.ones(1, 3), rtol=0.0, atol=2e-3)
    torch.testing.assert_close(total[:6].sum(0), found.cdf(torch.full((1, 3), 5.0)), rtol=0.0, atol=5e-3)
    draws = found.sample(4000)
    torch.testing.assert_close((draws <= 5).double().mean(0), total[:6].sum(0), rtol=0.0, atol=0.03)


def test_backtests_use_log_scores(posts):
    rows = list(backtest(posts[0], horizon=1, num_origins=1))
    split_nlpd = rows[0]["nlpd"]
    assert np.isfinite(split_nlpd)
    assert split_nlpd > 0.0  # a probability, never above 1


def test_what_needs_gaussian_outputs(posts):
    post = posts[0]
    model, guide = post.origin.model, post.origin.guide
    for options in ({"noise_variance": 0.1}, {"output_scale": [1.0, 1.0, 1.0]}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} needs Gaussian outputs, but"):
            Posterior(model, guide, post.data, **options)
    with pytest.raises(ValueError, match="residual needs Gaussian or Student-t outputs, but the likelihood is Neg"):
        Posterior(model, guide, post.data, residual=Bias() + White())
    for name in ("calibrate", "residual_variance", "hidden_variance"):
        with pytest.raises(ValueError, match=f"{name} needs Gaussian outputs"):
            getattr(post, name)()
    with pytest.raises(ValueError, match="full_cov=True needs Gaussian outputs"):
        post.forecast([1.1], full_cov=True)
