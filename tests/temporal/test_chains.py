# SPDX-License-Identifier: Apache-2.0
"""The compiled loops and the scans that replace them."""

import math

import pytest
import torch
from markov_problems import Q, close, make_kernels, make_times
from torch.distributions import kl_divergence

from pyro_vgpds import OpperArchambeau, TemporalGP
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import Bias, Matern32, Matern52, Periodic, White
from pyro_vgpds.temporal import chains, recursions, scan, tiles
from pyro_vgpds.temporal.chains import Layout
from pyro_vgpds.temporal.markov import MarkovCovariance


def test_scans_go_in_blocks(monkeypatch):
    monkeypatch.setattr(chains, "available", lambda: False)
    kernel, times = make_kernels()["white inside"], make_times((9,))
    noise = torch.randn(9, Q, requires_grad=True)

    def run():
        prior = TemporalGP(kernel(), times, Q, structure="markov")
        q = OpperArchambeau.from_natural(prior, noise, noise.exp())
        loss = q.mean.sum() + q.variance.sum() + kl_divergence(q, prior) + prior.covariance.correlate(noise).sum()
        return torch.autograd.grad(loss + prior.log_prob(noise), [noise, *kernel.parameters()])

    whole = run()
    monkeypatch.setattr(scan, "_NUMBERS", 2 * 9 * kernel().state_dim ** 2)
    for a, b in zip(run(), whole, strict=True):
        close(a, b, 1e-12)


needs_compiler = pytest.mark.skipif(not chains.available(), reason="the compiled loops were not built")


@needs_compiler
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads(threads, tiled, monkeypatch):
    monkeypatch.setattr("pyro_vgpds.compiled.LOOP_WORK", 1.0)
    kernel = Matern32(torch.rand(9) + 0.5, torch.rand(9) + 0.5) + Bias(1.0)
    if tiled:
        kernel = kernel * Periodic(1.0, 2.0, 1.0)
    times = make_times((30, 20))
    eta, lam = torch.randn(50, 9), torch.rand(50, 9)

    def run():
        prior = TemporalGP(kernel(), times, 9, structure="markov")
        q = OpperArchambeau.from_natural(prior, eta, lam)
        return torch.autograd.grad(q.mean.sum() + q.variance.sum() + kl_divergence(q, prior), kernel.parameters())

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = run()
        torch.set_num_threads(threads)
        for a, b in zip(run(), expected, strict=True):
            close(a, b, 1e-12)
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_chains_side_by_side_are_each_alone(size, shared, regular):
    """Vectors of 8 and of 4 chains, some with empty lanes, and one chain at a time; the last size is not unrolled."""
    n, count = 30, 14
    step = torch.arange(n) if not regular else torch.tensor([0] + [1] * 14 + [2] * 3 + [1] * 12)
    kinds = 1 if shared else count
    a = 0.9 * torch.linalg.qr(torch.randn(kinds, int(step.max()) + 1, size, size))[0]
    q = (torch.eye(size) - a @ a.mT).contiguous()
    h, blocks = torch.rand(n, size), (0,) * size
    lam, eta, g, weight = torch.rand(count, n) * 10, torch.randn(count, n), torch.randn(count, n), torch.rand(count)

    def run(some: torch.Tensor, kind):
        own = kind(a, q, Layout(h, step, some if not shared else torch.zeros_like(some), blocks))
        *variance, _ = own.variance(lam[some])
        parts = [
            *variance, *own.solve(eta[some], lam[some]), own.matmul(eta[some]),
            own.draw(1.0 / lam[some], eta[some]), own.undraw(1.0 / lam[some], eta[some]),
        ]  # fmt: skip
        gradients = (
            own.variance_grad(lam[some], g[some], weight[some]), own.quadratic(eta[some], g[some]),
            own.draw_grad(1.0 / lam[some], eta[some], g[some]),
        )  # fmt: skip
        return [*parts, *(x for found in gradients for x in found[2:])], [x for found in gradients for x in found[:2]]

    single = [run(torch.tensor([c]), chains.Chains.of) for c in range(count)]
    for first in (0, 1, 2, 6, 9):
        some = torch.arange(first, count)  # 14, 13, 12, 8 and 5 chains
        rows, sums = run(some, chains.Chains.of)
        for i, found in enumerate(rows):
            close(found, torch.cat([own[0][i] for own in single[first:]]), 1e-12)
        for i, found in enumerate(sums):
            close(found, sum(own[1][i] for own in single[first:]), 1e-11)
    both = zip(run(torch.arange(count), chains.Chains.of), run(torch.arange(count), scan.Scans), strict=True)
    for mine, others in both:
        for one, other in zip(mine, others, strict=True):
            close(one, other, 1e-9)


@needs_compiler
@pytest.mark.parametrize(("kernel", "route"), [("tiles", tiles), ("chains", chains)])
def test_long_chains_are_run_in_segments(kernel, route):
    # the gradient keeps 54 kB a frame in tiles, and 50 kB in chains (whose blocks are too large for tiles): 64 MB are
    # exceeded
    n, make = {
        "tiles": (1500, lambda scale: Periodic(1.0, 0.2 * scale, 50.0, accuracy=1e-12)),
        "chains": (1500, lambda scale: Periodic(1.0, 2.0, 50.0, accuracy=1e-9) * Matern52(1.0, 9.0 * scale)),
    }[kernel]
    assert tiles.fits(tuple(make(1.0)().state_blocks())) == (route is tiles)
    lam = torch.full((n, 1), 0.1)

    def variance(kernel):
        prior = TemporalGP(kernel(), torch.arange(float(n)), 1, structure="markov")
        return OpperArchambeau(prior, torch.zeros(n, 1), lam).variance.sum()

    own = make(1.0)
    (g,) = torch.autograd.grad(variance(own), [next(p for name, p in own.named_parameters() if "length" in name)])
    if kernel == "chains":  # the first lengthscale is the periodic kernel's
        (g,) = torch.autograd.grad(variance(own), [own.parts[1].lengthscale_unconstrained])
    step = 1e-6
    with torch.no_grad():
        values = [variance(make(math.exp(sign * step))) for sign in (1.0, -1.0)]
    torch.testing.assert_close(g, (values[0] - values[1]) / (2 * step), rtol=1e-5, atol=1e-7)


@needs_compiler
@pytest.mark.parametrize("regular", [True, False])
def test_tiles_are_the_chains_and_the_scans(regular):
    n, own = 60, torch.tensor([0.5, 2.0])
    kernel = (Bias(0.3) + Periodic(1.0, 1.0 + own, 0.7, accuracy=1e-4) * Matern32(1.0, own))()
    t = torch.arange(n) * 0.1 if regular else torch.rand(n).sort().values * 5
    covariance = MarkovCovariance(kernel, Times(t, [40, 20]), None)
    assert (covariance.state_space.a.shape[-3] == n) != regular
    a, q = (x.detach() for x in (covariance.state_space.a, covariance.state_space.q))
    layout = Layout(
        covariance.state_space.h, covariance.state_space.step, torch.tensor([0, 1, 1]), covariance.state_space.blocks
    )
    assert tiles.fits(layout.blocks)
    lam, eta, g = torch.rand(3, n) * 10, torch.randn(3, n), torch.randn(3, n)
    results = []
    for loops in (tiles.PackedChains.of(a, q, layout), chains.Chains.of(a, q, layout), scan.Scans(a, q, layout)):
        *variance, kept = loops.variance(lam)
        results.append([
            *variance, *loops.variance_grad(lam, g, torch.tensor([0.5, 1.0, 2.0])), *loops.solve(eta, lam),
            *loops.solve(eta, lam, kept), *loops.quadratic(eta, g),
        ])  # fmt: skip
    inside = torch.tensor(layout.blocks).unsqueeze(-1) == torch.tensor(layout.blocks)
    for others in zip(*results, strict=True):
        for other in others[1:]:
            gradient = other.dim() == 4  # nothing is learned of entries between blocks
            close(*((x[..., inside] if gradient else x) for x in (others[0], other)), 1e-9)


@needs_compiler
def test_tiles_survive_extreme_precisions():
    t = torch.arange(300.0)
    t[1::50] = t[0::50] + 1e-6
    kernel = Periodic(1.0, 0.5, 40.0) * Matern32(1.0, 500.0) + White(1e-9)
    lam = (10 ** (torch.rand(300, 2) * 14 - 6)).requires_grad_()
    prior = TemporalGP(kernel(), Times(t), 2, structure="markov")
    q = OpperArchambeau.from_natural(prior, lam.detach() * torch.randn(300, 2), lam)
    kl = kl_divergence(q, prior)
    for x in (q.mean, q.variance, kl, *torch.autograd.grad(kl + q.mean.sum(), [lam, *kernel.parameters()])):
        assert torch.isfinite(x).all()
    assert (q.variance > 0).all()
    assert (q.variance <= 1.0001 * torch.minimum(prior.variance, 1.0 / lam)).all()


@needs_compiler
def test_compiled_loops_refuse_other_tensors():
    a = q = torch.zeros(1, 4, 2, 2)
    lam, zeros = torch.ones(3, 5), torch.zeros(5, dtype=torch.long)
    layout = Layout(torch.zeros(5, 2), zeros, zeros[:3], (0, 0))
    recursions.variance(a, q, layout, lam)
    with pytest.raises(ValueError, match=r"need float64 CPU tensors, but got torch\.float32"):
        recursions.variance(a, q, layout, lam.float())
    for bad in ((a, q[:, :3], layout, lam), (a, q, layout, lam[:2]), (a, q, layout._replace(blocks=(0,)), lam)):
        with pytest.raises(ValueError, match=r"a and q must be .* but got \["):
            recursions.variance(*bad)
    with pytest.raises(ValueError, match=r"kernel must have entries from 0 to 0, but got \[1, 1, 1\]"):
        recursions.variance(a, q, layout._replace(kernel=layout.kernel + 1), lam)
    with pytest.raises(ValueError, match=r"step must have entries from 0 to 3, but got \[4, 4, 4, 4, 4\]"):
        recursions.variance(a, q, layout._replace(step=layout.step + 4), lam)
