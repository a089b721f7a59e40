# SPDX-License-Identifier: Apache-2.0
"""Mixtures over draws of the latent point: exact moments, and tails that few draws do not have."""

import numpy as np
import pytest
import torch

from pyro_vgpds.likelihoods.quadrature import normal_draws, with_moments


def moments(centre, spread):
    mean = centre.mean(0)
    return mean, (spread + (centre - mean).square()).mean(0)


@pytest.mark.parametrize("widen", [False, True])
@pytest.mark.parametrize("within", [1e-8, 0.2, 3.0])
def test_mixtures_have_the_given_moments(widen, within):
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(8, 5, 3, generator=generator, dtype=torch.float64)
    spread = within * torch.rand(8, 5, 3, generator=generator, dtype=torch.float64)
    centre[:, 0] = centre[0, 0].clone()  # a latent point that is known
    mean = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    variance = 0.1 + torch.rand(5, 3, generator=generator, dtype=torch.float64)
    found = with_moments(centre, spread, mean, variance, widen=widen)
    assert len(found[0]) == 8 + widen
    assert bool((found[1] >= 0.0).all())
    for value, expected in zip(moments(*found), (mean, variance), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


def test_draws_do_not_depend_on_the_default_precision():
    draws = {}
    before = torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        draws[dtype] = normal_draws.__wrapped__(8, 3)
    torch.set_default_dtype(before)
    assert draws[torch.float32].dtype == torch.float64
    assert torch.equal(*draws.values())


def log_density(y, centre, spread, log_weight):
    return (torch.distributions.Normal(centre, spread.sqrt()).log_prob(y) + log_weight).logsumexp(0)


@pytest.mark.parametrize("bend", [0.0, 0.1])
def test_densities_are_nearer_to_the_integral(bend):
    """Outputs z + bend z² + noise with z = w'x for x in 40 dimensions, of which there are 32 draws."""
    w = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z, grid = normal_draws(32, 40) @ (w / w.norm()), torch.linspace(-9.0, 9.0, 4001, dtype=torch.float64)
    noise, y = 0.05, torch.linspace(-5.0, 7.0, 1201, dtype=torch.float64)

    def centre(z):
        return (z + bend * z.square()).unsqueeze(-1)

    log_weight = torch.distributions.Normal(0.0, 1.0).log_prob(grid) + np.log(18.0 / 4000)
    truth = log_density(y, centre(grid), torch.tensor(noise), log_weight.unsqueeze(-1))
    spread = torch.full((32, 1), 1e-3, dtype=torch.float64)
    exact = torch.tensor([bend]), torch.tensor([1.0 + 2.0 * bend**2 + 1e-3])
    before = log_density(y, centre(z), spread + noise, -np.log(32))
    m, v = with_moments(centre(z), spread, *exact)
    after = log_density(y, m, v + noise, -np.log(33))
    divergence = [float((truth.exp() * (truth - found)).sum()) * 0.01 for found in (before, after)]
    assert divergence[1] < 0.02
    assert divergence[1] < 0.3 * divergence[0]
    inside = truth > -8.0  # 3.5 standard deviations
    assert float((truth - after)[inside].max()) < 0.5 * float((truth - before)[inside].max())


def test_without_widening_only_the_moments_change():
    centre = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64)[:, None, None]
    spread = torch.full_like(centre, 0.1)
    found, unchanged = with_moments(centre, spread, *moments(centre, spread), widen=False)
    torch.testing.assert_close(found, centre)
    torch.testing.assert_close(unchanged, spread)
