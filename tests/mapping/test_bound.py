# SPDX-License-Identifier: Apache-2.0
"""The terms of groups of outputs: Cholesky factors and eigenvalues against dense algebra, and rounding errors."""

import numpy as np
import pytest
import torch
from problems import terms_of
from torch import Tensor

from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.linalg import NumericalError, cholesky
from pyro_vgpds.mapping import bound, group_terms
from pyro_vgpds.mapping.group_terms import whiten

not_built = pytest.mark.skipif(
    group_terms.native_inducing._library() is None, reason="the compiled terms were not built"
)
#: with operations of torch, and compiled
either = pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=not_built)])

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
    found = cholesky_terms(*inputs, count, _unchecked)
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
    with torch.no_grad():
        plain = terms(*inputs, count, _unchecked)
    assert plain.grad_fn is None
    assert plain.equal(terms(*inputs, count, _unchecked).detach())
    assert not terms(*(x.detach() for x in inputs), count, _unchecked).requires_grad


def test_a_slack_below_zero_counts_as_zero_and_has_no_gradient():
    inputs, count = _problem(3, 5, 1, 1), torch.ones(3, 1)
    with torch.no_grad():
        inputs[0][1] = 0.0
    for found in (
        cholesky_terms(*inputs, count, _unchecked),
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


@pytest.mark.parametrize("closed", [False, True])
@either
def test_rounding_errors_need_eigenvalues(monkeypatch, compiled, closed):
    """Ψ2 cannot have negative eigenvalues, except by rounding; of those directions the fit is kept."""
    monkeypatch.setattr(group_terms.native_inducing, "is_compiled", lambda *tensors: compiled)
    inputs, count = _problem(2, 5, 1, 1), torch.ones(2, 1)
    with torch.no_grad():
        psi0, v, psi2, factor, beta = inputs
        K = factor @ factor.mT
        psi2[0] -= (0.5 / beta[0] + torch.linalg.eigvalsh(whiten(factor, psi2[0])).min()) * K
        psi0[0] *= 0.0 if closed else 1.0
        e, u = torch.linalg.eigh(whiten(factor, psi2[0]))
        x = torch.linalg.solve_triangular(factor.mT, u, upper=True)
        least = -3.0 * e[0]
        back = torch.linalg.inv(x)
        more = back.mT @ (torch.maximum(e, least) - e).diag() @ back  # makes all eigenvalues at least that
        x = x[:, e > least]
        assert 0 < x.shape[1] < 5
    assert cholesky_terms(psi0, v, psi2, factor, beta, count, _unchecked) is None
    found = terms_of(bound._group_terms)(psi0, v, psi2, factor, beta, count, _unchecked)
    assert found == eigen_terms(psi0, v, psi2, factor, beta, count, _unchecked)
    K, rate = factor @ factor.mT, beta[0, 0]
    fit = 0.5 * rate.square() * (v[0] * torch.linalg.solve(K + rate * (psi2[0] + more), v[0])).sum()
    inner, inner_K = x.mT @ psi2[0] @ x, x.mT @ K @ x
    slack = psi0[0] - torch.linalg.solve(inner_K, inner).trace()
    log_det = torch.logdet(inner_K + rate * inner) - torch.logdet(inner_K)
    expected = fit - 0.5 * (log_det + rate * slack.clamp_min(0.0))
    _compare(found, expected + _dense(psi0[1:], v[1:], psi2[1:], factor, beta[1:], count[1:]), inputs)


def _exact(psi0: Tensor, v: Tensor, psi2: np.ndarray, K: Tensor, beta: Tensor) -> float:
    """:func:`_dense` for one group and a β for each column, in longer numbers."""

    def factor(matrix: np.ndarray) -> np.ndarray:
        lower = np.zeros_like(matrix)
        for j in range(len(matrix)):
            lower[j, j] = np.sqrt(matrix[j, j] - (lower[j, :j] ** 2).sum())
            lower[j + 1 :, j] = (matrix[j + 1 :, j] - lower[j + 1 :, :j] @ lower[j, :j]) / lower[j, j]
        return lower

    def solve(lower: np.ndarray, x: np.ndarray) -> np.ndarray:
        x = x.copy()
        for i in range(len(x)):
            x[i] = (x[i] - lower[i, :i] @ x[:i]) / lower[i, i]
        return x

    long = [x.numpy().astype(np.longdouble) for x in (K, v[0], beta.expand(1, v.shape[-1])[0])]
    L, total = factor(long[0]), np.longdouble(0.0)
    slack = float(psi0) - np.trace(solve(L, solve(L, psi2).T))
    for column, rate in zip(long[1].T, long[2], strict=True):
        LB = factor(long[0] + rate * psi2)
        total += 0.5 * rate**2 * (solve(LB, column) ** 2).sum() - np.log(LB.diagonal() / L.diagonal()).sum()
        total -= 0.5 * rate * slack
    return float(total)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="long numbers are not longer here")
@either
@pytest.mark.parametrize("rates", [1, 6])
def test_eigenvalues_lost_in_rounding_errors_cost_little(monkeypatch, rates, compiled):
    """With more inducing inputs than a smooth mapping needs, small directions still hold part of the fit."""
    monkeypatch.setattr(group_terms.native_inducing, "is_compiled", lambda *tensors: compiled)
    torch.manual_seed(0)
    n, size, weight, variance = 120, 30, 0.33, 5.0
    x, s, z = 2.0 * torch.randn(n).double(), 0.01 * torch.rand(n).double(), torch.linspace(-5, 5, size).double()
    y = torch.sin(x[:, None] * torch.linspace(0.5, 3.0, 6).double()) * 5.0
    K = variance * torch.exp(-0.5 * weight * (z[:, None] - z).square())
    K += 1e-8 * variance * torch.eye(size)
    psi1 = variance * torch.exp(-0.5 * weight * (x[:, None] - z).square() / (1 + weight * s[:, None]))
    v = ((psi1 / (1 + weight * s[:, None]).sqrt()).mT @ y).unsqueeze(0)
    long_x, long_s, long_z = (part.numpy().astype(np.longdouble) for part in (x, s, z))
    apart = np.exp(-0.25 * weight * (long_z[:, None] - long_z) ** 2) * variance**2
    middle, wide = (long_z[:, None] + long_z) / 2, 1 + 2 * weight * long_s[:, None, None]
    psi2 = (apart * np.exp(-weight * (long_x[:, None, None] - middle) ** 2 / wide) / np.sqrt(wide)).sum(0)
    psi0, beta = torch.tensor([n * variance]).double(), torch.linspace(40.0, 60.0, rates).double().unsqueeze(0)
    expected = _exact(psi0, v, psi2, K, beta)
    digits = torch.linspace(-2e-15, 2e-15, size).double()  # the relative errors that sums of exponentials have
    rounded = torch.from_numpy(psi2.astype(np.float64)) * (1.0 + digits[:, None] * digits.flip(0) / 2e-15)
    rounded = 0.5 * (rounded + rounded.mT)
    factor = torch.linalg.cholesky(K)
    e = torch.linalg.eigvalsh(whiten(factor, rounded))
    assert e[0] < -1e-6, "nothing is lost here"
    count = torch.full((1, rates), 6.0 / rates).double()
    found = float(eigen_terms(psi0, v, rounded.unsqueeze(0), factor, beta, count, _unchecked))
    assert abs(found - expected) < 0.3  # without these directions it is 3


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
