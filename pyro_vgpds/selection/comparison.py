# SPDX-License-Identifier: Apache-2.0
"""Held-out entries, and what every candidate and the ensemble predict for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import NormalDist

import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import HeldOut, Split
from pyro_vgpds.prediction.intervals import Calibration
from pyro_vgpds.prediction.weights import combine

__all__ = ["ENSEMBLE", "LEVELS", "Comparison", "Entries", "compare"]

ENSEMBLE = "ensemble"  # its name among the candidates
LEVELS = (0.5, 0.8, 0.95)  # probabilities of intervals


@dataclass(frozen=True)
class Entries:
    """Where the n held-out entries are."""

    sequence: Tensor  #: (n,), index in the data
    t: Tensor  #: (n,)
    split: Tensor  #: (n,), number of the split, such as the origin of a forecast

    @classmethod
    def of(cls, splits: Sequence[Split], data: Sequences) -> Entries:
        """The entries of splits of ``data``, one split after the other."""
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for number, split in enumerate(splits):
            new = iter(sorted(set(range(data.num_sequences)) - set(split.kept)))  # whole sequences that are hidden
            belongs = [next(new) if s is None else split.kept[s] for s in split.sequence]
            rows = torch.cat(split.truth).isfinite().nonzero()[:, 0]
            sequence = torch.cat([torch.full((len(t),), s) for s, t in zip(belongs, split.t, strict=True)])
            parts.append((sequence[rows.cpu()], torch.cat(split.t)[rows].cpu(), torch.full((len(rows),), number)))
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Comparison:
    """Held-out predictions of all candidates and of the ensemble.

    The weights and the calibration of the ensemble's predictions are those of the other half of the entries.
    """

    entries: Entries
    found: dict[str, HeldOut]  #: by candidate; ``"ensemble"`` is one of them
    widths: dict[float, Tensor]  #: half widths (n,) of the ensemble's intervals, for each of ``LEVELS``

    @property
    def truth(self) -> Tensor:
        """(n,)"""
        return self.found[ENSEMBLE].truth

    @property
    def output(self) -> Tensor:
        """(n,)"""
        return self.found[ENSEMBLE].output

    def half_width(self, name: str, level: float) -> Tensor:
        """Half widths (n,) of central intervals of one of ``LEVELS``; those of single candidates are Gaussian."""
        if name == ENSEMBLE:
            return self.widths[level]
        return NormalDist().inv_cdf(0.5 + 0.5 * level) * self.found[name].variance.sqrt()

    def coverage(self, name: str, level: float) -> float:
        """Percentage of the entries inside the intervals."""
        error = (self.found[name].mean - self.truth).abs()
        return 100.0 * float((error <= self.half_width(name, level)).double().mean())

    def error(self, name: str, scale: Tensor, where: Tensor | None = None) -> float:
        """Root mean squared error in units of each output's scale (D,), of all entries or of some."""
        part = self.found[name] if where is None else _part(self.found[name], where)
        return float(((part.mean - part.truth) / scale.to(part.mean)[part.output]).square().mean().sqrt())


def compare(
    entries: Entries, found: dict[str, HeldOut], choose: Callable[[list[HeldOut]], tuple[Tensor, Calibration]]
) -> Comparison:
    """
    :param entries: where the held-out entries are.
    :param found: the predictions of each candidate.
    :param choose: weights and calibration of an ensemble from held-out predictions.
    """
    members = list(found.values())
    n = len(members[0].truth)
    halves = [torch.arange(n) < n // 2, torch.arange(n) >= n // 2]
    mean, variance = members[0].mean.clone(), members[0].variance.clone()
    widths = {level: torch.zeros_like(mean) for level in LEVELS}
    for tested, fitted in (halves, halves[::-1]):
        if not bool(tested.any()):
            continue
        known = fitted if bool(fitted.any()) else tested
        weights, calibration = choose([_part(member, known) for member in members])
        mixed = combine([_part(member, tested) for member in members], weights)
        size = mixed.variance.sqrt() * calibration.factor.to(mixed.mean)[mixed.output]
        mean[tested], variance[tested] = mixed.mean, size.square()
        for level, width in widths.items():
            width[tested] = calibration.width(level) * size
    return Comparison(entries, {ENSEMBLE: replace(members[0], mean=mean, variance=variance), **found}, widths)


def _part(found: HeldOut, where: Tensor) -> HeldOut:
    return HeldOut(*(getattr(found, field.name)[where] for field in fields(found)))
