# SPDX-License-Identifier: Apache-2.0
"""Regression of hidden entries on the observed entries of the same and of neighbouring frames."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import FilledPair, Gaps
from pyro_vgpds.checks import check_flags, check_list, check_number, is_whole
from pyro_vgpds.data.filling import regress_windows
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["check_lags", "choose_penalty", "ridge_regression"]

_LAGS: tuple[tuple[int, ...], ...] = ((-2, -1, 1, 2), (-1, 1), ())  # defaults: the first that is small enough
_ENTRIES = 400  # entries of a window with the default lags
_MOST = 2000  # entries of a window that are possible: matrices have this size
_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_HELD_OUT = 0.1  # fraction of the observed entries, if the missing entries are no model for held-out ones


def ridge_regression(
    t: DataLike | Sequences,
    y: DataLike | None = None,
    lags: Sequence[int] | None = None,
    penalty: float | None = None,
    return_variance: bool = False,
) -> FilledPair:
    """Fill by linear regression on all observed entries of the same frame and of neighbouring frames.

    The frames in a window around each frame are one Gaussian vector. Its covariance is estimated by EM, initialised by
    linear interpolation, with a prior that counts as ``penalty`` N frames of independent outputs with their own
    variances. Hidden entries get their conditional means. Times are used only for the order of frames. If nothing is
    observed in the window, the result is the mean.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param lags: neighbours in the window, as differences of frame numbers other than 0. D (1 + number of lags) is at
        most 2000. Default: (-2, -1, 1, 2), or (-1, 1), or none, so that this number is at most 400 if possible.
    :param penalty: positive. Default: the best of 10⁻⁴, 10⁻³, ..., 1 for held-out observed entries, in the pattern of
        the missing entries shifted by half of each sequence.
    :param return_variance: also return the predictive variances, zero for observed entries.
    :returns: float64 (N, D) without NaN, or a list of them; with ``return_variance`` a pair of those.
    :raises ValueError: as ``Sequences``; if a column was never observed, lags are not distinct and different from 0,
        ``penalty`` is not positive, or the window has more than 2000 entries.

    >>> import numpy as np
    >>> from pyro_vgpds.baselines import ridge_regression
    >>> y = np.outer(np.sin(np.arange(40.0)), [1.0, 2.0, 3.0])
    >>> y[4, 1] = np.nan
    >>> round(ridge_regression(np.arange(40.0), y)[4, 1].item(), 2)  # twice the sine of 4
    -1.51
    """
    check_flags(return_variance=return_variance)
    gaps = Gaps(t, y)
    num_outputs = gaps.y.shape[1]
    lags = _default_lags(num_outputs) if lags is None else lags
    check_lags(lags)
    if num_outputs * (1 + len(lags)) > _MOST:
        raise ValueError(
            f"{num_outputs} outputs with {len(lags)} lags are windows of {num_outputs * (1 + len(lags))} entries, more "
            f"than {_MOST}: use fewer lags, or ppca for many outputs."
        )
    if penalty is not None:
        check_number("penalty", penalty, "positive", lambda value: value > 0.0)
    if penalty is None:
        penalty = _choose(gaps, lags)
    mean, variance = regress_windows(_scaled(gaps), gaps.seen, gaps.t, gaps.rows, lags, penalty)
    return gaps.fill_pair(mean * gaps.spread + gaps.means, variance * gaps.spread.square(), return_variance)


def choose_penalty(data: Sequences) -> float:
    """The penalty that :func:`ridge_regression` chooses for sequences, with the default lags."""
    gaps = Gaps(data)
    return _choose(gaps, _default_lags(gaps.y.shape[1]))


def _default_lags(num_outputs: int) -> Sequence[int]:
    return next((lags for lags in _LAGS if num_outputs * (1 + len(lags)) <= _ENTRIES), ())


def _scaled(gaps: Gaps) -> Tensor:
    """The outputs with mean 0 and variance 1."""
    return (gaps.y - gaps.means) / gaps.spread


def check_lags(lags: Sequence[int]) -> None:
    """Raise a ValueError if lags are not distinct integers other than 0."""
    check_list("lags", lags, "a list of whole numbers")
    if not all(is_whole(lag) and abs(lag) < 2**31 for lag in lags) or 0 in lags or len(set(lags)) < len(lags):
        raise ValueError(f"lags must be distinct whole numbers other than 0, but got {tuple(lags)}.")


def _choose(gaps: Gaps, lags: Sequence[int]) -> float:
    y = _scaled(gaps)
    hidden = torch.cat([(~seen).roll(len(seen) // 2, 0) for _, _, _, seen in gaps.sequences()]) & gaps.seen
    if not bool(hidden.any()):
        generator = torch.Generator().manual_seed(0)
        hidden = gaps.seen & (torch.rand(y.shape, generator=generator, dtype=y.dtype) < _HELD_OUT)
    hidden &= (gaps.seen & ~hidden).any(0)  # never hide all of a column
    if not bool(hidden.any()) or bool(gaps.seen.all()):
        return _PENALTIES[-1]
    seen = gaps.seen & ~hidden

    @cache
    def error(number: int) -> float:
        found, _ = regress_windows(y, seen, gaps.t, gaps.rows, lags, _PENALTIES[number])
        return float((found - y)[hidden].square().mean())

    best = len(_PENALTIES) // 2
    for step in (-1, 1):  # as long as errors fall: they have one minimum
        while 0 <= best + step < len(_PENALTIES) and error(best + step) < error(best):
            best += step
    return _PENALTIES[best]
