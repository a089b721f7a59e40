# SPDX-License-Identifier: Apache-2.0
"""New frames whose outputs are not Gaussian: the bound against its plain form, and what is computed once."""

from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from problems import fit_posterior
from torch.distributions import kl_divergence

from pyro_vgpds import VGPDS, Posterior, Sequences, Solver
from pyro_vgpds.likelihoods import Bernoulli, Poisson
from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.mapping.drawn import correction
from pyro_vgpds.mapping.latent_gp import CollapsedLatent, scaled_sites
from pyro_vgpds.mapping.output_sites import site_moments
from pyro_vgpds.mapping.site_gp import SiteGP
from pyro_vgpds.prediction.reconstruction import NewFrames
from pyro_vgpds.prediction.site_reconstruction import SiteJoint

LIKELIHOODS = {"bernoulli": Bernoulli, "poisson": Poisson, "columns": lambda: {"bernoulli": [0, 1], "poisson": [2]}}
T_NEW = np.linspace(0.05, 0.95, 5)


def outputs(t: np.ndarray, phase: float, rng: np.random.Generator) -> np.ndarray:
    y = (rng.random((len(t), 3)) < 0.5 + 0.4 * np.sin(6.0 * t[:, None] + phase + np.arange(3))).astype(float)
    y[1, 1] = np.nan
    return y


@pytest.fixture(scope="module", params=LIKELIHOODS)
def post(request):
    rng = np.random.default_rng(3)
    t = np.linspace(0.0, 1.0, 9)
    data = Sequences([t, t], [outputs(t, phase, rng) for phase in (0.0, 1.0)])
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, 2, 5, likelihood=LIKELIHOODS[request.param]())
    return fit_posterior(model, data, 3)


def plain_bound(post: Posterior, joint: SiteJoint, solution, trust: float) -> tuple[float, Sites, CollapsedLatent]:
    """The bound of all frames as one problem, with nothing shared."""
    mapping, (mean, variance) = joint.mapping(solution), joint.moments(solution)
    weight = torch.ones(len(mean), 1, dtype=torch.float64)
    weight[post.data.num_frames :] = trust
    sites = Sites(*(weight * part for part in mapping.sites))
    latent = CollapsedLatent(mapping.gp, SimpleNamespace(mean=mean, variance=variance, batch_shape=()))
    value = latent.bound(sites) + sites.constant.sum()
    n = post.data.num_frames
    for some, q, rows in (  # the part by draws, with the q(U) of training for the training frames
        (Sites(*(part[:n] for part in sites)), (post.q.mean, post.q.variance), slice(n)),
        (sites, (mean, variance), slice(n, None)),
    ):
        w, linear = scaled_sites(some, mapping.output_mean, mapping.output_scale)
        psi = mapping.basis.expect(*q, w.mT, linear)
        given = mapping.gp.given(psi, mapping.inducing_factor())
        y, own = mapping.y[rows], Sites(*(part[rows] for part in mapping.sites))
        more = correction(given, q[0][rows], q[1][rows], y, own, mapping.outputs)[0]
        value = value + (trust if rows.start else 1.0) * more
    q = joint.q(solution)
    return float(value) - float(kl_divergence(q, joint.prior)) - joint.kl_rest, sites, latent


@pytest.mark.parametrize(
    ("belongs", "options"),
    [
        (None, {"factorised": True}),
        (0, {"factorised": True}),
        (0, {}),
        (1, {"trust": 0.4}),
        (None, {"free": True}),
    ],
)
def test_the_bound_of_new_frames_is_that_of_all_frames(post, belongs, options):
    rng = np.random.default_rng(5)
    new = Sequences(T_NEW, outputs(T_NEW, 0.5, rng))
    combined = post.data.joined(new)
    with torch.no_grad():
        joint = SiteJoint(post.training, NewFrames(new, [belongs], **options), combined)
        blank = torch.zeros(5, 2, dtype=torch.float64)
        solution = joint.solve(*joint.sites(blank, blank), 2, 0.7, 1.0)
        assert solution.num_steps == 2
        found = joint.evaluate(solution.eta, solution.lam, solution.state)
        value, sites, latent = plain_bound(post, joint, solution, options.get("trust", 1.0))
        assert solution.bound == pytest.approx(value, rel=1e-10, abs=1e-9)
        told = site_moments(sites, latent.bound)
    exact = torch.ones(3, dtype=torch.bool)
    for part in post.likelihood.drawn(3):
        exact[part.columns(3)] = False
    rows = slice(post.data.num_frames, None)
    torch.testing.assert_close(found.functions.mean[:, exact], told.mean[rows][:, exact])
    torch.testing.assert_close(found.functions.square[:, exact], told.square[rows][:, exact])


def test_several_sequences_share_the_training_part(post, monkeypatch):
    rng = np.random.default_rng(7)
    new = [outputs(T_NEW, phase, rng) for phase in (0.0, 0.4, 2.0)]
    solver, calls = Solver(num_starts=2, num_steps=4), []
    alone = []
    for y in new:
        fresh = Posterior(post.origin.model, post.origin.guide, post.data)  # nothing is known yet
        alone.append(float(fresh.log_density(T_NEW, y, solver=solver)))
    fresh = Posterior(post.origin.model, post.origin.guide, post.data)
    part = SiteGP.part
    monkeypatch.setattr(SiteGP, "part", lambda *args: calls.append(args) or part(*args))
    together = fresh.log_density([T_NEW] * 3, new, solver=solver)
    assert together.tolist() == pytest.approx(alone, rel=1e-12)
    fresh.reconstruct(T_NEW, new[0], solver=solver)
    assert len(calls) == 1
