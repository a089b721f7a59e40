# SPDX-License-Identifier: Apache-2.0
"""Held-out entries, and what every candidate and the ensemble predict for them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from pyro_vgpds.evaluation.entries import Entries
from pyro_vgpds.evaluation.scores import relative_error
from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.selection.distributions import LEVEL, covered

__all__ = ["ENSEMBLE", "Comparison"]

ENSEMBLE = "ensemble"  # its name among the candidates


@dataclass(frozen=True)
class Comparison:
    """Held-out predictions of all candidates and of the ensemble.

    The weights and the calibration of the ensemble's predictions were chosen on other entries; for forecasts on other
    origins, which can have frames in common.
    """

    entries: Entries
    found: dict[str, HeldOut]  #: by candidate; ``"ensemble"`` is one of them
    widths: dict[float, Tensor]  #: half widths (n,) of the ensemble's intervals, for each of ``LEVELS``; none of a pool

    @property
    def is_pool(self) -> bool:
        """Whether predictions have distributions of their own, and the ensemble is their mixture."""
        return self.found[ENSEMBLE].cdf is not None

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
        found = self.found[name]
        if self.is_pool:
            return 100.0 * float(covered(found, level).double().mean())
        return 100.0 * float(((found.mean - self.truth).abs() <= self.half_width(name, level)).double().mean())

    def interval(self) -> tuple[Tensor, Tensor]:
        """Ends (n,) of the ensemble's 95 % intervals."""
        found = self.found[ENSEMBLE]
        if found.ends is not None:
            return found.ends[:, 0], found.ends[:, 1]
        width = self.half_width(ENSEMBLE, LEVEL)
        return found.mean - width, found.mean + width

    def error(self, name: str, scale: Tensor, where: Tensor | None = None) -> float:
        """Root mean squared error in units of each output's scale (D,), of all entries or of some."""
        found = self.found[name]
        return relative_error(found if where is None else found.take(where), scale)
