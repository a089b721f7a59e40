# SPDX-License-Identifier: Apache-2.0
"""The terms of groups of outputs: Cholesky factors and eigenvalues against dense algebra, and rounding errors."""

import pytest
import torch
from problems import terms_of
from torch import Tensor

from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.linalg import NumericalError, cholesky
from pyro_vgpds.mapping import bound, group_terms
from pyro_vgpds.mapping.group_terms import whiten

cholesky_terms, eigen_terms = terms_of(group_terms.cholesky_terms), terms_of(group_terms.eigen_terms)


def _unchecked(*args: Tensor) -> None:
    pass


def _problem(groups: int, size: int, width: int, rates: int) -> list[Tensor]:
    """ψ0, v, Ψ2, L and β, all with gradients."""
    root, kernel = torch.randn(groups, size, size), torch.randn(size, size)
    factor = torch.linalg.cholesky(kernel @ kernel.mT / size + 0.5 * torch.eye(size))
    psi0 = torch.rand(groups) + 20.0 * size
    inputs = psi0, torch.randn(groups, size, width), root @ root.mT / size, factor, torch.rand(groups, rates) + 0.5
    return [x.double().requires_grad_() for x in inputs]


def _dense(psi0: Tensor, v: Tensor, psi2: Tensor, factor: Tensor, beta: Tensor, count: Tensor) -> Tensor:
    total, K = torch.zeros(()), factor @ factor.mT
    for i in range(len(psi0)):
        for w in range(v.shape[-1]):
            rate = beta[i, w if beta.shape[-1] > 1 else 0]
            total = total + 0.5 * rate.square() * v[i, :, w] @ torch.linalg.solve(K + rate * psi2[i], v[i, :, w])
        for rate, number in zip(beta[i], count[i], strict=True):
            log_det = torch.logdet(K + rate * psi2[i]) - torch.logdet(K)
            slack = psi0[i] - torch.linalg.solve(K, psi2[i]).trace()
            total = total - 0.5 * number * (log_det + rate * slack)
    return total


def _compare(found: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    assert torch.isclose(found, expected, rtol=1e-12)
    pairs = zip(
        torch.autograd.grad(2.0 * found, inputs),
        torch.autograd.grad(2.0 * expected, inputs, retain_graph=True),
        strict=True,
    )
    for i, (got, want) in enumerate(pairs):
        if i == 2:  # the gradient in Ψ2 is used for symmetric directions only
            got, want = got + got.mT, want + want.mT
        assert torch.allclose(got, want.tril() if i == 3 else want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("groups", "width"), [(1, 4), (5, 1), (3, 2)])
def test_groups_with_one_rate_equal_dense_algebra(groups, width):
    inputs, count = _problem(groups, 6, width, 1), torch.rand(groups, 1) + width
    expected = _dense(*inputs, count)
    *others, beta = inputs
    found = cholesky_terms(*others, beta.squeeze(-1), count.squeeze(-1), _unchecked)
    assert found is not None
    _compare(found, expected, inputs)
    _compare(eigen_terms(*inputs, count, _unchecked), expected, inputs)


@pytest.mark.parametrize("groups", [1, 3])
def test_groups_with_a_rate_for_each_output_equal_dense_algebra(groups):
    inputs = _problem(groups, 6, 4, 4)
    count = torch.ones(groups, 4)
    _compare(eigen_terms(*inputs, count, _unchecked), _dense(*inputs, count), inputs)


@pytest.mark.parametrize("terms", [cholesky_terms, eigen_terms])
def test_gradients_are_computed_only_if_they_are_wanted(terms):
    inputs, count = _problem(2, 5, 1, 1), torch.ones(2, 1)
    if terms is cholesky_terms:
        inputs[-1], count = inputs[-1].squeeze(-1), count.squeeze(-1)
    with torch.no_grad():
        plain = terms(*inputs, count, _unchecked)
    assert plain.grad_fn is None
    assert plain.equal(terms(*inputs, count, _unchecked).detach())
    assert not terms(*(x.detach() for x in inputs), count, _unchecked).requires_grad


def test_a_slack_below_zero_counts_as_zero_and_has_no_gradient():
    inputs, count = _problem(3, 5, 1, 1), torch.ones(3, 1)
    with torch.no_grad():
        inputs[0][1] = 0.0
    *others, beta = inputs
    for found in (
        cholesky_terms(*others, beta.squeeze(-1), count.squeeze(-1), _unchecked),
        eigen_terms(*inputs, count, _unchecked),
    ):
        gradients = torch.autograd.grad(found, inputs)
        assert gradients[0][1] == 0.0
        K = inputs[3] @ inputs[3].mT
        slack = inputs[0] - torch.linalg.solve(K, inputs[2]).diagonal(dim1=-2, dim2=-1).sum(-1)
        closed = 0.5 * inputs[4][1, 0] * slack[1]
        assert torch.isclose(found, _dense(*inputs, count) + closed, rtol=1e-12)
        wanted = torch.autograd.grad(_dense(*inputs, count) + closed, inputs, retain_graph=True)
        for i in (2, 3, 4):
            one, other = gradients[i], wanted[i].tril() if i == 3 else wanted[i]
            assert (
                torch.allclose(one + one.mT, other + other.mT, rtol=1e-9, atol=1e-10)
                if i == 2
                else torch.allclose(one, other, rtol=1e-9, atol=1e-10)
            )


def test_rounding_errors_need_eigenvalues():
    """Ψ2 cannot have negative eigenvalues, except by rounding; those directions are removed."""
    psi0, v, psi2, factor, beta = (x.detach() for x in _problem(2, 5, 1, 1))
    K, count = factor @ factor.mT, torch.ones(2, 1)
    psi2[0] -= (0.5 / beta[0] + torch.linalg.eigvalsh(whiten(factor, psi2[0])).min()) * K
    assert cholesky_terms(psi0, v, psi2, factor, beta.squeeze(-1), count.squeeze(-1), _unchecked) is None
    found = terms_of(bound._group_terms)(psi0, v, psi2, factor, beta, count, _unchecked)
    assert found == eigen_terms(psi0, v, psi2, factor, beta, count, _unchecked)
    e, u = torch.linalg.eigh(whiten(factor, psi2[0]))
    x = torch.linalg.solve_triangular(factor.mT, u[:, e > -3.0 * e[0]], upper=True)  # fewer inducing variables
    rest = eigen_terms(psi0[1:], v[1:], psi2[1:], factor, beta[1:], count[1:], _unchecked)
    kept = _dense(
        psi0[:1],
        (x.mT @ v[0]).unsqueeze(0),
        (x.mT @ psi2[0] @ x).unsqueeze(0),
        torch.eye(x.shape[1]).to(x),
        beta[:1],
        count[:1],
    )
    assert torch.isclose(found, rest + kept, rtol=1e-12)


def test_statistics_that_are_not_finite_are_an_error():
    psi0, v, psi2, factor, beta = (x.detach() for x in _problem(1, 4, 1, 1))
    psi2[0, 1, 2] = psi2[0, 2, 1] = torch.nan
    with pytest.raises(NumericalError, match="not finite"):
        terms_of(bound._group_terms)(psi0, v, psi2, factor, beta, torch.ones(1, 1), _unchecked)


@pytest.mark.parametrize("width", [0.3, 3.0])
def test_the_expected_rounding_error_of_the_trace_is_that_of_changes_in_the_last_digit(width):
    x = torch.linspace(-2, 2, 30).double().unsqueeze(-1)
    kernel, z = ARDRBF(2.0, [1.0 / width**2])(), torch.linspace(-2, 2, 8).double().unsqueeze(-1)
    psi2 = kernel.psi2(x, torch.full_like(x, 0.01), z, None).detach()
    factor = cholesky(kernel.inducing_cov(z), "K_MM", None).detach()
    digits = torch.finfo(torch.float64).eps * torch.randn(400, 8, 8).double()
    traces = whiten(factor.unsqueeze(-3), psi2 * digits).diagonal(dim1=-2, dim2=-1).sum(-1)  # linear in the changes
    expected = float(bound.trace_error(torch.cholesky_inverse(factor), psi2))
    assert 0.3 * expected < float(traces.std()) < 3.0 * expected
