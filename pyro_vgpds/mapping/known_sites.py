# SPDX-License-Identifier: Apache-2.0
"""The collapsed bound of outputs with Gaussian factors under the squared exponential kernel, as one operation: its
gradients are computed with its value.

It does what :meth:`CollapsedLatent.bound <pyro_vgpds.mapping.latent_gp.CollapsedLatent.bound>` does with the factors of
the scaled functions, the Ψ statistics and the terms of the bound as steps of autograd, which go over the numbers of all
entries, and over the matrices of all outputs, several times more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.mapping import native_factors
from pyro_vgpds.mapping.bound import site_terms
from pyro_vgpds.mapping.group_terms import Known, need_gradients
from pyro_vgpds.mapping.native_factors import factor_gradients, scaled_factors
from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.mapping.rbf_weighted import RBFForm, is_known, known_weighted

__all__ = ["known_site_bound"]


def known_site_bound(
    mean: Tensor,
    variance: Tensor,
    inducing: tuple[Tensor, Tensor],
    form: RBFForm,
    sites: Sites,
    output_mean: Tensor,
    output_scale: Tensor,
) -> Known | None:
    """The bound and its gradients; None if it cannot be computed in this way.

    :param mean: of the latent points, (N, Q).
    :param variance: of the latent points, (N, Q).
    :param inducing: the inducing inputs z (M, Q), and L, the Cholesky factor of K_MM.
    :param form: the kernel.
    :param sites: the factors of the functions f = mean + scale g.
    :param output_mean: (D,).
    :param output_scale: (D,).
    :raises NumericalError: as :func:`~pyro_vgpds.mapping.bound.site_bound` does.
    """
    z, factor = inducing
    weight, linear, _ = sites
    constant = torch.zeros_like(form.variance) if form.constant is None else form.constant
    kernel = form.weight, form.variance, constant
    if not (is_known(mean, variance, z, *kernel, weight, linear) and factor.dim() == 2 and native_factors.available()):
        return None
    inputs = mean, variance, z, *kernel, factor, weight, linear, output_mean, output_scale
    wanted = need_gradients(inputs)
    with torch.no_grad():
        value, gradients = _evaluate(tuple(x.detach() for x in inputs), wanted)
    return Known(value, inputs, gradients)


def _evaluate(inputs: tuple[Tensor, ...], wanted: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The bound and its gradients, none if they are not wanted."""
    *given, factor, weight, linear, output_mean, output_scale = inputs
    factors = weight, linear, output_mean, output_scale
    scaled = scaled_factors(*factors)
    psi0, psi1_y, psi2, backward = known_weighted(*given, scaled.weight, scaled.linear)
    terms = site_terms(Psi(psi0, psi1_y, psi2), factor, scaled.limits, wanted)
    value = terms.value + scaled.rest
    if terms.psi0 is None or terms.v is None or terms.psi2 is None or terms.K is None:
        return value, ()
    *found, g_weight, g_linear = backward(terms.psi0, terms.v, terms.psi2)
    return value, (*found, (terms.K @ factor).tril_(), *factor_gradients(*factors, g_weight, g_linear))
