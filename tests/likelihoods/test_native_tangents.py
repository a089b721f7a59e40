# SPDX-License-Identifier: Apache-2.0
"""The factors that likelihoods compute in few operations, compiled or not, against those of the general formula."""

import math

import pytest
import torch

from pyro_vgpds.likelihoods import Bernoulli, Binomial, NegativeBinomial, StudentT, families, native_tangents
from pyro_vgpds.likelihoods.tangent import TangentLikelihood

ONES = torch.ones(1, 1).double(), torch.ones(2, 1, 1).double()
needs_compiler = pytest.mark.skipif(
    not native_tangents.is_compiled(*ONES), reason="the compiled functions were not built"
)
MAKE = {
    "bernoulli": lambda d: Bernoulli(),
    "binomial": lambda d: Binomial(5),
    "binomial, one total each": lambda d: Binomial(5 + torch.arange(d)),
    "negative-binomial": lambda d: NegativeBinomial(0.5 + 4.0 * torch.rand(d)),
    "one dispersion": lambda d: NegativeBinomial(3.0),
    "student-t": lambda d: StudentT(0.3 + torch.rand(d), 1.0 + 3.0 * torch.rand(d)),
    "one scale": lambda d: StudentT(0.7, 4.0),
}


@pytest.fixture(params=[pytest.param(True, marks=needs_compiler), False], ids=["compiled", "torch"])
def compiled(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(families, "is_compiled", lambda y, state: False)
    return request.param


def problem(name: str, shape: tuple[int, int], most: float = 5.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs, of which some are missing, and a state with values of all sizes, whose first tangents touch near 0."""
    torch.manual_seed(1)
    is_real = "student" in name or "scale" in name
    if is_real:
        y = 3.0 * torch.randn(shape)
    else:
        y = (torch.rand(shape) * (2.0 if name == "bernoulli" else 5.0 if "binomial," in name else most)).floor()
    mean = torch.randn(shape) * 10.0 ** torch.empty(shape).uniform_(-5.0, 1.5)
    variance = torch.rand(shape)
    mean[:3] = y[:3] if is_real else 0.0  # r is 0 if f is y for a Student-t, and if f is 0 for the others
    variance[:3] = torch.tensor([0.0, 1e-14, 1e-9]).unsqueeze(-1)[: shape[0]]
    y[torch.rand(shape) < 0.2] = math.nan
    y[0, 0] = 1.0
    return y.double(), torch.stack([mean, mean.square() + variance]).double()


def with_gradients(likelihood, sites, constants_differ: bool) -> list[torch.Tensor]:
    """Factors and their gradients in the parameters."""
    torch.manual_seed(2)
    parts = [torch.randn(part.shape).double() * part for part in sites]
    total = sum(part.sum() for part in (parts if constants_differ else [*parts[:2], 1.3 * sites.constant]))
    parameters = list(likelihood.parameters())
    return [*sites, *(torch.autograd.grad(total, parameters, retain_graph=True) if parameters else ())]


@pytest.mark.parametrize("constants_differ", [True, False])
@pytest.mark.parametrize("most", [5.0, 90.0])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (60, 9), (41, 16)])
@pytest.mark.parametrize("name", MAKE)
def test_factors_are_those_of_the_general_formula(name, shape, most, constants_differ, compiled):
    y, state = problem(name, shape, 5.0 if "binomial" in name and "negative" not in name else most)
    likelihood = MAKE[name](shape[1]).double()
    value = likelihood()
    found = with_gradients(likelihood, value.sites(y, state), constants_differ)
    general = TangentLikelihood.sites(likelihood, y, state, value.parameters)
    for one, other in zip(found, with_gradients(likelihood, general, constants_differ), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert all(not part[y.isnan()].any() for part in found[:3])


@needs_compiler
@pytest.mark.parametrize("square", [0.0, 1e-300, 1e-12, 1e-6, 0.1, 10.0, 1e6, 1e12])
def test_extreme_moments(square, monkeypatch):
    y, state = torch.tensor([[1.0, math.nan]]).double(), torch.full((2, 1, 2), square).double()
    found = Bernoulli()().sites(y, state)
    monkeypatch.setattr(families, "is_compiled", lambda y, state: False)
    for one, other in zip(found, Bernoulli()().sites(y, state), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)


@needs_compiler
def test_tensors_that_the_compiled_functions_do_not_take():
    y, state = torch.ones(3, 2).double(), torch.ones(2, 3, 2).double()
    assert native_tangents.is_compiled(y, state)
    assert not native_tangents.is_compiled(y.float(), state)
    assert not native_tangents.is_compiled(y.mT.contiguous().mT, state)
    assert not native_tangents.is_compiled(y, torch.ones(2, 3, 4).double())


def test_student_factors_by_finite_differences():
    y, state = problem("student-t", (30, 3))
    inputs = [x.double().requires_grad_() for x in (torch.tensor(0.4), torch.tensor([2.0, 4.0, 8.0]))]

    def sites(scale, df):
        return StudentT().sites(y, state, type("Values", (), {"scale": scale, "df": df}))

    assert torch.autograd.gradcheck(sites, inputs, eps=1e-6, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["negative-binomial", "one dispersion"])
def test_few_and_many_different_counts_have_the_same_terms(name):
    """With few of them there is a table of log-gamma functions."""
    y, likelihood = problem(name, (30, 3))[0].nan_to_num(nan=0.0), MAKE[name](3).double()
    p, parameters = likelihood().parameters, list(likelihood.parameters())
    found = likelihood.terms(y, p)
    wanted = likelihood.terms(torch.cat([y, torch.full((1, 3), 1000.0).double()]), p)
    torch.testing.assert_close(found.constant, wanted.constant[:-1], rtol=1e-13, atol=1e-13)
    weights = torch.linspace(-1.0, 2.0, 90).double().view(30, 3)
    own = torch.autograd.grad((weights * found.constant).sum(), parameters, retain_graph=True)
    others = torch.autograd.grad((weights * wanted.constant[:-1]).sum(), parameters)
    torch.testing.assert_close(own, others, rtol=1e-12, atol=1e-12)
    assert likelihood.terms(y[:0], p).constant.shape == (0, 3)
    assert len(native_tangents.different_counts(y)) == 5
    few = torch.tensor([[2.0, math.nan], [0.0, 1.0]])
    assert native_tangents.different_counts(few.repeat(9, 1)).flatten().tolist() == [0.0, 1.0, 2.0]
    assert native_tangents.different_counts(few) is few
