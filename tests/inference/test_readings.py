# SPDX-License-Identifier: Apache-2.0
"""The kernel of time is not read again while only the values of its parameters change."""

import gc

import pytest
import torch
from problems import make_data

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, NaturalGradient
from pyro_vgpds.inference import elbo
from pyro_vgpds.inference.untraced import _readings, kept_reader
from pyro_vgpds.kernels import Bias, Matern12, Matern32, White
from pyro_vgpds.temporal import path_gradients

pytestmark = pytest.mark.skipif(not path_gradients.is_available(), reason="the compiled code was not built")


def make(temporal=None):
    data = make_data((14, 9))
    torch.manual_seed(0)
    temporal = Matern32(lengthscale=[0.5, 0.7]) + White(0.1) + Bias(0.2) if temporal is None else temporal
    model = VGPDS.from_data(data, 2, 5, temporal, structure="markov")
    guide = AutoOpperArchambeau(model)
    Collapsed_ELBO().loss(model, guide, data)
    return model, guide, data


def gradients(model, guide, data):
    for parameter in model.parameters():
        parameter.grad = None
    loss = Collapsed_ELBO().loss_and_grads(model, guide, data)
    return torch.cat([torch.tensor([loss]), *(p.grad.flatten() for p in model.parameters() if p.grad is not None)])


def check(model, guide, data, monkeypatch):
    """The same as in a trace."""
    found = gradients(model, guide, data)
    with monkeypatch.context() as patch:
        patch.setattr(elbo, "can_skip_trace", lambda *args: False)
        wanted = gradients(model, guide, data)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().amax() <= 1e-9 * wanted.abs().amax()


def test_values_are_read_again(monkeypatch):
    model, guide, data = make()
    with NaturalGradient(guide, data) as natural:
        gradients(model, guide, data)
        assert kept_reader(model, data) is not None
        natural.step(0.5)
        with torch.no_grad():
            model.temporal[0].lengthscale_unconstrained.add_(0.3)
            model.temporal[1].variance_unconstrained.sub_(0.2)
        with monkeypatch.context() as patch:
            patch.setattr(VGPDS, "path_prior", lambda *args: pytest.fail("the kernel was read again"))
            gradients(model, guide, data)
        check(model, guide, data, monkeypatch)


def fix(model):
    model.temporal[0].fix("lengthscale")


def change_fixed(model):
    model.temporal[2].variance.mul_(3.0)  # in place: it is the same tensor


@pytest.mark.parametrize(
    "change",
    [
        fix,
        lambda model: model.temporal[0].set("variance", 3.0),
        lambda model: setattr(model, "structure", "dense"),
        lambda model: model.temporal.parts.__setitem__(0, Matern12(2.0, 0.6)),
        lambda model: model.temporal[1].variance_unconstrained.requires_grad_(False),
        lambda model: setattr(model.temporal[1].variance_unconstrained, "data", torch.tensor(-1.0)),
        change_fixed,
    ],
)
def test_other_changes_are_seen(change, monkeypatch):
    model, guide, data = make()
    model.temporal[2].fix()
    with NaturalGradient(guide, data):
        gradients(model, guide, data)
        assert kept_reader(model, data) is not None
        change(model)
        Collapsed_ELBO().loss(model, guide, data)  # a trace: new parameters are put into Pyro's store
        check(model, guide, data, monkeypatch)


def test_classes_of_users_are_always_read(monkeypatch):
    class Changing(Matern32):
        factor = 1.0

        def forward(self):
            return self.value_class(self.read("variance"), self.factor * self.read("lengthscale").detach())

    model, guide, data = make(Changing(lengthscale=0.5) + White(0.1))
    with NaturalGradient(guide, data):
        gradients(model, guide, data)
        assert kept_reader(model, data) is None
        Changing.factor = 2.0
        check(model, guide, data, monkeypatch)


def make_white(temporal=None):
    data = make_data((14, 9))
    torch.manual_seed(0)
    model = VGPDS.from_data(data, 2, 5, White(0.7).fix() if temporal is None else temporal)
    guide = AutoOpperArchambeau(model)
    Collapsed_ELBO().loss(model, guide, data)
    return model, guide, data


def test_fixed_white_noise_is_not_read_again(monkeypatch):
    model, guide, data = make_white()
    check(model, guide, data, monkeypatch)
    assert kept_reader(model, data) is not None
    with monkeypatch.context() as patch:
        patch.setattr(VGPDS, "path_prior", lambda *args: pytest.fail("the kernel was read again"))
        gradients(model, guide, data)
    check(model, guide, data, monkeypatch)
    with NaturalGradient(guide, data) as natural:  # which has no use for it
        gradients(model, guide, data)
        natural.step(0.5)
        check(model, guide, data, monkeypatch)


@pytest.mark.parametrize(
    "change",
    [
        lambda kernel: kernel.variance.mul_(3.0),
        lambda kernel: kernel.set("variance", 2.0),
        lambda kernel: kernel.variance.data.fill_(0.2),
        lambda kernel: kernel.to(torch.float32),
        lambda kernel: kernel.variance.requires_grad_(),
    ],
)
def test_changes_of_white_noise_are_seen(change, monkeypatch):
    model, guide, data = make_white()
    gradients(model, guide, data)
    assert kept_reader(model, data) is not None
    change(model.temporal)
    assert kept_reader(model, data) is None
    Collapsed_ELBO().loss(model, guide, data)
    check(model, guide, data, monkeypatch)


def test_white_noise_that_is_trained_is_always_read(monkeypatch):
    model, guide, data = make_white(White(0.7))
    check(model, guide, data, monkeypatch)
    assert kept_reader(model, data) is None


def test_readers_do_not_keep_models():
    model, guide, data = make()
    with NaturalGradient(guide, data):
        gradients(model, guide, data)
    assert model in _readings
    count = len(_readings)
    del model, guide
    gc.collect()
    assert len(_readings) < count
