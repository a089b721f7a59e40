# SPDX-License-Identifier: Apache-2.0
"""Baselines to compare a model with: plain functions that fill in NaN.

Imputers are functions ``f(t, y)`` of times t (N,) and outputs y (N, D), of lists with one entry per sequence, or of one
:class:`~pyro_vgpds.Sequences`. They return a float64 tensor (N, D), or a list of them, without NaN. Observed values are
unchanged. A forecast is an imputation of rows that are all NaN.
:func:`nearest_neighbour` and :func:`kernel_ridge` do not use times: they are ``f(train, test)`` and return ``test``
without NaN. :class:`LinearDynamicalSystem` keeps what it learnt and can fill other sequences.
:class:`GPFA`, :class:`GLM` and :class:`NegativeBinomialFactors` are for counts and yes/no outputs, and so is
:class:`OutputBaseline`, which has simple rules and the methods of a posterior.
:class:`MapGPLVM` is the paper's main competitor, the same model with a point estimate of the latent path.
"""

from pyro_vgpds.baselines.autoregression import autoregression
from pyro_vgpds.baselines.count_factors import NegativeBinomialFactors
from pyro_vgpds.baselines.cycle import estimate_period, repeat_cycle
from pyro_vgpds.baselines.glm import GLM
from pyro_vgpds.baselines.gp import gp_interpolation
from pyro_vgpds.baselines.gpfa import GPFA
from pyro_vgpds.baselines.kernel_ridge import kernel_ridge
from pyro_vgpds.baselines.lds import LinearDynamicalSystem, linear_dynamical_system
from pyro_vgpds.baselines.map_gplvm import MapGPLVM
from pyro_vgpds.baselines.neighbours import nearest_neighbour
from pyro_vgpds.baselines.output_baseline import OutputBaseline
from pyro_vgpds.baselines.pca import pca, ppca
from pyro_vgpds.baselines.predictor import BaselinePosterior
from pyro_vgpds.baselines.regression import ridge_regression
from pyro_vgpds.baselines.simple import column_mean, column_median, last_value, linear_interpolation
from pyro_vgpds.baselines.spline import cubic_spline
from pyro_vgpds.baselines.trend import damped_trend, last_value_with_drift

__all__ = [
    "GLM", "GPFA", "BaselinePosterior", "LinearDynamicalSystem", "MapGPLVM", "NegativeBinomialFactors",
    "OutputBaseline", "autoregression", "column_mean", "column_median", "cubic_spline", "damped_trend",
    "estimate_period", "gp_interpolation", "kernel_ridge", "last_value", "last_value_with_drift",
    "linear_dynamical_system", "linear_interpolation", "nearest_neighbour", "pca", "ppca", "repeat_cycle",
    "ridge_regression",
]  # fmt: skip
