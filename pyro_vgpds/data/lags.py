# SPDX-License-Identifier: Apache-2.0
"""Outputs of earlier and later frames as outputs of a frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyro_vgpds.checks import as_numbers, is_whole
from pyro_vgpds.types import ArrayLike

__all__ = ["check_lags", "lagged"]


def lagged(y: ArrayLike, lags: Sequence[int]) -> np.ndarray:
    r"""A sequence whose frames include their neighbours: :math:`[y_n, y_{n + l_1}, y_{n + l_2}, \dots]`.

    A single frame of a movement may not determine its phase or direction; together with earlier and later frames it
    does. A model of these outputs needs no other change, and its first D outputs are the given ones. An entry that is
    missing in one frame is missing in all frames that include it.

    :param y: one sequence (T, D), NaN if missing. :meth:`Sequences.lagged <pyro_vgpds.Sequences.lagged>` does several.
    :param lags: whole numbers of frames, negative for those before.
    :returns: (T, D (1 + the number of lags)), NaN beyond the ends of the sequence.
    :raises ValueError: if ``y`` is not (T, D), or ``lags`` are not different whole numbers other than 0.

    >>> from pyro_vgpds import lagged
    >>> lagged([[1.0], [2.0], [3.0]], lags=[-1, 1])
    array([[ 1., nan,  2.],
           [ 2.,  1.,  3.],
           [ 3.,  2., nan]])
    """
    frames = as_numbers("y", y)
    if frames.ndim != 2 or frames.size == 0:
        raise ValueError(f"y must be one sequence (T, D), but its shape is {frames.shape}.")
    check_lags(lags)
    wide = np.full((len(frames), 1 + len(lags), frames.shape[1]), np.nan)
    wide[:, 0] = frames
    for i, lag in enumerate(lags, start=1):
        here = slice(max(0, -lag), max(0, len(frames) - max(0, lag)))
        wide[here, i] = frames[max(0, lag) : max(0, len(frames) + min(0, lag))]
    return wide.reshape(len(frames), -1)


def check_lags(lags: object) -> None:
    """Raise a ValueError unless ``lags`` are different whole numbers other than 0."""
    if (
        not isinstance(lags, (list, tuple))
        or not all(is_whole(lag) and lag != 0 for lag in lags)
        or len(set(lags)) < len(lags)
    ):
        raise ValueError(f"lags must be a list of different whole numbers of frames other than 0, but got {lags!r}.")
