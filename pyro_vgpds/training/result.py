# SPDX-License-Identifier: Apache-2.0
"""The result of `fit`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyro_vgpds.formatting import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FitResult", "Record", "joined_results", "later_record", "pack_records", "unpack_records"]


@dataclass(frozen=True)
class Record:
    """One evaluation of the bound.

    >>> result.history[0].step, result.history[-1].step
    (0, 30)
    """

    step: int  #: 0 is before the first step
    seconds: float  #: since training began
    bound: float  #: in nats


def pack_records(records: Iterable[Record]) -> list[list[float]]:
    """Step, seconds and bound of each record, for a file."""
    return [[record.step, record.seconds, record.bound] for record in records]


def unpack_records(rows: Iterable[Sequence[float]]) -> list[Record]:
    """The inverse of :func:`pack_records`."""
    return [Record(int(step), seconds, bound) for step, seconds, bound in rows]


@dataclass
class FitResult:
    """The outcome of :func:`fit`. The model and the guide have the parameters that ``bound`` belongs to.

    >>> result.stopped, result.num_steps, result.method
    ('steps', 30, 'natural')
    >>> result.bound >= result.history[0].bound
    True
    """

    bound: float  #: the lower bound on log p(Y), in nats
    history: list[Record] = field(repr=False)  #: every evaluation
    #: "steps"; "converged", also if rounding errors let the bound rise no further; "interrupted"; or "stuck", if hardly
    #: any step from the start succeeded
    stopped: str
    num_undone: int  #: steps that were undone and damped
    method: str  #: "natural", "lbfgs" or "adam"

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return self.history[-1].step if self.history else 0

    @property
    def seconds(self) -> float:
        """Wall time of training."""
        return self.history[-1].seconds if self.history else 0.0

    def __repr__(self) -> str:
        undone = f", {self.num_undone} undone" if self.num_undone else ""
        steps = counted(self.num_steps, f"{self.method} step")
        return f"FitResult(bound={self.bound:.6g}, {steps} in {self.seconds:.1f} s{undone}, stopped: {self.stopped})"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the bound over the steps, by :func:`~pyro_vgpds.plotting.plot_training`.

        :param ax: axes to draw on. Default: those of a new figure.
        :returns: the axes.
        """
        from pyro_vgpds.plotting import plot_training  # here, because matplotlib is slow to import

        return plot_training(self, ax)


def later_record(first: FitResult, record: Record) -> Record:
    """A record of a run that follows the run ``first``, as one of both."""
    return Record(first.num_steps + record.step, first.seconds + record.seconds, record.bound)


def joined_results(first: FitResult, second: FitResult) -> FitResult:
    """The result of two runs, of which the second began where the first ended."""
    history = [*first.history, *(later_record(first, record) for record in second.history[1:])]
    return replace(second, history=history, num_undone=first.num_undone + second.num_undone)
