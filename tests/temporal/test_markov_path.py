# SPDX-License-Identifier: Apache-2.0
"""q(X) with its gradients from compiled code, against autograd."""

import copy
import pickle

import pytest
import torch
from test_markov_autograd import KINDS, Q, make, some, times_of
from torch.distributions import kl_divergence

from pyro_vgpds import OpperArchambeau, TemporalGP, compiled
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.natural import natural_step
from pyro_vgpds.kernels import Bias, Matern32, White, programs
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.temporal import chains, path_gradients
from pyro_vgpds.temporal.gaussian import LEAST_LAM, least_lam

pytestmark = pytest.mark.skipif(
    programs._library() is None or not path_gradients.is_available(), reason="the compiled code was not built"
)


def paths(kernel, times):
    torch.manual_seed(1)
    eta, lam = torch.randn(len(times), Q), 3.0 * torch.rand(len(times), Q)
    prior = TemporalGP(kernel(), times, Q, structure="markov")
    return prior.covariance.markov_path(eta, lam), OpperArchambeau.from_natural(prior, eta, lam), prior


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11 * float(other.abs().amax()))


@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_is_that_of_autograd(kind, regular):
    kernel = make(kind)
    path, q, prior = paths(kernel, times_of(regular))
    kl = kl_divergence(q, prior)
    close(path.mean, q.mean.detach())
    close(path.variance, q.variance.detach())
    close(path.prior_variance.expand(q.mean.shape), prior.variance.detach())
    assert path.divergence == pytest.approx(kl.item(), rel=1e-11)
    d_mean, d_variance = torch.randn(2, *q.mean.shape)
    parameters = list(kernel.parameters())
    wanted = torch.autograd.grad(kl - (d_mean * q.mean).sum() - (d_variance * q.variance).sum(), parameters)
    parameters[0].grad = torch.ones_like(parameters[0])  # to which others are added
    path.add_gradients(d_mean, d_variance)
    for i, (parameter, gradient) in enumerate(zip(parameters, wanted, strict=True)):
        close(parameter.grad, gradient + 1.0 if i == 0 else gradient)
    assert torch.equal(path.derivatives[0], d_mean)
    least = least_lam(prior.variance)
    steps = natural_step(path.eta, path.lam, q.mean, d_mean, d_variance, least, 0.3)
    for one, other in zip(path.natural_step(0.3, LEAST_LAM), steps, strict=True):
        close(one, other.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_it(kind, monkeypatch):
    """Threads have ranges of chains, which add to the gradients of parameters that all chains share."""
    kernel, times, found = make(kind), times_of(True), []
    for count in (1, 2):
        monkeypatch.setattr(compiled, "LOOP_WORK", 1.0)
        monkeypatch.setattr(chains, "lanes", lambda size: 1)
        with compiled.loop_threads(count):
            path, _, _ = paths(kernel, times)
        assert len(path._ranges) == count
        path.add_gradients(torch.ones_like(path.mean), torch.ones_like(path.mean))
        gradients = [p.grad for p in kernel.parameters()]
        found.append([path.mean, path.variance, path.prior_variance, torch.tensor(path.divergence), *gradients])
        kernel.zero_grad()
        times.made.clear()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_fixed_parameters_get_no_gradient():
    kernel = Matern32(some(), 0.7).fix("lengthscale") + White(0.1)
    path, _, _ = paths(kernel, times_of(True))
    frozen = kernel[1].variance_unconstrained
    path.add_gradients(*torch.randn(2, *path.mean.shape))
    assert frozen.grad is not None
    frozen.grad = None
    frozen.requires_grad_(False)
    path, _, _ = paths(kernel, times_of(True))
    path.add_gradients(*torch.randn(2, *path.mean.shape))
    assert frozen.grad is None


def test_what_needs_autograd():
    times = times_of(True)
    kernel = Matern32(some(), 0.7) + White(0.1)
    assert paths(kernel, times)[0] is not None
    seen = []
    handle = kernel[0].variance_unconstrained.register_hook(seen.append)
    assert paths(kernel, times)[0] is None  # which would not call it
    handle.remove()
    prior = TemporalGP(kernel(), times, Q, structure="markov").covariance
    eta = torch.zeros(len(times), Q)
    assert prior.markov_path(eta.clone().requires_grad_(), eta) is None
    assert prior.markov_path(eta.expand(2, -1, -1), eta) is None
    assert prior.markov_path(eta.float(), eta) is None
    assert TemporalGP(kernel(), times, Q, structure="dense").covariance.markov_path(eta, eta) is None


def test_a_variance_below_zero_has_no_gradient():
    """Rounding may make it negative; then the function does not depend on it."""
    path, _, _ = paths(Matern32(some(), 0.7) + Bias(0.1), Times(torch.arange(5.0)))
    path._memory[0][: Q * 5].view(Q, 5)[:, 2] = -1e-12  # the variances without white noise
    d_mean, d_variance = torch.zeros_like(path.mean), torch.zeros_like(path.mean)
    log_parameters = [x for x in path._log_parameters if x is not None]

    def found(d_variance):
        for log_parameter in log_parameters:
            log_parameter.grad = None
        path.add_gradients(d_mean, d_variance)
        return torch.cat([log_parameter.grad.flatten() for log_parameter in log_parameters])

    without = found(d_variance)
    d_variance[2] = 7.0
    assert torch.equal(found(d_variance), without)
    d_variance[3] = 7.0
    assert not torch.equal(found(d_variance), without)


@pytest.mark.parametrize(("lam", "message"), [(float("nan"), "not finite"), (-0.05, "dominated by rounding error")])
def test_lost_digits(lam, message):
    times = times_of(True)
    covariance = TemporalGP((Matern32(1.0, 0.7) + White(0.1))(), times, Q, structure="markov").covariance
    with pytest.raises(NumericalError, match=message):
        covariance.markov_path(torch.zeros(len(times), Q), torch.full((len(times), Q), lam))


def test_frames_can_be_copied():
    """Compiled passes have addresses of a process, which a copy or another process cannot use."""
    kernel, times = Matern32(some(), 0.7) + White(0.1), times_of(True)
    wanted, _, _ = paths(kernel, times)
    for copied in (copy.deepcopy(times), pickle.loads(pickle.dumps(times))):
        found, _, _ = paths(kernel, copied)
        assert torch.equal(found.mean, wanted.mean)
