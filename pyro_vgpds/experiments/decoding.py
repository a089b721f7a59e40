# SPDX-License-Identifier: Apache-2.0
"""Ridge regression of a signal, such as the velocity of a hand, on latents or rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["decode", "r_squared"]

_FOLDS = 5
_PENALTIES = tuple(10.0**power for power in range(-2, 6))


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
