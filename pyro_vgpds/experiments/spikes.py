# SPDX-License-Identifier: Apache-2.0
"""Neurons of a reaching monkey: predict the counts of hidden neurons, and decode the velocity of the hand.

Five folds: trials with index % 5 == fold are test trials. In these, neurons with index % 4 == 3 are hidden. For the
decoding all neurons of the test trials are seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from pyro_vgpds import datasets, metrics
from pyro_vgpds.datasets.discrete import Reaches
from pyro_vgpds.experiments import spike_baselines as rivals
from pyro_vgpds.experiments.answer import Predictor, frames, score
from pyro_vgpds.experiments.count_models import CountModel, gaussian_square_roots
from pyro_vgpds.experiments.recipe import Recipe
from pyro_vgpds.experiments.record import Folder, compare
from pyro_vgpds.experiments.windows import WindowPaths
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.likelihoods import NegativeBinomial, Poisson
from pyro_vgpds.prediction.solver import Solver

__all__ = ["DECODERS", "PREDICTORS", "decode", "decode_velocity", "predict_hidden", "r_squared", "run"]

_FLOOR = 1e-4  # least mean count
_FOLDS = 5
#: the time scale is fixed, because a learned one becomes shorter than a bin: Gaussian noise does not fit sparse counts
RECIPE = Recipe("rbf", 6, num_inducing=50, num_steps=100, scale=True, static_dim=2, lengthscale=0.1)
#: chosen on held-out training trials of fold 0
MODEL = CountModel(
    Poisson,
    latent_dim=12,
    num_inducing=40,
    temporal=lambda: Matern32(lengthscale=0.2) + White(1e-2) + Bias(0.3),
    static_dim=6,
    num_steps=60,
    solver=Solver(num_starts=1, num_steps=100, tolerance=1e-5),
)
#: latent paths in windows of the trial with a linear mapping, chosen on the same trials. Unlike those of the other
#: model, they also predict the velocity
PATHS = WindowPaths(num_windows=6, num_each=5, stop=0.48, width=0.07, lengthscale=3.0)
WINDOWS = CountModel(
    Poisson,
    latent_dim=PATHS.latent_dim,
    temporal=PATHS.temporal,
    mapping=PATHS.mapping,
    static_dim=0,
    start=PATHS.start,
    num_steps=20,
    solver=Solver(num_starts=1, num_steps=60, tolerance=1e-5),
)
_READ_OUT = 10.0  # penalty of the Poisson regression on latents

#: makes the predictor for a fold
Maker: TypeAlias = Callable[[Reaches, int], Predictor]
Measure: TypeAlias = Callable[[Reaches, int, Predictor], dict[str, float]]

#: makes the predictor of a name for a fold: ``PREDICTORS[name](reaches, fold)``. Add your own here.
PREDICTORS: dict[str, Maker] = {
    "Poisson VGPDS, windows": lambda data, fold: WINDOWS.predict,
    "mean rate": lambda data, fold: rivals.mean_rate,
    "time-bin mean": lambda data, fold: rivals.time_mean,
    "ridge": lambda data, fold: rivals.grid(rivals.ridge, penalty=(100.0, 300.0, 1000.0), width=(2.0, 3.0, 4.0)),
    "Poisson GLM": lambda data, fold: rivals.grid(
        partial(rivals.poisson_regression, timed=False), penalty=(10.0, 30.0, 100.0)
    ),
    "Poisson GLM, timed": lambda data, fold: rivals.grid(rivals.poisson_regression, penalty=(10.0, 30.0, 100.0)),
    "factor analysis, Poisson read-out": lambda data, fold: rivals.grid(
        rivals.factor_analysis, num_factors=(6, 10, 15), width=(2.0, 3.0)
    ),
    "GPFA": lambda data, fold: rivals.gpfa(10, None),
    "GPFA, Poisson read-out": lambda data, fold: rivals.gpfa(10, _READ_OUT),
    "Gaussian VGPDS of square roots": lambda data, fold: gaussian_square_roots(RECIPE),
    "the same, Poisson read-out": lambda data, fold: gaussian_square_roots(RECIPE, penalty=_READ_OUT),
    "Poisson VGPDS": lambda data, fold: MODEL.predict,
    "negative-binomial VGPDS": lambda data, fold: replace(MODEL, likelihood=NegativeBinomial).predict,
    "condition mean (oracle)": lambda data, fold: rivals.condition_mean(*(data.condition[i] for i in data.fold(fold))),
    "whole-trial weights": lambda data, fold: rivals.grid(
        rivals.trial_weights, temper=(0.04, 0.06, 0.08, 0.12), shrink=(0.3, 1.0)
    ),
}
#: predictors that have rates or latents of training and test trials to decode from
DECODERS: dict[str, Maker] = {
    "Poisson VGPDS, windows": PREDICTORS["Poisson VGPDS, windows"],
    "smoothed counts": lambda data, fold: partial(rivals.smoothed_counts, width=2.0),
    **{
        name: PREDICTORS[name]
        for name in (
            "factor analysis, Poisson read-out",
            "GPFA, Poisson read-out",
            "Gaussian VGPDS of square roots",
            "the same, Poisson read-out",
            "Poisson VGPDS",
            "whole-trial weights",
        )
    },
}
_SLOW = [make for label, make in PREDICTORS.items() if "VGPDS" in label or "the same" in label]
_PENALTIES = tuple(10.0**power for power in range(-2, 6))


def predict_hidden(data: Reaches, fold: int, predictor: Predictor) -> dict[str, float]:
    """Bits per spike, log scores and root mean squared error of the hidden neurons of a fold, and CPU seconds."""
    training, truth = data.training(fold), data.truth(fold)
    start = time.process_time()
    answer = predictor(training, data.partial(fold))
    seconds = time.process_time() - start
    bits = metrics.bits_per_spike(truth, answer.mean, frames(training).mean(0), _FLOOR)
    return {"bits per spike": bits, **score(truth, answer, _FLOOR), "seconds": seconds}


def decode_velocity(data: Reaches, fold: int, predictor: Predictor) -> dict[str, float]:
    """R² of the velocity of the hand in the test trials of a fold, from latents and from predicted rates.

    The result has only what the predictor has for training and test trials.
    """
    train, test = data.fold(fold)
    answer = predictor(data.take(train), data.take(test))
    velocity, truth = (np.concatenate([data.velocity[i] for i in some]) for some in (train, test))
    lengths = [len(data.t[i]) for i in train]
    result = {}
    for name, own, new in (
        ("latents", answer.training_latent, answer.latent),
        ("rates", answer.training_mean, answer.mean),
    ):
        if own is not None and new is not None:
            result[name] = r_squared(truth, decode(own, velocity, new, lengths))
    return result


def run(name: str, folder: Folder, seeds: int | None, quick: bool, source: Mapping[str, Any]) -> None:
    """The tables of held-out neurons and of decoding. ``seeds`` is the number of folds."""
    data = datasets.load_mc_maze(**source)
    folds = range(min(seeds or _FOLDS, _FOLDS))
    settings = {"recipe": RECIPE.settings(), "bin_ms": data.bin_ms, "shape": (len(data.y), *data.y[0].shape)}
    texts = []
    results: dict[str, Any] = {}
    for title, predictors, measure in (
        ("held-out neurons", PREDICTORS, predict_hidden),
        ("velocity, R²", DECODERS, decode_velocity),
    ):
        methods = {
            label: partial(_measure, measure, data, make)
            for label, make in predictors.items()
            if not (quick and make in _SLOW)
        }
        text, results[title] = compare(folder, title, methods, folds, settings)
        texts.append(text)
    texts.append(f"Mean and standard deviation over {len(folds)} folds; CPU seconds include the choice of settings.")
    folder.publish(name, "\n\n".join(texts), results)


def _measure(measure: Measure, data: Reaches, make: Maker, fold: int) -> dict[str, float]:
    return measure(data, fold, make(data, fold))


def decode(inputs: np.ndarray, targets: np.ndarray, new: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Targets (M, E) of new inputs (M, P), by ridge regression of training targets (N, E) on inputs (N, P).

    Inputs are scaled to variance one. The penalty is the best in cross-validation over whole training sequences, which
    have these lengths.
    """
    centre, scale = inputs.mean(0), inputs.std(0)
    scale = np.where(scale > 1e-9 * max(float(scale.max()), 1e-300), scale, 1.0)
    x, z = (inputs - centre) / scale, (new - centre) / scale
    fold = np.repeat(np.arange(len(lengths)) % _FOLDS, lengths)
    folds = [fold == k for k in range(min(_FOLDS, len(lengths)))]
    errors = np.zeros(len(_PENALTIES))
    for held_out in folds if len(folds) > 1 else ():
        guesses = _ridge(x[~held_out], targets[~held_out], x[held_out])
        errors += [float(((guess - targets[held_out]) ** 2).sum()) for guess in guesses]
    return _ridge(x, targets, z)[int(np.argmin(errors))]


def _ridge(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> list[np.ndarray]:
    """Predictions for each penalty, from one eigendecomposition."""
    centre, middle = x.mean(0), y.mean(0)
    values, vectors = np.linalg.eigh((x - centre).T @ (x - centre))
    right, left = vectors.T @ (x - centre).T @ (y - middle), (new - centre) @ vectors
    return [left @ (right / (np.maximum(values, 0.0) + p)[:, None]) + middle for p in _PENALTIES]


def r_squared(truth: np.ndarray, prediction: np.ndarray) -> float:
    """1 - sum of squared errors / sum of squares around the mean, over all columns of (N, E)."""
    return 1.0 - float(((truth - prediction) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum())
