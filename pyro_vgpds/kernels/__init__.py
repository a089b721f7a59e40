# SPDX-License-Identifier: Apache-2.0
"""Kernels: modules that own parameters. A call of one returns its value, which has the algebra."""

from pyro_vgpds.kernels.ard import ARDRBF, ARDLinear, ARDLinearValue, ARDRBFValue
from pyro_vgpds.kernels.base import Kernel, Product, Sum
from pyro_vgpds.kernels.constant import Bias, White
from pyro_vgpds.kernels.linear import Linear
from pyro_vgpds.kernels.markov_rbf import MarkovRBF
from pyro_vgpds.kernels.names import parse_kernel, parse_mapping, register_kernel
from pyro_vgpds.kernels.pyro_gp import from_pyro
from pyro_vgpds.kernels.state_space import StateSpace
from pyro_vgpds.kernels.stationary import RBF, Cosine, Matern12, Matern32, Matern52, Periodic, StationaryValue
from pyro_vgpds.kernels.values import KernelValue, lift

__all__ = [
    "ARDRBF", "RBF", "ARDLinear", "ARDLinearValue", "ARDRBFValue", "Bias", "Cosine", "Kernel", "KernelValue", "Linear",
    "MarkovRBF", "Matern12", "Matern32", "Matern52", "Periodic", "Product", "StateSpace", "StationaryValue", "Sum",
    "White", "from_pyro", "lift", "parse_kernel", "parse_mapping", "register_kernel",
]  # fmt: skip

for _kernel in (
    ARDRBF, ARDLinear, Bias, Cosine, Linear, MarkovRBF, Matern12, Matern32, Matern52, Periodic, RBF, White,
):  # fmt: skip
    register_kernel(_kernel)
