# SPDX-License-Identifier: Apache-2.0
"""The bound of small problems in two compiled calls against the same bound in steps."""

import pytest
import torch
from problems import make_data, make_model

from pyro_vgpds import Collapsed_ELBO, NaturalGradient, Sequences
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping import native_bound, rbf_bound
from pyro_vgpds.mapping.bound import strict_rounding
from pyro_vgpds.mapping.native_bound import is_small, small_bound
from pyro_vgpds.team import ALONE

pytestmark = pytest.mark.skipif(native_bound._library() is None, reason="the compiled bound was not built")


def problem(frames: int, points: int, dims: int, outputs: int, weight: float = 0.5):
    """Random arguments: mean, variance, z, w, σ² and noise, and the column groups."""
    torch.manual_seed(frames + points)
    data = Sequences(torch.arange(frames).double(), torch.randn(frames, outputs).double())
    weights = weight * (1.0 + torch.rand(dims))
    given = torch.randn(frames, dims), torch.rand(frames, dims), torch.randn(points, dims), weights, torch.tensor(1.3)
    leaves = [x.double().requires_grad_() for x in (*given, torch.rand(outputs) + 0.1)]
    return leaves, data.groups(data.output_means, data.output_scales, columns=True)


def arguments(leaves, groups, jitter):
    mean, variance, z, weight, scale, noise = leaves
    return mean, variance, z, (weight, scale), noise, groups, jitter


@pytest.mark.parametrize("jitter", [None, 1e-3])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 2), (7, 3, 2, 5), (40, 4, 1, 3), (100, 30, 5, 20), (130, 17, 9, 64)])
def test_it_is_the_bound_in_steps(sizes, jitter):
    leaves, groups = problem(*sizes)
    assert is_small(leaves[2], leaves[3], leaves[5], groups)
    value, gradients = small_bound(*arguments(leaves, groups, jitter))
    with torch.no_grad():
        wanted, others = rbf_bound._evaluate(tuple(leaves), groups, jitter, ALONE, True)
    torch.testing.assert_close(value, wanted, rtol=1e-11, atol=0.0)
    assert small_bound(*arguments(leaves, groups, jitter), wanted=False) == (value, ())  # to the last digit
    for one, other in zip(gradients, others, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9 * float(other.abs().max()))


def test_its_gradients_are_finite_differences():
    leaves, groups = problem(12, 4, 2, 3)

    def value(*inputs):
        return rbf_bound.rbf_bound(*arguments(inputs, groups, None)).tensor()

    assert torch.autograd.gradcheck(value, leaves, rtol=1e-5, atol=1e-5)


def test_points_in_another_order_of_memory():
    leaves, groups = problem(20, 6, 3, 4)
    value, gradients = small_bound(*arguments(leaves, groups, None))
    turned = [x.detach().mT.contiguous().mT if x.dim() == 2 else x for x in leaves]
    assert not turned[0].is_contiguous()
    again, others = small_bound(*arguments(turned, groups, None))
    assert again == value
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))


def test_what_is_left_to_the_steps():
    leaves, groups = problem(20, 6, 3, 4)
    z, weight, noise = leaves[2], leaves[3], leaves[5]
    assert is_small(z, weight, noise, groups)
    assert not is_small(z, weight, noise[:1], groups)  # one noise for all outputs
    assert not is_small(z, weight[:1], noise, groups)  # one weight for all dimensions
    gaps = make_data(missing=0.3)
    masked = gaps.groups(gaps.output_means, columns=True)
    assert not is_small(z, weight, torch.ones(gaps.num_outputs).double(), masked)
    many, large = problem(2000, 40, 3, 4)
    assert not is_small(many[2], many[3], many[5], large)  # several threads would share it


def test_training_uses_it(monkeypatch):
    data = make_data()
    model, guide = make_model(data, noise=torch.full((data.num_outputs,), 0.07))
    calls = []
    monkeypatch.setattr(rbf_bound, "small_bound", lambda *given: calls.append(1) or small_bound(*given))
    found = []
    for small in (True, False):
        monkeypatch.setattr(rbf_bound, "is_small", is_small if small else lambda *_: False)
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
    mean, _, z, _, _, noise = leaves
    given = arguments(leaves, groups, None)
    with pytest.raises(NumericalError, match="has become 0"):
        small_bound(*given[:4], torch.where(torch.arange(4) == 2, 0.0, noise), *given[5:])
    with pytest.raises(NumericalError, match="not finite"):
        small_bound(torch.where(mean > 1.0, torch.nan, mean), *given[1:])
    assert small_bound(*given[:2], torch.zeros_like(z), *given[3:6], 0.0) is None  # K_MM needs more jitter
    e, u = torch.linalg.eigh(torch.eye(6).double())
    monkeypatch.setattr(torch.linalg, "eigh", lambda A: (0.0 * e, 1e3 * u))
    with pytest.raises(NumericalError, match="exceeds the largest log density"):
        small_bound(*given)


def test_training_keeps_a_distance_from_the_limit_of_rounding():
    leaves, groups = problem(40, 20, 2, 4, weight=1e-5)
    with torch.no_grad():
        leaves[5].fill_(0.1)
    given = arguments(leaves, groups, 1e-13)
    small_bound(*given)
    with strict_rounding(), pytest.raises(NumericalError, match="so ill-conditioned"):
        small_bound(*given)
    with strict_rounding(), torch.no_grad(), pytest.raises(NumericalError, match="so ill-conditioned"):
        rbf_bound._evaluate(tuple(leaves), groups, 1e-13, ALONE, True)
