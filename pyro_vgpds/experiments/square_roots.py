# SPDX-License-Identifier: Apache-2.0
"""The Gaussian model of square roots of counts, as a predictor of the experiments on counts."""

from __future__ import annotations

import numpy as np

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.experiments.answer import Answer, Predictor, frames, parts, times
from pyro_vgpds.experiments.recipe import Recipe
from pyro_vgpds.experiments.spike_baselines import read_out
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.posterior import Posterior

__all__ = ["ahead_of_square_roots", "gaussian_square_roots"]


def gaussian_square_roots(recipe: Recipe, penalty: float | None = None) -> Predictor:
    """A Gaussian VGPDS of square roots. The mean count is the squared mean of the square root plus its variance.

    If the test sequences are the training sequences, they are imputed; other ones are reconstructed.

    :param penalty: if given, rates of other sequences are a Poisson regression of counts on the latent means, with this
        penalty.
    """

    def predict(training: Sequences, test: Sequences) -> Answer:
        trained = _train(recipe, training)
        latent, mean = trained.q.mean.numpy(), _counts(trained.impute(fill=False))
        if test is training:
            return Answer(mean, latent=latent, training_mean=mean, training_latent=latent)
        new = trained.reconstruct(times(test), [np.sqrt(part) for part in parts(test)])
        if penalty is not None:
            return read_out(latent, new.latent.mean.numpy(), frames(training), penalty)
        return Answer(_counts(new), latent=new.latent.mean.numpy(), training_mean=mean, training_latent=latent)

    return predict


def ahead_of_square_roots(recipe: Recipe) -> Predictor:
    """The same as a forecast: the test sequence has the frames of the one training sequence and further ones."""

    def predict(training: Sequences, test: Sequences) -> Answer:
        trained = _train(recipe, training)
        ahead = trained.forecast(test.times.t[training.num_frames :], sequence=0)
        return Answer(np.concatenate([_counts(trained.impute(fill=False)), _counts(ahead)]))

    return predict


def _train(recipe: Recipe, data: Sequences) -> Posterior:
    return recipe.train(times(data), [np.sqrt(part) for part in parts(data)], seed=0, progress=False)


def _counts(prediction: Outputs) -> np.ndarray:
    """E y of y = z² with z ~ N(m, v)."""
    return (prediction.mean.square() + prediction.variance).numpy()
