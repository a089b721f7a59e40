# SPDX-License-Identifier: Apache-2.0
"""Factors in few operations against those of the general formula, and their gradients."""

import pytest
import torch

from pyro_vgpds.likelihoods import Bernoulli, Binomial, NegativeBinomial, StudentT, TangentLikelihood
from pyro_vgpds.likelihoods.factors import Sites

N, D = 30, 3
EACH = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
LIKELIHOODS = {
    "student-t": lambda: StudentT(0.4, 4.0),
    "student-t, one each": lambda: StudentT(0.3 * EACH, 5.0 * EACH),
    "bernoulli": Bernoulli,
    "binomial": lambda: Binomial([3, 4, 9]),
    "negative binomial": lambda: NegativeBinomial(2.0),
    "negative binomial, one each": lambda: NegativeBinomial(3.0 * EACH),
}


def problem(name: str, most: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs with gaps and a state of their factors, some of whose tangents touch at almost 0."""
    torch.manual_seed(0)
    y = torch.randint(0, 2 if name == "bernoulli" else most + 1, (N, D)).double()
    if name.startswith("student"):
        y = torch.randn(N, D).double()
    mean, variance = torch.randn(N, D).double(), torch.rand(N, D).double()
    mean[:3] = y[:3] if name.startswith("student") else 0.0
    variance[:3] = torch.tensor([0.0, 1e-14, 1e-9]).unsqueeze(-1)
    y[torch.rand(N, D) < 0.2] = torch.nan
    return y, torch.stack([mean, mean.square() + variance])


def gradients(sites: Sites, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    factors = [torch.linspace(-1.0, 2.0, N * D).double().view(N, D).roll(k, 0) for k in range(3)]
    total = sum((x * factor).sum() for x, factor in zip(sites, factors, strict=True))
    return list(torch.autograd.grad(total, parameters, retain_graph=True)) if parameters else []


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_factors_are_those_of_the_general_formula(name):
    likelihood = LIKELIHOODS[name]().double()
    y, state = problem(name)
    value, parameters = likelihood(), list(likelihood.parameters())
    found = likelihood.sites(y, state, value.parameters)
    wanted = TangentLikelihood.sites(likelihood, y, state, value.parameters)
    own, others = gradients(found, parameters), gradients(wanted, parameters)
    for one, other in zip([*found, *own], [*wanted, *others], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert all(not part[y.isnan()].any() for part in found)


def test_student_factors_by_finite_differences():
    y, state = problem("student-t")
    inputs = [x.double().requires_grad_() for x in (torch.tensor(0.4), 4.0 * EACH)]

    def sites(scale, df):
        likelihood = StudentT()
        return likelihood.sites(y, state, type("Values", (), {"scale": scale, "df": df}))

    assert torch.autograd.gradcheck(sites, inputs, eps=1e-6, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("likelihood", [NegativeBinomial(2.0), NegativeBinomial(3.0 * EACH)])
def test_few_and_many_different_counts_have_the_same_terms(likelihood):
    """With few of them there is a table of log-gamma functions."""
    y, _ = problem("counts")
    y = y.nan_to_num(nan=0.0)
    p = likelihood.double()().parameters
    parameters = list(likelihood.parameters())
    found = likelihood.terms(y, p)
    wanted = likelihood.terms(torch.cat([y, torch.full((1, D), 1000.0).double()]), p)
    torch.testing.assert_close(found.constant, wanted.constant[:-1], rtol=1e-13, atol=1e-13)
    weights = torch.linspace(-1.0, 2.0, N * D).double().view(N, D)
    own = torch.autograd.grad((weights * found.constant).sum(), parameters, retain_graph=True)
    others = torch.autograd.grad((weights * wanted.constant[:-1]).sum(), parameters)
    torch.testing.assert_close(own, others, rtol=1e-12, atol=1e-12)
    assert likelihood.terms(y[:0], p).constant.shape == (0, D)
