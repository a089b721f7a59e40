# SPDX-License-Identifier: Apache-2.0
"""The estimate of the bound on a batch, as a function of the parameters that training changes."""

from __future__ import annotations

import math

from torch import Tensor

from pyro_vgpds.data.batches import Batch, SequenceDataset
from pyro_vgpds.data.frame_batches import FrameDataset
from pyro_vgpds.inference.elbo import Collapsed_ELBO
from pyro_vgpds.inference.explicit import AutoExplicit
from pyro_vgpds.inference.minibatch import MinibatchNaturalGradient
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.training.bundle import are_finite, copies
from pyro_vgpds.training.problem import Values, noise_parameters, put_back
from pyro_vgpds.training.settings import ResumeError

__all__ = ["BatchProblem", "unpacked"]


class BatchProblem:
    """An estimate of the bound on a batch of sequences, or of frames of one, as a function of the parameters."""

    outputs = None  # the factors of outputs that are not Gaussian

    def __init__(self, guide: AutoExplicit, data: SequenceDataset | FrameDataset) -> None:
        self.guide, self.model, self.data = guide, guide.collapsed_model, data
        self.natural = MinibatchNaturalGradient(guide, 1.0)
        self.parameters = [p for p in (*self.model.parameters(), *guide.parameters()) if p.requires_grad]
        self.late = noise_parameters(self.model)
        self.best, self.best_bound = Values((), ()), -math.inf
        self.communicator = guide.data.communicator
        self._elbo = Collapsed_ELBO()

    def __enter__(self) -> BatchProblem:
        self.natural.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.natural.__exit__(*error)

    def values(self) -> Values:
        """The current values; those of q(X) are not copied."""
        dual = [part.double() for part in self.guide.dual.tensors()]
        return Values(copies(self.parameters), (self.guide.eta, self.guide.lam, *dual, *self._factors()))

    @property
    def frame_tensors(self) -> list[int]:
        """Which of the values have a row for each frame, in the last but one dimension: η, λ and the factors."""
        count = len(self.parameters)
        return [count, count + 1, *(count + 8 for _ in self._factors())]

    def _factors(self) -> list[Tensor]:
        """The factors of outputs that are not Gaussian, of all frames."""
        return [self.guide.factors] if self.guide.factors.shape[-1] else []

    def loaded(self, tensors: list[Tensor]) -> Values:
        """Values from a checkpoint."""
        count = len(self.parameters)
        wanted = [value.shape for value in (*self.parameters, self.guide.eta, self.guide.lam)]
        size, more = count + 8, self._factors()
        if tensors and (
            [value.shape for value in (*tensors[: count + 2], *tensors[size:])] != [*wanted, *(x.shape for x in more)]
            or len(tensors) != size + len(more)
        ):
            raise ResumeError("Cannot resume: the checkpoint's parameters are not those of this model and guide.")
        return Values(tensors[:count], tensors[count:])

    def restore(self, values: Values) -> None:
        """Go back to values."""
        put_back(self.parameters, values.parameters)
        eta, lam, *dual = values.sites
        for own in self._factors():
            own.copy_(dual.pop())
        self.guide.eta.copy_(eta)
        self.guide.lam.copy_(lam)
        self.guide.dual = unpacked(dual)

    def evaluate(self, batch: Batch, rate: float) -> float:
        """An estimate of the bound on a batch, with ρ of q(U). Gradients of minus the estimate are left with the
        parameters.

        :raises NumericalError: if the estimate or a gradient is not finite.
        """
        for parameter in self.parameters:
            parameter.grad = None
        self.natural.inducing_rate = rate
        bound = -float(self._elbo.loss_and_grads(self.model, self.guide, batch))
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        finite = math.isfinite(bound) and are_finite([*gradients, *self.natural.derivatives()])
        self.communicator.check(None if finite else NumericalError("the bound or one of its gradients is not finite."))
        return bound


def unpacked(dual: list[Tensor]) -> Dual:
    """The statistics of q(U) from numbers of a checkpoint."""
    # copies, which torch aligns: matrix products may round in another way if memory is not aligned
    a, v, of_output, *rest = (part.clone() for part in dual)
    return Dual.from_tensors([a, v, of_output.long(), *rest])
