# SPDX-License-Identifier: Apache-2.0
"""Variational Gaussian process dynamical systems in Pyro.

Data, model, guide, training and prediction in a few lines:

>>> import pyro
>>> from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, fit
>>> from pyro_vgpds.datasets import make_sequences
>>> pyro.set_rng_seed(0)
>>> data = make_sequences(num_sequences=2, num_outputs=5, length=(20, 25)).sequences()
>>> data
Sequences(2 sequences, 48 frames, 5 outputs)
>>> model = VGPDS.from_data(data, latent_dim=3, num_inducing=12)
>>> guide = AutoOpperArchambeau(model)
>>> result = fit(model, guide, data, num_steps=30)
>>> post = Posterior(model, guide, data)
>>> post.forecast([2.6, 2.7, 2.8], sequence=0).mean.shape
torch.Size([3, 5])
"""

import pyro_vgpds.interrupts  # noqa: F401  # isort: skip  # first, for Ctrl-C while the others load

from pyro_vgpds import kernels
from pyro_vgpds.data.batches import SequenceDataset
from pyro_vgpds.data.lags import lagged
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.models import FileFormatError, load, load_metadata, save
from pyro_vgpds.inference.amortized import AmortizedOpperArchambeau
from pyro_vgpds.inference.elbo import Collapsed_ELBO
from pyro_vgpds.inference.explicit import AutoExplicit
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.inference.minibatch import MinibatchNaturalGradient
from pyro_vgpds.inference.natural import NaturalGradient
from pyro_vgpds.inference.subsampling import Subsampled
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.classifier import BayesClassifier
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.posterior_mixture import PosteriorMixture
from pyro_vgpds.prediction.predictions import Prediction
from pyro_vgpds.prediction.solver import Solver
from pyro_vgpds.prediction.storage import load_posterior, save_posterior
from pyro_vgpds.selection.api import auto
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.training.api import fit
from pyro_vgpds.training.result import FitResult
from pyro_vgpds.version import __version__

__all__ = [
    "VGPDS", "AmortizedOpperArchambeau", "AutoExplicit", "AutoOpperArchambeau", "BayesClassifier", "Collapsed_ELBO",
    "Ensemble", "FileFormatError", "FitResult", "MinibatchNaturalGradient", "NaturalGradient", "NumericalError",
    "OpperArchambeau", "Posterior", "PosteriorMixture", "Prediction", "SequenceDataset", "Sequences", "Solver",
    "SparseGP", "Subsampled", "TemporalGP", "__version__", "auto", "fit", "kernels", "lagged", "load", "load_metadata",
    "load_posterior", "save", "save_posterior",
]  # fmt: skip
