# SPDX-License-Identifier: Apache-2.0
"""What the automatic choice did: a table of candidates, and sentences about it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

from pyro_vgpds.evaluation.scores import Table, Value
from pyro_vgpds.formatting import joined
from pyro_vgpds.selection.comparison import Comparison

__all__ = ["Report", "Scored"]

_TASKS = {
    "impute": "missing entries of the training sequences",
    "reconstruct": "hidden columns of partly observed frames",
    "forecast": "the last frames of each sequence",
}
_FEW = 30  # held-out entries that tell little
_WORTH = 0.99  # times the error of the best baseline: that of an ensemble that is worth its time


@dataclass(frozen=True)
class Scored:
    """A candidate with its held-out scores.

    >>> from pyro_vgpds.selection import Scored
    >>> Scored("column mean", is_baseline=True, error=1.0, inside=95.0, seconds=0.1).weight
    0.0
    """

    name: str  #: of the candidate
    is_baseline: bool  #: whether it is a baseline, not a model
    error: float  #: root mean squared error in standard deviations of the outputs
    inside: float  #: percentage inside 95 % intervals
    seconds: float  #: CPU seconds of training and prediction
    weight: float = 0.0  #: mean weight in the ensemble
    failure: str | None = None  #: why it has no score
    log_score: float | None = None  #: mean log-probability of a held-out entry; None for Gaussian outputs

    @property
    def loss(self) -> float:
        """What candidates are ranked by, the smallest first: minus the log score, or the error of Gaussian outputs."""
        return self.error if self.log_score is None else -self.log_score


@dataclass(frozen=True)
class Report:
    """The candidates for one task.

    ``print(report)`` shows a table and the conclusions; :meth:`table` has the numbers.

    >>> from pyro_vgpds.selection import Report, Scored
    >>> mean = Scored("column mean", True, error=1.0, inside=95.0, seconds=0.1, weight=0.25)
    >>> model = Scored("linear mapping", False, error=0.5, inside=94.0, seconds=2.0, weight=0.75)
    >>> print(Report("forecast", [mean, model], Scored("ensemble", False, 0.475, 95.0, 2.1, 1.0), hidden=40))
    candidate       kind       error  in 95 %  weight   CPU s
    ensemble        ensemble  0.4750    95.00   1.000   2.100
    linear mapping  model     0.5000    94.00  0.7500   2.000
    column mean     baseline   1.000    95.00  0.2500  0.1000
    <BLANKLINE>
    Task: forecast. 40 held-out entries: the last frames of each sequence.
    Chosen: 75 % linear mapping, 25 % column mean.
    The ensemble's held-out error is 5.0 % below that of the best single candidate, linear mapping.
    """

    task: str  #: what was held out
    candidates: list[Scored]  #: with their scores, or the reason of their failure
    ensemble: Scored  #: of all members together, with weights and intervals chosen on other held-out entries
    hidden: int  #: number of held-out entries
    skipped: list[str] = field(default_factory=list)  #: candidates that the time budget excluded
    stopped: list[str] = field(default_factory=list)  #: those that ended after the first held-out part, far behind
    comparison: Comparison | None = field(default=None, repr=False, compare=False)  #: all predictions; not in files

    def table(self) -> Table:
        """One row for each candidate, the best first; the ensemble is the first row."""
        ranked = sorted((c for c in self.candidates if c.failure is None), key=lambda c: c.loss)
        return Table(
            [_row(self.ensemble, "ensemble"), *(_row(c, "baseline" if c.is_baseline else "model") for c in ranked)]
        )

    @property
    def best(self) -> Scored:
        """The candidate with the smallest held-out error, or with the highest log score if outputs are not Gaussian."""
        return min((c for c in self.candidates if c.failure is None), key=self._rank)

    @property
    def best_model(self) -> Scored | None:
        """The best candidate that is not a baseline; its error may be an estimate."""
        models = (c for c in self.candidates if c.failure is None and not c.is_baseline)
        return min(models, key=lambda c: c.loss, default=None)

    def _rank(self, candidate: Scored) -> tuple[bool, float]:
        """Whether the error is only estimated, and the loss: an estimate does not make a candidate the best one."""
        return candidate.name in self.stopped, candidate.loss

    def conclusions(self) -> list[str]:
        """What was found, in sentences."""
        lines = [f"Task: {self.task}. {self.hidden} held-out entries: {_TASKS[self.task]}."]
        if self.hidden < _FEW:
            lines.append("These are few: errors, weights and intervals may be far off.")
        best, model = self.best, self.best_model
        parts = sorted((c for c in self.candidates if c.weight >= 0.005), key=lambda c: -c.weight)
        lines.append("Chosen: " + joined(f"{100 * c.weight:.0f} % {c.name}" for c in parts) + ".")
        alone = [c.name for c in parts] == [best.name]
        if self.ensemble.log_score is not None:
            lines += self._about_scores(best, alone)
        elif not alone:
            gain = _percent(best.error, self.ensemble.error)
            lines.append(
                f"The ensemble's held-out error is {abs(gain):.1f} % {'below' if gain <= 0 else 'above'} that of the "
                f"best single candidate, {best.name}."
            )
        if best.is_baseline and model is not None and best.log_score is None:
            worse = f" ({_percent(best.error, model.error):.0f} % more)" if best.error > 0.0 else ""
            advice = ["The ensemble contains it."] * (best.weight > 0)
            if self.ensemble.error > _WORTH * best.error:
                advice.append("Consider using that baseline alone.")
            if alone:
                advice = ["No model is part of the result."]
            wins = f"A baseline wins: the error of {best.name} is {best.error:.4g}, that of the best model"
            lines.append(" ".join([f"{wins} {model.error:.4g}{worse}.", *advice]))
            if self.task == "forecast" and best.name == "last cycle":
                lines.append(
                    "If you know the period, a model that has it may be better: for a daily cycle temporal="
                    "'periodic(period=24h fixed)*matern32(lengthscale=7d)+matern32(lengthscale=1d)+white'."
                )
        lines += [f"{c.name} failed: {c.failure}" for c in self.candidates if c.failure is not None]
        if self.stopped:
            lines.append(f"Stopped after the first held-out part, with estimated errors: {joined(self.stopped)}.")
        if self.skipped:
            lines.append(f"Not tried because of the time budget: {joined(self.skipped)}.")
        return lines

    def _about_scores(self, best: Scored, alone: bool) -> list[str]:
        """Sentences about log scores."""
        lines = []
        gain = (self.ensemble.log_score or 0.0) - (best.log_score or 0.0)
        if not alone:
            lines.append(
                f"The ensemble's held-out log score is {abs(gain):.3f} {'above' if gain >= 0 else 'below'} that of the "
                f"best single candidate, {best.name}."
            )
        model = self.best_model
        if best.is_baseline and model is not None:
            lines.append(
                f"A baseline wins: the log score of {best.name} is {best.log_score:.4g}, that of the best model "
                f"{model.log_score:.4g}."
            )
        return lines

    def __str__(self) -> str:
        return "\n".join([str(self.table()), "", *self.conclusions()])

    def to_dict(self) -> dict[str, Any]:
        """The report as dictionaries, lists, strings and numbers."""
        return {
            "task": self.task,
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "ensemble": asdict(self.ensemble),
            "hidden": self.hidden,
            "skipped": list(self.skipped),
            "stopped": list(self.stopped),
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Report:
        """The inverse of :meth:`to_dict`.

        :param content: what :meth:`to_dict` returned.
        :raises ValueError: if it has other content.
        """
        task, hidden = content.get("task"), content.get("hidden")
        names = [content.get("skipped"), content.get("stopped", [])]  # earlier files have no stopped candidates
        candidates = content.get("candidates")
        if task not in _TASKS or not isinstance(hidden, int) or not isinstance(candidates, list) or not candidates:
            raise ValueError("a report must have a task, the number of hidden entries, and candidates.")
        if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in names):
            raise ValueError("skipped and stopped candidates of a report must be lists of names.")
        skipped, stopped = cast("list[list[str]]", names)
        ensemble = _scored(content.get("ensemble"))
        return cls(task, [_scored(one) for one in candidates], ensemble, hidden, skipped, stopped)


_KINDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "is_baseline": (bool,),
    "failure": (str, type(None)),
    "log_score": (float, int, type(None)),
}


def _scored(content: object) -> Scored:
    names = [field.name for field in fields(Scored)]
    if isinstance(content, dict):
        content = {"log_score": None, **content}  # files of earlier versions do not have it
    if not isinstance(content, dict) or content.keys() != set(names):
        raise ValueError(f"a candidate of a report must have {', '.join(names)}.")
    for name in names:
        if not isinstance(content[name], _KINDS.get(name, (float, int))):
            raise ValueError(f"{name} of a candidate of a report is {content[name]!r:.80}.")
    return Scored(**content)


def _percent(best: float, other: float) -> float:
    """How much larger the other error is, in percent."""
    if best == other:
        return 0.0
    return 100.0 * (other / best - 1.0) if best > 0.0 else math.inf


def _row(candidate: Scored, kind: str) -> dict[str, Value]:
    return {
        "candidate": candidate.name,
        "kind": kind,
        **({} if candidate.log_score is None else {"log score": candidate.log_score}),
        "error": candidate.error,
        "in 95 %": candidate.inside,
        "weight": candidate.weight,
        "CPU s": candidate.seconds,
    }
