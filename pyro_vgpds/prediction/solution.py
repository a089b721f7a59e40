# SPDX-License-Identifier: Apache-2.0
"""What the search for the latent paths of new frames finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from pyro_vgpds.likelihoods.factors import Moments

__all__ = ["Factors", "JointEvaluation", "Solution"]


@dataclass(frozen=True)
class Solution:
    """The end of a run of natural steps."""

    eta: Tensor  #: sites η of the active frames
    lam: Tensor  #: sites λ of the active frames
    bound: float  #: the bound at these sites
    num_steps: int  #: natural steps that led to them
    state: Tensor | None = None  #: of the factors of the new outputs, (2, T, F), if they are not Gaussian


class JointEvaluation(NamedTuple):
    """The bound at some sites."""

    bound: float
    mean: Tensor  #: of q minus that of the prior
    d_mean: Tensor  #: derivative of F̂ in the mean
    d_variance: Tensor  #: and in the variance
    functions: Moments | None = None  #: of the functions of the new outputs, if these are not Gaussian


class Factors(NamedTuple):
    """The Gaussian factors of new outputs (T, F), in which the gradients of the bound give moments of the functions."""

    weight: Tensor
    linear: Tensor
    drawn: Moments | None  #: moments of functions whose bound is an estimate with draws
