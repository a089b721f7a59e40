# SPDX-License-Identifier: Apache-2.0
"""K_t and q(X) of kernels that compiled code knows, against the same from operations of torch."""

import math

import pytest
import torch
from markov_problems import close, make_kernels, make_times
from torch.distributions import kl_divergence

from pyro_vgpds import OpperArchambeau, TemporalGP
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import RBF, Bias, Cosine, Linear, Matern12, Matern32, Matern52, Periodic, White, programs
from pyro_vgpds.temporal import chains

Q = 3
pytestmark = pytest.mark.skipif(
    programs._library() is None or not chains.available(), reason="the compiled code was not built"
)


def some(scale=1.0):
    return scale * (torch.rand(Q) + 0.5)


def make(kind):
    """Kernels with states in chains and in tiles, shared and own parameters, and with none, one and two white parts."""
    torch.manual_seed(0)
    waves = Cosine(some(), some()) + Cosine(0.3, some(0.5)) + Cosine(some(), 0.4)
    return {
        "cycle": lambda: Matern32(some(), 3.0) * waves + Matern32(some(), some()) + White(some(0.1)) + Bias(some()),
        "oscillator": lambda: Matern32(some(), 0.7) * Cosine(1.0, some()) + White(0.1) + Bias(0.2),
        "shared": lambda: Matern52(0.5, 0.7) + Matern12(0.3, 2.0) + Bias(0.1),
        "many leaves": lambda: Matern52(some(), 0.7) * Matern12(0.3, 2.0) * Cosine(1.0, 0.9) * Bias(2.0) + White(0.1),
        "two whites": lambda: Matern32(some(), 0.7) + White(0.1) + White(some(0.2)),
        "sums": lambda: (Matern32(some(), 0.7) + Matern52(0.3, 2.0)) * (Cosine(1.0, some()) + Bias(some())) + Bias(0.1),
        "dense only": lambda: (
            RBF(some(), 0.6) * Periodic(some(), some(), some()) + Periodic(0.5, 0.7, 0.8) + White(0.1)
        ),
    }[kind]()


KINDS = ["cycle", "oscillator", "shared", "many leaves", "two whites", "sums"]


def times_of(regular):
    if regular:
        return Times(torch.cat([0.1 * torch.arange(16), 2.0 + 0.1 * torch.arange(7)]), (16, 7))
    return make_times((16, 7))


def results(kernel, times, structure, latent_dim=Q):
    """All that training reads of q(X), in both parametrisations, and the gradients of everything."""
    torch.manual_seed(1)
    n = len(times)
    eta, lam = torch.randn(n, latent_dim, requires_grad=True), torch.rand(n, latent_dim).mul(3.0).requires_grad_()
    prior = TemporalGP(kernel(), times, latent_dim, structure=structure)
    found, total = [prior.variance], prior.variance.sum()
    for q in (OpperArchambeau.from_natural(prior, eta, lam), OpperArchambeau(prior, eta, lam)):
        own = [*q.moments, kl_divergence(q, prior)]
        total = total + sum((x * torch.randn(x.shape)).sum() for x in own)
        found += own
    return found, torch.autograd.grad(total, [eta, lam, *kernel.parameters()])


def is_fast(kernel, times, structure):
    covariance = TemporalGP(kernel(), times, Q, structure=structure).covariance
    node = covariance.state_space.a.grad_fn if structure == "markov" else covariance.blocks[0].grad_fn
    return type(node).__name__ in ("_TransitionsBackward", "_BlocksBackward")


@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize(
    ("kind", "structure"), [*[(k, s) for k in KINDS for s in ("markov", "dense")], ("dense only", "dense")]
)
def test_fast_is_slow(kind, structure, regular, monkeypatch):
    kernel, times = make(kind), times_of(regular)
    assert is_fast(kernel, times, structure)
    fast = results(kernel, times, structure)
    monkeypatch.setattr(programs, "_library", lambda: None)
    assert not is_fast(kernel, times, structure)
    slow = results(kernel, times, structure)
    for one, other in zip(fast[0], slow[0], strict=True):
        close(one, other, 1e-12)
    for one, other in zip(fast[1], slow[1], strict=True):
        close(one, other, 1e-10 if structure == "dense" else 1e-12)


def test_others_go_the_general_way():
    """Kernels that are not known, of other dtypes, with batches of parameters, and times with gradients."""
    times = times_of(True)
    kernels = make_kernels()
    for kind in ("linear", "markov_rbf", "white inside", "periodic", "times white"):
        assert programs.read_program(kernels[kind]()) is None or kind == "periodic", kind
        assert not is_fast(kernels[kind], times, "markov"), kind
    assert programs.read_program((Linear(1.0) + Bias(1.0))()) is None
    assert programs.read_program(Matern32(1.0, 0.5).float()()) is None
    value = Matern32(1.0, 0.5)()
    value.variance = torch.ones(4, 1)
    assert programs.read_program(value) is None
    value.variance, value.lengthscale = torch.ones(2), torch.ones(3)
    assert programs.read_program(value) is None
    moving = Times(times.t.clone().requires_grad_(), times.lengths)
    assert not is_fast(make("shared"), moving, "markov")
    assert not is_fast(make("shared"), moving, "dense")
    large = math.prod([Matern52(1.0, 0.5 + i) for i in range(3)], start=Bias(1.0))  # 27 states in one block
    program = programs.read_program(large())
    assert program is not None
    assert program[0].sizes == ()
    assert not is_fast(large, times, "markov")
    assert is_fast(large, times, "dense")


def test_the_graph_is_that_of_the_prior():
    kernel, times = make("oscillator"), times_of(True)
    eta, lam = torch.randn(len(times), Q, requires_grad=True), torch.rand(len(times), Q)
    with torch.no_grad():
        prior = TemporalGP(kernel(), times, Q, structure="markov")
    q = OpperArchambeau.from_natural(prior, eta, lam)
    assert q.mean.requires_grad  # through η
    assert not prior.variance.requires_grad
    assert not prior.covariance.state_space.a.requires_grad
    prior = TemporalGP(kernel(), times, Q, structure="markov")
    with torch.no_grad():
        assert not prior.covariance.state_space.a.requires_grad
        variance = prior.variance
    assert prior.covariance.state_space.a.requires_grad  # although it was first read without gradients
    assert prior.variance.requires_grad
    close(prior.variance.detach(), variance, 1e-14)


def test_what_depends_on_times_alone_is_made_once():
    kernel, times = make("cycle"), times_of(True)
    first, second = (TemporalGP(kernel(), times, Q, structure="markov").covariance for _ in range(2))
    assert first.state_space.h is second.state_space.h
    assert first.state_space.step is second.state_space.step
