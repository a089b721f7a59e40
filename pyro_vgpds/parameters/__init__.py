# SPDX-License-Identifier: Apache-2.0
"""Modules with parameters that are learned, fixed or have a prior: the base of kernels, likelihoods and the model."""

from pyro_vgpds.parameters.declared import DeclaredParameters
from pyro_vgpds.parameters.module import (
    ParameterLike,
    ParameterModule,
    Prior,
    PriorLike,
    TimeLike,
    is_prior,
    modules_of,
    parameters_of,
    plain_value,
)

__all__ = [
    "DeclaredParameters", "ParameterLike", "ParameterModule", "Prior", "PriorLike", "TimeLike", "is_prior",
    "modules_of", "parameters_of", "plain_value",
]  # fmt: skip
