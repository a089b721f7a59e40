# SPDX-License-Identifier: Apache-2.0
"""Weekly influenza cases: predict a random fifth of the counts, and eight weeks ahead from rolling origins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from pyro_vgpds import baselines, datasets
from pyro_vgpds.baselines.count_factors import NegativeBinomialFactors
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.datasets.discrete import CaseCounts
from pyro_vgpds.experiments.answer import Answer, Predictor, exposed, frames, score
from pyro_vgpds.experiments.count_models import CountModel, ahead_of_square_roots, gaussian_square_roots
from pyro_vgpds.experiments.recipe import Recipe
from pyro_vgpds.experiments.record import Folder, compare
from pyro_vgpds.likelihoods import NegativeBinomial
from pyro_vgpds.selection.api import auto

__all__ = ["AHEAD", "IMPUTERS", "forecast_cases", "predict_hidden", "run"]

_FLOOR = 1e-3  # least mean count
_HIDDEN = 0.2
_HORIZON = 8  # weeks
_SWEEPS = 50
_YEAR = 52  # weeks
_DISPERSIONS = np.exp(np.linspace(-5.0, 5.0, 201))  # that are compared
#: first weeks of the forecasts: the window from week 260, the last eight weeks, and others between them
ORIGINS = (260, *range(280, 409, 16))
#: makes a predictor from the exposure (D,)
Maker: TypeAlias = Callable[[np.ndarray], Predictor]
Measure: TypeAlias = Callable[[CaseCounts, int, Predictor], dict[str, float]]
RECIPE = Recipe("matern32", latent_dim=6, num_inducing=40, num_steps=100)


def district_mean(training: Sequences, test: Sequences) -> Answer:
    """The mean of each district."""
    return Answer(np.tile(np.nanmean(frames(training), 0), (test.num_frames, 1)))


def in_time(training: Sequences, test: Sequences) -> Answer:
    """Straight lines between the weeks around, or the last count."""
    return Answer(_filled(baselines.linear_interpolation(test.times.t, _without_empty(test))))


def square_root_components(training: Sequences, test: Sequences) -> Answer:
    """Probabilistic PCA of square roots."""
    return Answer(np.maximum(_filled(baselines.ppca(test.times.t, np.sqrt(_without_empty(test)))), 0.0) ** 2)


def separate_gps(training: Sequences, test: Sequences) -> Answer:
    """A Gaussian process of time for the square roots of each district."""
    roots = np.sqrt(_without_empty(test))
    found = baselines.gp_interpolation(test.times.t, roots, return_variance=True)
    mean, variance = (_filled(part) for part in found)
    return Answer(mean**2 + variance)


def district_by_week(training: Sequences, test: Sequences) -> Answer:
    """The product of a number for each district and one for each week, by maximum likelihood of Poisson counts.

    Weeks without any count get the mean of the same week in earlier years.
    """
    y = frames(test)
    seen, filled = ~np.isnan(y), np.nan_to_num(y)
    week = np.ones(len(y))
    district = np.ones(y.shape[1])
    for _ in range(_SWEEPS):
        district = filled.sum(0) / np.maximum((seen * week[:, None]).sum(0), 1e-9)
        week = filled.sum(1) / np.maximum((seen * district).sum(1), 1e-9)
    return Answer(_same_week(week, seen.any(1))[:, None] * district)


def same_week(training: Sequences, test: Sequences) -> Answer:
    """The mean of each district in the same week of earlier years, with the neighbouring weeks."""
    y = frames(training)
    mean = np.stack([np.nanmean(y[_near(n, len(y))], 0) for n in range(test.num_frames)])
    return Answer(mean)


def with_dispersion(predict_mean: Predictor) -> Predictor:
    """The means of a predictor of weeks ahead, with a negative binomial distribution of the counts.

    Its dispersion has the highest likelihood for the weeks after earlier origins, predicted from the weeks before them.
    """

    def predict(training: Sequences, test: Sequences) -> Answer:
        t, y, answer = training.times.t.numpy(), frames(training), predict_mean(training, test)
        means, counts = [], []
        for origin in range(2 * _YEAR, len(y) - _HORIZON + 1, _HORIZON):
            stop = origin + _HORIZON
            hidden = np.where(np.arange(stop)[:, None] >= origin, np.nan, y[:stop])
            before = predict_mean(Sequences(t[:origin], y[:origin]), Sequences(t[:stop], hidden))
            means.append(before.mean[origin:])
            counts.append(y[origin:stop])
        if not means:
            return answer
        mean, count = np.concatenate(means), np.concatenate(counts)
        best = max(_DISPERSIONS, key=lambda r: np.nansum(_negative_binomial(count, mean, r)))
        return Answer(answer.mean, lambda truth: _negative_binomial(truth, answer.mean, best))

    return predict


def negative_binomial_factors(exposure: np.ndarray) -> Predictor:
    """A negative-binomial factor model with AR(1) factors, by MAP."""

    def predict(training: Sequences, test: Sequences) -> Answer:
        model = NegativeBinomialFactors.fit(
            test.times.t, frames(test), num_factors=5, persistence=0.95, exposure=exposure
        )
        return Answer(model.mean.numpy(), lambda truth: model.log_prob(truth).numpy(), model.path.numpy())

    return predict


def automatic(exposure: np.ndarray) -> Predictor:
    """The weeks ahead by :func:`~pyro_vgpds.auto`: a pool of models and baselines."""

    def predict(training: Sequences, test: Sequences) -> Answer:
        known = training.num_frames
        data = exposed(training, exposure)
        found = auto(data, "forecast", likelihood="negative-binomial", horizon=test.num_frames - known, processes=1)
        ahead, before = found.forecast(test.times.t[known:], sequence=0), np.full((known, len(exposure)), np.nan)
        return Answer(
            np.concatenate([before, ahead.mean.numpy()]),
            lambda truth: np.concatenate([before, ahead.log_probs(torch.from_numpy(truth[known:])).numpy()]),
        )

    return predict


#: makes the predictor of a name from the exposure (D,), for hidden entries. Add your own here
IMPUTERS: dict[str, Maker] = {
    "district mean": lambda exposure: district_mean,
    "linear in time": lambda exposure: in_time,
    "district x week": lambda exposure: district_by_week,
    "PPCA of square roots": lambda exposure: square_root_components,
    "one GP for each district, square roots": lambda exposure: separate_gps,
    "negative-binomial factors, AR(1)": negative_binomial_factors,
    "Gaussian VGPDS of square roots": lambda exposure: gaussian_square_roots(RECIPE),
    "negative-binomial VGPDS": lambda exposure: CountModel(NegativeBinomial, exposure=exposure).predict,
}
#: the same for weeks ahead, which the test sequence has in addition to those of the training sequence
AHEAD: dict[str, Maker] = {
    "district mean": lambda exposure: district_mean,
    "last week": lambda exposure: in_time,
    "same week of earlier years": lambda exposure: with_dispersion(same_week),
    "one GP for each district, square roots": lambda exposure: separate_gps,
    "district x week": lambda exposure: with_dispersion(district_by_week),
    "negative-binomial factors, AR(1)": negative_binomial_factors,
    "Gaussian VGPDS of square roots": lambda exposure: ahead_of_square_roots(RECIPE),
    "negative-binomial VGPDS": lambda exposure: CountModel(NegativeBinomial, exposure=exposure).forecast,
    "auto: pool with VGPDS": automatic,
}


def predict_hidden(data: CaseCounts, seed: int, predictor: Predictor) -> dict[str, float]:
    """Scores of a random fifth of the counts. Training and test sequences are the same object."""
    y = data.y[0]
    hidden = np.random.default_rng(seed).random(y.shape) < _HIDDEN
    given = Sequences(_times(data), np.where(hidden, np.nan, y), columns=data.columns)
    start = time.process_time()
    answer = predictor(given, given)
    seconds = time.process_time() - start
    return {**score(np.where(hidden, y, np.nan), answer, _FLOOR), "seconds": seconds}


def forecast_cases(data: CaseCounts, origin: int, predictor: Predictor) -> dict[str, float]:
    """Scores of the eight weeks from ``origin``, predicted from the weeks before it."""
    stop = origin + _HORIZON
    t, y = _times(data)[:stop], data.y[0][:stop]
    is_ahead = np.arange(stop)[:, None] >= origin
    training = Sequences(t[:origin], y[:origin], columns=data.columns)
    start = time.process_time()
    answer = predictor(training, Sequences(t, np.where(is_ahead, np.nan, y), columns=data.columns))
    seconds = time.process_time() - start
    return {**score(np.where(is_ahead, y, np.nan), answer, _FLOOR), "seconds": seconds}


def _times(data: CaseCounts) -> np.ndarray:
    """The dates of the weeks, if the data have them: with a calendar the models know what a year is."""
    return (data.t if data.dates is None else data.dates)[0]


def run(name: str, folder: Folder, seeds: int | None, quick: bool, source: Mapping[str, Any]) -> None:
    """The tables of hidden counts and of forecasts."""
    data = datasets.load_flu(**source)
    last = len(data.t[0]) - _HORIZON
    origins = sorted({min(origin, last) for origin in ORIGINS})
    settings = {"recipe": RECIPE.settings(), "shape": data.y[0].shape}
    tasks: list[tuple[str, Mapping[str, Maker], Measure, Sequence[int]]] = [
        ("a fifth hidden", IMPUTERS, predict_hidden, range(seeds or 5)),
        ("eight weeks ahead", AHEAD, forecast_cases, origins[-1:] if quick else origins),
    ]
    texts = []
    results: dict[str, Any] = {}
    for title, predictors, measure, cases in tasks:
        methods = {
            label: partial(_measure, measure, data, make)
            for label, make in predictors.items()
            if not (quick and "VGPDS" in label)
        }
        text, results[title] = compare(folder, title, methods, cases, settings)
        texts.append(text)
    texts.append(
        "Poisson score: log-probability of an entry under a Poisson distribution with the predicted mean, in nats; log "
        "score: under the predictor's own distribution. Mean and standard deviation over seeds or origins."
    )
    folder.publish(name, "\n\n".join(texts), results)


def _measure(measure: Measure, data: CaseCounts, make: Maker, case: int) -> dict[str, float]:
    return measure(data, case, make(data.exposure))


def _without_empty(data: Sequences) -> np.ndarray:
    """The counts, with a 0 for columns that were never observed, which imputers refuse."""
    y = frames(data).copy()
    y[0, np.isnan(y).all(0)] = 0.0
    return y


def _filled(values: torch.Tensor | list[torch.Tensor]) -> np.ndarray:
    return (torch.cat(values) if isinstance(values, list) else values).numpy()


def _negative_binomial(count: np.ndarray, mean: np.ndarray, dispersion: float) -> np.ndarray:
    """Log-probabilities of counts, NaN for those that are."""
    rate = torch.from_numpy(np.maximum(mean, _FLOOR))
    distribution = torch.distributions.NegativeBinomial(dispersion, logits=(rate / dispersion).log())
    found = distribution.log_prob(torch.from_numpy(np.nan_to_num(count))).numpy()
    return np.where(np.isnan(count), np.nan, found)


def _near(n: int, known: int) -> np.ndarray:
    """Known weeks at a distance of at most one from week n of earlier years; all weeks if no such week is known."""
    distance = (np.arange(known) - n + _YEAR // 2) % _YEAR - _YEAR // 2
    near = np.flatnonzero((np.abs(distance) <= 1) & (np.arange(known) < n - 2))
    return near if len(near) else np.arange(known)


def _same_week(week: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Weeks without counts replaced by the mean of the same week in earlier years."""
    found = week.copy()
    for n in np.flatnonzero(~known):
        near = [i for i in _near(int(n), len(week)) if known[i]]
        found[n] = week[near].mean() if near else week[known].mean()
    return found
