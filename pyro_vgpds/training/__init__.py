# SPDX-License-Identifier: Apache-2.0
"""Training: `fit`, its optimisers and its checkpoints."""

from pyro_vgpds.training.api import fit
from pyro_vgpds.training.result import FitResult, Record

__all__ = [
    "FitResult", "Record", "fit",
]  # fmt: skip
