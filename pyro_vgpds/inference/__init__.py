# SPDX-License-Identifier: Apache-2.0
"""Variational inference: the collapsed ELBO, the guide, natural gradients, and where training starts."""

from pyro_vgpds.inference.amortized import AmortizedOpperArchambeau
from pyro_vgpds.inference.bound_estimate import BoundEstimate, bound_with_spread
from pyro_vgpds.inference.data_checks import TimeScaleWarning
from pyro_vgpds.inference.elbo import Collapsed_ELBO
from pyro_vgpds.inference.explicit import AutoExplicit
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.inference.integrate import IntegrateMessenger
from pyro_vgpds.inference.minibatch import MinibatchNaturalGradient
from pyro_vgpds.inference.natural import NaturalGradient
from pyro_vgpds.inference.subsampling import Subsampled

__all__ = [
    "AmortizedOpperArchambeau", "AutoExplicit", "AutoOpperArchambeau", "BoundEstimate", "Collapsed_ELBO",
    "IntegrateMessenger", "MinibatchNaturalGradient", "NaturalGradient", "Subsampled", "TimeScaleWarning",
    "bound_with_spread",
]  # fmt: skip
