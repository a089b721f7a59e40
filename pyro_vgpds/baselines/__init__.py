# SPDX-License-Identifier: Apache-2.0
"""What any model should be compared with: plain functions, values in, tensors out, NaN is what is to be filled.

Imputers are ``f(t, y) -> y`` with nothing missing: t (N,) and y (N, D), or lists of them, one entry a sequence, as for
:class:`~pyro_vgpds.Sequences` (or such an object alone); what comes back is a float64 tensor (N, D), or a list of them.
What was observed is kept as it is. A forecast is an imputation of rows that are all NaN.
:func:`nearest_neighbour` has no use for times and is ``f(train, test) -> test`` with nothing missing.
:class:`MapGPLVM` is the paper's rival, the same model with points for latent positions.
"""

from pyro_vgpds.baselines.cycle import estimate_period, repeat_cycle
from pyro_vgpds.baselines.gp import gp_interpolation
from pyro_vgpds.baselines.neighbours import nearest_neighbour
from pyro_vgpds.baselines.pca import pca, ppca
from pyro_vgpds.baselines.point import MapGPLVM
from pyro_vgpds.baselines.simple import column_mean, last_value, linear_interpolation

__all__ = [
    "MapGPLVM",
    "column_mean",
    "estimate_period",
    "gp_interpolation",
    "last_value",
    "linear_interpolation",
    "nearest_neighbour",
    "pca",
    "ppca",
    "repeat_cycle",
]
