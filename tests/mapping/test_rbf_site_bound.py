# SPDX-License-Identifier: Apache-2.0
"""The bound of outputs with Gaussian factors as one operation, against the separate operations."""

import math

import pytest
import torch

from pyro_vgpds.kernels import ARDRBF, ARDLinear, Bias, White
from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.mapping import native_weighted
from pyro_vgpds.mapping.bound import site_limits
from pyro_vgpds.mapping.forms import rbf_form
from pyro_vgpds.mapping.latent_gp import CollapsedLatent, LatentGP, mean_terms, scaled_sites
from pyro_vgpds.mapping.rbf_site_bound import available, factor_gradients, rbf_site_bound, scaled_factors

pytestmark = pytest.mark.skipif(
    not (available() and native_weighted.available()), reason="the compiled functions were not built"
)
KERNELS = {
    "rbf": lambda: ARDRBF(1.7, [0.5, 0.8, 0.3]),
    "one weight": lambda: ARDRBF(1.7, 0.6) + Bias(0.3),
    "constants": lambda: Bias(0.2) + ARDRBF(1.7, [0.5, 0.8, 0.3]) + Bias(0.6),
}


class Points:
    """q(X) with these moments."""

    def __init__(self, mean, variance):
        self.mean, self.variance, self.batch_shape = mean, variance, torch.Size(())


def factors(frames: int, outputs: int) -> list[torch.Tensor]:
    """Weight and linear part (N, D), of which some are zero, the mean and the scale (D,)."""
    weight = torch.rand(frames, outputs) * (torch.rand(frames, outputs) < 0.8)
    return [weight, torch.randn(frames, outputs) * (weight > 0), torch.randn(outputs), 0.5 + torch.rand(outputs)]


def evaluate(
    name: str, frames: int, points: int, outputs: int, wanted: bool = True, jitter: float | None = 1e-6
) -> list[torch.Tensor]:
    """The bound and its gradients in everything."""
    torch.manual_seed(3)
    kernel = KERNELS[name]().double()
    x, variance, z = torch.randn(frames, 3), torch.rand(frames, 3), torch.randn(points, 3)
    leaves = [part.double().requires_grad_(wanted) for part in (x, variance, z, *factors(frames, outputs))]
    x, variance, z, weight, linear, mean, scale = leaves
    with torch.set_grad_enabled(wanted):
        gp = LatentGP(torch.zeros(frames, 3), kernel(), inducing=z, mean=mean, scale=scale, jitter=jitter)
        bound = CollapsedLatent(gp, Points(x, variance)).bound(Sites(weight, linear, torch.zeros(())))
    return [bound, *(torch.autograd.grad(-3.0 * bound, [*leaves, *kernel.parameters()]) if wanted else ())]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [(23, 9, 4), (1, 1, 1), (113, 7, 12), (50, 17, 130)])
@pytest.mark.parametrize("jitter", [1e-6, None])
def test_bound_and_gradients_equal_those_of_the_separate_operations(name, size, jitter, monkeypatch):
    found, without = (evaluate(name, *size, wanted, jitter) for wanted in (True, False))
    monkeypatch.setattr("pyro_vgpds.mapping.rbf_site_bound.available", lambda: False)
    monkeypatch.setattr(native_weighted, "available", lambda: False)
    for one, other in zip(found, wanted := evaluate(name, *size, True, jitter), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9 * float(other.detach().abs().max()))
    torch.testing.assert_close(without[0], wanted[0].detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (8, 64), (21, 150)])
def test_scaled_factors_and_their_gradients_against_autograd(shape):
    leaves = [part.double().requires_grad_() for part in factors(*shape)]
    weight, linear, mean, scale = leaves
    sites = Sites(weight, linear, torch.zeros(()))
    new_weight, new_linear = scaled_sites(sites, mean, scale)
    rest, limits = mean_terms(sites, mean), site_limits(new_weight, new_linear)
    found = scaled_factors(*(part.detach() for part in leaves))
    for one, other in zip(found[:3], (new_weight.mT, new_linear.mT, rest), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found.limits.most, limits.most, rtol=1e-12, atol=1e-12)
    assert found.limits.seen.tolist() == limits.seen.tolist()
    assert found.limits.size == limits.size
    g_weight, g_linear = torch.randn(2, *shape[::-1]).double()
    total = (g_weight.mT * new_weight).sum() + (g_linear.mT * new_linear).sum() + rest
    given = *(part.detach() for part in leaves), g_weight, g_linear
    for one, other in zip(factor_gradients(*given), torch.autograd.grad(total, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_factors_of_other_kinds_are_refused():
    with pytest.raises(ValueError, match="float64 CPU tensors"):
        scaled_factors(*(part.float() for part in factors(3, 2)))


@pytest.mark.parametrize("kernel", [ARDRBF() + ARDLinear(), ARDRBF() + White(0.1), ARDRBF() + ARDRBF(), ARDLinear()])
def test_other_kernels_have_no_such_form(kernel):
    assert rbf_form(kernel()) is None


def test_tensors_that_the_compiled_functions_do_not_take_go_the_general_way():
    form, one = rbf_form(ARDRBF(1.0, [1.0]).double()()), torch.ones(2, 1).double()
    sites = Sites(one, one, one)
    z, last = torch.tensor([[0.0], [2.0]]).double(), (form, sites, one[0], one[0], None)
    assert math.isfinite(float(rbf_site_bound(one, one, z, *last).value))
    assert rbf_site_bound(one.expand(2, 2, 1), one, z, *last) is None
    assert rbf_site_bound(one.float(), one, z, *last) is None


def test_without_enough_jitter_the_general_way_adds_more():
    form, one = rbf_form((ARDRBF(1.0, [1.0]) + Bias(0.5)).double()()), torch.ones(2, 1).double()
    sites, z = Sites(one, one, one), torch.zeros(3, 1).double()  # the same point three times
    assert rbf_site_bound(one, one, z, form, sites, one[0], one[0], 0.0) is None
