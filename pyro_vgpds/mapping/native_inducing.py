# SPDX-License-Identifier: Apache-2.0
r"""The algebra of M × M matrices in the collapsed bound by optional compiled functions, for float64 on a CPU.

Everything here is also computed with the operations of torch, each of which takes longer to call than to run if M is
small. ``_inducing.c`` has the equations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library

__all__ = [
    "Covariance", "GroupStatistics", "Terms", "decay", "decay_gradients", "entries", "is_compiled", "joint_gradients",
    "rbf_covariance", "rbf_gradients", "spectrum_terms", "whitened",
]  # fmt: skip

_MOST = 256  # inducing variables up to which the matrices fit the cache


class Covariance(NamedTuple):
    """K_MM with its jitter, and what the bound needs of it."""

    K: Tensor  #: (M, M)
    inverse: Tensor  #: (M, M)
    factor: Tensor  #: L, its Cholesky factor, (M, M)

    @classmethod
    def of(cls, factor: Tensor) -> Covariance:
        """From L."""
        return cls(factor @ factor.mT, torch.cholesky_inverse(factor), factor)


class GroupStatistics(NamedTuple):
    """The statistics of C groups of outputs, of which the terms of the bound are functions."""

    psi0: Tensor  #: (C,)
    v: Tensor  #: Ψ1ᵀY, (C, M, W). If outputs share β, only v vᵀ matters, and W may be less than their number
    psi2: Tensor  #: (C, M, M), or panels (C, S)
    beta: Tensor  #: (C, W), or (C, 1) if the outputs of each group share it
    outputs: Tensor  #: the number of outputs that each β stands for, as β


class Terms(NamedTuple):
    """A function of the statistics of C groups and of K_MM, and its gradients, None if they were not wanted."""

    value: Tensor
    psi0: Tensor | None = None  #: (C,)
    v: Tensor | None = None  #: (C, M, W)
    psi2: Tensor | None = None  #: (C, M, M), symmetric
    K: Tensor | None = None  #: twice that in K_MM, (M, M), symmetric
    beta: Tensor | None = None  #: as β


_library = Library(
    f"{__package__}._inducing",
    inducing_covariance="nn pp rrr pppp",
    inducing_decay="nn pp rr p",
    inducing_gradients="nn pp rr ppppp",
    inducing_joint_gradients="nn pp r ppppppppp",
    inducing_whiten="nn ppp",
    inducing_spectrum="nnnn ppppppppppppp",
    inducing_resolvents="nn pp r pppppppp",
    inducing_sandwich="n ppp",
)


def entries() -> tuple[int, ...]:
    """The addresses of the compiled functions that ``_bound.c`` calls, 0 if they were not built."""
    names = "covariance", "whiten", "spectrum", "resolvents", "sandwich", "joint_gradients"
    return tuple(_library.address(f"inducing_{name}") for name in names)


def is_compiled(*tensors: Tensor) -> bool:
    """Whether the functions here can be used with matrices (..., M, M) or (..., M, W) and others: compiled, float64 on
    a CPU, of a size for which they are faster, and not traced by ``torch.jit``, which would not see them.
    """
    return (
        _library() is not None
        and all(x.dtype == torch.float64 and x.is_cpu for x in tensors)
        and 0 < tensors[0].shape[-2] <= _MOST
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
    )


def _call(name: str, *arguments: object) -> int:
    given = (x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)
    status: int = _library.function(name)(*given)
    if status == 1:
        raise MemoryError("the compiled algebra of inducing variables ran out of memory")
    return status


def rbf_covariance(
    z: Tensor, w: Tensor, scale: float, jitter: float, constant: float = 0.0
) -> tuple[Covariance, Tensor] | None:
    """The covariance of the squared exponential kernel of variance ``scale`` at z (M, Q) with weights w (Q,),
    contiguous, with the jitter on its diagonal, and :func:`decay`; None if it is not positive definite. The inverse and
    the factor are those of K plus a constant.
    """
    m, q = z.shape
    *found, power = z.new_empty(4, m, m).unbind()
    failed = _call("inducing_covariance", m, q, z, w, scale, jitter, constant, *found, power)
    return None if failed else (Covariance(*found), power)


def rbf_gradients(
    z: Tensor, w: Tensor, jitter: float, K: Tensor, g_K: Tensor
) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """The gradients in z (M, Q) and in w (Q,), and those in log σ² and in the jitter.

    :param K: as :func:`rbf_covariance` gives it.
    :param g_K: the gradient in it, contiguous. Others as in :func:`rbf_covariance`.
    """
    return _gradients(z, w, 0.5, jitter, K, g_K)


def joint_gradients(
    z: Tensor, w: Tensor, jitter: float, K: Tensor, g_K: Tensor, decay: Tensor, psi2: Tensor, g_psi2: Tensor
) -> tuple[Tensor, Tensor, Tensor, tuple[float, float]]:
    """:func:`rbf_gradients` and :func:`decay_gradients` together: the gradient in the sums of Ψ2 = decay * sums,
    (M, M), and those in z, in w, in log σ² and in the jitter.

    :param psi2: (M, M), contiguous.
    :param g_psi2: the gradient in it, (M, M), contiguous. Others as in :func:`rbf_gradients`.
    """
    g_sums, g_z, g_w, numbers = torch.empty_like(K), torch.empty_like(z), torch.empty_like(w), z.new_empty(2)
    given = K, g_K, decay, psi2, g_psi2
    _call("inducing_joint_gradients", *z.shape, z, w, jitter, *given, g_sums, g_z, g_w, numbers)
    log_scale, shift = numbers.tolist()
    return g_sums, g_z, g_w, (log_scale, shift)


def decay(z: Tensor, w: Tensor, scale: float) -> Tensor:
    """σ⁴ exp(−¼ Σ_q w (z − z')²), (M, M). Parameters as in :func:`rbf_covariance`."""
    result = z.new_empty(z.shape[0], z.shape[0])
    _call("inducing_decay", *z.shape, z, w, scale * scale, 0.25, result)
    return result


def decay_gradients(z: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor, float]:
    """The gradients in z (M, Q), in w (Q,) and in log σ² from that in the log of :func:`decay`, contiguous."""
    g_z, g_w, (log_square, _) = _gradients(z, w, 0.25, 0.0, None, g)
    return g_z, g_w, 2.0 * log_square


def _gradients(
    z: Tensor, w: Tensor, rate: float, jitter: float, X: Tensor | None, g: Tensor
) -> tuple[Tensor, Tensor, tuple[float, float]]:
    g_z, g_w, numbers = torch.empty_like(z), torch.empty_like(w), z.new_empty(2)
    _call("inducing_gradients", *z.shape, z, w, rate, jitter, X, g, g_z, g_w, numbers)
    log_scale, shift = numbers.tolist()
    return g_z, g_w, (log_scale, shift)


def whitened(factor: Tensor, matrices: Tensor) -> Tensor:
    """L⁻¹ X L⁻ᵀ, (C, M, M), for symmetric matrices X."""
    (c, m, _), factor, matrices = matrices.shape, factor.contiguous(), matrices.contiguous()
    result = torch.empty_like(matrices)
    _call("inducing_whiten", c, m, factor, matrices, result)
    return result


def spectrum_terms(e: Tensor, u: Tensor, factor: Tensor, groups: GroupStatistics, wanted: bool) -> Terms:
    """The terms of groups from L and the eigenvalues e (C, M), increasing, and eigenvectors u (C, M, M) of L⁻¹ Ψ2 L⁻ᵀ;
    :func:`~pyro_vgpds.mapping.group_terms.eigen_terms` has the equations. Ψ2 itself is not read.
    """
    psi0, v, _, beta, count = groups
    (c, m, w), rates = v.shape, beta.shape[-1]
    given = [x.contiguous() for x in (e, u, factor, psi0, v, beta, count)]
    values, g_psi0 = v.new_empty(2, c)
    if not wanted:
        _call("inducing_spectrum", c, m, w, rates, *given, values, g_psi0, *[None] * 4)
        return Terms(values.sum())
    g_v, g_psi2, g_beta, g_K = (v.new_empty(shape) for shape in (v.shape, u.shape, beta.shape, factor.shape))
    _call("inducing_spectrum", c, m, w, rates, *given, values, g_psi0, g_v, g_psi2, g_beta, g_K)
    return Terms(values.sum(), g_psi0, g_v, g_psi2, g_K, g_beta)
