# SPDX-License-Identifier: Apache-2.0
"""A model that is called on a random batch of the sequences each time."""

from __future__ import annotations

from collections.abc import Sequence

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.checks import check_callable, check_count
from pyro_vgpds.data.batches import Batch, DatasetLike, as_dataset
from pyro_vgpds.inference.guides import OpperArchambeauGuide

__all__ = ["Subsampled", "model_of"]


class Subsampled:
    """A model that draws the batch which it is called on, with a subsampled plate over the sequences.

    ``pyro.plate("sequences", S, subsample_size=batch_size)`` draws the sequences, so Pyro's algorithms see an ordinary
    subsampled model. Sequences of unequal length are no tensor dimension: the plate is not entered, and the terms of
    the batch are multiplied by its scale.

    :param model: a :class:`~pyro_vgpds.VGPDS`, or another ``PyroModule`` that takes a :class:`~pyro_vgpds.data.Batch`.
    :param batch_size: number of sequences of a batch.
    :raises ValueError: if ``batch_size`` is not a positive whole number, or, when called, there are fewer sequences.

    >>> from pyro.infer import SVI
    >>> from pyro.optim import Adam
    >>> from pyro_vgpds import AutoExplicit, Collapsed_ELBO, Subsampled
    >>> many = make_sequences(num_sequences=6, num_outputs=5, length=(20, 25)).sequences()
    >>> new = VGPDS.from_data(many, latent_dim=2, num_inducing=10)
    >>> subsampled = Subsampled(new, batch_size=2)
    >>> svi = SVI(subsampled, AutoExplicit(subsampled, many, free=True), Adam({"lr": 0.01}), Collapsed_ELBO())
    >>> loss = svi.step(many)  # an estimate of minus the bound
    """

    def __init__(self, model: PyroModule, batch_size: int) -> None:
        check_callable("model", model, "a VGPDS")
        check_count("batch_size", batch_size)
        self.model, self.batch_size = model, batch_size

    def __call__(self, data: DatasetLike | Batch, subsample: Sequence[int] | Tensor | None = None) -> Tensor:
        """Call the model on a batch, or on the sequences ``subsample``. Default: ``batch_size`` of them, drawn at
        random.
        """
        if isinstance(data, Batch):
            return self._call(data)
        source = as_dataset(data)
        if self.batch_size > source.num_sequences:
            raise ValueError(f"batch_size is {self.batch_size}, but there are only {source.num_sequences} sequences.")
        size = self.batch_size if subsample is None else len(subsample)
        given = None if subsample is None else torch.as_tensor(subsample)
        plate = pyro.plate("sequences", source.num_sequences, subsample_size=size, subsample=given)
        return self._call(source.batch(plate.indices))

    def _call(self, batch: Batch) -> Tensor:
        y: Tensor = self.model(batch)
        return y


def model_of(guide: OpperArchambeauGuide) -> PyroModule:
    """The model of a guide, without subsampling."""
    model = guide.model.model if isinstance(guide.model, Subsampled) else guide.model
    assert isinstance(model, PyroModule)
    return model
