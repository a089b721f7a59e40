# SPDX-License-Identifier: Apache-2.0
"""Quantiles, distribution functions and log-probabilities of mixtures, against sums, draws and scipy."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, special, stats

from pyro_vgpds.likelihoods import (
    Bernoulli,
    Binomial,
    ByColumn,
    Gaussian,
    NegativeBinomial,
    Poisson,
    SiteLikelihood,
    StudentT,
)
from pyro_vgpds.likelihoods.quadrature import normal_groups, normal_lattice
from pyro_vgpds.likelihoods.special import incomplete_beta, student_cdf
from pyro_vgpds.prediction.quantiles import Weighted, invert, mixture_log_probs, mixture_quantiles


@pytest.mark.parametrize("size", [0.7, 30.0, 1e4])
def test_the_incomplete_beta_function(size):
    a, b = size * torch.rand(200) + 0.1, size * torch.rand(200) + 0.1
    x = torch.cat([torch.tensor([0.0, 1.0]), torch.rand(98), (a / (a + b))[:100]])
    expected = torch.from_numpy(special.betainc(a.numpy(), b.numpy(), x.numpy()))
    torch.testing.assert_close(incomplete_beta(a, b, x), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("df", [0.7, 2.3, 40.0, 1e4])
def test_the_table_of_the_student_t_distribution(df):
    z = torch.cat([torch.linspace(-30.0, 30.0, 8001), torch.logspace(-3, 11, 500), -torch.logspace(2, 11, 500)])
    expected = torch.from_numpy(stats.t.cdf(z.numpy(), df))
    torch.testing.assert_close(student_cdf(z, torch.tensor(df)), expected, rtol=0.0, atol=5e-9)  # many: by a table
    torch.testing.assert_close(student_cdf(z[::50], torch.tensor(df)), expected[::50], rtol=0.0, atol=1e-10)
    both = student_cdf(z[:, None].expand(-1, 2), torch.tensor([df, 3.0]))
    torch.testing.assert_close(both[:, 0], expected, rtol=0.0, atol=5e-9)
    torch.testing.assert_close(both[:, 1], torch.from_numpy(stats.t.cdf(z.numpy(), 3.0)), rtol=0.0, atol=5e-9)


@pytest.mark.parametrize(
    ("likelihood", "reference"),
    [
        (NegativeBinomial(3.5), lambda f: stats.nbinom(3.5, special.expit(-f))),
        (Binomial(12), lambda f: stats.binom(12, special.expit(f))),
        (Bernoulli(), lambda f: stats.bernoulli(special.expit(f))),
        (Poisson(), lambda f: stats.poisson(math.exp(f))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_distribution_functions_of_counts(likelihood, reference):
    y = torch.tensor([[-1.0, 0.0, 0.4, 1.0, 5.0, 11.0, 12.0, 40.0]])
    for f in (-2.0, 0.3, 2.5):
        found = likelihood().cdf(y, torch.full_like(y, f))
        torch.testing.assert_close(found[0], torch.from_numpy(reference(f).cdf(y[0].numpy())), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("likelihood", "reference"),
    [
        (NegativeBinomial(3.5), lambda f: stats.nbinom(3.5, special.expit(-f))),
        (Binomial(300), lambda f: stats.binom(300, special.expit(f))),
        (Poisson(), lambda f: stats.poisson(np.exp(f))),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("shift", [-1.0, 4.0])
def test_quantiles_of_counts_are_the_smallest_whole_numbers(likelihood, reference, shift):
    f, weight = shift + 0.4 * torch.randn(20, 3, 2), torch.rand(20)
    weight /= weight.sum()
    given, share = reference(f.numpy()), weight.numpy()[:, None, None]
    found = mixture_quantiles(likelihood().detached(), f, weight, (0.025, 0.9))
    for level, end in zip((0.025, 0.9), found, strict=True):
        assert bool(((share * given.cdf(end.numpy())).sum(0) >= level - 1e-8).all())
        assert bool(((share * given.cdf(end.numpy() - 1.0)).sum(0) < level).all())


@pytest.mark.parametrize("mean", [1e3, 1e6])
def test_quantiles_of_large_counts(mean):
    f = torch.full((1, 2, 2), math.log(mean))
    for likelihood, reference in (
        (Poisson(), stats.poisson(mean)),
        (NegativeBinomial(4.0), stats.nbinom(4.0, 4.0 / (4.0 + mean))),
    ):
        shifted = f - math.log(4.0) if isinstance(likelihood, NegativeBinomial) else f
        found = mixture_quantiles(likelihood().detached(), shifted, torch.ones(1), (0.025, 0.5, 0.975))
        assert [float(end[0, 0]) for end in found] == [reference.ppf(level) for level in (0.025, 0.5, 0.975)]


class Exponential(SiteLikelihood):
    """Positive outputs."""

    def distribution(self, f, p):
        return dist.Exponential((-f).exp())

    def is_valid(self, y, p):
        return y > 0


@pytest.mark.parametrize("likelihood", [StudentT(0.3, 2.5), StudentT(0.3, 0.8), Gaussian(0.4), Exponential()], ids=str)
def test_quantiles_of_continuous_outputs_invert_the_distribution_function(likelihood):
    f, weight = torch.randn(20, 5, 3), torch.rand(20)
    weight /= weight.sum()
    value = likelihood()
    for level in (0.001, 0.025, 0.5, 0.9):
        (found,) = mixture_quantiles(value, f, weight, (level,))
        chance = (weight[:, None, None] * value.cdf(found, f)).sum(0)
        torch.testing.assert_close(chance, torch.full((5, 3), level), rtol=0.0, atol=1e-8)


def test_each_column_has_quantiles_of_its_own_kind():
    likelihood = ByColumn([(Poisson(), [2]), (StudentT(0.3, 3.0), [0]), (Bernoulli(), [1])])
    f, weight = torch.randn(40, 4, 3), torch.full((40,), 1 / 40)
    low, high = mixture_quantiles(likelihood().detached(), f, weight, (0.1, 0.9))
    (alone,) = mixture_quantiles(StudentT(0.3, 3.0)(), f[..., :1], weight, (0.9,))
    torch.testing.assert_close(high[:, :1], alone)
    assert torch.equal(high[:, 1:], high[:, 1:].round())
    assert not torch.equal(low[:, 0], low[:, 0].round())


def test_fewer_values_with_the_same_distribution():
    values, weight = torch.randn(700, 4), torch.rand(700)
    weight /= weight.sum()
    fewer = Weighted(values, weight).reduced(32)
    assert len(fewer.values) == 32
    torch.testing.assert_close((fewer.weight[:, None] * fewer.values).sum(0), (weight[:, None] * values).sum(0))
    for level in (0.025, 0.3, 0.8):
        found, expected = (w.quantiles((level,))[0] for w in (fewer, Weighted(values, weight)))
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.12)
    assert Weighted(values[:5], weight[:5]).reduced(32).values is not None


def test_inversion_of_steps_and_flat_places():
    steps = torch.tensor([3.0, 100.0, -7.0, 1e5])
    found = invert(lambda y: (y >= steps).double(), 0.5, torch.zeros(4), torch.ones(4), is_whole=True)
    assert torch.equal(found, steps)
    found = invert(lambda y: (y >= steps).double(), 0.5, torch.zeros(4), torch.ones(4))
    torch.testing.assert_close(found, steps, rtol=0.0, atol=1e-6)


def test_points_of_normal_distributions():
    z, weight = normal_groups(24)
    assert float((weight * z.square()).sum()) == pytest.approx(1.0, abs=0.02)
    lattice = normal_lattice(12, 32)
    assert float(lattice.square().mean()) == pytest.approx(1.0, abs=0.02)
    assert float(lattice.mean()) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("likelihood", "y", "mean"),
    [(Poisson(), 20_000.0, 9.5), (Poisson(), 0.0, 1.0), (NegativeBinomial(3.0), 7.0, 0.5), (Bernoulli(), 1.0, -2.0),
     (Binomial(10_000), 9_000.0, 2.0), (StudentT(0.01, 4.0), 0.3, 0.1), (Gaussian(0.02), 0.9, 0.2)],
    ids=str,
)  # fmt: skip
def test_log_probabilities_by_quadrature(likelihood, y, mean):
    # a likelihood that is far narrower than the distribution of f, too
    value, sd = likelihood().detached(), 0.6

    def density(f):
        point = torch.tensor([[f]])
        return float(value.distribution(point).log_prob(torch.tensor([[y]])).exp()) * stats.norm.pdf(f, mean, sd)

    grid = torch.linspace(mean - 9 * sd, mean + 9 * sd, 1001)
    best = float(grid[max(range(1001), key=lambda i: density(float(grid[i])))])
    expected = integrate.quad(
        density, mean - 9 * sd, mean + 9 * sd, points=[best, best - 0.02, best + 0.02], limit=500
    )[0]
    f = torch.full((3, 1, 1), mean)
    found = mixture_log_probs(value, torch.tensor([[y]]), f, torch.full_like(f, sd**2), {1: 7})
    assert float(found) == pytest.approx(math.log(expected), abs=0.02)


def test_what_is_not_possible_has_no_probability():
    f = torch.zeros(2, 1, 3)
    y = torch.tensor([[0.5, -1.0, 2.0]])
    found = mixture_log_probs(Poisson()(), y, f, torch.ones_like(f), {1: 7})
    assert found[0, :2].tolist() == [-math.inf, -math.inf]
    assert math.isfinite(float(found[0, 2]))
