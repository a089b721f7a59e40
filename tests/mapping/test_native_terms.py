# SPDX-License-Identifier: Apache-2.0
"""The compiled terms of groups against the operations of torch, and the gradients that are scaled in place."""

import ctypes
from types import SimpleNamespace

import pytest
import torch
from problems import terms_of

from pyro_vgpds.compiled import Library, loop_threads
from pyro_vgpds.mapping import group_terms, native_terms
from pyro_vgpds.mapping.group_terms import torch_parts
from pyro_vgpds.mapping.native_inducing import Covariance, GroupStatistics
from pyro_vgpds.mapping.native_terms import group_parts, is_compiled
from pyro_vgpds.mapping.panels import matrices_of, panels_of

cholesky_terms = terms_of(group_terms.cholesky_terms)
pytestmark = pytest.mark.skipif(native_terms._library() is None, reason="the compiled terms were not built")


def drawn(groups: int, points: int, width: int):
    """Arguments of both functions."""
    torch.manual_seed(groups + points + width)
    half = torch.randn(points, points, dtype=torch.float64)
    K = half @ half.mT / points + 0.1 * torch.eye(points, dtype=torch.float64)
    rows = torch.randn(groups, points, points + 3, dtype=torch.float64)
    psi2 = rows @ rows.mT / points
    factor = torch.linalg.cholesky(K)
    inverse = torch.cholesky_inverse(factor)
    # some groups with a positive slack, others with a negative one
    psi0 = psi2.flatten(1) @ inverse.flatten() + torch.randn(groups, dtype=torch.float64)
    v = torch.randn(groups, points, width, dtype=torch.float64)
    beta = torch.rand(groups, 1, dtype=torch.float64) + 0.5
    count = torch.randint(1, 5, (groups, 1)).double()
    return GroupStatistics(psi0, v, psi2, beta, count), Covariance(K, inverse, factor)


def in_panels(given):
    """The arguments of the compiled function."""
    groups, covariance = given
    return groups._replace(psi2=panels_of(groups.psi2)), covariance


def flat(parts, points: int | None = None):
    """All tensors of a result, with matrices in place of panels of this many points."""
    psi0, beta, v, psi2, *sums = parts.gradients
    return [*parts[:3], psi0, beta, v, psi2 if points is None else matrices_of(psi2, points), *sums]


@pytest.mark.parametrize("points", [1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 31, 64])
@pytest.mark.parametrize(("groups", "width"), [(1, 1), (3, 1), (2, 4), (2, 13), (1, 31)])
def test_parts_are_those_of_torch(groups, points, width):
    given = drawn(groups, points, width)
    compiled = flat(group_parts(*in_panels(given), True), points)
    for found, wanted in zip(compiled, flat(torch_parts(*given, True)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_without_gradients_only_the_value_is_computed():
    given = in_panels(drawn(3, 9, 2))
    found = group_parts(*given, False)
    assert found.gradients is None
    for one, other in zip(found[:3], group_parts(*given, True)[:3], strict=True):
        assert torch.equal(one, other)


def test_the_value_does_not_depend_on_the_memory_layout():
    groups, covariance = in_panels(drawn(4, 10, 3))
    turned = groups.v.movedim(0, 1).contiguous().movedim(0, 1)
    assert not turned.is_contiguous()
    results = (flat(group_parts(groups._replace(v=x), covariance, True)) for x in (groups.v, turned))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_several_threads_give_the_same(monkeypatch):
    monkeypatch.setattr("pyro_vgpds.compiled.LOOP_WORK", 1.0)
    given = in_panels(drawn(7, 20, 2))
    with loop_threads(1):
        alone = group_parts(*given, True)
    with loop_threads(3):
        several = group_parts(*given, True)
    for one, other in zip(flat(alone), flat(several), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("value", [-1e3, float("nan"), float("inf")])
def test_matrices_that_are_not_positive_definite_have_no_terms(value):
    given = drawn(3, 9, 1)
    given[0].psi2[1, 4, 4] = value
    assert group_parts(*in_panels(given), True) is None
    if value < 0:
        assert torch_parts(*given, True) is None


def test_only_float64_on_a_cpu_is_compiled():
    given = drawn(2, 5, 1)
    packed, covariance = in_panels(given)
    v, psi2 = given[0].v, given[0].psi2
    assert is_compiled(v, psi2)
    assert not is_compiled(v.float(), psi2.float())
    assert not is_compiled(v[:, :, :0], psi2)
    assert not is_compiled(torch.empty(1, 300, 1).double(), torch.empty(1, 300, 300).double())
    with pytest.raises(ValueError, match="the compiled terms of groups take float64 CPU tensors"):
        group_parts(packed._replace(v=v.float()), covariance, True)
    with pytest.raises(ValueError, match="psi2 must be panels"):
        group_parts(*given, True)


def test_a_retained_graph_can_be_used_again_with_another_scale():
    (psi0, v, psi2, beta, count), (K, _, _) = drawn(2, 6, 1)
    leaves = [x.requires_grad_() for x in (psi0, v, psi2, torch.linalg.cholesky(K), beta)]
    value = cholesky_terms(*leaves, count, lambda *_: None)
    first = torch.autograd.grad(-value, leaves, retain_graph=True)
    kept = [x.clone() for x in first]
    second = torch.autograd.grad(3.0 * value, leaves, retain_graph=True)
    none = torch.autograd.grad(0.0 * value, leaves, retain_graph=True)
    for one, same, other, zero in zip(first, kept, second, none, strict=True):
        assert torch.equal(one, same)
        torch.testing.assert_close(other, -3.0 * same, rtol=1e-14, atol=0.0)
        assert not zero.any()


def test_a_first_scale_of_zero_does_not_lose_the_gradients():
    (psi0, v, psi2, beta, count), (K, _, _) = drawn(2, 6, 1)
    leaves = [x.requires_grad_() for x in (psi0, v, psi2, torch.linalg.cholesky(K), beta)]
    value = cholesky_terms(*leaves, count, lambda *_: None)
    assert not any(x.any() for x in torch.autograd.grad(0.0 * value, leaves, retain_graph=True))
    again = cholesky_terms(*leaves, count, lambda *_: None)
    for one, other in zip(torch.autograd.grad(value, leaves), torch.autograd.grad(again, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=0.0)


def test_terms_without_the_compiled_function_are_the_same(monkeypatch):
    (psi0, v, psi2, beta, count), (K, _, _) = drawn(3, 11, 2)
    leaves = [x.requires_grad_() for x in (psi0, v, psi2, torch.linalg.cholesky(K), beta)]
    compiled = cholesky_terms(*leaves, count, lambda *_: None)
    monkeypatch.setattr(group_terms, "is_compiled", lambda *_: False)
    plain = cholesky_terms(*leaves, count, lambda *_: None)
    torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=1e-12)
    for one, other in zip(torch.autograd.grad(compiled, leaves), torch.autograd.grad(plain, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_file_that_lacks_a_function_is_not_used(monkeypatch):
    own = native_terms._library
    older = SimpleNamespace(terms_groups=own().terms_groups)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: older)
    monkeypatch.setattr(native_terms, "_library", Library(own._name, **own._functions))
    assert native_terms.entries() == (0, 0)
    assert not is_compiled(torch.zeros(1, 3, 2).double(), torch.zeros(1, 3, 3).double())
