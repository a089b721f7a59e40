# SPDX-License-Identifier: Apache-2.0
"""The collapsed bound of outputs with Gaussian factors under the squared exponential kernel, as one operation: its
gradients are computed with its value.

It does what :meth:`CollapsedLatent.bound <pyro_vgpds.mapping.latent_gp.CollapsedLatent.bound>` does with the factors of
the scaled functions, K_MM, the Ψ statistics and the terms of the bound as steps of autograd, which go over the numbers
of all entries, and over the matrices of all outputs, several times more. ``_factors.c`` has the equations of the scaled
factors, which :func:`~pyro_vgpds.mapping.latent_gp.scaled_sites`, :func:`~pyro_vgpds.mapping.latent_gp.mean_terms` and
:func:`~pyro_vgpds.mapping.bound.site_limits` compute with torch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library
from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.linalg import default_jitter
from pyro_vgpds.mapping.bound import SiteLimits, site_terms
from pyro_vgpds.mapping.forms import RBFForm
from pyro_vgpds.mapping.group_terms import ValueAndGrads, need_gradients
from pyro_vgpds.mapping.native_inducing import Covariance, is_compiled, rbf_covariance, rbf_gradients
from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.mapping.rbf_weighted import has_loops, rbf_weighted_vjp

__all__ = ["FactorGradients", "ScaledFactors", "available", "factor_gradients", "rbf_site_bound", "scaled_factors"]


def rbf_site_bound(
    mean: Tensor,
    variance: Tensor,
    z: Tensor,
    form: RBFForm,
    sites: Sites,
    output_mean: Tensor,
    output_scale: Tensor,
    jitter: float | None,
) -> ValueAndGrads | None:
    """The bound and its gradients; None if it cannot be computed in this way, or K_MM needs more jitter.

    :param mean: of the latent points, (N, Q).
    :param variance: of the latent points, (N, Q).
    :param z: inducing inputs, (M, Q).
    :param form: the kernel.
    :param sites: the factors of the functions f = mean + scale g.
    :param output_mean: (D,).
    :param output_scale: (D,).
    :param jitter: added to the diagonal of K_MM; None for the rule.
    :raises NumericalError: as :func:`~pyro_vgpds.mapping.bound.site_bound` does.
    """
    weight, linear, _ = sites
    constant = torch.zeros_like(form.variance) if form.constant is None else form.constant
    kernel = form.weight, form.variance, constant
    if not (has_loops(mean, variance, z, *kernel, weight, linear) and is_compiled(z) and available()):
        return None
    inputs = mean, variance, z, *kernel, weight, linear, output_mean, output_scale
    wanted = need_gradients(inputs)
    with torch.no_grad():
        found = _evaluate(tuple(x.detach() for x in inputs), jitter, wanted)
    return None if found is None else ValueAndGrads(found[0], inputs, found[1])


def _evaluate(
    inputs: tuple[Tensor, ...], jitter: float | None, wanted: bool
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """The bound and its gradients, none if they are not wanted."""
    z, w, scale, constant, weight, linear, output_mean, output_scale = inputs[2:]
    factors = weight, linear, output_mean, output_scale
    inducing = _Inducing.of(z, w, scale, constant, jitter)
    if inducing is None:
        return None
    scaled = scaled_factors(*factors)
    psi0, psi1_y, psi2, backward = rbf_weighted_vjp(*inputs[:6], scaled.weight, scaled.linear.mT)
    terms = site_terms(Psi(psi0, psi1_y, psi2), inducing.covariance, scaled.limits, wanted)
    value = terms.value + scaled.rest
    if terms.psi0 is None or terms.v is None or terms.psi2 is None or terms.K is None:
        return value, ()
    *found, g_weight, g_linear = backward(terms.psi0, terms.v, terms.psi2)
    for gradient, more in zip(found[2:], inducing.gradients(terms.K.mul_(0.5)), strict=True):
        gradient += more
    return value, (*found, *factor_gradients(*factors, g_weight, g_linear.mT))


class _Inducing(NamedTuple):
    """K_MM = K + b, with the matrix K of the squared exponential and its jitter."""

    parameters: tuple[Tensor, Tensor, Tensor, Tensor]  #: z, w, σ² and b
    jitter: tuple[float, float]  #: what was added, and how much of it for each unit of σ² + b
    K: Tensor
    covariance: Covariance

    @classmethod
    def of(cls, z: Tensor, w: Tensor, scale: Tensor, constant: Tensor, jitter: float | None) -> _Inducing | None:
        """From the parameters; None if K_MM is not positive definite."""
        z, b = z.contiguous(), float(constant)
        relative = default_jitter(z.dtype) if jitter is None else 0.0
        added = relative * (float(scale) + b) if jitter is None else jitter
        matrices = rbf_covariance(z, w.expand(z.shape[1]).contiguous(), float(scale), added, b)
        if matrices is None:
            return None
        own = matrices[0]
        return cls((z, w, scale, constant), (added, relative), own.K, own._replace(K=own.K + b))

    def gradients(self, g_K: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients in the parameters.

        :param g_K: that in K_MM.
        """
        z, w, scale, constant = self.parameters
        added, relative = self.jitter
        own = w.expand(z.shape[1]).contiguous()
        g_z, g_w, (g_log_scale, g_jitter) = rbf_gradients(z, own, added, self.K, g_K.contiguous())
        g_scale = g_log_scale / scale + relative * g_jitter
        return g_z, g_w.sum_to_size(w.shape), g_scale, (g_K.sum() + relative * g_jitter).reshape(constant.shape)


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
