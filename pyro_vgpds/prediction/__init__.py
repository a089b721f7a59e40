# SPDX-License-Identifier: Apache-2.0
"""Prediction with trained models: forecasts, imputation, reconstruction, generation and scores."""

from pyro_vgpds.prediction.classifier import BayesClassifier
from pyro_vgpds.prediction.conditioning import condition
from pyro_vgpds.prediction.mixture import MixturePrediction, PosteriorMixture
from pyro_vgpds.prediction.moments import GaussianPrediction
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.predictions import Latent, Prediction, Reconstruction
from pyro_vgpds.prediction.solver import Solver
from pyro_vgpds.prediction.storage import load_posterior, save_posterior

__all__ = [
    "BayesClassifier",
    "GaussianPrediction",
    "Latent",
    "MixturePrediction",
    "Outputs",
    "Posterior",
    "PosteriorMixture",
    "Prediction",
    "Reconstruction",
    "Solver",
    "condition",
    "load_posterior",
    "save_posterior",
]
