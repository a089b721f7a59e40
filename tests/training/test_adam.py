# SPDX-License-Identifier: Apache-2.0
"""Our Adam is torch's, with a state that can be kept: bit by bit, or to rounding if it is compiled."""

import pytest
import torch

from pyro_vgpds.training import bundle
from pyro_vgpds.training.adam import Adam

SHAPES, RATES, BETAS = [(600, 2), (3,), (), (4,)], [0.07, 0.14, 0.14, 0.004], (0.9, 0.95)


def start(dtype):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in SHAPES]


def give_gradients(k, *sides):
    """The same gradients for both; the second parameter is fixed at first, as the noise is."""
    torch.manual_seed(k)
    for i, parameters in enumerate(zip(*sides, strict=True)):
        gradient = torch.randn(SHAPES[i], dtype=parameters[0].dtype) * 10.0 ** float(torch.randn(()))
        for parameter in parameters:
            parameter.grad = None if k < 5 and i == 1 else gradient.clone()


@pytest.mark.parametrize(("dtype", "compiled"), [(torch.float64, True), (torch.float64, False), (torch.float32, True)])
def test_is_that_of_torch(dtype, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(bundle, "library", lambda: None)
    own, other = start(dtype), start(dtype)
    adam = Adam(own, RATES, BETAS)
    groups = [{"params": [p], "rate": rate} for p, rate in zip(other, RATES, strict=True)]
    torchs = torch.optim.Adam(groups, betas=BETAS)
    for k in range(30):
        length = 1.0 if k % 3 else 0.3
        give_gradients(k, own, other)
        for group in torchs.param_groups:
            group["lr"] = group["rate"] * length
        adam.step(length)
        torchs.step()
        assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True)), k  # to the last digit
        if k == 10:  # continue from the state of the other
            adam = Adam(own, RATES, BETAS)
            adam.load_state_dict(torchs.state_dict())
        if k == 20:
            content = adam.state_dict()
            adam = Adam(own, RATES, BETAS)
            adam.load_state_dict(content)


def test_a_state_is_never_changed():
    own = start(torch.float64)
    adam = Adam(own, RATES, BETAS)
    give_gradients(9, own)
    adam.step()
    state, values = adam.state, [p.detach().clone() for p in own]
    kept = [(m.step, m.average.clone(), m.square.clone()) for m in state]
    give_gradients(10, own)
    adam.step()
    after = [p.detach().clone() for p in own]
    for moments, (step, average, square) in zip(state, kept, strict=True):
        assert moments.step == step
        assert torch.equal(moments.average, average)
        assert torch.equal(moments.square, square)
    with torch.no_grad():
        for p, value in zip(own, values, strict=True):
            p.copy_(value)
    adam.state = state  # undone
    adam.step()
    assert all(torch.equal(p, value) for p, value in zip(own, after, strict=True))


def test_gradients_of_any_layout():
    """Those of autograd may be transposed or expanded."""
    found = []
    for layout in (lambda g: g, lambda g: g.mT.contiguous().mT, lambda g: g[:, :1].expand(-1, 2)):
        own = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
        own.grad = layout(torch.tensor([[1.0, 1.0], [-2.0, -2.0], [0.5, 0.5]], dtype=torch.float64))
        version = own._version
        Adam([own], [0.1], BETAS).step()
        assert own._version > version  # so that caches see the change
        found.append(own)
    assert all(torch.equal(one, found[0]) for one in found)
    assert found[0].abs().amin() > 0.09


def test_without_gradients_nothing_moves():
    own = start(torch.float64)
    adam = Adam(own, RATES, BETAS)
    adam.step()
    assert adam.state == (None,) * 4
    assert adam.state_dict() == {"state": {}}


def test_states_of_other_parameters():
    own = start(torch.float64)
    adam = Adam(own, RATES, BETAS)
    give_gradients(9, own)
    adam.step()
    with pytest.raises(ValueError, match=r"the state of parameter 0 has another shape than \(4,\)"):
        Adam([own[3]], RATES[:1], BETAS).load_state_dict(adam.state_dict())
