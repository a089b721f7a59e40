# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import torch
from problems import expect, hermite, observe

from pyro_vgpds import VGPDS
from pyro_vgpds.kernels import ARDRBF, RBF, ARDLinear, Bias, Kernel, White
from pyro_vgpds.mapping import exp_sums, psi
from pyro_vgpds.mapping.exp_sums import exp_sum
from pyro_vgpds.mapping.psi import MappingValue, masked_sum, register_psi2

Q, N, M = 2, 6, 4


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def _both_ways(request, monkeypatch):
    """Everything here holds with the compiled kernel and without it."""
    if request.param == "torch":
        monkeypatch.setattr(psi, "_is_native", lambda x: False)
    elif not psi.native_psi2.available():
        pytest.skip("the compiled kernel was not built: no C compiler")


def point(seed=0, n=N, m=M, q=Q):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, q, generator=g)
    variance = 0.05 + 0.3 * torch.rand(n, q, generator=g)
    return mean, variance, torch.randn(m, q, generator=g)


def leaves():
    return [
        ARDRBF(1.3, torch.tensor([0.7, 1.4])),
        ARDRBF(0.6, torch.tensor([2.0, 0.3])),
        ARDLinear(torch.tensor([0.5, 1.1])),
        ARDLinear(torch.tensor([1.5, 0.2])),
        Bias(0.4),
        White(0.2),
    ]


KERNELS = [
    *[f"leaf {i}" for i in range(6)],
    *[f"pair {i} {j}" for i, j in itertools.combinations(range(6), 2)],
    "all",
]


def kernel_of(name: str) -> Kernel:
    kernels = leaves()
    if name == "all":
        total = kernels[0]
        for kernel in kernels[1:]:
            total = total + kernel
        return total
    chosen = [kernels[int(i)] for i in name.split()[1:]]
    return chosen[0] if len(chosen) == 1 else chosen[0] + chosen[1]


@pytest.mark.parametrize("name", KERNELS)
def test_expectations_are_those_of_quadrature(name):
    value, (mean, variance, z) = kernel_of(name)(), point()
    nodes, weight = hermite(mean, variance)
    k = value.cov(nodes, z).expand(len(nodes), N, M)
    diag = value.cov_diag(nodes).expand(len(nodes), N)
    result = expect(value, mean, variance, z, None)
    torch.testing.assert_close(result.psi0, torch.einsum("k,kn->", weight, diag)[None], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(result.psi1, torch.einsum("k,knm->nm", weight, k), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(result.psi2, torch.einsum("k,knm,knj->mj", weight, k, k)[None], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_psi1_with_the_data_is_psi1_times_the_data(name):
    value, (mean, variance, z) = kernel_of(name)(), point()
    y = torch.randn(N, 3)
    expected = value.psi1(mean, variance, z).mT @ y
    torch.testing.assert_close(psi.expect(value, mean, variance, z, None, y).psi1_y, expected, rtol=1e-12, atol=1e-12)
    expected = value.cov(mean, z).mT @ y
    torch.testing.assert_close(psi.observe(value, mean, z, None, y).psi1_y, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_masked_is_deleted_rows(name):
    value, (mean, variance, z) = kernel_of(name)(), point()
    mask = torch.tensor([[1.0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    result = expect(value, mean, variance, z, mask)
    known = observe(value, mean, z, mask)
    for i, row in enumerate(mask.bool()):
        alone = expect(value, mean[row], variance[row], z, None)
        torch.testing.assert_close(result.psi0[i], alone.psi0[0])
        torch.testing.assert_close(result.psi2[i], alone.psi2[0])
        alone = observe(value, mean[row], z, None)
        torch.testing.assert_close(known.psi0[i], alone.psi0[0])
        torch.testing.assert_close(known.psi2[i], alone.psi2[0])


@pytest.mark.parametrize("name", KERNELS)
def test_a_point_q_gives_the_kernel_itself(name):
    value, (mean, _, z) = kernel_of(name)(), point()
    result, known = expect(value, mean, torch.zeros_like(mean), z, None), observe(value, mean, z, None)
    for a, b in ((result.psi0, known.psi0), (result.psi1, known.psi1), (result.psi2, known.psi2)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("name", ["leaf 0", "leaf 2", "all"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients(name, masked):
    kernel, (mean, variance, z) = kernel_of(name), point()
    mask = (torch.rand(3, N) > 0.4).double() if masked else None
    parameters = list(kernel.parameters())
    inputs = [x.clone().requires_grad_() for x in (mean, variance, z)]

    def everything(mean, variance, z, *_):
        result = expect(kernel(), mean, variance, z, mask)
        return result.psi0, result.psi1, result.psi2

    assert torch.autograd.gradcheck(everything, (*inputs, *parameters), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("masked", [False, True])
def test_tiles_make_no_difference(masked, monkeypatch):
    g = torch.Generator().manual_seed(0)
    left = torch.cat([0.3 * torch.randn(37, 5, generator=g), torch.ones(37, 1)], 1).requires_grad_()
    right = (0.3 * torch.randn(11, 6, generator=g)).requires_grad_()
    mask = (torch.rand(3, 37, generator=g) > 0.5).double() if masked else None
    direct = (mask if masked else torch.ones(1, 37)) @ torch.exp(left @ right.mT)
    grad = torch.randn(direct.shape, generator=g)
    wanted = torch.autograd.grad(direct, (left, right), grad)
    for tile in (1, 11 * 5, 1 << 18):
        monkeypatch.setattr(exp_sums, "_TILE", tile)
        value = exp_sum(left, right, mask)
        torch.testing.assert_close(value, direct, rtol=1e-12, atol=1e-12)
        got = torch.autograd.grad(value, (left, right), grad)
        torch.testing.assert_close(got[0], wanted[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(got[1], wanted[1], rtol=1e-12, atol=1e-12)


def test_batches_are_their_members():
    kernel = kernel_of("all")
    points = [point(seed) for seed in range(3)]
    mean, variance, z = (torch.stack(x) for x in zip(*points, strict=True))
    mask = torch.tensor([[1.0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 0, 1]])
    for together in (expect(kernel(), mean, variance, z, mask), observe(kernel(), mean, z, mask)):
        assert together.psi2.shape == (3, 2, M, M)
    together = expect(kernel(), mean, variance, z, mask)
    for i, (m, v, zi) in enumerate(points):
        alone = expect(kernel(), m, v, zi, mask)
        torch.testing.assert_close(together.psi0[i], alone.psi0)
        torch.testing.assert_close(together.psi1[i], alone.psi1)
        torch.testing.assert_close(together.psi2[i], alone.psi2)


def test_latent_points_far_from_the_origin_lose_no_digits():
    mean, variance, z = point()
    value = ARDRBF(1.3, torch.tensor([0.7, 1.4]))()
    near, far = expect(value, mean, variance, z, None), expect(value, mean + 1e4, variance, z + 1e4, None)
    torch.testing.assert_close(near.psi1, far.psi1, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(near.psi2, far.psi2, rtol=1e-9, atol=1e-9)


def test_a_switched_off_dimension_is_harmless():
    mean, variance, z = (x.requires_grad_() for x in point())
    kernel = ARDRBF(1.0, torch.tensor([1.0, 1e-320])) + ARDRBF(1.0, torch.tensor([2.0, 1e-320]))
    alone = ARDRBF(1.0, torch.tensor([1.0])) + ARDRBF(1.0, torch.tensor([2.0]))
    result = expect(kernel(), mean, variance, z, None).psi2
    exact = expect(alone(), mean[:, :1], variance[:, :1], z[:, :1], None).psi2
    torch.testing.assert_close(result, exact)
    for ours, twin in zip(
        torch.autograd.grad(result.sum(), [mean, variance, z]),
        torch.autograd.grad(exact.sum(), [mean, variance, z]),
        strict=True,
    ):
        torch.testing.assert_close(ours, twin)


# A custom mapping kernel, as the documentation describes it: k(x, z) = σ² cos(ω·(x − z))


class CosineValue(MappingValue):
    def __init__(self, variance, omega):
        self.variance, self.omega = variance[..., 0], omega

    def cov(self, x, z):
        return self.variance * torch.cos((x * self.omega).sum(-1)[..., None] - (z * self.omega).sum(-1)[..., None, :])

    def cov_diag(self, x):
        return self.variance * torch.ones_like(x[..., 0])

    def psi0(self, mean, variance, mask):
        return masked_sum(self.variance * torch.ones_like(mean[..., :1]), mask)[..., 0]

    def psi1(self, mean, variance, z):  # E cos(θ) = exp(−½ var θ) cos(E θ)
        return torch.exp(-0.5 * (variance * self.omega**2).sum(-1, keepdim=True)) * self.cov(mean, z)

    def psi2(self, mean, variance, z, mask):  # cos a cos b = ½ cos(a − b) + ½ cos(a + b)
        a = (mean * self.omega).sum(-1)[:, None] - (z * self.omega).sum(-1)
        shrink = torch.exp(-2 * (variance * self.omega**2).sum(-1))[:, None, None]
        both = torch.cos(a[:, :, None] - a[:, None, :]) + shrink * torch.cos(a[:, :, None] + a[:, None, :])
        return masked_sum((0.5 * self.variance**2 * both).flatten(-2), mask).unflatten(-1, (len(z), len(z)))


class Cosine(Kernel):
    def __init__(self, variance=1.0, omega=1.0):
        super().__init__()
        self.add_parameter("variance", variance)
        self.add_parameter("omega", omega)

    def forward(self):
        return CosineValue(self.read("variance"), self.read("omega"))


def test_a_mapping_kernel_of_ones_own():
    kernel = Cosine(0.7, torch.tensor([1.0, 2.0])) + Bias(0.3)
    mean, variance, z = point()
    nodes, weight = hermite(mean, variance)
    k = torch.stack([kernel().cov(x, z) for x in nodes])
    result = expect(kernel(), mean, variance, z, None)
    torch.testing.assert_close(result.psi1, torch.einsum("k,knm->nm", weight, k), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(result.psi2[0], torch.einsum("k,knm,knj->mj", weight, k, k), rtol=1e-10, atol=1e-10)
    VGPDS(RBF(), kernel, inducing=z, noise=0.1, output_mean=torch.zeros(3))  # and the model takes it


def test_mapping_kernels_without_statistics_are_refused():
    parts = {"inducing": torch.zeros(2, 2), "noise": 0.1, "output_mean": torch.zeros(1)}
    with pytest.raises(TypeError, match=r"mapping kernel RBF has no analytic Psi statistics. ARDRBF, ARDLinear, Bias"):
        VGPDS(RBF(), RBF(), **parts)
    with pytest.raises(TypeError, match="mapping is a product"):
        VGPDS(RBF(), ARDRBF() * Bias(), **parts)
    with pytest.raises(TypeError, match=r"cross term of CosineValue and ARDRBFValue .* not registered.*register_psi2"):
        VGPDS(RBF(), Cosine() + ARDRBF(), **parts)
    with pytest.raises(
        TypeError, match=r"mapping must be a kernel of pyro_vgpds.kernels, but got str\. Read text with .*parse_mapping"
    ):
        VGPDS(RBF(), "rbf", **parts)
    with pytest.raises(
        TypeError, match=r"temporal must be a kernel of pyro_vgpds.kernels, but got str\. Read text with .*parse_kernel"
    ):
        VGPDS("rbf", ARDRBF(), **parts)
    with pytest.raises(TypeError, match="temporal contains ARDRBF, a kernel of latent points"):
        VGPDS(ARDRBF() + White(), ARDRBF(), **parts)


def test_registering_a_cross_term_opens_the_sum():
    class Twin(CosineValue):
        pass

    class TwinKernel(Cosine):
        def forward(self):
            return Twin(self.read("variance"), self.read("omega"))

    @register_psi2(Twin, psi.MappingValue)
    def zero(first, second, mean, variance, z, mask):
        return torch.zeros(1, len(z), len(z))

    try:
        VGPDS(RBF(), ARDRBF() + TwinKernel(), torch.zeros(2, 2), 0.1, torch.zeros(1))
        mean, variance, z = point()
        both = expect((ARDRBF(1.0, 1.0) + TwinKernel())(), mean, variance, z, None).psi2
        single = [expect(k(), mean, variance, z, None).psi2 for k in (ARDRBF(1.0, 1.0), TwinKernel())]
        torch.testing.assert_close(both, sum(single))
    finally:
        del psi._CROSS[Twin, psi.MappingValue]
