# SPDX-License-Identifier: Apache-2.0
import math
import os
import signal
import warnings

import numpy as np
import pyro
import pyro.contrib.gp.kernels as gp
import pyro.distributions as dist
import pytest
import torch
import tqdm.auto
from problems import make_data, make_model, make_problem, train_by_svi
from pyro.infer import SVI
from pyro.optim import Adam

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, FitResult, NaturalGradient, Posterior, Sequences, fit
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import ARDRBF, RBF, Bias, Matern32, Periodic, White, from_pyro
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.training.progress import bar_class, counting_bar
from pyro_vgpds.training.settings import METHODS


@pytest.fixture
def problem():
    data = make_sequences(num_sequences=3, num_outputs=10, length=(15, 25), missing=0.1).sequences()
    model = VGPDS.from_data(data, latent_dim=4, num_inducing=12, temporal=Matern32() + White(1e-2) + Bias(0.1))
    return model, AutoOpperArchambeau(model), data


def parameters_of(model, guide):
    return [parameter.detach().clone() for parameter in (*model.parameters(), *guide.parameters())]


def set_parameters(model, guide, values):
    with torch.no_grad():
        for parameter, value in zip((*model.parameters(), *guide.parameters()), values, strict=True):
            parameter.copy_(value)


def assert_free(guide, data):
    """No NaturalGradient has been left with the guide: it would refuse another one."""
    with NaturalGradient(guide, data):
        pass


def bound_of(model, guide, data):
    with pyro.get_param_store().scope(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return -Collapsed_ELBO().loss(model, guide, data)


@pytest.mark.parametrize("method", METHODS)
def test_the_bound_rises_and_is_that_of_the_parameters_returned(problem, method):
    model, guide, data = problem
    start = bound_of(*problem)
    result = fit(model, guide, data, num_steps=60, method=method)
    assert result.history[0].bound == pytest.approx(start, rel=1e-9)
    assert result.bound > start + 100
    # the guide's parameters have other rounding errors than the natural ones, in each of the terms of each number
    assert result.bound == pytest.approx(max(record.bound for record in result.history), abs=1e-9 * data.num_observed)
    assert bound_of(*problem) == pytest.approx(result.bound, rel=1e-8)
    assert [record.step for record in result.history] == list(range(len(result.history)))
    assert result.num_steps <= 60 + (25 if method == "lbfgs" else 0)  # the last line search is finished
    seconds = [record.seconds for record in result.history]
    assert seconds == sorted(seconds)
    assert result.seconds == seconds[-1]
    assert_free(guide, data)


@pytest.mark.long
def test_natural_steps_are_faster_than_adam(problem):
    model, guide, data = problem
    first = parameters_of(model, guide)
    bounds = {}
    for method, steps in (("natural", 30), ("adam", 60)):
        set_parameters(model, guide, first)
        bounds[method] = fit(model, guide, data, num_steps=steps, method=method).bound
    assert bounds["natural"] > bounds["adam"]


def test_adam_is_svi(problem):
    model, guide, data = problem
    first = parameters_of(model, guide)
    result = fit(model, guide, data, num_steps=15, method="adam", learning_rate=0.01, warmup=0)
    set_parameters(model, guide, first)
    losses = train_by_svi(model, guide, data, 15, 0.01)
    np.testing.assert_allclose([-record.bound for record in result.history[:15]], losses, rtol=1e-9)


def test_one_evaluation_a_step(problem, monkeypatch):
    model, guide, data = problem
    count = []
    original = Collapsed_ELBO.loss_and_grads
    monkeypatch.setattr(Collapsed_ELBO, "loss_and_grads", lambda *a: count.append(1) or original(*a))
    result = fit(model, guide, data, num_steps=20)
    assert len(count) == len(result.history) == 21


def test_natural_gradients_beside_a_plain_svi_loop(problem):
    model, guide, data = problem
    svi = SVI(model, guide, Adam({"lr": 0.02}), Collapsed_ELBO())
    before = guide.lam.detach().clone()
    with NaturalGradient(guide, data) as natural:
        losses = []
        for _ in range(30):
            losses.append(svi.step(data))
            natural.step(0.5)
        inside = Collapsed_ELBO().loss(model, guide, data)
    assert losses[-1] < losses[0] - 100
    assert not torch.equal(guide.lam, before)
    assert Collapsed_ELBO().loss(model, guide, data) == pytest.approx(inside, rel=1e-9)  # mean_bar and lam are set


@pytest.mark.long
def test_a_full_natural_step_is_the_fixed_point():
    model, guide, data = make_problem((5, 3), noise=1.0)
    with NaturalGradient(guide, data) as natural:
        for _ in range(300):
            Collapsed_ELBO().loss_and_grads(model, guide, data)
            natural.step(0.5)
        Collapsed_ELBO().loss_and_grads(model, guide, data)
        d_mean, d_variance = natural.derivatives()
    torch.testing.assert_close(guide.lam.detach(), -2 * d_variance, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(guide.mean_bar.detach(), d_mean, rtol=1e-5, atol=1e-5)


def test_natural_steps_with_nothing_else_to_learn():
    model, guide, data = make_problem((6,), temporal=Matern32(1.0, 1.0).fix() + White(0.1).fix())
    model.mapping.fix()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    start = bound_of(model, guide, data)
    assert fit(model, guide, data, num_steps=20, natural_rate=0.3).bound > start


def test_misuse_of_natural_gradients(problem):
    _, guide, data = problem
    with NaturalGradient(guide, data) as natural:
        with pytest.raises(RuntimeError, match=r"needs a backward pass of the loss before it, such as svi\.step"):
            natural.step(0.5)
        with pytest.raises(ValueError, match=r"rate must be in \(0, 1\], but got 0"):
            natural.step(0)
        with pytest.raises(RuntimeError, match="already has a NaturalGradient"), NaturalGradient(guide, data):
            pass
    assert_free(guide, data)


def test_the_noise_is_fixed_in_the_warm_up(problem):
    model, guide, data = problem
    noise = []
    fit(model, guide, data, num_steps=10, warmup=5, callback=lambda record: noise.append(model.noise.tolist()))
    for early in noise[1:6]:
        assert early == pytest.approx(noise[0], rel=1e-12)
    assert all(new != old for new, old in zip(noise[6], noise[5], strict=True))


def test_steps_that_fail_are_undone_and_damped(problem, monkeypatch):
    model, guide, data = problem
    original = Collapsed_ELBO.loss_and_grads
    calls = []

    def sometimes(self, *args):
        calls.append(1)
        if len(calls) in (4, 9):
            raise NumericalError("K_MM is not positive definite")
        loss = original(self, *args)
        if len(calls) == 13:
            return math.nan
        return loss + 1e6 if len(calls) == 17 else loss

    monkeypatch.setattr(Collapsed_ELBO, "loss_and_grads", sometimes)
    result = fit(model, guide, data, num_steps=30)
    monkeypatch.undo()
    assert result.num_undone == 4
    assert "4 undone" in repr(result)
    assert result.bound > result.history[0].bound
    assert bound_of(*problem) == pytest.approx(result.bound, rel=1e-8)


@pytest.mark.parametrize("method", ["adam", "lbfgs"])
def test_a_start_without_a_value_is_an_error(problem, monkeypatch, method):
    monkeypatch.setattr(Collapsed_ELBO, "loss_and_grads", lambda *a: math.nan)
    with pytest.raises(NumericalError, match="no finite value at the initial parameters: check the scale of the data"):
        fit(*problem, num_steps=5, method=method)


def test_outputs_of_extreme_scale_without_scaling():
    data = make_data((12,))
    huge = Sequences(data.times.t, 1e100 * data.read())
    model = VGPDS.from_data(huge, num_inducing=5, scale_outputs=False)
    with pytest.raises(NumericalError, match="no finite value at the initial parameters: check the scale of the data"):
        fit(model, AutoOpperArchambeau(model), huge, num_steps=5)


def test_lbfgs_steps_around_points_without_a_value(problem, monkeypatch):
    original, calls = Collapsed_ELBO.loss_and_grads, []

    def sometimes(self, *args):
        calls.append(1)
        loss = original(self, *args)
        return math.nan if len(calls) in (5, 9) else loss

    monkeypatch.setattr(Collapsed_ELBO, "loss_and_grads", sometimes)
    result = fit(*problem, num_steps=40, method="lbfgs")
    assert result.num_undone == 2
    assert result.bound > result.history[0].bound + 100


def test_stops_if_the_bound_no_longer_changes(problem):
    result = fit(*problem, num_steps=300, tolerance=3e-3)
    assert result.stopped == "converged"
    assert result.num_steps < 300


def test_stops_if_the_bound_goes_up_and_down_without_rising(problem, monkeypatch):
    monkeypatch.setattr("pyro_vgpds.training.gradient._PATIENCE", 1000)  # of single small changes
    monkeypatch.setattr("pyro_vgpds.training.gradient._IDLE", 5)
    result = fit(*problem, num_steps=60, tolerance=0.1)
    assert result.stopped == "converged"
    assert 5 <= result.num_steps < 60
    last = [record.bound for record in result.history[-6:]]
    assert max(last) - last[0] <= 5 * 0.1 * max(abs(last[-1]), problem[2].num_observed)
    assert fit(*problem, num_steps=10, tolerance=0.0).stopped == "steps"


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_ends_after_the_step_and_returns_what_there_is(problem, method):
    def interrupt(record):
        if record.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    result = fit(*problem, num_steps=100, method=method, callback=interrupt)
    assert result.stopped == "interrupted"
    assert result.num_steps == (9 if method == "lbfgs" else 5)  # L-BFGS has a warm-up of 10 evaluations in one chunk
    assert bound_of(*problem) == pytest.approx(result.bound, rel=1e-8)
    assert result.bound == pytest.approx(max(record.bound for record in result.history), rel=1e-8)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_callback_that_fails_leaves_what_was_learned(problem):
    def fail(record):
        if record.step == 20:
            raise RuntimeError("mine")

    start = bound_of(*problem)
    with pytest.raises(RuntimeError, match="mine"):
        fit(*problem, callback=fail)
    assert bound_of(*problem) > start + 100
    assert_free(*problem[1:])


@pytest.mark.long
def test_a_bound_without_digits_is_a_failed_step():
    t = np.linspace(0, 10, 50)
    y = np.sin(t[:, None] + np.arange(5)) + 0.01 * np.random.default_rng(2).standard_normal((50, 5))
    data = Sequences(t, y)
    for method in METHODS:
        pyro.set_rng_seed(2)
        model = VGPDS.from_data(data, 2, 15)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*jitter raised")
            result = fit(model, AutoOpperArchambeau(model), data, num_steps=300, method=method)
        assert 0 < result.bound < 2000, result


def test_as_many_inducing_inputs_as_frames():
    data = make_data((12,))
    for method in METHODS:
        model = VGPDS.from_data(data, 2)
        assert model.num_inducing == 12
        result = fit(model, AutoOpperArchambeau(model), data, num_steps=10, method=method)
        assert result.bound > result.history[0].bound


@pytest.mark.long
def test_restarts_keep_the_best(problem):
    model, guide, data = problem
    first = parameters_of(model, guide)
    pyro.set_rng_seed(0)
    result = fit(model, guide, data, num_steps=15, num_restarts=2)
    assert bound_of(*problem) == pytest.approx(result.bound, rel=1e-8)
    set_parameters(model, guide, first)
    assert result.bound >= fit(model, guide, data, num_steps=15).bound
    hand_made, hand_guide = make_model(data)
    with pytest.raises(ValueError, match=r"num_restarts needs a model made by VGPDS\.from_data"):
        fit(hand_made, hand_guide, data, num_restarts=1)


def test_two_models_in_one_session_do_not_touch_each_other(problem):
    model, guide, data = problem
    fit(model, guide, data, num_steps=5)
    bound = bound_of(*problem)
    other = VGPDS.from_data(data, latent_dim=4, num_inducing=12)
    fit(other, AutoOpperArchambeau(other), data, num_steps=5)
    assert bound_of(*problem) == bound
    assert not list(pyro.get_param_store().keys())


def test_hyperpriors_train(problem):
    model, guide, data = problem
    assert not guide.has_random_parameters
    model.temporal[0].set("lengthscale", dist.LogNormal(0.0, 1.0))
    result = fit(model, guide, data, num_steps=30)
    assert guide.has_random_parameters
    assert result.bound > result.history[0].bound
    assert result.bound == result.history[-1].bound  # an estimate: the best of them would be the luckiest


@pytest.mark.parametrize("method", METHODS)
def test_nothing_to_learn_from_is_an_error(problem, method):
    model, guide, data = problem
    lengths = list(data.lengths)
    y = torch.full((data.num_frames, data.num_outputs), torch.nan)
    unknown = Sequences(data.times.t.split(lengths), y.split(lengths))
    with pytest.raises(ValueError, match="data has no observed outputs"):
        fit(model, guide, unknown, 5, method)


def test_missing_guides_and_bad_arguments(problem):
    model, guide, data = problem
    for options, message in (
        ({"num_steps": 0}, "num_steps must be a whole number of at least 1, but got 0"),
        ({"method": "sgd"}, "method must be one of 'natural', 'lbfgs', 'adam', but got 'sgd'"),
        ({"learning_rate": -1.0}, "learning_rate must be positive and finite, but got -1.0"),
        ({"natural_rate": 1.5}, r"natural_rate must be in \(0, 1\], but got 1.5"),
        ({"warmup": 1.5}, "warmup must be a whole number of at least 0, but got 1.5"),
        ({"tolerance": -1.0}, "tolerance must be finite and 0 or more, but got -1.0"),
        ({"tolerance": math.inf}, "tolerance must be finite and 0 or more, but got inf"),
        ({"checkpoint_steps": 5}, "need checkpoint, the file to write, but got checkpoint=None, checkpoint_steps=5"),
        ({"checkpoint_seconds": 9.0}, "checkpoint_seconds need checkpoint, .* checkpoint_seconds=9.0"),
        ({"num_restarts": -1}, "num_restarts must be a whole number of at least 0, but got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(model, guide, data, **options)
    with pytest.raises(ValueError, match=r"data must be Sequences\(t, y\) with outputs"):
        fit(model, guide, Sequences(torch.arange(3.0)))
    with pytest.raises(
        TypeError,
        match=r"guide must be an AutoOpperArchambeau or AmortizedOpperArchambeau, but got function",
    ):
        fit(model, lambda data: None, data)


def test_progress_is_quiet_off_a_terminal_and_shown_when_asked(problem, capsys):
    fit(*problem, num_steps=3)
    assert capsys.readouterr().err == ""
    fit(*problem, num_steps=3, progress=True)
    shown = capsys.readouterr().err
    assert "bound=" in shown
    assert "noise=" in shown
    assert "active=" in shown


def test_hidden_bars_take_no_lock_that_forked_processes_share(problem, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("a bar of tqdm was made, which takes its lock")

    monkeypatch.setattr(tqdm.std.tqdm, "__new__", fail)
    fit(*problem, num_steps=2, progress=False)
    with counting_bar(3, "things", False) as bar:
        bar.update()
        bar.set_postfix_str("one")
    assert (bar.n, bar.total) == (1, 3)


def test_progress_bar_needs_no_widgets(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert bar_class() is tqdm.std.tqdm
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert bar_class() is tqdm.auto.tqdm


def test_result(problem):
    result = fit(*problem, num_steps=4)
    assert repr(result).startswith("FitResult(bound=")
    assert "4 natural steps in" in repr(result)
    assert "stopped: steps" in repr(result)
    ax = result.plot()
    assert len(ax.lines[0].get_xdata()) == 5
    assert isinstance(result, FitResult)


@pytest.mark.long
def test_same_seed_same_numbers(problem):
    model, guide, data = problem
    first = parameters_of(model, guide)
    histories = []
    for threads in (1, 1, 2):
        torch.set_num_threads(threads)
        set_parameters(model, guide, first)
        histories.append([record.bound for record in fit(model, guide, data, num_steps=20).history])
    assert histories[0] == histories[1]
    np.testing.assert_allclose(histories[0], histories[2], rtol=1e-6)


def test_relevance(problem):
    model, guide, data = problem
    fit(model, guide, data, num_steps=60)
    relevance = model.relevance(guide, data)
    with torch.no_grad():
        q = guide.posterior(data)
        expected = model.mapping.weight * (q.mean.var(0, correction=0) + q.variance.mean(0))
    torch.testing.assert_close(relevance.value, expected)
    assert relevance.active.dtype == torch.bool
    assert relevance.active[relevance.value.argmax()]
    # stretching a latent dimension and shrinking its weight is the same model
    with torch.no_grad():
        before = model.relevance().value
        model.inducing_unconstrained[:, 0] *= 3.0
        model.mapping.weight_unconstrained[0] -= math.log(9.0)
        torch.testing.assert_close(model.relevance().value, before)
    plain = VGPDS(Matern32(), Bias(1.0), torch.zeros(2, 2), 0.1, torch.zeros(3))
    with pytest.raises(ValueError, match="mapping kernel has no weights of latent dimensions"):
        plain.relevance()
    assert isinstance(model.mapping, ARDRBF)


def test_periods_move_slowly_in_any_kernel():
    """Adam's first step has the length of the learning rate, in log p; a period's is much shorter."""
    data = make_data((20,))
    for kernel in (Periodic(period=2.0) * RBF(1.0, 5.0), from_pyro(gp.Periodic(1, period=torch.tensor(2.0)))):
        model = VGPDS.from_data(data, 2, 8, temporal=kernel + White(1e-2))
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        fit(model, AutoOpperArchambeau(model), data, num_steps=1, learning_rate=0.01, method="adam", warmup=0)
        moved = {name: (value - before[name]).abs().max().item() for name, value in model.named_parameters()}
        slow = {name for name in moved if "period" in name}
        assert len(slow) == 1
        for name, step in moved.items():
            assert step == pytest.approx(3e-4 if name in slow else 1e-2, rel=1e-2), name


@pytest.mark.long
def test_a_period_is_kept_and_refined():
    """Noisy cycles of period 2.4, started at 2.35: training goes to the peak nearby and does not walk off."""
    rng = np.random.default_rng(0)
    t = np.arange(90) * 0.2
    angle = 2 * np.pi * t / 2.4
    wave = np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle)], 1)
    y = wave @ rng.standard_normal((3, 15)) + 0.1 * rng.standard_normal((90, 15))
    data = Sequences(t, y)
    model = VGPDS.from_data(data, 3, 30, Periodic(period=2.35) + White(1e-2))
    fit(model, AutoOpperArchambeau(model), data, 150, progress=False)
    assert model.temporal[0].period.item() == pytest.approx(2.4, abs=0.03)


def test_fixed_parameters_without_a_value_are_chosen_and_stay_fixed():
    t = np.arange(60) * 0.2
    y = np.sin(2 * np.pi * t[:, None] / 2.4 + np.arange(5))
    model = VGPDS.from_data(Sequences(t, y), 2, 20, Periodic().fix("period") + RBF().fix() + White(1e-2))
    periodic, smooth, _ = model.temporal
    assert periodic.period.item() == pytest.approx(2.4, rel=0.05)
    assert periodic.is_fixed("period")
    assert smooth.is_fixed("lengthscale")
    assert periodic.is_learned("lengthscale")


def test_natural_gradient_keeps_q_if_hyperparameters_are_random():
    data = make_data((12,))
    model = VGPDS.from_data(data, 2, 6, temporal=Matern32() + White(1e-2))
    model.temporal[0].set("lengthscale", dist.LogNormal(0.0, 1.0))
    guide = AutoOpperArchambeau(model)
    Collapsed_ELBO().loss(model, guide, data)  # makes the parameters of the lengthscale
    before = guide.mean_bar.detach().clone()
    with NaturalGradient(guide, data):
        pass
    torch.testing.assert_close(guide.mean_bar.detach(), before, rtol=1e-6, atol=1e-8)
    with NaturalGradient(guide, data) as natural:  # and what is learned is written for the medians, not for a draw
        Collapsed_ELBO().loss_and_grads(model, guide, data)
        natural.step(1.0)
        eta = natural.eta
    torch.testing.assert_close(Posterior(model, guide, data).q.eta, eta, rtol=1e-6, atol=1e-8)


@pytest.mark.long
def test_the_bound_over_draws_of_hyperparameters_is_that_of_training_within_a_block(problem):
    _, _, data = problem
    kernel = Matern32(lengthscale=dist.LogNormal(1.0, 1.0)) + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, latent_dim=3, num_inducing=12, temporal=kernel)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, 100)
    reached = np.mean([record.bound for record in result.history[-10:]])
    loss = Collapsed_ELBO(num_particles=30)
    outside = -loss.loss(model, guide, data)
    with NaturalGradient(guide, data):
        inside = -loss.loss(model, guide, data)
    assert inside > reached - 2.0  # it may have risen in the last steps
    assert outside < reached - 5.0


def test_parameter_store_after_fit_and_after_svi():
    """``fit`` leaves the store as it was; ``SVI`` fills it, and clearing it does not change trained modules."""
    model, guide, data = make_problem()
    pyro.param("own", torch.tensor(1.0))
    fit(model, guide, data, num_steps=2)
    assert list(pyro.get_param_store().keys()) == ["own"]
    svi = SVI(model, guide, Adam({"lr": 0.01}), Collapsed_ELBO())
    svi.step(data)
    assert {"own", "inducing", "mean_bar", "temporal.parts.0.lengthscale"} <= set(pyro.get_param_store().keys())
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    pyro.clear_param_store()
    assert all(value.equal(trained[name]) for name, value in model.state_dict().items())
    assert svi.evaluate_loss(data) == Collapsed_ELBO().loss(model, guide, data)
    assert all(value.equal(trained[name]) for name, value in model.state_dict().items())
