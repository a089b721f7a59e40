# SPDX-License-Identifier: Apache-2.0
"""Generative classification of sequences: one model for each class, and Bayes' rule."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from numbers import Real

import torch
from torch import Tensor

from pyro_vgpds.checks import check_dict
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.solver import Solver
from pyro_vgpds.types import DataLike

__all__ = ["BayesClassifier"]


class BayesClassifier:
    r"""p(class given y) ∝ p(class) p(y given the training data of the class), by
    :meth:`Posterior.log_density <pyro_vgpds.Posterior.log_density>` of one trained model for each class.

    :param posteriors: class names and their :class:`~pyro_vgpds.Posterior`; all must have the same outputs.
    :param prior: probability of each class. Default: equal probabilities.
    :raises ValueError: if outputs differ, or ``prior`` names other classes or is not a distribution.

    >>> from pyro_vgpds import BayesClassifier
    >>> loud = Posterior(model, guide, data, noise_variance=10.0)
    >>> classifier = BayesClassifier({"quiet": post, "loud": loud}, prior={"quiet": 0.7, "loud": 0.3})
    >>> classifier.predict(data.times.t[:10], data.read()[:10])
    'quiet'
    """

    def __init__(self, posteriors: Mapping[Hashable, Posterior], prior: Mapping[Hashable, float] | None = None) -> None:
        check_dict("posteriors", posteriors, "{class: Posterior}", Posterior)
        outputs = {name: p.num_outputs for name, p in posteriors.items()}
        if len(set(outputs.values())) > 1:
            raise ValueError(f"the models of all classes must have the same outputs, but they have {outputs}.")
        prior = dict.fromkeys(posteriors, 1.0 / len(posteriors)) if prior is None else prior
        check_dict("prior", prior, "{class: probability}", Real)
        if set(prior) != set(posteriors):
            raise ValueError(f"prior must name the classes {list(posteriors)}, but names {list(prior)}.")
        if any(not p >= 0.0 for p in prior.values()) or not math.isclose(sum(prior.values()), 1.0, rel_tol=1e-6):
            raise ValueError(f"prior must be probabilities with sum 1, but got {dict(prior)}.")
        self.posteriors, self.prior = dict(posteriors), dict(prior)
        self.classes = list(posteriors)

    def log_joint(self, t: DataLike, y: DataLike, *, solver: Solver | None = None) -> Tensor:
        """Log p(class) + a lower bound on log p(y given class), (classes,), or (S, classes) for a list of sequences.

        Arguments are those of :meth:`Posterior.log_density <pyro_vgpds.Posterior.log_density>`.
        """
        scores = [self.posteriors[c].log_density(t, y, solver=solver) for c in self.classes]
        priors = [math.log(p) if (p := self.prior[c]) > 0 else -math.inf for c in self.classes]
        return torch.stack([score + log_p for score, log_p in zip(scores, priors, strict=True)], -1)

    def predict_proba(self, t: DataLike, y: DataLike, *, solver: Solver | None = None) -> Tensor:
        """Probabilities of the classes, (classes,), or (S, classes) for a list of sequences. Arguments as in
        :meth:`log_joint`.

        >>> classifier.predict_proba(data.times.t[:10], data.read()[:10]).shape
        torch.Size([2])
        """
        return self.log_joint(t, y, solver=solver).softmax(-1)

    def predict(self, t: DataLike, y: DataLike, *, solver: Solver | None = None) -> Hashable | list[Hashable]:
        """The most probable class, or a list of them for a list of sequences. Arguments as in :meth:`log_joint`."""
        best = self.log_joint(t, y, solver=solver).argmax(-1)
        return self.classes[int(best)] if best.dim() == 0 else [self.classes[i] for i in best.tolist()]

    def __repr__(self) -> str:
        return f"BayesClassifier({', '.join(map(str, self.classes))})"
