# SPDX-License-Identifier: Apache-2.0
"""Errors of predictions. Truth and prediction are arrays or tensors of one shape; NaN in the truth does not count."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

__all__ = ["coverage", "mae", "mse", "nlpd", "ra", "sc"]


def mse(truth: Any, prediction: Any) -> float:
    """Mean squared error.

    :raises ValueError: where shapes differ, nothing in the truth counts, or a prediction that counts is not finite.
    """
    counts, true, guess = _compare(truth, prediction=prediction)
    return float(np.mean((true - guess)[counts] ** 2))


def mae(truth: Any, prediction: Any) -> float:
    """Mean absolute error. Raises as :func:`mse`."""
    counts, true, guess = _compare(truth, prediction=prediction)
    return float(np.mean(np.abs(true - guess)[counts]))


def ra(truth: Any, prediction: Any) -> float:
    """RA of the paper's table 1: the root of the mean squared error of angles in radians, in degrees.

    Raises as :func:`mse`.
    """
    return math.degrees(math.sqrt(mse(truth, prediction)))


def sc(truth: Any, prediction: Any, scale: Any) -> float:
    """SC of the paper's table 1, the error of Taylor, Hinton and Roweis: squared errors in degrees, each angle by its
    scale, summed over the rows and averaged over the angles.

    :param truth: angles (N, d) in radians; NaN does not count, nor does a column that is all NaN.
    :param scale: (d,), one for each angle.
    :raises ValueError: as :func:`mse`, and where ``truth`` is not (N, d) or ``scale`` not (d,).
    """
    counts, true, guess = _compare(truth, prediction=prediction)
    weight = _array(scale)
    if true.ndim != 2 or weight.shape != true.shape[1:]:
        raise ValueError(f"truth must be (N, d) and scale (d,), but got {true.shape} and {weight.shape}.")
    error = np.where(counts, np.degrees(true - guess), 0.0) * weight
    return float((error**2).sum() / counts.any(0).sum())


def coverage(truth: Any, lower: Any, upper: Any) -> float:
    """The share of the truth that lies within [lower, upper]: near 0.95 for honest central intervals of 95 %.

    :raises ValueError: as :func:`mse`, and where a lower end is above its upper end.
    """
    counts, true, low, high = _compare(truth, lower=lower, upper=upper)
    if (low > high)[counts].any():
        raise ValueError("lower must not be above upper.")
    return float(np.mean(((low <= true) & (true <= high))[counts]))


def nlpd(truth: Any, mean: Any, variance: Any) -> float:
    """Mean negative log predictive density of independent Gaussians, in nats an entry. Lower is better.

    :param variance: of the outputs, noise included.
    :raises ValueError: as :func:`mse`, and where a variance is not positive.
    """
    counts, true, centre, spread = _compare(truth, mean=mean, variance=variance)
    if (spread <= 0)[counts].any():
        raise ValueError("variance must be positive wherever the truth counts.")
    true, centre, spread = true[counts], centre[counts], spread[counts]
    return float(np.mean(0.5 * (np.log(2 * np.pi * spread) + (true - centre) ** 2 / spread)))


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)


def _compare(truth: Any, **others: Any) -> tuple[np.ndarray, ...]:
    """Which entries count, the truth, and the others, after a check that they fit."""
    true = _array(truth)
    counts = ~np.isnan(true)
    if not counts.any():
        raise ValueError("truth has nothing to compare with: it is empty or all NaN.")
    arrays = []
    for name, value in others.items():
        array = _array(value)
        if array.shape != true.shape:
            raise ValueError(f"{name} must have the shape of truth, {true.shape}, but got {array.shape}.")
        if not np.isfinite(array[counts]).all():
            raise ValueError(f"{name} is not finite where the truth counts.")
        arrays.append(array)
    return counts, true, *arrays
