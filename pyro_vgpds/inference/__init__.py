# SPDX-License-Identifier: Apache-2.0
"""Variational inference: the collapsed ELBO, the guide, natural gradients, and where training starts."""

from pyro_vgpds.inference.amortized import AmortizedOpperArchambeau
from pyro_vgpds.inference.elbo import Collapsed_ELBO, IntegrateMessenger
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.inference.meeting import TimeScaleWarning
from pyro_vgpds.inference.natural import NaturalGradient
from pyro_vgpds.inference.spread import BoundEstimate, bound_with_spread

__all__ = [
    "AmortizedOpperArchambeau",
    "AutoOpperArchambeau",
    "BoundEstimate",
    "Collapsed_ELBO",
    "IntegrateMessenger",
    "NaturalGradient",
    "TimeScaleWarning",
    "bound_with_spread",
]
