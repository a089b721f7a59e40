# SPDX-License-Identifier: Apache-2.0
"""Training: `fit`, its optimisers and its checkpoints."""

from pyro_vgpds.training.api import FitResult, Record, fit

__all__ = [
    "FitResult",
    "Record",
    "fit",
]
