# SPDX-License-Identifier: Apache-2.0
"""The compiled loops over latent points and inducing inputs, against the operations of torch."""

import pytest
import torch
from torch import Tensor

from pyro_vgpds.compiled import run_loops
from pyro_vgpds.mapping import native_psi1, native_psi2

pytestmark = pytest.mark.skipif(not native_psi1.available(), reason="the compiled loops were not built")

SIZES = [(1, 1, 1), (7, 3, 2), (32, 5, 1), (33, 4, 3), (70, 2, 5), (129, 9, 4)]


def _inputs(N: int, M: int, Q: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(N)
    shapes = [(N, Q), (N, Q), (M, Q), (Q,)]
    mu, s, z, w = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return mu, s.square() + 0.01, z, w.square() + 0.1


def _naive(mu: Tensor, s: Tensor, z: Tensor, w: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    spread, wide = 1 + w * s, 1 + 2 * w * s
    squares = (w / spread * (mu - z[:, None]).square()).sum(-1)  # (M, N)
    return -0.5 * wide.log().sum(1), w / wide, scale * torch.exp(-0.5 * (spread.log().sum(1) + squares))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("threads", [1, 3])
def test_terms_and_gradients_equal_those_of_the_formula(size, threads, monkeypatch):
    monkeypatch.setattr("pyro_vgpds.compiled.LOOP_WORK", 1.0)
    monkeypatch.setattr("pyro_vgpds.compiled._count", lambda work: threads)
    inputs = _inputs(*size)
    found = native_psi1.forward(*inputs, 1.7)
    leaves = [x.clone().requires_grad_() for x in inputs]
    log_scale = torch.tensor(1.7, dtype=torch.float64).log().requires_grad_()
    a, rho, psi1 = expected = _naive(*leaves, log_scale.exp())
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-13, atol=1e-300)
    g_a, g_rho, g_mu, g_psi1 = (torch.randn_like(x) for x in (a, rho, leaves[0], psi1))
    total = (g_a * a).sum() + (g_rho * rho).sum() + (g_mu * leaves[0]).sum() + (g_psi1 * psi1).sum()
    gradients = native_psi1.backward(*inputs, found.psi1, g_psi1, (g_a, g_rho, g_mu))
    for one, other in zip(gradients, torch.autograd.grad(total, [*leaves, log_scale]), strict=True):
        assert torch.allclose(one, other.reshape(one.shape), rtol=1e-11, atol=1e-11 * float(other.abs().max()))


@pytest.mark.parametrize("weight", [1e-300, 1e150, 1e300])
def test_products_of_spreads_do_not_overflow(weight):
    mu, s, z, _ = _inputs(9, 2, 6)
    found = native_psi1.forward(mu, s, z, torch.full((6,), weight, dtype=torch.float64), 1.0)
    assert torch.allclose(found.a, -0.5 * (1 + 2 * weight * s).log().sum(1), rtol=1e-13)
    assert bool((found.psi1 <= 1.0).all() and (found.psi1 >= 0.0).all())


def test_values_that_are_not_finite_are_passed_on():
    mu, s, z, w = _inputs(5, 2, 2)
    mu[3, 1] = torch.nan
    psi1 = native_psi1.forward(mu, s, z, w, 1.0).psi1
    assert bool(psi1[:, 3].isnan().all())
    assert not bool(psi1[:, [0, 1, 2, 4]].isnan().any())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("columns", [1, 8, 70])
@pytest.mark.parametrize("known", [False, True])
def test_products_equal_those_of_psi1(size, threads, columns, known, monkeypatch):
    monkeypatch.setattr("pyro_vgpds.compiled._count", lambda work: threads)
    (N, M, _), inputs = size, _inputs(*size)
    y, grad = torch.randn(N, columns, dtype=torch.float64), torch.randn(M, columns, dtype=torch.float64)
    y *= torch.arange(columns) <= torch.arange(N).unsqueeze(1)  # columns at the end that are zero in the first rows
    used = torch.arange(1, N + 1).clamp_max(columns) if known else None
    terms = native_psi1.forward(*inputs, 1.7)
    loop, a, rho = native_psi1.forward_loop(*inputs, y, 1.7, used)
    (first,) = run_loops(N, 64, [loop])
    assert torch.equal(a, terms.a)
    assert torch.equal(rho, terms.rho)
    assert torch.allclose(first, terms.psi1 @ y, rtol=1e-12, atol=1e-13 * float(first.abs().max()))
    sums = torch.randn_like(a), torch.randn_like(rho), torch.randn_like(rho)
    (found,) = run_loops(N, 64, [native_psi1.backward_loop(*inputs, y, 1.7, (None, grad, *sums), used)])
    for one, other in zip(found, native_psi1.backward(*inputs, terms.psi1, grad @ y.mT, sums), strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-11 * float(other.abs().max()))


def test_wrong_inputs_are_errors():
    mu, s, z, w = _inputs(5, 2, 3)
    with pytest.raises(ValueError, match=r"must be \(N, Q\)"):
        native_psi1.forward(mu, s[:4], z, w, 1.0)
    with pytest.raises(ValueError, match=r"must be \(N, Q\)"):
        native_psi1.forward(mu[:0], s[:0], z, w, 1.0)
    with pytest.raises(ValueError, match="contiguous float64 CPU"):
        native_psi1.forward(mu, s.float(), z, w, 1.0)
    with pytest.raises(ValueError, match=r"must be \(N, Q\)"):
        native_psi1.forward_loop(mu, s, z, w, mu, 1.0, torch.ones(5))  # not integers
    psi1 = native_psi1.forward(mu, s, z, w, 1.0).psi1
    with pytest.raises(ValueError, match="contiguous float64 CPU"):
        native_psi1.backward(mu, s, z, w, psi1, psi1.mT.contiguous().mT, (mu[:, 0].contiguous(), mu, mu))


@pytest.mark.skipif(not native_psi2.available(), reason="the compiled sums were not built")
def test_an_exponential_has_all_its_digits():
    exponents, zero = torch.linspace(-1.0, 1.0, 4001, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    found = torch.cat([native_psi2.forward(a.view(1), zero, zero, zero).view(1) for a in exponents])
    assert float((found / exponents.exp() - 1.0).abs().max()) < 1e-15
