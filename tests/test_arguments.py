# SPDX-License-Identifier: Apache-2.0
"""Arguments that are numbers, at and beyond their edges: a ValueError or TypeError that names the argument."""

import math

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    NaturalGradient,
    Posterior,
    PosteriorMixture,
    Sequences,
    Solver,
    auto,
    fit,
    load,
    load_posterior,
    save,
)  # fmt: skip
from pyro_vgpds.baselines import repeat_cycle
from pyro_vgpds.datasets import make_gait, make_pendulum_video, make_sensors, make_sequences
from pyro_vgpds.evaluation import backtest, cross_validate, hold_out
from pyro_vgpds.kernels import (
    ARDRBF,
    RBF,
    ARDLinear,
    Bias,
    Cosine,
    Linear,
    MarkovRBF,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    White,
)  # fmt: skip
from tests.problems import make_data

DATA = make_data((12, 9))
MODEL = VGPDS.from_data(DATA, latent_dim=2, num_inducing=4)
GUIDE = AutoOpperArchambeau(MODEL)
POST = Posterior(MODEL, GUIDE, DATA)
PREDICTION = POST.forecast([4.0, 5.0], 0)
PARTS = {"inducing": torch.zeros(4, 2).double(), "output_mean": torch.zeros(5).double()}

#: no number at all, for any argument
WRONG = ["frog", "", 1j, True, math.nan, -1, -0.5, math.inf, -math.inf, [], {}, object(), b"1", [[1.0], [1.0, 2.0]]]
WRONG += [np.ones((2, 2, 2)), torch.ones(2, 2, 2), np.array("a"), torch.tensor(1j), None]


def model(**options):
    return VGPDS(RBF(), ARDRBF(), **{"noise": 0.1, **PARTS, **options})


def kernel_parameters():
    for kind in (
        RBF,
        MarkovRBF,
        Matern12,
        Matern32,
        Matern52,
        Periodic,
        Cosine,
        Linear,
        White,
        Bias,
        ARDRBF,
        ARDLinear,
    ):
        for name in kind().parameter_names:
            yield f"{kind.__name__}.{name}", name, lambda value, kind=kind, name=name: kind(**{name: value})
            yield f"{kind.__name__}.set {name}", name, lambda value, kind=kind, name=name: kind().set(name, value)


#: where, name of the argument, and a call with its value; further values that are wrong here or right here
CALLS = {
    where: (name, call, [], [None] if "set" not in where else []) for where, name, call in kernel_parameters()
} | {
    "VGPDS noise": ("noise", lambda v: model(noise=v), [0, torch.ones(3), np.array([True])], []),
    "VGPDS jitter": ("jitter", lambda v: model(jitter=v), [torch.ones(2)], [None]),
    "VGPDS least_noise": ("least_noise", lambda v: model(least_noise=v), [torch.ones(2)], []),
    "VGPDS output_scale": ("output_scale", lambda v: model(output_scale=v), [0, torch.ones(3)], [None]),
    "VGPDS output_mean": ("output_mean", lambda v: model(output_mean=v), [0, 1.0], []),
    "VGPDS inducing": ("inducing", lambda v: model(inducing=v), [0, torch.ones(3)], []),
    "from_data latent_dim": ("latent_dim", lambda v: VGPDS.from_data(DATA, v), [0, 1.5, 99], [None]),
    "from_data num_inducing": ("num_inducing", lambda v: VGPDS.from_data(DATA, 2, v), [0, 1.5, 99], [None]),
    "from_data static_dim": ("static_dim", lambda v: VGPDS.from_data(DATA, 2, 4, static_dim=v), [1.5, 2], [None]),
    "fit num_steps": ("num_steps", lambda v: fit(MODEL, GUIDE, DATA, v), [0, 1.5], [None]),
    "fit warmup": ("warmup", lambda v: fit(MODEL, GUIDE, DATA, 1, warmup=v), [1.5], [None]),
    "fit learning_rate": ("learning_rate", lambda v: fit(MODEL, GUIDE, DATA, 1, learning_rate=v), [0], [None]),
    "fit natural_rate": ("natural_rate", lambda v: fit(MODEL, GUIDE, DATA, 1, natural_rate=v), [0, 1.1], []),
    "fit tolerance": ("tolerance", lambda v: fit(MODEL, GUIDE, DATA, 1, tolerance=v), [], []),
    "fit num_restarts": ("num_restarts", lambda v: fit(MODEL, GUIDE, DATA, 1, num_restarts=v), [1.5], []),
    "fit processes": ("processes", lambda v: fit(MODEL, GUIDE, DATA, 1, processes=v), [0, 1.5], []),
    "fit method": ("method", lambda v: fit(MODEL, GUIDE, DATA, 1, v), [0, 1.5], [None]),
    "Solver num_starts": ("num_starts", lambda v: Solver(num_starts=v), [0, 1.5], []),
    "Solver num_steps": ("num_steps", lambda v: Solver(num_steps=v), [0, 1.5], []),
    "Solver natural_rate": ("natural_rate", lambda v: Solver(natural_rate=v), [0, 2], []),
    "Solver tolerance": ("tolerance", lambda v: Solver(tolerance=v), [], []),
    "NaturalGradient rate": ("rate", lambda v: NaturalGradient(GUIDE, DATA).step(v), [0, 2], []),
    "Posterior noise": ("noise_variance", lambda v: Posterior(MODEL, GUIDE, DATA, noise_variance=v), [0], [None]),
    "Posterior scale": ("output_scale", lambda v: Posterior(MODEL, GUIDE, DATA, output_scale=v), [0, 1.0], [None]),
    "reconstruct trust": ("trust", lambda v: POST.reconstruct([1.0], np.ones((1, 5)), None, trust=v), [0, 2], []),
    "reconstruct t": ("t", lambda v: POST.reconstruct(v, np.ones((1, 5)), None), [0, [[]]], []),
    "reconstruct y": ("y", lambda v: POST.reconstruct([1.0], v, None), [0, torch.ones(1, 3)], []),
    "forecast t": ("t", lambda v: POST.forecast(v, 0), [0, 1.0], []),
    "forecast sequence": ("sequence", lambda v: POST.forecast([4.0], v), [5, 1.5], [None, -1]),
    "generate num_samples": ("num_samples", lambda v: POST.generate([4.0], v, 0), [0, 1.5], []),
    "hidden_variance share": ("share", lambda v: POST.hidden_variance(v), [0, 1, 2], []),
    "hidden_variance num_frames": ("num_frames", lambda v: POST.hidden_variance(num_frames=v), [0, 1.5], []),
    "inducing_covariance output": ("output", lambda v: POST.inducing_covariance(v), [5, 1.5], [-1]),
    "interval": ("probability", PREDICTION.interval, [0, 1, 2], []),
    "to_file interval": ("interval", lambda v: PREDICTION.to_file("never.csv", v), [1, 2], []),
    "log_prob": ("y", PREDICTION.log_prob, [0, torch.full((2, 5), math.inf), torch.ones(3, 5)], []),
    "sample": ("num_samples", PREDICTION.sample, [0, 1.5], []),
    "to_pandas": ("what", PREDICTION.to_pandas, [0], []),
    "mixture weights": ("weights", lambda v: PosteriorMixture([POST, POST], v), [0, [1.0], ["a", "b"]], [None]),
    "calibrate horizon": ("horizon", lambda v: POST.calibrate("forecast", horizon=v), [0, 1.5], [None]),
    "calibrate share": ("share", lambda v: POST.calibrate("impute", share=v), [0, 1], []),
    "calibrate seed": ("seed", lambda v: POST.calibrate("impute", seed=v), [1.5], []),
    "hold_out share": ("share", lambda v: hold_out(DATA, "impute", share=v), [0, 1], []),
    "hold_out seed": ("seed", lambda v: hold_out(DATA, "impute", seed=v), [1.5], []),
    "hold_out horizon": ("horizon", lambda v: hold_out(DATA, "forecast", horizon=v), [0, 1.5], [None]),
    "hold_out task": ("task", lambda v: hold_out(DATA, v), [0], []),
    "backtest horizon": ("horizon", lambda v: backtest(POST, v), [0, 1.5], []),
    "cross_validate num_folds": ("num_folds", lambda v: cross_validate(len, DATA, num_folds=v), [0, 1.5], []),
    "auto seconds": ("seconds", lambda v: auto(DATA, "impute", seconds=v), [0], [math.inf]),
    "auto horizon": ("horizon", lambda v: auto(DATA, "forecast", horizon=v), [0, 1.5], [None]),
    "repeat_cycle period": ("period", lambda v: repeat_cycle([0.0, 1.0], np.ones((2, 1)), v), [0], [None]),
    "Sequences device": ("device", lambda v: Sequences([0.0], device=v), ["frog:0"], [None, True]),
    "Sequences dtype": ("dtype", lambda v: Sequences([0.0], dtype=v), [torch.int64], []),
    "Sequences t": ("t", lambda v: Sequences(v, np.ones((1, 2))), [0, np.array([True])], []),
    "Sequences y": ("y", lambda v: Sequences([0.0], v), [0], [None]),
    "make_sequences noise": ("noise", lambda v: make_sequences(noise=v), [], []),
    "make_sequences num_outputs": ("num_outputs", lambda v: make_sequences(num_outputs=v), [0, 1.5], []),
    "make_sequences missing": ("missing", lambda v: make_sequences(missing=v), [1], []),
    "make_sequences seed": ("seed", lambda v: make_sequences(seed=v), [1.5], []),
    "make_gait fps": ("fps", lambda v: make_gait(fps=v), [0], []),
    "make_gait num_sequences": ("num_sequences", lambda v: make_gait(num_sequences=v), [0, 1.5], []),
    "make_pendulum_video period": ("period", lambda v: make_pendulum_video(period=v), [0], []),
    "make_pendulum_video height": ("height", lambda v: make_pendulum_video(height=v), [7, 8.5], []),
    "make_sensors num_days": ("num_days", lambda v: make_sensors(num_days=v), [0, 1.5], []),
    "make_sensors noise": ("noise", lambda v: make_sensors(noise=v), [], []),
}  # fmt: skip


@pytest.mark.parametrize("where", CALLS)
def test_wrong_values_are_refused_by_name(where):
    name, call, more, right = CALLS[where]
    before = {name: value.clone() for name, value in MODEL.state_dict().items()}
    for value in [*WRONG, *more]:
        if not any(type(value) is type(one) and value == one for one in right):
            with pytest.raises((ValueError, TypeError)) as caught:
                call(value)
            assert name in str(caught.value), f"{where}({value!r}): {caught.value!r}"
    assert all(torch.equal(before[name], value) for name, value in MODEL.state_dict().items())


@pytest.mark.parametrize("reader", [load, load_posterior])
def test_the_file_is_not_blamed_for_the_device(reader, tmp_path):
    path = tmp_path / "model"
    save(path, MODEL, GUIDE, DATA)
    with pytest.raises(ValueError, match="device must be one that torch can use, such as 'cpu', but got 'frog': "):
        reader(path, device="frog")
    with pytest.raises(TypeError, match=r"dtype must be torch\.float64 or torch\.float32, but got 'frog'"):
        reader(path, dtype="frog")


def test_times_that_are_too_large_for_float32():
    with pytest.raises(ValueError, match=r"t must be finite, but time 1 is too large for torch\.float32"):
        Sequences([0.0, 1e39], np.ones((2, 1)), dtype=torch.float32)
    data = Sequences(DATA.times.t[:12], DATA.y[:12], dtype=torch.float32)
    small = VGPDS.from_data(data, latent_dim=2, num_inducing=4)
    post = Posterior(small, AutoOpperArchambeau(small), data)
    with pytest.raises(ValueError, match=r"t must be finite, but time 0 is too large for torch\.float32"):
        post.forecast([1e39])


@pytest.mark.parametrize("kind", ["prediction", "mixture", "selection", "ensemble"])
def test_infinite_outputs_have_no_density(kind):
    prediction = {
        "prediction": lambda: PREDICTION,
        "mixture": lambda: PosteriorMixture([POST, POST]).forecast([4.0, 5.0], 0),
        "selection": lambda: POST.forecast([3.0, 4.0, 5.0], 0).select(slice(1, None)),
        "ensemble": lambda: POST.calibrate("forecast", horizon=2).forecast([4.0, 5.0], 0),
    }[kind]()
    y = prediction.mean.clone()
    y[1, 3] = math.nan
    assert torch.isfinite(prediction.log_prob(y))
    y[1, 2] = -math.inf
    with pytest.raises(
        ValueError, match="y must be finite, or NaN for what is ignored, but row 1, column 2 is infinite"
    ):
        prediction.log_prob(y)


def test_outputs_of_very_different_units():
    """One output of standard deviation 1e6 beside others of 1: all are learned by default, or a warning tells."""
    pyro.set_rng_seed(0)
    base = make_data((40,), outputs=8)
    factor = torch.ones(8).double()
    factor[2] = 1e6
    data = Sequences(base.times.t, base.y * factor, columns=list("abcdefgh"))
    own = VGPDS.from_data(data, latent_dim=2, num_inducing=10)
    guide = AutoOpperArchambeau(own)
    fit(own, guide, data, num_steps=40)
    left = (Posterior(own, guide, data).impute(fill=False).mean - data.y).var(0) / data.y.var(0)
    assert float(left.max()) < 0.1
    found = r"deviations of the outputs differ by a factor of .*e\+06: .* and .*e\+0[56] of c\. The model will learn"
    with pytest.warns(UserWarning, match=found):
        VGPDS.from_data(data, latent_dim=2, num_inducing=10, scale_outputs=False)
    VGPDS.from_data(base, latent_dim=2, num_inducing=10, scale_outputs=False)  # no warning
    single = Sequences([0.0], data.read()[:1])
    VGPDS.from_data(single, latent_dim=2, num_inducing=1, scale_outputs=False)  # nothing varies
