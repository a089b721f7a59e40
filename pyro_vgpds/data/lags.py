# SPDX-License-Identifier: Apache-2.0
"""Outputs of frames before and after, as outputs of a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyro_vgpds.checks import is_whole

__all__ = ["lagged"]


def lagged(y: Any, lags: Sequence[int]) -> np.ndarray:
    r"""A sequence whose frames see their neighbours: :math:`[y_n, y_{n + l_1}, y_{n + l_2}, \dots]`.

    One frame of a movement may not tell where in it we are, or which way it goes; with the frames some steps before and
    after, it does. A model of these outputs needs no other change, and its first D outputs are the given ones. What is
    hidden in one frame is hidden in those that see it.

    :param y: one sequence (T, D), NaN where it is hidden; for several, call it for each.
    :param lags: whole numbers of frames, negative for those before.
    :returns: (T, D (1 + the number of lags)), NaN beyond the ends of the sequence.
    :raises ValueError: where ``y`` is not (T, D), or a lag is zero or no whole number.

    >>> from pyro_vgpds import lagged
    >>> lagged([[1.0], [2.0], [3.0]], lags=[-1, 1])
    array([[ 1., nan,  2.],
           [ 2.,  1.,  3.],
           [ 3.,  2., nan]])
    """
    frames = np.asarray(y, dtype=float)
    if frames.ndim != 2:
        raise ValueError(f"y must be one sequence (T, D), but its shape is {frames.shape}.")
    if not all(is_whole(lag) and lag != 0 for lag in lags):
        raise ValueError(f"lags must be whole numbers of frames other than 0, but got {list(lags)}.")
    wide = np.full((len(frames), 1 + len(lags), frames.shape[1]), np.nan)
    wide[:, 0] = frames
    for i, lag in enumerate(lags, start=1):
        here = slice(max(0, -lag), max(0, len(frames) - max(0, lag)))
        wide[here, i] = frames[max(0, lag) : max(0, len(frames) + min(0, lag))]
    return wide.reshape(len(frames), -1)
