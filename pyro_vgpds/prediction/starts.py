# SPDX-License-Identifier: Apache-2.0
"""Where a reconstruction starts: at the training frames nearest to the new ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.mapping.pseudo import PseudoGP
from pyro_vgpds.prediction.trained import Training, guessed

__all__ = ["nearest_frames", "nearest_starts"]

_CANDIDATES = 20_000  # training frames that are searched for nearest neighbours


def nearest_starts(training: Training, new: Sequences, num_starts: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Initial sites (η, λ) of the new frames: those of their nearest training frames.

    The first start compares outputs in the model's scale, the second divides them by their standard deviations, and so
    on in turn. From the third on, each searches a random half of the training frames.
    """
    likelihood, (data, x, precision) = training.likelihood, training.candidates
    if isinstance(likelihood, PseudoGP):
        new = guessed(likelihood.outputs.elsewhere, new)
    deviation = data.output_variances.sqrt()
    scales = likelihood.output_scale, torch.where(deviation > 0, deviation, 1.0)
    for i in range(num_starts):
        near, known = nearest_frames(data, new, scales[i % 2], share=1.0 if i < 2 else 0.5)
        lam = precision[near] * known
        yield lam * x[near], lam


def nearest_frames(data: Sequences, new: Sequences, scale: Tensor, share: float = 1.0) -> tuple[Tensor, Tensor]:
    """The training frame (T,) nearest to each new one, and whether one was found, (T, 1).

    The distance is the mean squared difference of the outputs observed in both frames, divided by ``scale`` (D,). A
    random ``share`` of the training frames is searched.
    """
    candidates = torch.arange(data.num_frames, device=data.device)
    wanted = min(_CANDIDATES, max(1, round(share * data.num_frames)))
    if wanted < data.num_frames:
        candidates = torch.randperm(data.num_frames, device=data.device)[:wanted]
    distance = _distances(data, new, candidates, scale)
    return candidates[distance.argmin(1)], torch.isfinite(distance).any(1, keepdim=True)


def _distances(data: Sequences, new: Sequences, candidates: Tensor, scale: Tensor) -> Tensor:
    """Mean squared differences (T, candidates) of the outputs observed in both frames; infinite without any."""
    total = torch.zeros(new.num_frames, len(candidates), dtype=data.dtype, device=data.device)
    count = torch.zeros_like(total)
    centre = torch.nan_to_num(data.output_means)
    for where, block in data.blocks():
        parts = [(y - centre[where]) / scale[where] for y in (new.read(where.start, where.stop), block[candidates])]
        (a, seen_a), (b, seen_b) = ((torch.nan_to_num(p, nan=0.0), torch.isfinite(p).to(p.dtype)) for p in parts)
        total += a.square() @ seen_b.mT + seen_a @ b.square().mT - 2.0 * a @ b.mT
        count += seen_a @ seen_b.mT
    return torch.where(count > 0, total / count, torch.inf)
