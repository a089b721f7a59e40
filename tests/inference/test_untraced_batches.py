# SPDX-License-Identifier: Apache-2.0
"""The bound of a batch without running the model as a Pyro program, beside the one with it."""

import pyro
import pytest
import torch

from pyro_vgpds import VGPDS, AutoExplicit, Collapsed_ELBO, MinibatchNaturalGradient, SequenceDataset
from pyro_vgpds.data import FrameDataset
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.inference.untraced import can_skip_trace


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("natural", [False, True])
def test_direct_batches_equal_traced_ones(count, natural):
    data = make_sequences(num_sequences=count, num_outputs=4, length=(12, 15)).sequences()
    model = VGPDS.from_data(data, 2, 6)
    guide = AutoExplicit(model, data)
    guide.collect()
    many = SequenceDataset(data) if count > 1 else FrameDataset(data)
    batch, found = many.batch([2, 0]), []
    for untraced in (False, True):
        pyro.clear_param_store()
        model.zero_grad()
        steps = MinibatchNaturalGradient(guide, 0.5)
        if natural:
            steps.__enter__()
        if untraced:  # a first evaluation runs the program
            Collapsed_ELBO().loss(model, guide, many.batch([1]))
            assert can_skip_trace(model, guide, batch)
            loss = Collapsed_ELBO().loss_and_grads(model, guide, batch)
        else:
            with pyro.poutine.trace():  # another handler is active
                assert not can_skip_trace(model, guide, batch)
                loss = Collapsed_ELBO().loss_and_grads(model, guide, batch)
        found.append([torch.tensor(loss), *(p.grad.clone() for p in model.parameters())])
        if natural:
            found[-1] += steps.derivatives()
            steps.__exit__(None, None, None)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert not can_skip_trace(model, AutoExplicit(model, data, free=True), batch)
