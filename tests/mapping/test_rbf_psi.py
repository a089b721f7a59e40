# SPDX-License-Identifier: Apache-2.0
"""The statistics of the squared exponential kernel as one operation, against the operations of torch."""

import pytest
import torch

from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.mapping import native_psi2, rbf_psi
from pyro_vgpds.mapping.psi import MappingValue

pytestmark = pytest.mark.skipif(not native_psi2.available(), reason="the compiled kernels were not built")


def _points(groups: int | None, dims: int, outputs: int) -> tuple:
    mask = None if groups is None else (torch.rand(groups, 20) > 0.4).double()
    y = torch.randn(20, outputs).double()
    return torch.randn(20, dims).double(), torch.rand(20, dims).double() + 0.1, torch.randn(6, dims).double(), y, mask


@pytest.mark.parametrize("groups", [None, 1, 3])
@pytest.mark.parametrize(("dims", "outputs"), [(1, 4), (3, 7), (2, 3000)])
@pytest.mark.parametrize("shared", [False, True])
def test_values_and_gradients_equal_those_of_the_separate_operations(groups, dims, outputs, shared, monkeypatch):
    *points, y, mask = _points(groups, dims, outputs)
    kernel = ARDRBF(1.7, 0.6 if shared else torch.rand(dims) + 0.2).double()
    used = []
    original = rbf_psi._Statistics.forward
    monkeypatch.setattr(rbf_psi._Statistics, "forward", lambda *a: (used.append(1), original(*a))[1])
    found = []
    for compute in (lambda value, *a: value.psi1_y_psi2(*a), MappingValue.psi1_y_psi2):
        leaves = [x.clone().requires_grad_() for x in points]
        first, second = compute(kernel(), *leaves, y, mask)
        weights = torch.linspace(-1, 1, first.numel()).view_as(first), torch.linspace(2, -1, second.numel())
        total = (weights[0] * first).sum() + (weights[1].view_as(second) * second).sum()
        found.append([first, second, *torch.autograd.grad(total, [*leaves, *kernel.parameters()])])
    assert used == [1]
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12 * float(other.detach().abs().max()))


@pytest.mark.parametrize("shared", [False, True])
def test_the_covariance_of_inducing_inputs_equals_that_of_points(shared):
    z = (torch.randn(7, 3).double() + 100.0).requires_grad_()
    kernel = ARDRBF(1.7, 0.6 if shared else torch.rand(3) + 0.2).double()
    weights, found = torch.randn(7, 7).double(), []
    for K in (kernel().inducing_cov(z), kernel().cov(z, z)):
        found.append([K, *torch.autograd.grad((weights * K).sum(), [z, *kernel.parameters()])])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-10)
    many = ARDRBF().double()().inducing_cov(z.expand(2, 7, 3))  # a batch takes the general way
    assert many.shape == (2, 7, 7)


def test_huge_weights_give_no_nan():
    """Squared distances are differences of huge numbers, whose rounding errors must not become exponents."""
    z = torch.randn(5, 3).double()
    mean, variance = 1e-9 * torch.randn(4, 3).double(), torch.full((4, 3), 1e-10).double()
    value = ARDRBF(1e-18, [7e28, 2e21, 50.0]).double()()
    for psi2 in (value.psi2(mean, variance, z, None), value.psi1_y_psi2(mean, variance, z, mean, None)[1]):
        assert bool(torch.isfinite(psi2).all())
    for covariance in (value.inducing_cov(z), value.cov(z, z)):
        assert bool((covariance <= 1.001e-18).all())


def test_what_it_is_not_made_for_takes_the_separate_operations():
    mean, variance, z, _, _ = _points(None, 2, 1)
    parameters = torch.ones(2).double(), torch.tensor(1.0).double()
    assert rbf_psi.has_loops(mean, variance, z, None, parameters)
    weights = torch.ones(1, 20).double()
    assert rbf_psi.has_loops(mean, variance, z, weights, parameters)
    assert not rbf_psi.has_loops(mean, variance, z, weights.requires_grad_(), parameters)  # no gradient in weights
    assert not rbf_psi.has_loops(mean, variance, z, weights[:0].detach(), parameters)
    assert not rbf_psi.has_loops(mean.expand(3, 20, 2), variance, z, None, parameters)
    assert not rbf_psi.has_loops(mean, variance, z, None, (torch.ones(4, 2).double(), parameters[1]))
    assert not rbf_psi.has_loops(mean.float(), variance, z, None, parameters)
