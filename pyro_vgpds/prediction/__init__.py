# SPDX-License-Identifier: Apache-2.0
"""Prediction with trained models: forecasts, imputation, reconstruction, generation and scores."""

from pyro_vgpds.prediction.baseline_predictions import GaussianPrediction
from pyro_vgpds.prediction.classifier import BayesClassifier
from pyro_vgpds.prediction.combination import Combination, Limits
from pyro_vgpds.prediction.conditioning import condition
from pyro_vgpds.prediction.ensemble import Ensemble, EnsemblePrediction
from pyro_vgpds.prediction.intervals import Calibration, calibrate_intervals
from pyro_vgpds.prediction.latent import Latent
from pyro_vgpds.prediction.mixture_prediction import MixturePrediction
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.posterior_mixture import PosteriorMixture
from pyro_vgpds.prediction.predictions import Prediction, Reconstruction
from pyro_vgpds.prediction.solver import Solver
from pyro_vgpds.prediction.storage import load_posterior, save_posterior

__all__ = [
    "BayesClassifier", "Calibration", "Combination", "Ensemble", "EnsemblePrediction", "GaussianPrediction", "Latent",
    "Limits", "MixturePrediction", "Outputs", "Posterior", "PosteriorMixture", "Prediction", "Reconstruction", "Solver",
    "calibrate_intervals", "condition", "load_posterior", "save_posterior",
]  # fmt: skip
