# SPDX-License-Identifier: Apache-2.0
"""The bound in a few compiled calls against the formulas of the paper, at sizes that vectors do not divide."""

import pytest
import torch
from problems import naive_bound

from pyro_vgpds import Sequences
from pyro_vgpds.mapping import native_bound
from pyro_vgpds.mapping.native_bound import BoundInputs, compiled_bound

pytestmark = pytest.mark.skipif(native_bound._library() is None, reason="the compiled bound was not built")
_JITTER = 1e-2


def naive(mean, variance, z, w, scale, noise, y):
    """The bound of each output of y (N, D), NaN if not observed, one after the other."""
    apart = torch.exp(-0.5 * (w * (z[:, None] - z).square()).sum(-1))
    wide, wider = 1.0 + w * variance, (1.0 + 2.0 * w * variance)[:, None, None]
    psi1 = torch.exp(-0.5 * (wide.log()[:, None] + w * (mean[:, None] - z).square() / wide[:, None]).sum(-1))
    middle = mean[:, None, None] - (z[:, None] + z) / 2.0
    psi2 = apart.sqrt() * torch.exp(-(0.5 * wider.log() + w * middle.square() / wider).sum(-1))
    total = mean.new_zeros(())
    for column, own in zip(y.mT, noise.expand(y.shape[1]), strict=True):
        seen = ~column.isnan()
        given = scale * seen.sum(), scale * psi1[seen], scale**2 * psi2[seen].sum(0)
        total = total + naive_bound(*given, scale * apart + _JITTER * torch.eye(len(z)), own, column[seen, None])
    return total


def outputs(frames: int, gaps: str) -> torch.Tensor:
    """Seven outputs: complete; in groups of one to three, some never or once observed; or each with its own gaps."""
    y = torch.randn(frames, 7)
    if gaps == "few groups":
        y[: frames // 2, 1:3], y[frames // 3 :: 2, 3:6], y[:, 6] = torch.nan, torch.nan, torch.nan
        y[1:, 0] = torch.nan
    elif gaps == "scattered":
        y[torch.rand(y.shape) < 0.5] = torch.nan
        y[0] = 1.0
    return y


@pytest.mark.parametrize("shared", [False, True], ids=["noise for each output", "one noise"])
@pytest.mark.parametrize("gaps", ["none", "few groups", "scattered"])
@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("points", [1, 2, 8, 9, 15, 17])
def test_it_is_that_of_each_output(monkeypatch, points, threads, gaps, shared):
    monkeypatch.setattr("pyro_vgpds.compiled.LOOP_WORK", 1.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for frames in (1, 2, 65, 97) if points != 9 else (961,):  # rows in chunks of 64, 96 and 960
        torch.manual_seed(frames)
        given = torch.randn(frames, 2), torch.rand(frames, 2), 2.0 * torch.randn(points, 2), 1.0 + torch.rand(2)
        noise = 0.2 + torch.rand(1 if shared else 7)
        leaves = [x.requires_grad_() for x in (*given, torch.tensor(1.3), noise)]
        y = outputs(frames, gaps)
        data = Sequences(torch.arange(float(frames)), y)
        groups = data.groups(torch.zeros(7), torch.ones(7), columns=not shared)
        value, gradients = compiled_bound(BoundInputs(*leaves), groups, _JITTER)
        wanted = naive(*leaves, y)
        torch.testing.assert_close(value, wanted.detach(), rtol=1e-10, atol=1e-10)
        for one, other in zip(gradients, torch.autograd.grad(wanted, leaves), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8 * float(other.abs().max()))
        again = compiled_bound(BoundInputs(*leaves), groups, _JITTER)  # no input or kept tensor has changed
        assert again[0] == value
        assert all(torch.equal(one, other) for one, other in zip(again[1], gradients, strict=True))
        assert compiled_bound(BoundInputs(*leaves), groups, _JITTER, wanted=False) == (value, ())
