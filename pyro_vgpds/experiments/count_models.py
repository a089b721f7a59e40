# SPDX-License-Identifier: Apache-2.0
"""Models of counts and of yes/no as predictors of the experiments: by their likelihoods, or of square roots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyro
import torch

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.experiments.answer import Answer, Predictor, exposed, frames, parts, times
from pyro_vgpds.experiments.recipe import Recipe
from pyro_vgpds.experiments.spike_baselines import read_out
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import Kernel
from pyro_vgpds.likelihoods import Likelihood
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.output_prediction import OutputPrediction
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.solver import Solver
from pyro_vgpds.training.api import fit

__all__ = ["CountModel", "ahead_of_square_roots", "gaussian_square_roots"]


@dataclass(frozen=True)
class CountModel:
    """A model with a likelihood, from training to predictions. Its methods suit the protocols of the experiments."""

    likelihood: Callable[[], Likelihood]  #: makes the likelihood
    latent_dim: int | None = None
    num_inducing: int | None = None
    temporal: Callable[[], Kernel] | None = None  #: makes the temporal kernel. Default: that of the library
    mapping: Callable[[], Kernel] | None = None  #: makes the mapping kernel. Default: that of the library
    static_dim: int | None = None
    start: Callable[[VGPDS, Sequences], None] | None = None  #: changes where training starts
    num_steps: int = 60
    learning_rate: float | None = None  #: of training. Default: that of the library
    solver: Solver = field(default_factory=lambda: Solver(num_starts=1, num_steps=200, tolerance=1e-7))
    seed: int = 0
    exposure: np.ndarray | None = None  #: (D,), of each output

    def train(self, data: Sequences) -> Posterior:
        """The trained model."""
        pyro.set_rng_seed(self.seed)
        if self.exposure is not None:
            data = exposed(data, self.exposure)
        model = VGPDS.from_data(
            data, self.latent_dim, self.num_inducing, None if self.temporal is None else self.temporal(),
            None if self.mapping is None else self.mapping(), likelihood=self.likelihood(), static_dim=self.static_dim,
        )  # fmt: skip
        if self.start is not None:
            self.start(model, data)
        guide = AutoOpperArchambeau(model)
        fit(model, guide, data, num_steps=self.num_steps, learning_rate=self.learning_rate, progress=False)
        return Posterior(model, guide, data)

    def predict(self, training: Sequences, test: Sequences) -> Answer:
        """Hidden entries: imputed if the test sequences are the training sequences, else reconstructed."""
        trained = self.train(training)
        own = trained.impute(fill=False)
        latent, mean = trained.q.mean.numpy(), own.mean.numpy()
        if test is training:
            return Answer(mean, _scores(own), latent, mean, latent)
        new = trained.reconstruct(times(test), parts(test), solver=self.solver)
        # rates of the training frames under the same q(U), which has seen the test frames, too
        mean = trained.predict(training.times.t, trained.q, new.inducing, include_noise=True).mean.numpy()
        return Answer(new.mean.numpy(), _scores(new), new.latent.mean.numpy(), mean, latent)

    def forecast(self, training: Sequences, test: Sequences) -> Answer:
        """The frames of the test sequence after those of the one training sequence, from their times alone."""
        trained = self.train(training)
        known = training.num_frames
        own, ahead = trained.impute(fill=False), trained.forecast(test.times.t[known:], sequence=0)
        own_scores, ahead_scores = _scores(own), _scores(ahead)
        return Answer(
            np.concatenate([own.mean.numpy(), ahead.mean.numpy()]),
            lambda truth: np.concatenate([own_scores(truth[:known]), ahead_scores(truth[known:])]),
        )

    def log_density(self, training: Sequences, test: Sequences) -> np.ndarray:
        """A lower bound on log p of each test sequence."""
        return self.train(training).log_density(times(test), parts(test), solver=self.solver).numpy()


def _scores(prediction: object) -> Callable[[np.ndarray], np.ndarray]:
    assert isinstance(prediction, OutputPrediction)
    return lambda truth: prediction.log_probs(torch.from_numpy(truth)).numpy()


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
