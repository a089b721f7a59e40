# SPDX-License-Identifier: Apache-2.0
"""Kernels: modules that own parameters and, called, give a value with the algebra."""

from pyro_vgpds.kernels.ard import ARDRBF, ARDLinear
from pyro_vgpds.kernels.base import Kernel, KernelValue, Product, Sum
from pyro_vgpds.kernels.constant import Bias, White
from pyro_vgpds.kernels.markov_rbf import MarkovRBF
from pyro_vgpds.kernels.parse import parse_kernel
from pyro_vgpds.kernels.pyro_gp import from_pyro
from pyro_vgpds.kernels.stationary import RBF, Linear, Matern12, Matern32, Matern52, Periodic

__all__ = [
    "ARDRBF",
    "RBF",
    "ARDLinear",
    "Bias",
    "Kernel",
    "KernelValue",
    "Linear",
    "MarkovRBF",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "Sum",
    "White",
    "from_pyro",
    "parse_kernel",
]
