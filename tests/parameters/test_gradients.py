# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters from those of their values, against autograd."""

import torch

from pyro_vgpds.kernels import RBF
from pyro_vgpds.parameters.gradients import add_to_parameter, view_of


def check(parameter, value, gradient):
    wanted = (
        torch.autograd.grad(value, parameter, gradient, retain_graph=True)[0] if value is not parameter else gradient
    )
    for count in (1.0, 2.0):  # the second time it is added
        assert add_to_parameter(value, gradient)
        torch.testing.assert_close(parameter.grad, count * wanted, rtol=1e-13, atol=0.0)


def test_exponentials_views_and_shifts():
    kernel = RBF(variance=torch.rand(3) + 0.5, lengthscale=0.7)
    check(kernel.variance_unconstrained, kernel.read("variance"), torch.randn(3))
    check(kernel.lengthscale_unconstrained, kernel.read("lengthscale"), torch.randn(1))
    kernel.zero_grad()
    value = kernel.lengthscale
    shifted = (value + 0.1).unsqueeze(-1)
    shifted.above_least = value
    check(kernel.lengthscale_unconstrained, shifted, torch.randn(1))


def test_a_parameter_itself():
    parameter = torch.randn(2, 3, requires_grad=True)
    check(parameter, parameter, torch.randn(2, 3))


def test_what_only_autograd_can_do():
    kernel = RBF(lengthscale=0.7)
    value = kernel.lengthscale
    assert not add_to_parameter(2.0 * value, torch.ones(()))
    assert not hasattr(view_of(torch.ones(1), torch.ones(())), "log_parameter")
    handle = kernel.lengthscale_unconstrained.register_hook(lambda gradient: None)
    assert not add_to_parameter(value, torch.ones(()))
    assert kernel.lengthscale_unconstrained.grad is None
    handle.remove()
    assert add_to_parameter(value, torch.ones(()))
