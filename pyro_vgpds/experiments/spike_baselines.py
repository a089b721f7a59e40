# SPDX-License-Identifier: Apache-2.0
"""Baselines for counts of neurons in repeated trials of equal length, as predictors of ``spikes``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from pyro_vgpds import metrics
from pyro_vgpds.baselines.glm import GLM
from pyro_vgpds.baselines.gpfa import GPFA
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.experiments.answer import Answer, Predictor, frames, parts

__all__ = [
    "best_of", "condition_mean", "factor_analysis", "gpfa", "grid", "hide", "mean_rate", "poisson_regression",
    "read_out", "ridge", "smoothed", "smoothed_counts", "time_mean", "trial_weights",
]  # fmt: skip

_EM_STEPS = 50
_LEAST = 1e-3  # rate of a neuron that never fired


def smoothed(y: Sequence[np.ndarray], width: float) -> list[np.ndarray]:
    """Weighted means over neighbouring frames of each sequence (n, D), NaN ignored; ``width`` is the standard deviation
    of the Gaussian weights, in frames. Columns that are all NaN stay NaN.
    """
    found = []
    for part in y:
        place, seen = np.arange(len(part)), ~np.isnan(part)
        weight = np.exp(-0.5 * ((place[:, None] - place) / width) ** 2)
        with np.errstate(invalid="ignore"):
            found.append((weight @ np.where(seen, part, 0.0)) / np.where(seen.any(0), weight @ seen, np.nan))
    return found


def hide(data: Sequences, columns: np.ndarray) -> Sequences:
    """The sequences with some columns hidden."""
    t = list(data.times.t.split(data.lengths))
    return Sequences(t, [np.where(columns, np.nan, part) for part in parts(data)], columns=data.columns)


def best_of(candidates: Mapping[str, Predictor], every: int = 4) -> Predictor:
    """The candidate with most bits per spike if every fourth training trial is held out and has the hidden neurons of
    the test trials (every fourth neuron if the test trials have none).
    """

    def predict(training: Sequences, test: Sequences) -> Answer:
        columns = np.isnan(frames(test)).all(0)
        columns = columns if columns.any() else np.arange(len(columns)) % every == every - 1
        t, y = list(training.times.t.split(training.lengths)), parts(training)
        inner = [i for i in range(len(y)) if i % every]
        outer = [i for i in range(len(y)) if i % every == 0]
        first, second = (Sequences([t[i] for i in some], [y[i] for i in some]) for some in (inner, outer))
        truth, rate = np.where(columns, frames(second), np.nan), frames(first).mean(0)
        held_out = hide(second, columns)
        bits = {
            name: metrics.bits_per_spike(truth, one(first, held_out).mean, rate) for name, one in candidates.items()
        }
        return candidates[max(bits, key=bits.__getitem__)](training, test)

    return predict


def mean_rate(training: Sequences, test: Sequences) -> Answer:
    """The mean count of each neuron."""
    return Answer(np.tile(frames(training).mean(0), (test.num_frames, 1)))


def time_mean(training: Sequences, test: Sequences) -> Answer:
    """The mean count of each neuron at each time of a trial, smoothed."""
    mean = np.mean(smoothed(parts(training), 1.0), 0)
    return Answer(np.tile(mean, (test.num_sequences, 1)))


def smoothed_counts(training: Sequences, test: Sequences, width: float = 3.0) -> Answer:
    """The smoothed counts themselves, for decoding; hidden neurons get their mean rates."""
    train, new = (np.concatenate(smoothed(parts(data), width)) for data in (training, test))
    return Answer(np.where(np.isnan(new), train.mean(0), new), training_mean=train)


def condition_mean(condition: np.ndarray, new: np.ndarray, width: float = 3.0) -> Predictor:
    """An oracle: the mean over the training trials of the same condition, smoothed."""

    def predict(training: Sequences, test: Sequences) -> Answer:
        rates = np.stack(smoothed(parts(training), width))
        return Answer(np.concatenate([rates[condition == one].mean(0) for one in new]))

    return predict


def trial_weights(temper: float, shrink: float, width: float = 4.0, width_rates: float = 2.0) -> Predictor:
    """Means of whole training trials, weighted by how well their smoothed counts explain the observed neurons.

    :param temper: power of the Poisson likelihood: neurons and bins are not independent given a trial.
    :param shrink: the weight of the mean rate, relative to the trial's own counts.
    :param width: of the smoothing of counts that have to explain the observed ones.
    :param width_rates: of the smoothing of counts that are averaged.
    """

    def predict(training: Sequences, test: Sequences) -> Answer:
        counts, new = np.stack(parts(training)), np.stack(parts(test))
        rates, own = (np.stack(smoothed(list(counts), one)) for one in (width_rates, width))
        model = (own + shrink * counts.mean((0, 1)) + _LEAST) / (1.0 + shrink)
        seen = ~np.isnan(new).all((0, 1))

        def mixed(y: np.ndarray, leave_out: bool) -> np.ndarray:
            fit = np.tensordot(y[..., seen], np.log(model[..., seen]), ((1, 2), (1, 2))) - model[..., seen].sum((1, 2))
            if leave_out:  # a training trial must not explain itself
                np.fill_diagonal(fit, -np.inf)
            weight = np.exp(temper * (fit - fit.max(1, keepdims=True)))
            weight /= weight.sum(1, keepdims=True)
            return np.tensordot(weight, rates, 1).reshape(-1, rates.shape[2])

        return Answer(mixed(new, False), training_mean=mixed(counts, True))

    return predict


def ridge(penalty: float, width: float = 3.0) -> Predictor:
    """Ridge regression of counts on square roots of the smoothed counts of the observed neurons, both relative to their
    means at each time of a trial.
    """

    def predict(training: Sequences, test: Sequences) -> Answer:
        x, z, base = _inputs(training, test, width)
        y = frames(training)
        centre = np.tile(base, (training.num_sequences, 1))
        weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (y - centre))
        return Answer(z @ weights + np.tile(base, (test.num_sequences, 1)))

    return predict


def poisson_regression(penalty: float, timed: bool = True) -> Predictor:
    """As :func:`ridge`, with a Poisson regression; the means at each time are an offset. Without ``timed`` inputs and
    offset do not depend on the time of the trial.
    """

    def predict(training: Sequences, test: Sequences) -> Answer:
        x, z, base = _inputs(training, test, 3.0, timed)
        offset = np.log(np.maximum(base, _LEAST))
        hidden = np.isnan(frames(test)).all(0)
        model = GLM.fit(
            x, frames(training)[:, hidden], "poisson", penalty, np.tile(offset[:, hidden], (training.num_sequences, 1))
        )
        mean = np.tile(base, (test.num_sequences, 1))
        mean[:, hidden] = model.predict(z, np.tile(offset[:, hidden], (test.num_sequences, 1))).numpy()
        return Answer(mean)

    return predict


def factor_analysis(num_factors: int, width: float = 2.0) -> Predictor:
    """Factor analysis of square roots of smoothed counts, with a Poisson regression of counts on the factors."""

    def predict(training: Sequences, test: Sequences) -> Answer:
        seen = ~np.isnan(frames(test)).all(0)
        x, z = (np.sqrt(np.concatenate(smoothed(parts(data), width)))[:, seen] for data in (training, test))
        centre = x.mean(0)
        loadings = _factor_weights(x - centre, num_factors)
        return read_out((x - centre) @ loadings, (z - centre) @ loadings, frames(training), 10.0)

    return predict


def gpfa(num_factors: int, penalty: float | None = 10.0) -> Predictor:
    """GPFA of square roots. With a penalty the factors get a Poisson regression of counts; with None the mean count is
    the squared mean of the square root plus its noise variance.
    """

    def predict(training: Sequences, test: Sequences) -> Answer:
        t, new_t = (list(data.times.t.split(data.lengths)) for data in (training, test))
        model = GPFA.fit(t, [np.sqrt(part) for part in parts(training)], num_factors, _EM_STEPS)
        columns = np.isnan(frames(test)).all(0)
        roots = [np.sqrt(np.where(columns, np.nan, part)) for part in parts(training)]  # as much as of the test trials
        x, z = (
            torch.cat(list(model.latent(times, y))).numpy()
            for times, y in ((t, roots), (new_t, [np.sqrt(part) for part in parts(test)]))
        )
        if penalty is not None:
            return read_out(x, z, frames(training), penalty)
        mean = np.maximum(z @ model.loadings.numpy().T + model.offset.numpy(), 0.0) ** 2 + model.noise.numpy()
        return Answer(mean, latent=z, training_latent=x)

    return predict


def read_out(x: np.ndarray, z: np.ndarray, counts: np.ndarray, penalty: float) -> Answer:
    """Rates by Poisson regression of training counts (N, D) on latents x (N, Q), for new latents z."""
    scale = x.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    model = GLM.fit(x / scale, counts, "poisson", penalty)
    mean, own = (model.predict(values / scale).numpy() for values in (z, x))
    return Answer(mean, latent=z, training_mean=own, training_latent=x)


def _inputs(
    training: Sequences, test: Sequences, width: float, timed: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of both, relative to the means at each time, and the mean counts at each time (n, D)."""
    seen = ~np.isnan(frames(test)).all(0)
    x, z = (np.sqrt(np.stack(smoothed(parts(data), width)))[..., seen] for data in (training, test))
    base = np.mean(smoothed(parts(training), 1.0), 0)
    middle = x.mean(0)
    if not timed:
        base, middle = (np.broadcast_to(value.mean(0), value.shape) for value in (base, middle))
    return (x - middle).reshape(-1, x.shape[2]), (z - middle).reshape(-1, x.shape[2]), base


def _factor_weights(x: np.ndarray, num_factors: int) -> np.ndarray:
    """Weights (D, Q) of the posterior means of factor analysis of centred x (N, D), by EM."""
    covariance = x.T @ x / len(x)
    own = np.diag(covariance)
    values, vectors = np.linalg.eigh(covariance)
    loadings = vectors[:, -num_factors:] * np.sqrt(np.maximum(values[-num_factors:], 0.0))
    noise = np.maximum(own - (loadings**2).sum(1), 0.1 * own) + 1e-6

    def posterior() -> tuple[np.ndarray, np.ndarray]:
        weighted = loadings / noise[:, None]
        spread = np.linalg.inv(np.eye(loadings.shape[1]) + weighted.T @ loadings)
        return weighted @ spread, spread

    for _ in range(_EM_STEPS):
        weights, spread = posterior()
        cross = covariance @ weights
        loadings = cross @ np.linalg.inv(spread + weights.T @ cross)
        noise = np.maximum(own - (loadings * cross).sum(1), 1e-3 * own) + 1e-6
    return posterior()[0]


def grid(make: Callable[..., Predictor], **choices: Sequence[float]) -> Predictor:
    """The best of all combinations of settings, see :func:`best_of`."""
    settings: list[dict[str, float]] = [{}]
    for name, values in choices.items():
        settings = [one | {name: value} for one in settings for value in values]
    return best_of({str(one): make(**one) for one in settings})
