# SPDX-License-Identifier: Apache-2.0
"""The guide of some of the sequences that a model was trained on, if the others are not in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.data.batches import SequenceDataset
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.inference.streaming import Streamed, at_medians, stream
from pyro_vgpds.inference.subsampling import model_of
from pyro_vgpds.mapping.sequence_summary import SequenceSummary

__all__ = ["PartialGuide", "partial_guide", "share_hyperparameters", "summary_of"]

_NOTHING = 1e-9  # λ of a frame in which nothing was observed, relative to the average of the others


class PartialGuide(AutoOpperArchambeau):
    """q(X) of some of the sequences that a model was trained on, with the sums over the frames of all others.

    :meth:`AutoExplicit.part <pyro_vgpds.AutoExplicit.part>` makes it. :class:`~pyro_vgpds.Posterior` predicts with it
    as with the guide of all sequences, and files hold it. It cannot be trained: the sums belong to fixed parameters.

    :param factors: the state of the Gaussian factors of the outputs, (2, n, F), if they are not Gaussian. The model
        gets it when the guide is read.
    """

    def __init__(
        self, model: PyroModule, summary: SequenceSummary, factors: Tensor | None = None, **options: object
    ) -> None:
        super().__init__(model, **options)  # type: ignore[arg-type]
        self.summary, self.factors = summary, factors
        for parameter in self.frame_parameters:
            parameter.requires_grad_(False)

    def put_factors(self, data: object) -> None:
        """Give the model the factors of the outputs of these sequences."""
        if self.factors is not None and isinstance(data, Sequences):
            sites = model_of(self).sites
            sites.set(self.factors.to(self.lam_unconstrained.device))
            sites.belong_to(data)

    def median(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        self.put_factors(args[0] if args else None)
        found: dict[str, Tensor] = super().median(*args, **kwargs)
        return found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PartialGuide:
        """Moves to another device; the sums stay float64."""
        super()._apply(fn, recurse)
        self.summary = self.summary.to(self.lam_unconstrained.device)
        return self


def summary_of(guide: object) -> SequenceSummary | None:
    """What sequences that are not in memory add to a trained model; None if all are in memory."""
    return guide.summary if isinstance(guide, PartialGuide) else None


def partial_guide(
    guide: OpperArchambeauGuide, data: SequenceDataset, streamed: Streamed, chosen: list[int], lam: Tensor
) -> tuple[PartialGuide, Sequences]:
    """The guide of the ``chosen`` sequences, and these sequences, after a pass over all of them.

    :param lam: the average λ of all frames, (Q,).
    """
    model, factors = model_of(guide), None
    state: Tensor = guide.factors
    if chosen:
        own, batch = data.named(chosen), data.batch(chosen)
        streamed = streamed.without(stream(guide, batch).estimated(guide, batch))
        with torch.no_grad():
            q = guide.make_posterior(at_medians(guide, batch)[1])
            sites = {"mean_bar": q.mean_bar, "lam": q.lam}
        if state.shape[-1]:
            factors = state[:, batch.rows].clone()
    else:
        own = data.placeholder(model.num_outputs)
        sites = {"mean_bar": torch.zeros_like(lam).unsqueeze(0), "lam": _NOTHING * lam.unsqueeze(0)}
        if state.shape[-1]:
            factors = torch.zeros_like(state[:, :1])
    count = data.num_sequences - len(chosen)
    summary = SequenceSummary(streamed.sums, streamed.kl, count, lam, streamed.limits, streamed.estimate)
    new = PartialGuide(model, summary, factors, **sites)
    share_hyperparameters(guide, new)
    return new, own


def share_hyperparameters(guide: OpperArchambeauGuide, new: OpperArchambeauGuide) -> None:
    """Give the guide ``new`` the distributions of another one's hyperparameters: the same modules, which training
    moves.
    """
    for name in ("locs", "scales"):
        if hasattr(guide, name):
            setattr(new, name, getattr(guide, name))
