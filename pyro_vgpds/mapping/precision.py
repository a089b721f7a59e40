# SPDX-License-Identifier: Apache-2.0
r"""When a model in float32 has the exponentials of Ψ2 computed in float32, which takes less than half the time.

Everything else of the bound is computed in float64 for float32 models, too: its differences and inverses need the
digits. Ψ2 has relative errors ε of the size of float32's then, which :math:`K_{MM}^{-1}` magnifies in
:math:`\mathrm{tr}\,K_{MM}^{-1} \Psi_2`, up to :math:`\varepsilon \|K_{MM}^{-1} \circ \Psi_2\|_F` if all latent points
have the same errors. So float32 is used if that is far below the noise. This depends on how far apart the inducing
inputs are, and changes in training: an almost linear mapping, with which training starts by default, needs float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.mapping import native_psi2
from pyro_vgpds.mapping.basis import Basis

__all__ = ["allows_single"]

_ERROR = 2.0 * torch.finfo(torch.float32).eps  # relative, of an exponential
_MOST = 1e-4  # nats per observed number that float32 may change the bound by; usually it does by far less
_ROWS = 64  # of which Ψ2 is computed to estimate the error
_LEAST = 1 << 20  # exponentials: with fewer, the estimate takes longer than float32 saves


@torch.no_grad()
def allows_single(basis: Basis, factor: Tensor, x: Tensor, variance: Tensor | None, noise: Tensor) -> bool:
    """Whether sums over latent points, known or N(x, diag variance), may be in float32. Known ones have no
    exponentials.
    """
    count = len(x)
    if variance is None or basis.is_exact or x.dim() != 2 or factor.dim() != 2 or not native_psi2.available():
        return False
    if count * basis.size**2 < 2 * _LEAST:
        return False
    some = slice(None, None, max(1, count // _ROWS))
    psi2 = basis.psi2(x[some], variance[some], None)[0] * (count / len(x[some]))
    error = _ERROR * torch.linalg.matrix_norm(torch.cholesky_inverse(factor) * psi2)
    return bool(error <= 2.0 * _MOST * count * noise.amin())
