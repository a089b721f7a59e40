# SPDX-License-Identifier: Apache-2.0
"""Likelihoods with a Gaussian lower bound: their collapsed bound against quadrature, the Gaussian one, and itself."""

import math

import numpy as np
import pyro
import pytest
import torch
from problems import functions_by_quadrature

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Sequences
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White
from pyro_vgpds.likelihoods import Bernoulli, Binomial, ByColumn, Gaussian, NegativeBinomial, StudentT
from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.mapping.latent_gp import CollapsedLatent, LatentGP
from pyro_vgpds.mapping.output_sites import site_moments

FAMILIES = {
    "gaussian": lambda: ByColumn([(Gaussian(0.4), [0, 1])]),
    "student-t": lambda: StudentT(0.4, 3.0),
    "bernoulli": Bernoulli,
    "binomial": lambda: Binomial([7, 4]),
    "negative-binomial": lambda: NegativeBinomial([2.0, 6.0]),
}


def outputs(name: str, shape: tuple[int, ...], missing: float = 0.2) -> torch.Tensor:
    if name == "bernoulli":
        y = torch.randint(0, 2, shape).double()
    elif name == "binomial":
        y = torch.minimum(torch.randint(0, 8, shape), torch.tensor([7, 4])).double()
    elif name == "negative-binomial":
        y = torch.poisson(4.0 * torch.rand(shape))
    else:
        y = torch.randn(shape)
        y[0] += 5.0  # an outlier
    y[torch.rand(shape) < missing] = math.nan
    y[-1] = y[-1].nan_to_num(nan=0.0)
    return y


class Points:
    """q(X) with these moments."""

    def __init__(self, mean, variance):
        self.mean, self.variance, self.batch_shape = mean, variance, torch.Size(())


def problem(n: int, q: int, m: int, d: int = 2):
    gp = LatentGP(
        torch.zeros(n, q), (ARDRBF(1.3, 0.5 + torch.rand(q)) + Bias(0.3))(), inducing=torch.randn(m, q),
        mean=torch.randn(d), scale=0.5 + torch.rand(d), jitter=1e-8,
    )  # fmt: skip
    return gp, Points(torch.randn(n, q), 0.05 + torch.rand(n, q))


def gaussian_pair(likelihood_noise: torch.Tensor):
    """The same model with Gaussian outputs, once by the usual path and once by factors."""
    y = outputs("gaussian", (9, 3))
    data = Sequences(np.arange(9.0), y.numpy())
    inducing, mean, scale = torch.randn(4, 2), torch.randn(3), 0.5 + torch.rand(3)
    mean_bar, lam = torch.randn(9, 2), 0.5 + torch.rand(9, 2)
    found = []
    for by_factors in (False, True):
        pyro.clear_param_store()
        likelihood = ByColumn([(Gaussian(likelihood_noise * scale), [0, 1, 2])]) if by_factors else None
        noise = None if by_factors else likelihood_noise.square()
        model = VGPDS(
            Matern32(lengthscale=2.0) + White(0.1), ARDRBF(1.2, [0.5, 0.8]) + Bias(0.1), inducing, noise, mean,
            likelihood=likelihood, output_scale=scale,
        )  # fmt: skip
        guide = AutoOpperArchambeau(model, mean_bar=mean_bar, lam=lam)
        bound = -Collapsed_ELBO().loss_and_grads(model, guide, data)
        gradients = {name: p.grad for name, p in [*model.named_parameters(), *guide.named_parameters()]}
        found.append((bound, gradients))
    return found, scale


def test_constant_weights_give_the_gaussian_bound_and_its_gradients():
    noise = torch.tensor([0.3, 0.5, 0.8])
    ((plain, expected), (bound, gradients)), _ = gaussian_pair(noise)
    assert bound == pytest.approx(plain, abs=1e-10)
    shared = [name for name in expected if name != "noise_unconstrained"]
    assert len(shared) >= 8
    for name in shared:
        torch.testing.assert_close(gradients[name], expected[name], rtol=1e-8, atol=1e-8)
    # σ = s √noise: the gradient in log σ at fixed s is twice that in log noise
    scale = next(name for name in gradients if name.endswith("scale_unconstrained") and name.startswith("output_like"))
    torch.testing.assert_close(gradients[scale], 2.0 * expected["noise_unconstrained"], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", FAMILIES)
def test_bound_against_quadrature(name):
    """E log of the tangents minus KL(q(U), p(U)) with x on a grid, at q(U) as the moments of a dense computation."""
    gp, q = problem(4, 1, 3)
    likelihood = FAMILIES[name]()()
    y = outputs(name, (4, 2))
    state = torch.stack([torch.randn(4, 2), 2.0 + torch.rand(4, 2)])
    sites = likelihood.sites(y, state)
    bound = CollapsedLatent(gp, q).bound(sites) + sites.constant.sum()

    k_mm = gp.kernel.cov(gp.inducing, gp.inducing) + 1e-8 * torch.eye(3)
    weights, found = functions_by_quadrature(gp, q, sites, k_mm)
    expected = torch.zeros(())
    for d, (f_mean, f_variance, kl) in enumerate(found):
        w, h, f_square = sites.weight[:, d], sites.linear[:, d], f_mean.square() + f_variance
        logs = sites.constant[:, d] + (weights * (h[:, None] * f_mean - 0.5 * w[:, None] * f_square)).sum(-1)
        expected = expected + logs.sum() - kl
    assert float(bound.detach()) == pytest.approx(float(expected.detach()), abs=1e-8)


@pytest.mark.parametrize("name", FAMILIES)
def test_tangents_are_below_and_touch(name):
    likelihood = FAMILIES[name]()()
    y = outputs(name, (1, 2), missing=0.0)
    f = torch.linspace(-6.0, 6.0, 401).reshape(-1, 1, 1).expand(-1, 1, 2)
    touch = torch.tensor([[0.7, -1.3]])
    weight, linear, constant = likelihood.sites(y, torch.stack([touch, touch.square()]))
    tangent = constant + linear * f - 0.5 * weight * f.square()
    assert (tangent <= likelihood.log_prob(f, y) + 1e-10).all()
    at = constant + linear * touch - 0.5 * weight * touch.square()
    torch.testing.assert_close(at, likelihood.log_prob(touch, y))


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_coordinate_ascent_never_lowers_the_bound(name):
    for seed in range(40):
        torch.manual_seed(seed)
        gp, q = problem(5, 1 + seed % 3, 3)
        likelihood, y = FAMILIES[name]()(), outputs(name, (5, 2))
        latent, state, last = CollapsedLatent(gp, q), torch.stack([torch.zeros(5, 2), 10 * torch.rand(5, 2)]), -math.inf
        for _ in range(5):
            sites = likelihood.sites(y, state)
            bound = float((latent.bound(sites) + sites.constant.sum()).detach())
            assert bound >= last - 1e-9 * abs(bound), (seed, bound, last)
            last, state = bound, likelihood.updated(y, state, site_moments(sites, latent.bound), 1.0)


def test_moments_are_those_of_the_functions():
    """The gradients in linear and weight, against E f and E f² by quadrature over x."""
    gp, q = problem(4, 1, 3)
    sites = Sites(torch.rand(4, 2), torch.randn(4, 2), torch.zeros(4, 2))
    found = site_moments(sites, CollapsedLatent(gp, q).bound)
    k_mm = gp.kernel.cov(gp.inducing, gp.inducing) + 1e-8 * torch.eye(3)
    weights, functions = functions_by_quadrature(gp, q, sites, k_mm)
    for d, (f, variance, _) in enumerate(functions):
        torch.testing.assert_close(found.mean[:, d], (weights * f).sum(-1), rtol=1e-7, atol=1e-7)
        square = (weights * (f.square() + variance)).sum(-1)
        torch.testing.assert_close(found.square[:, d], square, rtol=1e-7, atol=1e-7)
