# SPDX-License-Identifier: Apache-2.0
"""Copies of many tensors at once."""

import pytest
import torch

from pyro_vgpds.training import bundle
from pyro_vgpds.training.bundle import Bundle, copies

SHAPES = [(3, 2), (), (4,), (0,), (1, 5)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("compiled", [True, False])
def test_copies_are_those_of_torch(dtype, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(bundle, "library", lambda: None)
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in SHAPES]
    found, wanted = Bundle(tensors).copies(), copies(tensors)
    with torch.no_grad():
        for x in tensors:
            x += 1.0  # copies do not follow
    assert len(found) == len(SHAPES)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        assert one.shape == other.shape
        assert torch.equal(one, other)
        assert not one.requires_grad


def test_tensors_of_any_layout():
    turned = torch.arange(6.0).double().view(2, 3).mT
    one, other = Bundle([turned, torch.ones(2).double()]).copies()
    assert torch.equal(one, turned)
    assert other.tolist() == [1.0, 1.0]


def test_no_tensors():
    assert list(Bundle([]).copies()) == []
