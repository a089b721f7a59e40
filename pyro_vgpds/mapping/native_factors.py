# SPDX-License-Identifier: Apache-2.0
"""Gaussian factors of outputs as those of scaled functions, and their gradients, by optional compiled functions.

:func:`~pyro_vgpds.mapping.latent_gp.scaled_sites`, :func:`~pyro_vgpds.mapping.latent_gp.mean_terms` and
:func:`~pyro_vgpds.mapping.bound.site_limits` compute the same with the operations of torch, each of which goes over all
entries. ``_factors.c`` has the equations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library
from pyro_vgpds.mapping.bound import SiteLimits

__all__ = ["FactorGradients", "ScaledFactors", "available", "factor_gradients", "scaled_factors"]


class ScaledFactors(NamedTuple):
    """The factors of g in f = mean + scale g."""

    weight: Tensor  #: (D, N)
    linear: Tensor  #: (D, N)
    rest: Tensor  #: the log of the factors at f = mean, without their constants, summed
    limits: SiteLimits


class FactorGradients(NamedTuple):
    """Gradients in the factors of f, and in the mean and the scale."""

    weight: Tensor  #: (N, D)
    linear: Tensor  #: (N, D)
    mean: Tensor  #: (D,)
    scale: Tensor  #: (D,)


_library = Library(f"{__package__}._factors", factors_scale="nn pppppppp", factors_gradients="nn pppppppppp")


available = _library.available


def _call(name: str, given: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    inputs = [x.contiguous() for x in given]
    if any(x.dtype is not torch.float64 or not x.is_cpu for x in inputs):
        raise ValueError("the compiled functions take float64 CPU tensors")
    _library.function(name)(*given[0].shape, *(x.data_ptr() for x in (*inputs, *outputs)))


def scaled_factors(weight: Tensor, linear: Tensor, mean: Tensor, scale: Tensor) -> ScaledFactors:
    """The factors exp(linear f − ½ weight f²) as those of g, without a graph.

    :param weight: (N, D).
    :param linear: (N, D).
    :param mean: (D,).
    :param scale: (D,).
    """
    new_weight, new_linear = weight.new_empty(2, *weight.shape[::-1])
    seen, sums = torch.empty_like(mean), mean.new_empty(2)
    _call("factors_scale", (weight, linear, mean, scale), (new_weight, new_linear, seen, sums))
    rest, most = sums
    return ScaledFactors(new_weight, new_linear, rest, SiteLimits(seen, weight.numel(), most))


def factor_gradients(
    weight: Tensor, linear: Tensor, mean: Tensor, scale: Tensor, g_weight: Tensor, g_linear: Tensor
) -> FactorGradients:
    """The gradients through :func:`scaled_factors` of a function of its weight and linear part plus ``rest``.

    :param g_weight: the gradient in the new weight, (D, N).
    :param g_linear: that in the new linear part, (D, N). Others as in :func:`scaled_factors`.
    """
    found = FactorGradients(*(x.new_empty(x.shape) for x in (weight, linear, mean, scale)))
    _call("factors_gradients", (weight, linear, mean, scale, g_weight, g_linear), found)
    return found
