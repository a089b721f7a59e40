# SPDX-License-Identifier: Apache-2.0
"""What the experiments on counts ask of a predictor, and the scores of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from pyro_vgpds import metrics
from pyro_vgpds.data.parts import make_like, split_outputs
from pyro_vgpds.data.sequences import Sequences

__all__ = ["Answer", "Predictor", "exposed", "frames", "parts", "score", "times"]


@dataclass(frozen=True)
class Answer:
    """Predictions for the N frames of test sequences, one sequence after the other.

    Only ``mean`` is required. The means of entries that were observed are used for decoding, so they are the model's,
    not the observed values.
    """

    mean: np.ndarray  #: (N, D), mean of each output
    log_prob: Callable[[np.ndarray], np.ndarray] | None = None
    """A function of the truth (N, D), with NaN, that returns the log-probability of each entry in the predictor's own
    predictive distribution. Default: Poisson of the mean."""
    latent: np.ndarray | None = None  #: (N, Q), latent means
    training_mean: np.ndarray | None = None  #: the same for the frames of the training sequences
    training_latent: np.ndarray | None = None  #: the same for the frames of the training sequences


#: a function of the training sequences and of test sequences, in which NaN is to be predicted
Predictor: TypeAlias = Callable[[Sequences, Sequences], Answer]


def score(truth: np.ndarray, answer: Answer, floor: float) -> dict[str, float]:
    """Scores of the entries of the truth (N, D) that are not NaN.

    ``Poisson score`` is the mean log-probability under a Poisson distribution with the predicted mean, at least
    ``floor``; ``log score`` is that of the predictor's own distribution.
    """
    poisson = metrics.poisson_log_prob(truth, answer.mean, floor)
    own = poisson if answer.log_prob is None else answer.log_prob(truth)
    return {
        "Poisson score": metrics.log_score(truth, poisson),
        "log score": metrics.log_score(truth, own),
        "RMSE": metrics.mse(truth, answer.mean) ** 0.5,
    }


def frames(data: Sequences) -> np.ndarray:
    """All frames (N, D), NaN if missing."""
    return data.read().to("cpu").double().numpy()


def times(data: Sequences) -> list[np.ndarray]:
    """The times of each sequence, (n,)."""
    return [t.numpy() for t in data.times.t.split(data.lengths)]


def parts(data: Sequences) -> list[np.ndarray]:
    """The frames of each sequence, (n, D)."""
    return np.split(frames(data), np.cumsum(data.lengths)[:-1])


def exposed(data: Sequences, exposure: np.ndarray) -> Sequences:
    """The same sequences with an exposure (D,) of each output."""
    return make_like(data, *split_outputs(data), exposure=torch.as_tensor(exposure).to(data.y))
