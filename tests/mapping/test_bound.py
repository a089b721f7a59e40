# SPDX-License-Identifier: Apache-2.0
"""The terms of outputs with a noise of their own: Cholesky factors against eigenvalues and against dense algebra."""

import pytest
import torch

from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.linalg import cholesky
from pyro_vgpds.mapping import bound


def _terms(groups: int, size: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    root = torch.randn(groups, size, size)
    a = (root @ root.mT / size).requires_grad_()
    return a, torch.randn(groups, size, width, requires_grad=True), (torch.rand(groups, width) + 0.5).requires_grad_()


def _dense(a: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(len(a)):
        for d in range(v.shape[-1]):
            b = torch.eye(a.shape[-1]) + beta[i, d] * a[i]
            fit = beta[i, d].square() * v[i, :, d] @ torch.linalg.solve(b, v[i, :, d])
            total = total + 0.5 * (fit - torch.logdet(b))
    return total


@pytest.mark.parametrize("width", [1, 3])
def test_output_terms_equal_dense_algebra(width):
    inputs = _terms(4, 6, width)
    found, expected = bound._output_terms(*inputs), _dense(*inputs)
    assert torch.isclose(found, expected, rtol=1e-12)
    for got, want in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        # the gradient in A is used for symmetric directions only
        got, want = ((g + g.mT) if g.shape[-1] == g.shape[-2] and g.dim() == 3 else g for g in (got, want))
        assert torch.allclose(got, want, rtol=1e-9, atol=1e-11)


def test_a_single_output_uses_the_cholesky_factor_and_rounding_errors_use_eigenvalues(monkeypatch):
    used = []
    for name in ("_CholeskyTerms", "_EigenTerms"):
        original = getattr(bound, name)
        monkeypatch.setattr(
            original, "forward", staticmethod(lambda *args, o=original.forward, n=name: (used.append(n), o(*args))[1])
        )
    a, v, beta = _terms(2, 5, 1)
    bound._output_terms(a, v, beta)
    with torch.no_grad():
        a[0] -= 0.5 / beta[0] * torch.eye(5)  # A cannot have negative eigenvalues, except by rounding
        a[0] -= torch.linalg.eigvalsh(a[0]).min() * torch.eye(5) + 0.5 / beta[0] * torch.eye(5)
    assert torch.isfinite(bound._output_terms(a, v, beta))
    assert used == ["_CholeskyTerms", "_EigenTerms"]


@pytest.mark.parametrize("width", [0.3, 3.0])
def test_the_expected_rounding_error_of_the_trace_is_that_of_changes_in_the_last_digit(width):
    x = torch.linspace(-2, 2, 30).double().unsqueeze(-1)
    kernel, z = ARDRBF(2.0, [1.0 / width**2])(), torch.linspace(-2, 2, 8).double().unsqueeze(-1)
    psi2 = kernel.psi2(x, torch.full_like(x, 0.01), z, None).detach()
    factor = cholesky(kernel.inducing_cov(z), "K_MM", None).detach()
    digits = torch.finfo(torch.float64).eps * torch.randn(400, 8, 8).double()
    traces = bound.whiten(factor.unsqueeze(-3), psi2 * (1.0 + digits)).diagonal(dim1=-2, dim2=-1).sum(-1)
    expected = float(bound._trace_error(factor, psi2))
    assert 0.3 * expected < float(traces.std()) < 3.0 * expected
