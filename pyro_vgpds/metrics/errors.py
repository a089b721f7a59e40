# SPDX-License-Identifier: Apache-2.0
"""Errors of predictions that are real numbers, and the checks of truth and prediction that all metrics share."""

from __future__ import annotations

import math

import numpy as np

from pyro_vgpds.checks import as_numbers
from pyro_vgpds.types import ArrayLike

__all__ = ["check_entries", "compare", "coverage", "first_entry", "mae", "mse", "nlpd", "ra", "read_truth", "sc"]


def mse(truth: ArrayLike, prediction: ArrayLike) -> float:
    r"""Mean squared error :math:`\frac1n \sum (y - \hat y)^2`.

    :param truth: an array or tensor of any shape; NaN is ignored.
    :param prediction: an array or tensor of the same shape.
    :raises ValueError: if shapes differ, the truth is all NaN, or the prediction is not finite where the truth is not
        NaN.

    >>> from pyro_vgpds.metrics import mse
    >>> mse([1.0, 2.0, float("nan")], [1.0, 4.0, 9.0])
    2.0
    """
    counts, true, guess = compare(truth, prediction=prediction)
    return float(np.mean((true - guess)[counts] ** 2))


def mae(truth: ArrayLike, prediction: ArrayLike) -> float:
    r"""Mean absolute error :math:`\frac1n \sum |y - \hat y|`. Arguments and errors as in :func:`mse`.

    >>> from pyro_vgpds.metrics import mae
    >>> mae([1.0, 2.0], [1.0, 4.0])
    1.0
    """
    counts, true, guess = compare(truth, prediction=prediction)
    return float(np.mean(np.abs(true - guess)[counts]))


def ra(truth: ArrayLike, prediction: ArrayLike) -> float:
    r"""RA of the paper's table 1: the root mean squared error of angles in radians, in degrees,
    :math:`\frac{180}{\pi} \sqrt{\mathrm{mse}}`. Arguments and errors as in :func:`mse`.

    >>> import math
    >>> from pyro_vgpds.metrics import ra
    >>> round(ra([0.0, 0.0], [math.pi / 2, math.pi / 2]), 6)
    90.0
    """
    return math.degrees(math.sqrt(mse(truth, prediction)))


def sc(truth: ArrayLike, prediction: ArrayLike, scale: ArrayLike) -> float:
    r"""SC of the paper's table 1, the error of Taylor, Hinton and Roweis: squared errors in degrees, each angle times
    its scale, summed over the rows and averaged over the angles,
    :math:`\frac1d \sum_{nj} (\frac{180}{\pi} s_j (y_{nj} - \hat y_{nj}))^2`.

    :param truth: angles (N, d) in radians; NaN is ignored, and so are columns that are all NaN.
    :param prediction: angles (N, d) in radians.
    :param scale: (d,), one for each angle.
    :raises ValueError: as :func:`mse`, and if ``truth`` is not (N, d) or ``scale`` is not (d,).

    >>> import numpy as np
    >>> from pyro_vgpds.metrics import sc
    >>> round(sc(np.zeros((3, 2)), np.radians([[1.0, 2.0]] * 3), scale=[1.0, 0.5]), 6)
    3.0
    """
    counts, true, guess = compare(truth, prediction=prediction)
    weight = as_numbers("scale", scale)
    if true.ndim != 2 or weight.shape != true.shape[1:]:
        raise ValueError(f"truth must be (N, d) and scale (d,), but got {true.shape} and {weight.shape}.")
    error = np.where(counts, np.degrees(true - guess), 0.0) * weight
    return float((error**2).sum() / counts.any(0).sum())


def coverage(truth: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> float:
    """The fraction of the truth within [lower, upper]: near 0.95 for calibrated 95 % intervals.

    :param truth: an array or tensor of any shape; NaN is ignored.
    :param lower: lower ends, of the same shape.
    :param upper: upper ends, of the same shape.
    :raises ValueError: as :func:`mse`, and if a lower end is above its upper end.

    >>> from pyro_vgpds.metrics import coverage
    >>> coverage([0.0, 1.0, 2.0, 3.0], lower=[-1.0, 0.0, 0.0, 0.0], upper=[1.0, 2.0, 1.0, 4.0])
    0.75
    """
    counts, true, low, high = compare(truth, lower=lower, upper=upper)
    if (low > high)[counts].any():
        raise ValueError("lower must not be greater than upper.")
    return float(np.mean(((low <= true) & (true <= high))[counts]))


def nlpd(truth: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    r"""Mean negative log predictive density of independent Gaussians, in nats per entry,
    :math:`\frac1n \sum \frac12 (\log 2\pi v + (y - m)^2 / v)`. Lower is better.

    :param truth: an array or tensor of any shape; NaN is ignored.
    :param mean: predictive means, of the same shape.
    :param variance: predictive variances, noise included, of the same shape.
    :raises ValueError: as :func:`mse`, and if a variance is not positive.

    >>> from pyro_vgpds.metrics import nlpd
    >>> round(nlpd([0.0], mean=[1.0], variance=[1.0]), 4)
    1.4189
    """
    counts, true, centre, spread = compare(truth, mean=mean, variance=variance)
    if (spread <= 0)[counts].any():
        raise ValueError("variance must be positive where truth is not NaN.")
    true, centre, spread = true[counts], centre[counts], spread[counts]
    return float(np.mean(0.5 * (np.log(2 * np.pi * spread) + (true - centre) ** 2 / spread)))


def read_truth(truth: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The mask of entries that are not NaN, and the truth. Raises a ValueError if all are NaN."""
    true = as_numbers("truth", truth)
    counts = ~np.isnan(true)
    if not counts.any():
        raise ValueError("truth must have entries that are not NaN, but it is empty or all NaN.")
    return counts, true


def compare(truth: ArrayLike, **others: ArrayLike) -> tuple[np.ndarray, ...]:
    """The mask of entries that are not NaN in the truth, the truth, and the others, after checks."""
    counts, true = read_truth(truth)
    arrays = []
    for name, value in others.items():
        array = as_numbers(name, value)
        if array.shape != true.shape:
            raise ValueError(f"{name} must have the shape of truth, {true.shape}, but got {array.shape}.")
        if not np.isfinite(array[counts]).all():
            raise ValueError(f"{name} must be finite where truth is not NaN.")
        arrays.append(array)
    return counts, true, *arrays


def first_entry(bad: np.ndarray) -> tuple[int, ...]:
    """The indices of the first entry that is true."""
    return tuple(int(i) for i in np.argwhere(bad)[0])


def check_entries(name: str, values: np.ndarray, good: np.ndarray, wanted: str) -> None:
    """Raise a ValueError that names the first entry that is not good."""
    if not good.all():
        place = first_entry(~good)
        raise ValueError(f"{name} must be {wanted}, but entry {place} is {values[place]:g}.")
