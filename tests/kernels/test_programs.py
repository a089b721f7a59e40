# SPDX-License-Identifier: Apache-2.0
"""Programs: kernels of time that compiled code evaluates."""

import pytest
import torch

from pyro_vgpds.kernels import Bias, Cosine, Matern12, Matern32, Matern52, White, programs
from pyro_vgpds.kernels.programs import Matrices, gathered, read_program, scattered

pytestmark = pytest.mark.skipif(programs._library() is None, reason="the compiled code was not built")


@pytest.mark.parametrize("kernel", [Matern12(2.0, 0.7), Matern32(2.0, 0.7), Matern52(2.0, 0.7), Cosine(2.0, 0.7)])
def test_transitions_are_accurate_over_any_step(kernel):
    """To the last digits of each state's own noise, also over steps so short that P − A P Aᵀ would cancel."""
    value = kernel()
    program, tensors = read_program(value)
    dt = torch.logspace(-7, 3, 41)
    d = value.state_dim
    rows, columns = program.entries()
    matrices = Matrices(dt, torch.zeros(41, dtype=torch.int64), rows * d + columns, d * d, turned=True)
    a, turned, q, variance = program.states(torch.stack(tensors), matrices)
    assert variance == 2.0
    a, turned, q = (x.view(1, 41, d, d) for x in (a, turned, q))
    expected = value.process_noise(dt).expand_as(q)
    scale = expected.diagonal(dim1=-2, dim2=-1).sqrt()
    assert bool(((q - expected).abs() <= 1e-12 * scale.unsqueeze(-1) * scale.unsqueeze(-2)).all())
    assert torch.allclose(a, value.transition_matrix(dt).expand_as(a), rtol=1e-12, atol=1e-15)
    assert torch.equal(turned, a.mT)


def test_first_frames():
    value = (Matern32(2.0, 0.7) + Bias(0.5) + White(0.1))()
    program, tensors = read_program(value)
    assert program.sizes == (2, 1)
    assert program.blocks == (0, 0, 1)
    assert program.white == (3,)
    rows, columns = program.entries()
    begins = torch.tensor([0, 1])
    matrices = Matrices(torch.zeros(2), begins, rows * 3 + columns, 9, turned=False)
    a, turned, q, variance = program.states(torch.stack(tensors), matrices)
    assert variance == 2.5  # without that of the white noise
    assert turned is None
    assert torch.equal(a[0, 0].view(3, 3), torch.eye(3))  # no time has passed
    assert not q[0, 0].any()
    assert not a[0, 1].any()
    assert torch.allclose(q[0, 1].view(3, 3), value.stationary_covariance()[0])


def test_spread_and_its_gradient():
    few, index = torch.randn(2, 5), torch.tensor([0, 3, 3, 4])
    assert torch.equal(gathered(few, index), few[:, index])
    many, total = torch.randn(2, 4), torch.zeros(2, 5)
    scattered(many, index, total)
    assert torch.allclose(total, torch.zeros(2, 5).index_add_(1, index, many))
