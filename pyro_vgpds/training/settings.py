# SPDX-License-Identifier: Apache-2.0
"""The settings of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyro_vgpds.checks import check_choice, check_count, check_not_negative, check_number, check_rate

__all__ = ["METHODS", "SAME_CALL", "ResumeError", "Settings"]

SAME_CALL = "Call fit in the same way in all processes."  #: what to do if their settings differ
METHODS = ("natural", "lbfgs", "adam")
_RATES = {"natural": 0.07, "lbfgs": 1.0, "adam": 0.02}


class ResumeError(ValueError):
    """A checkpoint is of another run."""


@dataclass(frozen=True)
class Settings:
    """The arguments of :func:`~pyro_vgpds.fit` that decide the course of one run.

    :raises ValueError: if one of them is out of its range.
    """

    num_steps: int
    method: str
    learning_rate: float | None
    natural_rate: float
    warmup: int | None
    tolerance: float

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_count("num_steps", self.num_steps, 1)
        if self.warmup is not None:
            check_count("warmup", self.warmup, 0)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, "positive and finite", lambda value: value > 0.0)
        check_rate("natural_rate", self.natural_rate)
        check_not_negative("tolerance", self.tolerance)

    @property
    def rate(self) -> float:
        """The learning rate, or its default for the method."""
        return self.learning_rate or _RATES[self.method]

    @property
    def num_warmup(self) -> int:
        """The number of steps with a fixed noise."""
        return min(20, self.num_steps // 10) if self.warmup is None else self.warmup

    def stored(self) -> list[float]:
        """The numbers that a checkpoint keeps."""
        return [self.rate, self.natural_rate, self.num_warmup, self.tolerance]

    def resumed(self, method: str, stored: Sequence[float]) -> Settings:
        """These settings for a run that continues one with this method and :meth:`stored` numbers, whose default
        warm-up is kept.

        :raises ValueError: if the settings differ in more than ``num_steps``.
        """
        settings = replace(self, warmup=int(stored[2])) if self.warmup is None else self
        names = ("method", "learning_rate", "natural_rate", "warmup", "tolerance")
        pairs = zip(names, (method, *stored), (settings.method, *settings.stored()), strict=True)
        differing = [f"{name} was {old!r} and is now {new!r}" for name, old, new in pairs if old != new]
        if differing:
            raise ResumeError(
                f"Cannot resume: {'; '.join(differing)}. Only num_steps may differ from the checkpoint's run."
            )
        return settings
