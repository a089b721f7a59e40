# SPDX-License-Identifier: Apache-2.0
"""The number of frames on which forecasts are compared, if the data are too short for the one that was asked for."""

from __future__ import annotations

import warnings

from pyro_vgpds.data.parts import base_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.data_checks import user_stacklevel

__all__ = ["tested_horizon"]

_LEAST = 3  # training frames that hold_out needs


def tested_horizon(data: Sequences, horizon: int) -> int:
    """``horizon``, but at most half of the longest sequence, to its last observed frame, with a warning.

    Candidates that are trained on less than they predict say little about those that are trained on all frames. A
    horizon that leaves no training frames at all stays, and is an error of
    :func:`~pyro_vgpds.evaluation.hold_out`.
    """
    seen = base_outputs(data).isfinite().any(1).split(data.lengths)
    frames = max(int(part.nonzero()[-1:].sum()) + 1 for part in seen)
    most = frames // 2
    if horizon <= most or horizon > frames - _LEAST:
        return horizon
    warnings.warn(
        f"horizon={horizon} leaves {frames - horizon} of the {frames} frames of the longest sequence to train the "
        f"candidates that are compared, fewer than they predict. They are compared with horizon={most} instead, which "
        "is the most that these data allow. The result is trained on all frames and forecasts as far as you ask, but "
        f"its errors and intervals more than {most} frames ahead were not tested.",
        UserWarning,
        stacklevel=user_stacklevel(),
    )
    return most
