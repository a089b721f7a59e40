# SPDX-License-Identifier: Apache-2.0
"""The compiled midpoint sums against the naive formula."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_vgpds.mapping import native_psi2

pytestmark = pytest.mark.skipif(not native_psi2.available(), reason="the compiled kernel was not built")


def naive(a: Tensor, r: Tensor, mu: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
    middle = (z[:, None] + z) / 2
    E = (a[:, None, None] - (r[:, None, None] * (mu[:, None, None] - middle) ** 2).sum(-1)).exp()
    return E.sum(0)[None] if mask is None else torch.einsum("cn,nij->cij", mask, E)


def data(N: int, M: int, Q: int, C: int | None, scale: float = 1.0) -> tuple:
    gen = torch.Generator().manual_seed(N + 100 * M + 10000 * Q)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    mask = None if C is None else (rand(C, N) > 0).double()
    return rand(N), scale * (rand(N, Q).sigmoid() / 2 + 0.05), rand(N, Q), rand(M, Q), mask


def close(value: Tensor, target: Tensor, tol: float = 1e-12) -> None:
    assert (value - target).norm() <= tol * target.norm() + 1e-300


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    monkeypatch.setattr("pyro_vgpds.compiled.LOOP_WORK", 1.0)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("C", [None, 1, 5])
@pytest.mark.parametrize("Q", [1, 2, 3, 4, 5, 9, 12])
@pytest.mark.parametrize(("N", "M"), [(1, 1), (3, 2), (50, 20), (200, 7), (13, 103)])
def test_against_autograd(N, M, Q, C, threads):
    *x, mask = data(N, M, Q, C)
    g = torch.randn(C or 1, M, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    leaves = [t.clone().requires_grad_() for t in x]
    V = naive(*leaves, mask)
    value = native_psi2.forward(*x, mask)
    close(value, V.detach())
    assert torch.equal(value, value.mT)
    for grad, target in zip(native_psi2.backward(g, *x, mask), torch.autograd.grad(V, leaves, g), strict=True):
        close(grad, target)


@pytest.mark.parametrize("M", [5, 18])
@pytest.mark.parametrize("kind", ["most", "few", "mixed", "weights"])
def test_many_groups_of_rows(kind, M):
    """More rows than a pass of the compiled sums has, in groups with most of them, few of them, or weights."""
    *x, _ = data(1000, M, 3, None)
    chance = torch.rand(12, 1000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    share = {"most": 0.9, "few": 0.1, "mixed": torch.linspace(0.0, 1.0, 12).unsqueeze(-1)}
    mask = chance - 0.3 if kind == "weights" else (chance < share[kind]).double()
    g = torch.randn(12, M, M, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    leaves = [t.clone().requires_grad_() for t in x]
    V = naive(*leaves, mask)
    close(native_psi2.forward(*x, mask), V.detach())
    for grad, target in zip(native_psi2.backward(g, *x, mask), torch.autograd.grad(V, leaves, g), strict=True):
        close(grad, target)


def test_finite_differences():
    *x, mask = data(9, 6, 3, 2)
    g = torch.randn(2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def loss() -> Tensor:
        return (g * native_psi2.forward(*x, mask)).sum()

    for t, grad in zip(x, native_psi2.backward(g, *x, mask), strict=True):
        for i in range(t.numel()):
            flat, step = t.view(-1), 1e-5
            flat[i] += step
            up = loss()
            flat[i] -= 2 * step
            down = loss()
            flat[i] += step
            torch.testing.assert_close((up - down) / (2 * step), grad.view(-1)[i], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("scale", [20.0, 100.0, 1000.0])
def test_underflow(scale):
    """Exponents far below -708 give zeros rather than garbage."""
    *x, mask = data(40, 21, 5, None, scale)
    leaves = [t.clone().requires_grad_() for t in x]
    V = naive(*leaves, mask)
    torch.testing.assert_close(native_psi2.forward(*x, mask), V.detach(), rtol=1e-10, atol=1e-300)
    g = torch.ones_like(V)
    for grad, target in zip(native_psi2.backward(g, *x, mask), torch.autograd.grad(V, leaves, g), strict=True):
        torch.testing.assert_close(grad, target, rtol=1e-8, atol=1e-290)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="long double is not longer here")
@pytest.mark.parametrize("N", [250, 2500])
@pytest.mark.parametrize("shares", [None, [0.95, 0.6, 0.4, 0.1]])
def test_rounding_errors_do_not_grow_with_the_number_of_rows(N, shares):
    # K_MM⁻¹ magnifies them up to 10⁸ times in the bound; additions one after the other to a long sum have 10 units
    *x, _ = data(N, 12, 2, None)
    shown = torch.rand(len(shares or [1]), N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.ones_like(shown) if shares is None else (shown < torch.tensor(shares).unsqueeze(-1)).double()
    a, r, mu, z = (part.numpy().astype(np.longdouble) for part in x)
    middle = (z[:, None] + z) / 2
    E = np.exp(a[:, None, None] - (r[:, None, None] * (mu[:, None, None] - middle) ** 2).sum(-1))
    exact = np.tensordot(mask.numpy().astype(np.longdouble), E, axes=1)
    found = native_psi2.forward(*x, None if shares is None else mask).numpy()
    units = ((found - exact) / exact).astype(float) / np.finfo(float).eps
    assert np.sqrt(np.square(units).mean((1, 2))).max() < 2.5


def test_exp():
    """With r = 0 the sum over one row is exp(a)."""
    a = torch.cat([torch.linspace(-745, 709, 20001, dtype=torch.float64), torch.tensor([1e-17, 0.0, -1e-17]).double()])
    zero = torch.zeros(1, 1, dtype=torch.float64)
    value = torch.stack([native_psi2.forward(t[None], zero, zero, zero)[0, 0, 0] for t in a])
    # an exponent is rounded a few times in units of log2, hence an error in proportion to it
    error = (value / a.exp() - 1).abs() / (1 + a.abs())
    assert error[a > -708].max() < 4e-16
    assert value[a > -708].min() > 0
    assert value[a < -709].max() < 1e-307


def test_special_values():
    *x, mask = data(6, 5, 2, None)
    x[0][2] = -torch.inf
    close(native_psi2.forward(*x, mask), naive(*x, mask))
    assert native_psi2.backward(torch.ones(1, 5, 5, dtype=torch.float64), *x, mask)[1][2].abs().max() == 0
    x[0][2] = torch.inf
    assert native_psi2.forward(*x, mask).isinf().all()
    x[0][2] = torch.nan
    assert native_psi2.forward(*x, mask).isnan().all()
    x[0][2] = 0
    x[3][1, 0] = torch.nan
    nan = native_psi2.forward(*x, mask).isnan()[0]
    assert nan[1].all()
    assert nan[:, 1].all()
    assert nan.sum() == 9


def test_rejects_other_tensors():
    *x, mask = data(6, 5, 2, None)
    with pytest.raises(ValueError, match="float64"):
        native_psi2.forward(x[0].float(), *x[1:], mask)
    with pytest.raises(ValueError, match="must be"):
        native_psi2.forward(x[0][:5].clone(), *x[1:], mask)
    with pytest.raises(ValueError, match="all of them nonempty"):
        native_psi2.forward(*x, torch.zeros(0, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match="all of them nonempty"):
        native_psi2.forward(*[t[:0] for t in x[:3]], x[3], None)
    with pytest.raises(ValueError, match="shape"):
        native_psi2.backward(torch.zeros(1, 4, 4, dtype=torch.float64), *x, mask)


@pytest.mark.parametrize("Q", [1, 2, 3, 5, 9])
@pytest.mark.parametrize(("N", "M"), [(1, 1), (3, 2), (50, 20), (300, 7), (13, 103)])
def test_single_sums_have_the_digits_of_float32(N, M, Q, threads):
    *x, _ = data(N, M, Q, None)
    g = torch.randn(1, M, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact = native_psi2.forward(*x), *native_psi2.backward(g, *x)
    assert not native_psi2.is_single()
    with native_psi2.single_sums(True):
        assert native_psi2.is_single()
        found = native_psi2.forward(*x), *native_psi2.backward(g, *x)
    assert not native_psi2.is_single()
    assert torch.equal(found[0], found[0].mT)
    assert not torch.equal(found[0], exact[0])
    close(found[0], exact[0], 1e-6)
    for grad, target in zip(found[1:], exact[1:], strict=True):
        close(grad, target, 2e-5)


def test_single_sums_far_outside_of_the_range_of_float32():
    *x, _ = data(40, 21, 5, None, scale=100.0)
    with native_psi2.single_sums(True):
        value, grads = native_psi2.forward(*x), native_psi2.backward(torch.ones(1, 21, 21, dtype=torch.float64), *x)
        torch.testing.assert_close(value, naive(*x, None), rtol=1e-4, atol=1e-35)
        assert all(grad.isfinite().all() for grad in grads)
        x[0][2] = -torch.inf
        torch.testing.assert_close(native_psi2.forward(*x), naive(*x, None), rtol=1e-4, atol=1e-35)
        x[0][2] = torch.nan
        assert native_psi2.forward(*x).isnan().all()


def test_single_sums_of_groups_are_double():
    *x, mask = data(40, 21, 5, 3)
    with native_psi2.single_sums(True):
        found = native_psi2.forward(*x, mask)
    assert found.equal(native_psi2.forward(*x, mask))


@pytest.mark.long
def test_switch():
    code = "from pyro_vgpds.mapping import native_psi2; raise SystemExit(native_psi2.available())"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYRO_VGPDS_NATIVE": "0"}, check=True)
