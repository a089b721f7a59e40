# SPDX-License-Identifier: Apache-2.0
"""Scores of predictive distributions, in particular of counts and of yes/no outputs."""

from __future__ import annotations

import math

import numpy as np
import torch

from pyro_vgpds.checks import as_numbers, check_number, check_probability, check_seed
from pyro_vgpds.metrics.errors import check_entries, compare, read_truth
from pyro_vgpds.types import ArrayLike

__all__ = [
    "bits_per_spike", "brier_score", "discrete_coverage", "log_score", "poisson_log_prob", "randomized_pit",
    "sample_cdf",
]  # fmt: skip

FLOOR = 1e-4  #: least mean count of a prediction


def log_score(truth: ArrayLike, log_prob: ArrayLike) -> float:
    """Mean log predictive density or probability of the observed entries, in nats per entry. Higher is better.

    It is minus infinity if an observed value was predicted to be impossible.

    :param truth: an array or tensor of any shape; entries that are NaN are ignored.
    :param log_prob: logarithm of the density (or of the probability) of each entry of the truth, of the same shape.
    :raises ValueError: if shapes differ, the truth is all NaN, or ``log_prob`` is NaN or infinite (except minus
        infinity) where the truth is not NaN.

    >>> import numpy as np
    >>> from pyro_vgpds.metrics import log_score
    >>> round(log_score([1.0, 0.0, np.nan], np.log([0.5, 0.25, 0.9])), 4)
    -1.0397
    """
    counts, true = read_truth(truth)
    value = as_numbers("log_prob", log_prob)
    if value.shape != true.shape:
        raise ValueError(f"log_prob must have the shape of truth, {true.shape}, but got {value.shape}.")
    check_entries("log_prob", value, ~counts | (value < np.inf), "a number or minus infinity where truth is not NaN")
    return float(np.mean(value[counts]))


def poisson_log_prob(truth: ArrayLike, mean: ArrayLike, floor: float = FLOOR) -> np.ndarray:
    r"""Log-probability of each count under a Poisson distribution, :math:`y \log m - m - \log y!`.

    :param truth: counts, an array or tensor of any shape; NaN stays NaN.
    :param mean: predicted means, of the same shape.
    :param floor: smaller means are replaced by this number.
    :returns: float64, of the same shape.
    :raises ValueError: if shapes differ, the truth is all NaN or not counts, means are not finite where the truth is
        not NaN, or ``floor`` is not positive.

    >>> from pyro_vgpds.metrics import poisson_log_prob
    >>> poisson_log_prob([0.0, 2.0], [1.0, 1.0]).round(4).tolist()
    [-1.0, -1.6931]
    """
    counts, true, rate = compare(truth, mean=mean)
    _check_counts(true, counts)
    check_number("floor", floor, "positive", lambda value: value > 0)
    rate = np.maximum(np.where(counts, rate, 1.0), floor)
    return true * np.log(rate) - rate - torch.lgamma(torch.from_numpy(true + 1.0)).numpy()


def bits_per_spike(truth: ArrayLike, mean: ArrayLike, base_rate: ArrayLike, floor: float = FLOOR) -> float:
    r"""Bits per spike: by how much predicted means explain counts better than the mean rate of each neuron does,
    :math:`(L - L_0) / (n \ln 2)`, with L the Poisson log-likelihood of the predicted means, :math:`L_0` that of the
    base rates, and n the number of spikes.

    :param truth: counts (N, D); NaN is ignored.
    :param mean: predicted mean counts (N, D).
    :param base_rate: (D,), the mean count of each neuron in the training data.
    :param floor: smaller means and rates are replaced by this number.
    :raises ValueError: as :func:`poisson_log_prob`, and if ``truth`` is not (N, D) or has no spikes, or ``base_rate``
        is not (D,).

    >>> import numpy as np
    >>> from pyro_vgpds.metrics import bits_per_spike
    >>> truth = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> round(bits_per_spike(truth, 0.1 + 0.9 * truth, base_rate=[1.0, 1.0]), 4)
    0.926
    """
    counts, true = read_truth(truth)
    base = as_numbers("base_rate", base_rate)
    if not np.isfinite(base).all():
        raise ValueError("base_rate must be finite.")
    if true.ndim != 2 or base.shape != true.shape[1:]:
        raise ValueError(f"truth must be (N, D) and base_rate (D,), but got {true.shape} and {base.shape}.")
    gain = poisson_log_prob(true, mean, floor) - poisson_log_prob(true, np.broadcast_to(base, true.shape), floor)
    spikes = true[counts].sum()
    if spikes == 0:
        raise ValueError("truth must have at least one spike, but all observed counts are 0.")
    return float(gain[counts].sum() / (spikes * math.log(2.0)))


def brier_score(truth: ArrayLike, probability: ArrayLike) -> float:
    r"""Brier score of yes/no outputs, :math:`\frac1n \sum (p - y)^2`. Lower is better.

    :param truth: 0 or 1, an array or tensor of any shape; NaN is ignored.
    :param probability: the predicted probabilities of 1, of the same shape.
    :raises ValueError: if shapes differ, the truth is all NaN or has other values than 0 and 1, or a probability is not
        in [0, 1] where the truth is not NaN.

    >>> from pyro_vgpds.metrics import brier_score
    >>> brier_score([1.0, 0.0, float("nan")], [0.5, 0.0, 0.3])
    0.125
    """
    counts, true, guess = compare(truth, probability=probability)
    check_entries("truth", true, ~counts | (true == 0) | (true == 1), "0, 1 or NaN")
    check_entries("probability", guess, ~counts | ((guess >= 0) & (guess <= 1)), "in [0, 1]")
    return float(np.mean((guess - true)[counts] ** 2))


def randomized_pit(truth: ArrayLike, below: ArrayLike, at_most: ArrayLike, seed: int = 0) -> np.ndarray:
    r"""Randomised probability integral transform :math:`P(Y < y) + v P(Y = y)` with v uniform in [0, 1].

    If the predictive distributions are right, the result is uniform in [0, 1], for discrete outputs too.

    :param truth: an array or tensor of any shape; NaN stays NaN.
    :param below: :math:`P(Y < y)` for each entry y of the truth, of the same shape.
    :param at_most: :math:`P(Y \le y)`, of the same shape. :func:`sample_cdf` computes both from draws.
    :param seed: of the random numbers v.
    :returns: float64, of the same shape.
    :raises ValueError: if shapes differ, the truth is all NaN, or 0 <= below <= at_most <= 1 does not hold where the
        truth is not NaN.

    >>> from pyro_vgpds.metrics import randomized_pit
    >>> pit = randomized_pit([0.0, 1.0], below=[0.0, 0.25], at_most=[0.25, 1.0])
    >>> bool(0 <= pit[0] <= 0.25 <= pit[1] <= 1)
    True
    """
    check_seed(seed)
    counts, low, high = _read_cdf(truth, below, at_most)
    draws = np.random.default_rng(seed).random(low.shape)
    return np.where(counts, low + draws * (high - low), np.nan)


def discrete_coverage(truth: ArrayLike, below: ArrayLike, at_most: ArrayLike, probability: float = 0.95) -> float:
    """The expected share of the :func:`randomized_pit` in the central interval: near 0.95 for calibrated predictions.

    For a continuous output it equals :func:`~pyro_vgpds.metrics.coverage` of the central interval. An interval of whole
    numbers covers more than its nominal probability also if the distribution is right, this number does not. Nothing
    random is drawn: the mean over v is exact.

    :param truth: as in :func:`randomized_pit`.
    :param below: as in :func:`randomized_pit`.
    :param at_most: as in :func:`randomized_pit`.
    :param probability: of the central interval, in (0, 1).
    :raises ValueError: as :func:`randomized_pit`, and if ``probability`` is not in (0, 1).

    >>> from pyro_vgpds.metrics import discrete_coverage
    >>> round(discrete_coverage([0.0, 1.0], below=[0.0, 0.25], at_most=[0.25, 1.0], probability=0.5), 4)
    0.3333
    """
    check_probability(probability)
    counts, low, high = _read_cdf(truth, below, at_most)
    low, high = low[counts], high[counts]
    first, last = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
    width = high - low
    overlap = np.clip(np.minimum(high, last) - np.maximum(low, first), 0.0, None)
    inside = (low >= first) & (low <= last)  # of a continuous output, whose P(Y = y) is 0
    return float(np.mean(np.where(width > 0, overlap / np.where(width > 0, width, 1.0), inside)))


def sample_cdf(truth: ArrayLike, samples: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Estimates of P(Y < y) and P(Y <= y) from S draws, for :func:`randomized_pit` and :func:`discrete_coverage`.

    They are the rank of the truth among itself and the draws, over S + 1: if truth and draws are of the same
    distribution, the :func:`randomized_pit` of these is exactly uniform for any number of draws.

    :param truth: an array or tensor of any shape; NaN stays NaN.
    :param samples: draws (S, ...) of arrays of that shape.
    :returns: two arrays, float64, of the shape of the truth.
    :raises ValueError: if the truth is all NaN, ``samples`` has another shape or no draws, or a draw is NaN where the
        truth is not.

    >>> from pyro_vgpds.metrics import sample_cdf
    >>> below, at_most = sample_cdf([1.0], [[0.0], [1.0], [3.0]])
    >>> below.tolist(), at_most.tolist()
    ([0.25], [0.75])
    """
    counts, true = read_truth(truth)
    draws = as_numbers("samples", samples)
    if draws.shape[1:] != true.shape or draws.ndim != true.ndim + 1 or len(draws) == 0:
        shape = ", ".join(map(str, ("S", *true.shape)))
        raise ValueError(f"samples must be ({shape}) with S >= 1, as truth, but got {draws.shape}.")
    check_entries("samples", draws, ~counts | ~np.isnan(draws), "numbers where truth is not NaN")
    lower, higher = (draws < true).sum(0) / (len(draws) + 1), ((draws <= true).sum(0) + 1) / (len(draws) + 1)
    return np.where(counts, lower, np.nan), np.where(counts, higher, np.nan)


def _check_counts(true: np.ndarray, counts: np.ndarray) -> None:
    whole = (true >= 0) & (true == np.floor(true)) & np.isfinite(true)
    check_entries("truth", true, ~counts | whole, "counts 0, 1, 2, ... or NaN")


def _read_cdf(truth: ArrayLike, below: ArrayLike, at_most: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    counts, _, low, high = compare(truth, below=below, at_most=at_most)
    check_entries("below", low, ~counts | ((low >= 0) & (low <= 1)), "in [0, 1]")
    check_entries("at_most", high, ~counts | ((high >= low) & (high <= 1)), "in [below, 1]")
    return counts, low, high
