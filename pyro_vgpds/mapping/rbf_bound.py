# SPDX-License-Identifier: Apache-2.0
"""The collapsed bound of the squared exponential kernel as one operation: its gradients are computed with its value.

It does what :func:`~pyro_vgpds.mapping.bound.collapsed_bound` does with K_MM and the Ψ statistics as steps of autograd.
In small problems these steps take most of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.linalg import default_jitter
from pyro_vgpds.mapping.bound import bound_terms
from pyro_vgpds.mapping.distributed_psi import total_parts
from pyro_vgpds.mapping.forms import rbf_form
from pyro_vgpds.mapping.group_terms import ValueAndGrads, need_gradients
from pyro_vgpds.mapping.native_bound import BoundInputs, bound_is_compiled, compiled_bound
from pyro_vgpds.mapping.native_inducing import is_compiled, joint_gradients, rbf_covariance, rbf_gradients
from pyro_vgpds.mapping.psi import MappingValue, Psi
from pyro_vgpds.mapping.rbf_psi import has_loops, rbf_statistics_vjp

__all__ = ["rbf_bound"]


def rbf_bound(
    kernel: MappingValue,
    mean: Tensor,
    variance: Tensor,
    z: Tensor,
    noise: Tensor,
    groups: ColumnGroups,
    jitter: float | None,
    communicator: Communicator = SINGLE_PROCESS,
) -> ValueAndGrads | None:
    """The bound and its gradients in mean, variance, z, w, σ² and noise; None if it cannot be computed in this way, as
    with another kernel, or K_MM needs more jitter.

    :param kernel: its value.
    :param mean: (N, Q).
    :param variance: (N, Q).
    :param z: (M, Q).
    :param noise: (1,) or (D,), as in :func:`~pyro_vgpds.mapping.bound.collapsed_bound`.
    :param groups: the column groups.
    :param jitter: added to the diagonal of K_MM; None for the rule.
    :param communicator: the processes that have other frames. Each has 1/K of the bound; the gradients in what all
        of them have add up.
    :raises NumericalError: as :func:`~pyro_vgpds.mapping.bound.collapsed_bound` does.
    """
    form = rbf_form(kernel)
    if form is None or form.constant is not None:
        return None
    parameters = form.weight, form.variance
    if not (has_loops(mean, variance, z, groups.mask, parameters) and noise.dim() == 1 and is_compiled(z, noise)):
        return None
    inputs = BoundInputs(mean, variance, z, *parameters, noise)
    wanted = need_gradients(inputs)
    with torch.no_grad():
        compiled = communicator.size == 1 and bound_is_compiled(noise, groups)
        found = compiled_bound(inputs, groups, jitter, wanted) if compiled else None
        if found is None:
            found = _evaluate(inputs, groups, jitter, communicator, wanted)
    return None if found is None else ValueAndGrads(found[0], inputs, found[1])


def _evaluate(
    inputs: BoundInputs, groups: ColumnGroups, jitter: float | None, communicator: Communicator, wanted: bool
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """The part of the bound of this process, and its gradients, none if they are not wanted."""
    mean, variance, z, weight, scale, noise = (x.detach() for x in inputs)
    z, w, variance_of_f = z.contiguous(), weight.expand(z.shape[1]).contiguous(), float(scale)
    relative = default_jitter(z.dtype) if jitter is None else 0.0
    added = relative * variance_of_f if jitter is None else jitter
    matrices = rbf_covariance(z, w, variance_of_f, added)
    if matrices is None:
        return None
    covariance, decay = matrices
    data = groups.mask, groups.factor, groups.used
    psi1_y, psi2, backward = rbf_statistics_vjp(mean, variance, z, weight, scale, *data, decay=decay)
    share = 1.0 / communicator.size
    if communicator.size > 1:
        _, psi1_y, psi2 = total_parts(noise[:0], psi1_y, psi2, communicator)
    psi = Psi(groups.rows * scale, psi1_y, psi2)  # rows of all processes
    value, g_psi0, g_psi1_y, g_psi2, g_K, g_noise = bound_terms(psi, covariance, noise, groups, wanted)
    if g_psi0 is None or g_psi1_y is None or g_psi2 is None or g_K is None or g_noise is None:
        return value * share, ()
    of_K = z, w, added, covariance.K, g_K.mul_(0.5 * share)
    joint = groups.mask is None and communicator.size == 1  # then Ψ2 is one matrix, and that of this process
    if joint:
        g_sums, more_z, more_w, (g_log_scale, g_jitter) = joint_gradients(*of_K, decay, psi2[0], g_psi2[0].contiguous())
        g_psi2 = g_sums.unsqueeze(0)
    else:
        more_z, more_w, (g_log_scale, g_jitter) = rbf_gradients(*of_K)
    g_mean, g_variance, g_z, g_w, g_log = backward(g_psi1_y, g_psi2, joint)
    g_scale = (g_log + g_log_scale) / variance_of_f + (relative * g_jitter + share * (g_psi0 @ groups.rows))
    g_weight, g_scale = g_w.add_(more_w).sum_to_size(weight.shape), g_scale.reshape(scale.shape)
    if communicator.size == 1:
        return value, (g_mean, g_variance, g_z.add_(more_z), g_weight, g_scale, g_noise)
    return value * share, (g_mean, g_variance, g_z.add_(more_z), g_weight, g_scale, g_noise * share)
