# SPDX-License-Identifier: Apache-2.0
"""q(X) under white noise with its gradients, against autograd."""

import pytest
import torch
from torch.distributions import kl_divergence

from pyro_vgpds import OpperArchambeau, TemporalGP
from pyro_vgpds.kernels import White
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.temporal.path_gradients import diagonal_path

N, Q = 7, 3


def make(variance=(0.5, 1.0, 2.0)):
    torch.manual_seed(0)
    prior = TemporalGP(White(torch.tensor(variance)).fix()(), torch.arange(float(N)), Q)
    mean_bar, log_lam = torch.randn(2, N, Q).unbind()
    return prior, mean_bar.clone().requires_grad_(), log_lam.clone().requires_grad_()


@pytest.mark.parametrize("variance", [(0.5, 1.0, 2.0), (0.7,)])
def test_is_that_of_autograd(variance):
    prior, *parameters = make(variance)
    q = OpperArchambeau(prior, parameters[0], parameters[1].exp())
    path = prior.covariance.diagonal_path(*parameters)
    kl = kl_divergence(q, prior)
    torch.testing.assert_close(path.mean, q.mean.detach(), rtol=1e-13, atol=0.0)
    torch.testing.assert_close(path.variance, q.variance.detach(), rtol=1e-13, atol=0.0)
    assert path.divergence == pytest.approx(kl.item(), rel=1e-12)
    d_mean, d_variance = torch.randn(2, N, Q)
    wanted = torch.autograd.grad(kl - (d_mean * q.mean).sum() - (d_variance * q.variance).sum(), parameters)
    for _ in range(2):  # the second time they are added
        path.add_gradients(d_mean, d_variance)
    for parameter, gradient in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, 2.0 * gradient, rtol=1e-11, atol=1e-12)


def test_what_needs_autograd():
    prior, mean_bar, log_lam = make()
    k = prior.covariance.k
    assert diagonal_path(k, mean_bar, log_lam) is not None
    assert diagonal_path(k.clone().requires_grad_(), mean_bar, log_lam) is None
    assert diagonal_path(k.float(), mean_bar, log_lam) is None
    assert diagonal_path(k, mean_bar.detach(), log_lam) is None
    assert diagonal_path(k, 2.0 * mean_bar, log_lam) is None
    assert diagonal_path(k, mean_bar[:1], log_lam) is None
    handle = log_lam.register_hook(lambda gradient: None)
    assert diagonal_path(k, mean_bar, log_lam) is None
    handle.remove()
    assert diagonal_path(k, mean_bar, log_lam) is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(value):
    prior, mean_bar, log_lam = make()
    with torch.no_grad():
        log_lam[2, 1] = value
    with pytest.raises(NumericalError, match="not finite"):
        prior.covariance.diagonal_path(mean_bar, log_lam)
