# SPDX-License-Identifier: Apache-2.0
"""The mapping from latent points to outputs: a sparse GP, its collapsed bound, Ψ statistics and q(U)."""

from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.mapping.explicit import ExplicitGP
from pyro_vgpds.mapping.inducing_gaussian import InducingGaussian, InducingPrior
from pyro_vgpds.mapping.psi import MappingValue, masked_sum, register_psi2
from pyro_vgpds.mapping.sparse_gp import CollapsedGP, SparseGP

__all__ = [
    "CollapsedGP", "Dual", "ExplicitGP", "InducingGaussian", "InducingPrior", "MappingValue", "SparseGP", "masked_sum",
    "register_psi2",
]  # fmt: skip
