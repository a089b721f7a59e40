# SPDX-License-Identifier: Apache-2.0
"""Panels of symmetric matrices against a plain loop, and the bound with panels against that with matrices."""

import pyro
import pytest
import torch
from problems import make_data, make_model

from pyro_vgpds import Collapsed_ELBO
from pyro_vgpds.mapping import bound, group_terms, panels, rbf_bound
from pyro_vgpds.mapping.panels import matrices_of, panels_norm, panels_of, panels_size

pytestmark = pytest.mark.skipif(not panels.available(), reason="the compiled functions were not built")


def by_hand(matrix: torch.Tensor) -> list[float]:
    """The panels of one symmetric matrix."""
    points = len(matrix)
    end = -(-points // 4) * 4
    return [
        float(matrix[j, i]) if max(i, j) < points else 0.0
        for m in range(0, points, 4)
        for j in range(m, end)
        for i in range(m, m + 4)
    ]  # fmt: skip


@pytest.mark.parametrize("points", [1, 2, 3, 4, 5, 8, 11, 32])
def test_panels_are_those_of_a_plain_loop(points):
    matrices = torch.randn(3, points, points, dtype=torch.float64)
    symmetric = (matrices + matrices.mT) / 2
    found = panels_of(matrices)
    assert found.tolist() == [by_hand(one) for one in symmetric]
    assert found.shape == (3, panels_size(points))
    assert torch.equal(matrices_of(found, points), symmetric)
    factor = symmetric[0].clone()
    wanted = torch.linalg.matrix_norm(factor * symmetric)
    torch.testing.assert_close(panels_norm(factor, found), wanted, rtol=1e-13, atol=0.0)


def test_other_sizes_and_kinds_are_errors():
    for wrong in (torch.zeros(2, 3, 3, dtype=torch.float32), torch.zeros(2, 3, 4, dtype=torch.float64)):
        with pytest.raises(ValueError, match="panels are made of float64 CPU tensors"):
            panels_of(wrong)
    with pytest.raises(ValueError, match="panels are made of float64 CPU tensors"):
        matrices_of(torch.zeros(2, 10, dtype=torch.float64), 5)


def gradients(data):
    """The loss of a model of data with gaps, and its gradients."""
    torch.manual_seed(0)
    pyro.clear_param_store()
    model, guide = make_model(data)
    parameters = [*model.parameters(), *guide.parameters()]
    loss = Collapsed_ELBO().differentiable_loss(model, guide, data)
    return [loss, *torch.autograd.grad(loss, parameters, allow_unused=True)]


@pytest.mark.parametrize("way", ["torch", "eigenvalues", "not compiled"])
@pytest.mark.parametrize("missing", [0.1, 0.5])
def test_the_bound_is_that_of_matrices(way, missing, monkeypatch):
    data = make_data(missing=missing)
    found = gradients(data)
    if way == "torch":  # without the fused bound nothing is in panels
        monkeypatch.setattr(rbf_bound, "has_loops", lambda *_: False)
        monkeypatch.setattr(group_terms, "is_compiled", lambda *_: False)
    elif way == "eigenvalues":
        monkeypatch.setattr(bound, "cholesky_terms", lambda *_: None)
    else:
        monkeypatch.setattr(group_terms, "is_compiled", lambda *_: False)
    for one, other in zip(found, gradients(data), strict=True):
        if one is None:
            assert other is None
        else:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_rounding_is_judged_as_with_matrices():
    psi2 = torch.randn(3, 6, 6, dtype=torch.float64)
    psi2 = psi2 + psi2.mT
    inverse = psi2[0] + torch.eye(6)
    found, wanted = bound.trace_error(inverse, panels_of(psi2)), bound.trace_error(inverse, psi2)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=0.0)
