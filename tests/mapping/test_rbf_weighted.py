# SPDX-License-Identifier: Apache-2.0
"""The statistics with a weight for each entry as one operation, against the operations of torch."""

import pytest
import torch

from pyro_vgpds.compiled import loop_threads
from pyro_vgpds.kernels import ARDRBF, ARDLinear, Bias, Kernel, White
from pyro_vgpds.mapping import native_weighted, rbf_weighted
from pyro_vgpds.mapping.native_weighted import Rows, add_product, pack, unpack, weighted_gradients, weighted_sums
from pyro_vgpds.mapping.panels import matrices_of, panels_of
from pyro_vgpds.mapping.psi import expect

pytestmark = pytest.mark.skipif(not native_weighted.available(), reason="the compiled kernels were not built")
ONE = torch.ones(1, 1).double()
KERNELS = {
    "rbf": lambda: ARDRBF(1.7, [0.5, 0.8, 0.3]),
    "one weight": lambda: ARDRBF(1.7, 0.6),
    "constant": lambda: ARDRBF(1.7, [0.5, 0.8, 0.3]) + Bias(0.6),
    "constants": lambda: Bias(0.2) + ARDRBF(1.7, 0.6) + Bias(0.6),
}


def _inputs(frames: int = 23, points: int = 9, groups: int = 4) -> list[torch.Tensor]:
    shapes = (frames, 3), (frames, 3), (points, 3), (groups, frames), (frames, groups)
    mean, variance, z, weight, y = (torch.randn(shape).double() for shape in shapes)
    return [mean, variance.exp(), z, weight.exp(), y]


def _evaluate(kernel: Kernel, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    found = expect(kernel(), *leaves)
    parts = [found.psi0, found.psi1_y, found.psi2]
    total = sum((torch.linspace(-1, 2, x.numel()).double().view_as(x) * x).sum() for x in parts)
    return [*parts, *torch.autograd.grad(total, [*leaves, *kernel.parameters()])]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [(23, 9, 4), (1, 1, 1), (8, 2, 27), (113, 7, 12), (97, 17, 33)])
@pytest.mark.parametrize("kept", [1 << 22, 0])
def test_values_and_gradients_equal_those_of_the_separate_operations(name, size, kept, monkeypatch):
    kernel, inputs = KERNELS[name]().double(), _inputs(*size)
    monkeypatch.setattr(native_weighted, "_KEPT", kept)
    found = _evaluate(kernel, inputs)
    monkeypatch.setattr(native_weighted, "available", lambda: False)
    for one, other in zip(found, _evaluate(kernel, inputs), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12 * float(other.detach().abs().max()))


@pytest.mark.parametrize(
    "kernel", [ARDRBF() + ARDLinear(), ARDRBF() + White(0.1), ARDRBF() + ARDRBF() + Bias(), ARDLinear() + Bias()]
)
def test_other_sums_take_the_general_way(kernel, monkeypatch):
    monkeypatch.setattr(rbf_weighted._Weighted, "apply", None)  # an error if it were used
    mean, variance, z, weight, y = _inputs()
    assert expect(kernel.double()(), mean, variance, z, weight.requires_grad_(), y).psi2.requires_grad


def test_weights_without_gradients_and_batches_take_the_general_way(monkeypatch):
    mean, variance, z, weight, y = _inputs()
    monkeypatch.setattr(rbf_weighted._Weighted, "apply", None)  # an error if it were used
    expect(ARDRBF().double()(), mean, variance, z, weight, y)
    weight.requires_grad_()
    several = (x.expand(2, -1, -1) for x in (mean, variance))
    assert expect(ARDRBF().double()(), *several, z, weight, y).psi2.dim() == 4
    assert expect(ARDRBF().float()(), *(x.float() for x in (mean, variance, z, weight, y))).psi2.requires_grad


def test_exponents_beyond_the_range_of_doubles():
    a, r, mu = (torch.zeros(3), torch.ones(3, 1), torch.tensor([[0.0], [1e3], [0.0]]))
    z = torch.tensor([[0.0], [1.0], [-40.0]])
    given = Rows(*(x.double() for x in (a, r, mu, z)))
    given.a[2] = 2000.0
    terms = torch.stack([weighted_sums(Rows(*(x[n : n + 1] for x in given[:3]), given.z), ONE)[0][0] for n in range(3)])
    first, second = torch.triu_indices(3, 3)
    middle = (z[first] + z[second]).squeeze(-1).double() / 2
    wanted = (given.a[:, None] - (given.mu - middle).square()).exp()
    assert torch.allclose(terms, wanted, rtol=1e-11, atol=0.0)  # exponents of 2000 have errors of 1e-12
    assert not terms[1].any()
    assert bool(terms[2].isinf().any())


@pytest.mark.parametrize("points", [1, 2, 9])
def test_triangles_and_their_gradients_against_autograd(points):
    pairs = points * (points + 1) // 2
    sums, half, g = (torch.randn(shape).double() for shape in ((3, pairs), (3, points), (3, points, points)))
    log_factor = torch.randn(pairs).double()
    leaves = [x.clone().requires_grad_() for x in (sums, log_factor, half)]
    upper = torch.zeros(3, points, points).double()
    first, second = torch.triu_indices(points, points)
    upper[:, first, second] = leaves[0] * leaves[1].exp()
    wanted = upper + upper.triu(1).mT + leaves[2].unsqueeze(1) + leaves[2].unsqueeze(2)
    found = matrices_of(unpack(scaled := sums.clone(), log_factor.exp(), half), points)
    assert torch.allclose(found, wanted, rtol=1e-14, atol=1e-14)
    assert torch.allclose(scaled, sums * log_factor.exp(), rtol=1e-15)
    gradients = torch.autograd.grad((g * wanted).sum(), leaves)
    for one, other in zip(pack(panels_of(g), log_factor.exp(), scaled, points), gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 3, 25), (8, 24, 24), (50, 7, 211), (3, 0, 5), (0, 4, 5)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_products_of_matrices(shape, transposed, threads, monkeypatch):
    monkeypatch.setattr("pyro_vgpds.compiled.LOOP_WORK", 1.0)
    rows, inner, columns = shape
    left = torch.randn(inner, rows).double().mT if transposed else torch.randn(rows, inner).double()
    right, target = torch.randn(inner, columns).double(), torch.randn(rows, columns).double()
    wanted = torch.addmm(target, left, right, alpha=-0.3)
    with loop_threads(threads):
        assert add_product(target, left, right, -0.3) is target
    torch.testing.assert_close(target, wanted, rtol=1e-13, atol=1e-13)


def test_products_refuse_other_shapes():
    with pytest.raises(ValueError, match=r"the shapes must be \(I, J\), \(I, K\) and \(K, J\)"):
        add_product(torch.zeros(2, 3).double(), torch.zeros(2, 4).double(), torch.zeros(5, 3).double())


def test_several_threads_give_the_same(monkeypatch):
    given = Rows(*(torch.rand(shape).double() for shape in ((500,), (500, 2), (500, 2), (5, 2))))
    weight, g = torch.rand(3, 500).double(), torch.rand(3, 15).double()
    results = []
    monkeypatch.setattr("pyro_vgpds.compiled.LOOP_WORK", 1.0)
    for threads in (1, 3):
        with loop_threads(threads):
            sums, kept = weighted_sums(given, weight)
            results.append([sums, *weighted_gradients(given, weight, g, True, kept)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_no_gradient_in_the_weights_unless_it_is_wanted():
    given = Rows(*(torch.rand(shape).double() for shape in ((4,), (4, 2), (4, 2), (3, 2))))
    assert weighted_gradients(given, torch.rand(2, 4).double(), torch.rand(2, 6).double(), False)[-1] is None


def test_the_compiled_loops_refuse_other_tensors():
    given = Rows(*(torch.rand(shape).float() for shape in ((4,), (4, 2), (4, 2), (3, 2))))
    with pytest.raises(ValueError, match="contiguous float64 CPU tensors"):
        weighted_sums(given, torch.rand(2, 4).float())
