# SPDX-License-Identifier: Apache-2.0
"""Exposures of counts that are predicted."""

from __future__ import annotations

from pyro_vgpds.data.exposures import read_exposure
from pyro_vgpds.inference.outputs_start import check_exposure
from pyro_vgpds.likelihoods.base import LikelihoodValue
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.types import ArrayLike

__all__ = ["expose"]


def expose(outputs: LikelihoodValue, exposure: ArrayLike, prediction: Outputs) -> LikelihoodValue:
    """The likelihood of T predicted frames with other exposures, (D,) or (T, D).

    :raises ValueError: if the shape is another, an exposure is not positive, or an output has none.
    """
    times, width = prediction.shape
    value = read_exposure(exposure, [times], width, False, prediction.t.device)
    check_exposure(outputs.likelihood, value, prediction.columns, "exposure")
    return outputs.exposed(value)
