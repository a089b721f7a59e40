# SPDX-License-Identifier: Apache-2.0
"""The bound in a few compiled calls against the same bound in steps."""

import dataclasses

import pytest
import torch
from problems import make_data, make_model

from pyro_vgpds import Collapsed_ELBO, NaturalGradient, Sequences
from pyro_vgpds.communication import SINGLE_PROCESS
from pyro_vgpds.kernels import ARDRBFValue
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping import bound, native_bound, rbf_bound
from pyro_vgpds.mapping.bound import strict_rounding
from pyro_vgpds.mapping.native_bound import BoundInputs, bound_is_compiled, compiled_bound

pytestmark = pytest.mark.skipif(native_bound._library() is None, reason="the compiled bound was not built")


def problem(
    frames: int, points: int, dims: int, outputs: int, weight: float = 0.5, shared: bool = False, gaps: str = "none"
):
    """Random arguments: mean, variance, z, w, σ² and noise, of each output or shared, and the column groups."""
    torch.manual_seed(frames + points)
    y = torch.randn(frames, outputs).double()
    if gaps == "scattered":
        y[torch.rand(y.shape) < 0.2] = torch.nan
    elif gaps == "blocks":  # the first output is never observed
        y[frames // 3 : frames // 3 + 2, outputs // 3 : outputs // 2 + 1] = torch.nan
        y[:, 0] = torch.nan
    data = Sequences(torch.arange(frames).double(), y)
    weights = weight * (1.0 + torch.rand(dims))
    given = torch.randn(frames, dims), torch.rand(frames, dims), torch.randn(points, dims), weights, torch.tensor(1.3)
    leaves = [x.double().requires_grad_() for x in (*given, torch.rand(1 if shared else outputs) + 0.1)]
    means, scales = data.output_means.nan_to_num(), data.output_scales.nan_to_num(1.0)
    return leaves, data.groups(means, scales, columns=not shared)


def arguments(leaves, groups, jitter):
    return BoundInputs(*leaves), groups, jitter


SIZES = [(1, 1, 1, 2), (7, 3, 2, 5), (40, 4, 1, 3), (100, 30, 5, 20), (130, 17, 9, 64), (300, 21, 3, 250)]


@pytest.mark.parametrize("shared", [False, True], ids=["noise for each output", "one noise"])
@pytest.mark.parametrize("jitter", [None, 1e-3])
@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_the_bound_in_steps(sizes, jitter, shared):
    leaves, groups = problem(*sizes, shared=shared)
    assert bound_is_compiled(leaves[5], groups)
    value, gradients = compiled_bound(*arguments(leaves, groups, jitter))
    with torch.no_grad():
        wanted, others = rbf_bound._evaluate(BoundInputs(*leaves), groups, jitter, SINGLE_PROCESS, True)
    torch.testing.assert_close(value, wanted, rtol=1e-11, atol=0.0)
    assert (groups.used is not None) == (shared and (sizes[0] == 1 or sizes[3] > 200))  # a triangle
    assert compiled_bound(*arguments(leaves, groups, jitter), wanted=False) == (value, ())  # to the last digit
    for one, other in zip(gradients, others, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("shared", [False, True], ids=["noise for each output", "one noise"])
@pytest.mark.parametrize("jitter", [None, 1e-3])
@pytest.mark.parametrize("gaps", ["scattered", "blocks"])
@pytest.mark.parametrize("sizes", [*SIZES[1:-1], (150, 21, 3, 250)])
def test_with_gaps_it_is_the_bound_in_steps(sizes, gaps, jitter, shared):
    leaves, groups = problem(*sizes, shared=shared, gaps=gaps)
    assert groups.mask is not None
    assert bound_is_compiled(leaves[5], groups)
    value, gradients = compiled_bound(*arguments(leaves, groups, jitter))
    with torch.no_grad():
        wanted, others = rbf_bound._evaluate(BoundInputs(*leaves), groups, jitter, SINGLE_PROCESS, True)
    torch.testing.assert_close(value, wanted, rtol=1e-11, atol=0.0)
    assert compiled_bound(*arguments(leaves, groups, jitter), wanted=False) == (value, ())  # to the last digit
    for one, other in zip(gradients, others, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("gaps", ["none", "scattered", "blocks"])
@pytest.mark.parametrize("shared", [False, True], ids=["noise for each output", "one noise"])
def test_threads_and_one_weight_do_not_change_it(monkeypatch, shared, gaps):
    leaves, groups = problem(700, 12, 3, 8, shared=shared, gaps=gaps)
    with torch.no_grad():
        leaves[3] = torch.full_like(leaves[3], 0.7)
    value, gradients = compiled_bound(*arguments(leaves, groups, None))
    monkeypatch.setattr("pyro_vgpds.compiled.LOOP_WORK", 1e3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    leaves[3] = leaves[3][:1]
    again, others = compiled_bound(*arguments(leaves, groups, None))
    torch.testing.assert_close(again, value, rtol=1e-13, atol=0.0)
    assert others[3].shape == (1,)
    for one, other in zip(gradients, (*others[:3], others[3], *others[4:]), strict=True):
        torch.testing.assert_close(one if one.shape == other.shape else one.sum(0, True), other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("gaps", ["none", "scattered", "blocks"])
@pytest.mark.parametrize("shared", [False, True], ids=["noise for each output", "one noise"])
def test_its_gradients_are_finite_differences(shared, gaps):
    leaves, groups = problem(12, 4, 2, 5, shared=shared, gaps=gaps)

    def value(*inputs):
        mean, variance, z, weight, scale, noise = inputs
        kernel = ARDRBFValue(scale.unsqueeze(-1), weight)
        return rbf_bound.rbf_bound(kernel, mean, variance, z, noise, groups, None).tensor()

    assert torch.autograd.gradcheck(value, leaves, rtol=1e-5, atol=1e-5)


def test_points_in_another_order_of_memory():
    leaves, groups = problem(20, 6, 3, 4)
    value, gradients = compiled_bound(*arguments(leaves, groups, None))
    turned = [x.detach().mT.contiguous().mT if x.dim() == 2 else x for x in leaves]
    assert not turned[0].is_contiguous()
    again, others = compiled_bound(*arguments(turned, groups, None))
    assert again == value
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))


def test_outputs_in_another_order():
    leaves, groups = problem(20, 6, 3, 4)
    value, gradients = compiled_bound(*arguments(leaves, groups, None))
    order = torch.tensor([2, 0, 3, 1])
    turned = dataclasses.replace(groups, order=order, factor=groups.factor[:, order])
    assert not turned.is_ordered
    again, others = compiled_bound(*arguments(leaves, turned, None))
    torch.testing.assert_close(again, value, rtol=1e-12, atol=0.0)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_what_is_left_to_the_steps(monkeypatch):
    leaves, groups = problem(20, 6, 3, 4)
    assert bound_is_compiled(leaves[5], groups)
    one = dataclasses.replace(groups, joint_squares=groups.squares)  # of several processes
    assert not bound_is_compiled(leaves[5], one)
    leaves, groups = problem(40, 3, 2, 80, gaps="blocks")  # noises that take less time with eigenvalues
    assert compiled_bound(*arguments(leaves, groups, None)) is None
    leaves, groups = problem(20, 6, 3, 4, gaps="scattered")
    given = arguments(leaves, groups, None)
    kernel = ARDRBFValue(leaves[4].unsqueeze(-1), leaves[3])
    inputs = kernel, *leaves[:3], leaves[5], groups, None
    value = rbf_bound.rbf_bound(*inputs).value
    monkeypatch.setattr(native_bound, "LEAST_PIVOT", 1e9)  # as if rounding had made a matrix indefinite
    assert compiled_bound(*given) is None
    torch.testing.assert_close(rbf_bound.rbf_bound(*inputs).value, value, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("shared", [False, True], ids=["noise for each output", "one noise"])
def test_matrices_that_rounding_makes_indefinite(monkeypatch, shared):
    given = arguments(*problem(20, 6, 3, 4, shared=shared), None)
    wanted, others = compiled_bound(*given)
    monkeypatch.setattr(native_bound, "LEAST_PIVOT", 1e9)  # so that eigenvalues take the place of factors
    found, gradients = compiled_bound(*given)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0.0)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("shared", [False, True], ids=["noise for each output", "one noise"])
def test_training_uses_it(monkeypatch, shared, missing):
    data = make_data(missing=missing)
    model, guide = make_model(data, noise=0.07 if shared else torch.full((data.num_outputs,), 0.07))
    calls = []
    monkeypatch.setattr(rbf_bound, "compiled_bound", lambda *given: calls.append(1) or compiled_bound(*given))
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(rbf_bound, "bound_is_compiled", bound_is_compiled if compiled else lambda *_: False)
        with NaturalGradient(guide, data):
            for _ in range(2):  # the first evaluation runs the Pyro programs
                for parameter in model.parameters():
                    parameter.grad = None
                loss = Collapsed_ELBO().loss_and_grads(model, guide, data)
        found.append([torch.tensor(loss), *(p.grad for p in model.parameters())])
    assert len(calls) == 2
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


def test_errors_are_those_of_the_steps(monkeypatch):
    leaves, groups = problem(20, 6, 3, 4)
    given = inputs, *_ = arguments(leaves, groups, None)
    with pytest.raises(NumericalError, match="has become 0"):
        compiled_bound(inputs._replace(noise=torch.where(torch.arange(4) == 2, 0.0, inputs.noise)), groups, None)
    with pytest.raises(NumericalError, match="not finite"):
        compiled_bound(inputs._replace(mean=torch.where(inputs.mean > 1.0, torch.nan, inputs.mean)), groups, None)
    assert compiled_bound(inputs._replace(z=torch.zeros_like(inputs.z)), groups, 0.0) is None  # K_MM needs more jitter
    monkeypatch.setattr(native_bound, "LEAST_PIVOT", 1e9)
    e, u = torch.linalg.eigh(torch.eye(6).double())
    monkeypatch.setattr(torch.linalg, "eigh", lambda A: (0.0 * e, 1e3 * u))
    with pytest.raises(NumericalError, match="exceeds the largest log density"):
        compiled_bound(*given)


@pytest.mark.parametrize("gaps", ["scattered", "blocks"])
@pytest.mark.parametrize("shared", [False, True], ids=["noise for each output", "one noise"])
def test_rounding_errors_of_groups_are_those_of_the_steps(monkeypatch, shared, gaps):
    leaves, groups = problem(40, 12, 2, 9, weight=0.05, shared=shared, gaps=gaps)
    found = []
    for module in (native_bound, bound):
        own = []
        monkeypatch.setattr(module, "check_rounding", lambda *given, own=own: own.append(given))
        found.append(own)
    with strict_rounding(), torch.no_grad():
        assert compiled_bound(*arguments(leaves, groups, 1e-3)) is not None
        rbf_bound._evaluate(BoundInputs(*leaves), groups, 1e-3, SINGLE_PROCESS, True)
    ((*compiled, points),), steps = found
    assert points == 12
    assert float(compiled[1].min()) > 0.0
    for one, others in zip(compiled, zip(*steps, strict=True), strict=False):
        torch.testing.assert_close(one, torch.cat(others), rtol=1e-7, atol=0.0)


@pytest.mark.parametrize("shared", [False, True], ids=["noise for each output", "one noise"])
def test_training_keeps_a_distance_from_the_limit_of_rounding(shared):
    leaves, groups = problem(40, 20, 2, 4, weight=1e-5, shared=shared)
    with torch.no_grad():
        leaves[5].fill_(0.1)
    given = arguments(leaves, groups, 1e-13)
    compiled_bound(*given)
    with strict_rounding(), pytest.raises(NumericalError, match="so ill-conditioned"):
        compiled_bound(*given)
    with strict_rounding(), torch.no_grad(), pytest.raises(NumericalError, match="so ill-conditioned"):
        rbf_bound._evaluate(BoundInputs(*leaves), groups, 1e-13, SINGLE_PROCESS, True)
