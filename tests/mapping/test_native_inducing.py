# SPDX-License-Identifier: Apache-2.0
"""The compiled algebra of inducing variables against the operations of torch, and the bound that is made of it."""

import pytest
import torch
from problems import make_data

from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping import native_inducing, rbf_bound
from pyro_vgpds.mapping.basis import InducingInputs
from pyro_vgpds.mapping.bound import collapsed_bound
from pyro_vgpds.mapping.group_terms import torch_terms, whiten
from pyro_vgpds.mapping.native_inducing import (
    GroupStatistics,
    decay,
    decay_gradients,
    is_compiled,
    joint_gradients,
    rbf_covariance,
    rbf_gradients,
    spectrum_terms,
    whitened,
)

pytestmark = pytest.mark.skipif(native_inducing._library() is None, reason="the compiled algebra was not built")
SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 13, 31, 64]


def drawn(groups: int, points: int):
    """L, and matrices Ψ2 of groups."""
    torch.manual_seed(groups + points)
    half, rows = torch.randn(points, points).double(), torch.randn(groups, points, points + 3).double()
    factor = torch.linalg.cholesky(half @ half.mT / points + 0.1 * torch.eye(points))
    return factor, rows @ rows.mT / points


@pytest.mark.parametrize("constant", [0.0, 0.3])
@pytest.mark.parametrize("points", SIZES)
def test_the_covariance_is_that_of_torch(points, constant):
    torch.manual_seed(points)
    z, w = torch.randn(points, 3).double(), torch.rand(3).double() + 0.5
    (K, inverse, factor), _ = rbf_covariance(z, w, 1.7, 1e-3, constant)
    wanted = ARDRBF(1.7, w)().cov(z, z) + 1e-3 * torch.eye(points)
    torch.testing.assert_close(K, wanted, rtol=1e-13, atol=1e-13)
    wanted = wanted + constant
    torch.testing.assert_close(factor, torch.linalg.cholesky(wanted), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(inverse, torch.linalg.inv(wanted), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("points", SIZES)
def test_its_gradients_are_those_of_autograd(points):
    torch.manual_seed(points)
    z, w, logs = torch.randn(points, 3).double(), torch.rand(3).double() + 0.5, torch.tensor([0.5, -7.0]).double()
    leaves = [x.requires_grad_() for x in (z, w, logs)]
    scale, jitter = logs.exp()
    K = scale * torch.exp(-0.5 * (w * (z.unsqueeze(1) - z).square()).sum(-1)) + jitter * torch.eye(points)
    g = torch.randn(points, points).double()
    g = g + g.mT
    wanted = torch.autograd.grad(K, leaves, g)
    g_z, g_w, (g_scale, g_jitter) = rbf_gradients(z.detach(), w.detach(), float(jitter.detach()), K.detach(), g)
    found = g_z, g_w, torch.tensor([g_scale, g_jitter * float(jitter.detach())]).double()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("points", SIZES)
def test_both_gradients_at_once(points):
    torch.manual_seed(points)
    z, w = torch.randn(points, 3).double(), torch.rand(3).double() + 0.5
    (K, _, _), factor = rbf_covariance(z, w, 1.7, 1e-3)
    torch.testing.assert_close(factor, decay(z, w, 1.7), rtol=1e-13, atol=0.0)
    g_K, g_psi2, psi2 = torch.randn(3, points, points).double()
    g_sums, g_z, g_w, (g_log, g_jitter) = joint_gradients(z, w, 1e-3, K, g_K, factor, psi2, g_psi2)
    one_z, one_w, (one_log, jitter) = rbf_gradients(z, w, 1e-3, K, g_K)
    other_z, other_w, other_log = decay_gradients(z, w, g_psi2 * psi2)
    torch.testing.assert_close(g_sums, g_psi2 * factor, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(g_z, one_z + other_z, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(g_w, one_w + other_w, rtol=1e-11, atol=1e-11)
    assert g_log == pytest.approx(one_log + other_log, rel=1e-11, abs=1e-11)
    assert g_jitter == jitter


def test_a_singular_covariance_is_found():
    z = torch.zeros(3, 2).double()
    assert rbf_covariance(z, torch.ones(2).double(), 1.0, 0.0) is None
    assert rbf_covariance(z, torch.full((2,), torch.nan).double(), 1.0, 0.0) is None


@pytest.mark.parametrize("points", SIZES)
@pytest.mark.parametrize(("groups", "width", "rates"), [(1, 1, 1), (3, 2, 2), (2, 5, 1), (1, 13, 13)])
def test_terms_of_a_spectrum_are_those_of_torch(groups, points, width, rates):
    factor, psi2 = drawn(groups, points)
    psi2[0] -= 0.05 * torch.eye(points)  # some eigenvalues are negative
    A = whitened(factor, psi2)
    torch.testing.assert_close(A, whiten(factor, psi2), rtol=1e-10, atol=1e-10)
    psi0 = A.diagonal(dim1=-2, dim2=-1).sum(-1) + torch.randn(groups).double()  # some slacks as well
    v, beta = torch.randn(groups, points, width).double(), torch.rand(groups, rates).double() + 0.5
    statistics = GroupStatistics(psi0, v, psi2, beta, torch.rand(groups, rates).double() + 1.0)
    given = *torch.linalg.eigh(A), factor, statistics
    found, wanted = spectrum_terms(*given, True), torch_terms(*given, True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    plain = spectrum_terms(*given, False)
    assert plain.value == found.value
    assert plain.K is None


def test_what_is_not_for_it():
    matrix = torch.eye(4).double()
    assert is_compiled(matrix)
    assert not is_compiled(matrix.float())
    assert not is_compiled(torch.empty(300, 300).double())


def rbf(weight, scale):
    kernel = ARDRBF()()
    kernel.variance, kernel.weight = scale, weight
    return kernel


def bounds(missing: float, per_output: bool, jitter: float | None, weights: int, weight: float = 0.5, points: int = 6):
    """The bound in one piece, that of its steps, and what both depend on."""
    data = make_data(missing=missing)
    torch.manual_seed(0)
    n, d = data.y.shape
    mean, z = torch.randn(n, 2).double(), torch.randn(points, 2).double()
    variance, weight = torch.rand(n, 2).double(), weight * (1.0 + torch.rand(weights).double())
    noise, scale = torch.rand(d if per_output else 1).double() + 0.1, torch.tensor(1.3).double()
    leaves = [x.requires_grad_() for x in (mean, variance, z, weight, scale, noise)]
    groups = data.groups(data.output_means, columns=per_output)
    kernel = rbf(weight, scale)
    found = rbf_bound.rbf_bound(kernel, mean, variance, z, noise, groups, jitter)
    found = None if found is None else found.tensor()
    basis = InducingInputs(kernel, z, jitter)
    wanted = collapsed_bound(basis.expect(mean, variance, groups.mask, groups.factor), basis.factor(), noise, groups)
    return found, wanted, leaves


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize(("jitter", "weights"), [(None, 2), (1e-3, 1)])
def test_the_bound_in_one_piece_is_that_of_its_steps(missing, per_output, jitter, weights):
    found, wanted, leaves = bounds(missing, per_output, jitter, weights)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0.0)
    pairs = zip(torch.autograd.grad(-found, leaves), torch.autograd.grad(-wanted, leaves), strict=True)
    for one, other in pairs:
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("per_output", [False, True])
def test_an_almost_singular_covariance_costs_no_more_digits_than_in_steps(per_output):
    found, wanted, leaves = bounds(0.0, per_output, None, 1, weight=1e-3, points=20)
    inducing = leaves[2]
    (one,), (other,) = torch.autograd.grad(found, [inducing]), torch.autograd.grad(wanted, [inducing])
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=0.0)
    torch.testing.assert_close(one, other, rtol=0.0, atol=1e-3)  # 0.5 if rounding errors in columns were magnified


def test_its_gradients_are_finite_differences():
    _, _, leaves = bounds(0.3, True, None, 2)
    data = make_data(missing=0.3)
    groups = data.groups(data.output_means, columns=True)

    def value(mean, variance, z, weight, scale, noise):
        return rbf_bound.rbf_bound(rbf(weight, scale), mean, variance, z, noise, groups, None).tensor()

    assert torch.autograd.gradcheck(value, leaves, rtol=1e-5, atol=1e-5)


def test_outputs_without_noise_are_an_error():
    data = make_data()
    n, _ = data.y.shape
    points = torch.randn(n, 2).double(), torch.rand(n, 2).double(), torch.randn(3, 2).double()
    groups = data.groups(data.output_means)
    with pytest.raises(NumericalError, match="has become 0"):
        rbf_bound.rbf_bound(ARDRBF().double()(), *points, torch.zeros(1).double(), groups, None)


def test_a_matrix_that_needs_more_jitter_is_left_to_the_steps():
    data = make_data()
    n, _ = data.y.shape
    points, z = (torch.randn(n, 2).double(), torch.rand(n, 2).double()), torch.zeros(3, 2).double()
    given = ARDRBF().double()(), *points, z, torch.ones(1).double()
    groups = data.groups(data.output_means)
    assert rbf_bound.rbf_bound(*given, groups, 0.0) is None
    assert rbf_bound.rbf_bound(*given, groups, 0.1) is not None
