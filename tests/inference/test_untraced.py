# SPDX-License-Identifier: Apache-2.0
"""Plain models are evaluated without a trace: the same numbers, and only if nothing can tell the difference."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import make_data, make_problem, train_by_svi
from pyro import poutine

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, NaturalGradient, Sequences
from pyro_vgpds.inference import elbo, untraced
from pyro_vgpds.inference.untraced import can_skip_trace
from pyro_vgpds.kernels import ARDRBF, RBF, ARDLinear, Bias, Matern32, White


def _gradients(model: VGPDS, guide: AutoOpperArchambeau, data: object) -> tuple[float, list[torch.Tensor | None]]:
    parameters = [*model.parameters(), *guide.parameters()]
    for parameter in parameters:
        parameter.grad = None
    loss = Collapsed_ELBO().loss_and_grads(model, guide, data)
    return loss, [None if p.grad is None else p.grad.clone() for p in parameters]


def _compare(model: VGPDS, guide: AutoOpperArchambeau, data: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_skip_trace(model, guide, data)
    loss, gradients = _gradients(model, guide, data)
    with monkeypatch.context() as patch:
        patch.setattr(elbo, "can_skip_trace", lambda *args: False)
        traced, expected = _gradients(model, guide, data)
        assert Collapsed_ELBO().loss(model, guide, data) == traced
    assert Collapsed_ELBO().loss(model, guide, data) == traced
    if guide.analytic_path(model.path_prior(data).covariance) is None:
        assert loss == traced
        for one, other in zip(gradients, expected, strict=True):
            assert (one is None) == (other is None)
            assert one is None or one.equal(other)
    else:  # without autograd: sums have another order
        assert abs(loss - traced) < 1e-10 * abs(traced)
        for one, other in zip(gradients, expected, strict=True):
            assert (one is None) == (other is None)
            assert one is None or (one - other).abs().amax() <= 1e-9 * other.abs().amax()


def test_the_same_loss_and_gradients(monkeypatch):
    model, guide, data = make_problem()
    assert not can_skip_trace(model, guide, data)  # it has not run yet
    Collapsed_ELBO().loss(model, guide, data)
    _compare(model, guide, data, monkeypatch)
    with NaturalGradient(guide, data) as natural:
        _compare(model, guide, data, monkeypatch)
        _gradients(model, guide, data)
        natural.step(0.5)
        _compare(model, guide, data, monkeypatch)
    _compare(model, guide, data, monkeypatch)


@pytest.mark.parametrize(
    ("temporal", "mapping", "structure"),
    [
        (lambda: White(1.0), ARDRBF, None),
        (lambda: Matern32() + White(0.1), ARDRBF, "markov"),
        (lambda: Matern32() + White(0.1), ARDRBF, "dense"),
        (lambda: RBF() + Bias(0.1), lambda: ARDRBF() + Bias(0.5), None),  # whose bound is not in one piece
        (Matern32, lambda: ARDLinear([1.0, 2.0]), None),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_same_of_all_kinds_of_models(temporal, mapping, structure, dtype, monkeypatch):
    whole = make_data((12,), missing=0.2)
    data = Sequences(whole.times.t, whole.y, dtype=dtype)
    model = VGPDS.from_data(data, 2, 5, temporal(), mapping(), structure=structure)
    guide = AutoOpperArchambeau(model)
    Collapsed_ELBO().loss(model, guide, data)
    _compare(model, guide, data, monkeypatch)
    with NaturalGradient(guide, data) as natural:
        _compare(model, guide, data, monkeypatch)
        error = 0.0 if guide.analytic_path(model.path_prior(data).covariance) is None else 1e-9
        _gradients(model, guide, data)
        found = natural.derivatives()
        with monkeypatch.context() as patch:
            patch.setattr(elbo, "can_skip_trace", lambda *args: False)
            _gradients(model, guide, data)
        for one, other in zip(found, natural.derivatives(), strict=True):
            assert (one - other).abs().amax() <= error * other.abs().amax()


def test_a_graph_can_be_retained():
    model, guide, data = make_problem()
    Collapsed_ELBO().loss(model, guide, data)
    gradients = []
    for retain in (False, True):
        for parameter in model.parameters():
            parameter.grad = None
        Collapsed_ELBO(retain_graph=retain).loss_and_grads(model, guide, data)
        gradients.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_no_trace_is_made(monkeypatch):
    model, guide, data = make_problem()
    first = Collapsed_ELBO().loss_and_grads(model, guide, data)
    monkeypatch.setattr(VGPDS, "__call__", None)
    assert Collapsed_ELBO().loss_and_grads(model, guide, data) == first


def test_everything_that_could_change_a_program_is_traced():
    model, guide, data = make_problem()
    Collapsed_ELBO().loss(model, guide, data)
    assert can_skip_trace(model, guide, data)
    assert not can_skip_trace(model, guide, make_data())  # other data, which have not been checked
    assert not can_skip_trace(model, guide, data, 1)
    assert not can_skip_trace(model, AutoOpperArchambeau(model), data)  # parameters that the store does not have
    assert not can_skip_trace(model, lambda data: None, data)
    with poutine.trace():
        assert not can_skip_trace(model, guide, data)
    handle = model.register_forward_hook(lambda *args: None)
    assert not can_skip_trace(model, guide, data)
    handle.remove()
    pyro.clear_param_store()
    assert not can_skip_trace(model, guide, data)

    class Own(VGPDS):
        def forward(self, data):
            return super().forward(data)

    own = Own.from_data(data, 2, 6)
    own_guide = AutoOpperArchambeau(own)
    Collapsed_ELBO().loss(own, own_guide, data)
    assert not can_skip_trace(own, own_guide, data)


def test_priors_and_likelihoods_are_traced():
    data = make_data()
    for model in (
        VGPDS.from_data(data, 2, 6, temporal=Matern32(lengthscale=dist.LogNormal(0.0, 1.0))),
        VGPDS.from_data(data, 2, 6, mapping=ARDRBF(variance=dist.LogNormal(0.0, 1.0))),
        VGPDS.from_data(data, 2, 6, likelihood="student-t"),
    ):
        guide = AutoOpperArchambeau(model)
        pyro.clear_param_store()
        Collapsed_ELBO().loss(model, guide, data)
        assert not can_skip_trace(model, guide, data)


def test_svi_collects_the_parameters_as_ever():
    model, guide, data = make_problem()
    losses = train_by_svi(model, guide, data, 20, 0.05)
    assert losses[-1] < losses[0]
    assert untraced.can_skip_trace(model, guide, data)


@pytest.mark.parametrize("step", ["_differentiable_loss_particle", "_get_trace"])
def test_steps_that_a_subclass_defines_are_used(step):
    model, guide, data = make_problem()
    plain = Collapsed_ELBO().loss(model, guide, data)
    assert can_skip_trace(model, guide, data)
    calls = []

    def own(self, *args):
        calls.append(args)
        return getattr(super(Own, self), step)(*args)

    Own = type("Own", (Collapsed_ELBO,), {step: own})
    assert Own().loss(model, guide, data) == pytest.approx(plain, rel=1e-10)
    assert Own().loss_and_grads(model, guide, data) == pytest.approx(plain, rel=1e-10)
    assert len(calls) == 2
