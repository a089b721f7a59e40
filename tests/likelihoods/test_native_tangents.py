# SPDX-License-Identifier: Apache-2.0
"""The compiled tangents against those that the operations of torch give, and against autograd."""

import math

import pytest
import torch

from pyro_vgpds.likelihoods import (
    Bernoulli,
    Binomial,
    NegativeBinomial,
    StudentT,
    families,
    native_tangents,
)
from pyro_vgpds.likelihoods.tangent import TangentLikelihood

ONES = torch.ones(1, 1).double(), torch.ones(2, 1, 1).double()
pytestmark = pytest.mark.skipif(not native_tangents.is_compiled(*ONES), reason="the compiled functions were not built")
MAKE = {
    "bernoulli": lambda d: Bernoulli(),
    "binomial": lambda d: Binomial(5),
    "negative-binomial": lambda d: NegativeBinomial(0.5 + 4.0 * torch.rand(d)),
    "one dispersion": lambda d: NegativeBinomial(3.0),
    "student-t": lambda d: StudentT(0.3 + torch.rand(d), 1.0 + 3.0 * torch.rand(d)),
    "one scale": lambda d: StudentT(0.7, 4.0),
}


def problem(name: str, shape: tuple[int, int], most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs, of which some are missing, and a state with values of all sizes."""
    torch.manual_seed(1)
    if "student" in name or "scale" in name:
        y = 3.0 * torch.randn(shape)
    else:
        y = (torch.rand(shape) * (2.0 if name == "bernoulli" else most)).floor()
    y[torch.rand(shape) < 0.2] = math.nan
    y[0, 0] = 1.0
    mean = torch.randn(shape) * 10.0 ** torch.empty(shape).uniform_(-5.0, 1.5)
    return y.double(), torch.stack([mean, mean.square() + torch.rand(shape)]).double()


def evaluated(likelihood, y: torch.Tensor, state: torch.Tensor, constants_differ: bool) -> list[torch.Tensor]:
    """The factors and the gradients in the parameters."""
    sites = likelihood().sites(y, state)
    torch.manual_seed(2)
    parts = [torch.randn(y.shape).double() * part for part in sites[:2]]
    constants = torch.randn(y.shape).double() * sites.constant if constants_differ else 1.3 * sites.constant
    total = sum(part.sum() for part in (*parts, constants))
    parameters = list(likelihood.parameters())
    return [*sites, *(torch.autograd.grad(total, parameters) if parameters else ())]


@pytest.mark.parametrize("constants_differ", [True, False])
@pytest.mark.parametrize("most", [5.0, 90.0])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (60, 9), (41, 16)])
@pytest.mark.parametrize("name", MAKE)
def test_tangents_equal_those_of_torch(name, shape, most, constants_differ, monkeypatch):
    most = 5.0 if name == "binomial" else most
    y, state = problem(name, shape, most)
    state[1, 0, 0] = state[0, 0, 0].square()  # for a Student-t r is near 0 if f is near y
    likelihood = MAKE[name](shape[1]).double()
    found = evaluated(likelihood, y, state, constants_differ)
    monkeypatch.setattr(families, "is_compiled", lambda y, state: False)
    for one, other in zip(found, evaluated(likelihood, y, state, constants_differ), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["bernoulli", "student-t"])
def test_tangents_equal_those_of_the_definition(name):
    """Those of :class:`TangentLikelihood`, by its terms and its curve."""
    y, state = problem(name, (30, 4), 2.0)
    likelihood = MAKE[name](4).double()
    value = likelihood()
    for one, other in zip(
        value.sites(y, state), TangentLikelihood.sites(likelihood, y, state, value.parameters), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("square", [0.0, 1e-300, 1e-12, 1e-6, 0.1, 10.0, 1e6, 1e12])
def test_extreme_moments(square, monkeypatch):
    y, state = torch.tensor([[1.0, math.nan]]).double(), torch.full((2, 1, 2), square).double()
    found = Bernoulli()().sites(y, state)
    monkeypatch.setattr(families, "is_compiled", lambda y, state: False)
    for one, other in zip(found, Bernoulli()().sites(y, state), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_tensors_that_the_compiled_functions_do_not_take():
    y, state = torch.ones(3, 2).double(), torch.ones(2, 3, 2).double()
    assert native_tangents.is_compiled(y, state)
    assert not native_tangents.is_compiled(y.float(), state)
    assert not native_tangents.is_compiled(y.mT.contiguous().mT, state)
    assert not native_tangents.is_compiled(y, torch.ones(2, 3, 4).double())


def test_few_counts_are_listed_once():
    y = torch.tensor([[2.0, math.nan], [0.0, 1.0]])
    assert native_tangents.different_counts(y.repeat(9, 1)).flatten().tolist() == [0.0, 1.0, 2.0]
    assert native_tangents.different_counts(y) is y
