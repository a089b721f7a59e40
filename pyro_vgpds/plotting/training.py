# SPDX-License-Identifier: Apache-2.0
"""The bound during training, and the relevance of the latent dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pyro_vgpds.checks import as_numbers, check_parts
from pyro_vgpds.plotting.style import LEARNED, MUTED, TRUTH, array, new_axes, tidy
from pyro_vgpds.types import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["TrainingRun", "plot_relevance", "plot_training"]


class TrainingStep(Protocol):
    """One entry of ``FitResult.history``."""

    @property
    def step(self) -> int: ...
    @property
    def bound(self) -> float: ...


class TrainingRun(Protocol):
    """The part of :class:`~pyro_vgpds.FitResult` that is plotted here."""

    @property
    def history(self) -> Sequence[TrainingStep]: ...
    @property
    def bound(self) -> float: ...
    @property
    def method(self) -> str: ...


def plot_training(result: TrainingRun, ax: Axes | None = None) -> Axes:
    """Plot the bound over the steps of a :class:`~pyro_vgpds.FitResult`.

    The lowest tenth of the values is cut off, since the bound may start far below the rest.

    :param result: as returned by :func:`~pyro_vgpds.fit`.
    :param ax: axes to draw on. Default: those of a new figure.
    :returns: the axes.
    :raises ValueError: if the history is empty.

    >>> from pyro_vgpds.plotting import plot_training
    >>> plot_training(result).get_ylabel()
    'bound (nats)'
    """
    check_parts("result", result, "a FitResult", "history", "bound", "method")
    if not result.history:
        raise ValueError("result.history must have at least one step, but it is empty: train for one step or more.")
    ax = tidy(new_axes(ax))
    bounds = [record.bound for record in result.history]
    ax.plot([record.step for record in result.history], bounds, color=LEARNED)
    low, high = sorted(bounds)[len(bounds) // 10], max(bounds)
    if high > low:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    ax.ticklabel_format(axis="y", style="plain", useOffset=False)
    ax.set(xlabel="step", ylabel="bound (nats)", title=f"{result.method}: final bound {result.bound:,.6g}")
    return ax


def plot_relevance(after: ArrayLike, before: ArrayLike | None = None, ax: Axes | None = None) -> Axes:
    """Plot the relevance of each latent dimension as bars in decreasing order, scaled to a maximum of 1.

    :param after: (Q,), or a :class:`~pyro_vgpds.model.Relevance`, as returned by ``model.relevance(guide, data)`` after
        training. For the latter, inactive dimensions are drawn pale.
    :param before: the same before training, drawn beside it. Default: not drawn.
    :param ax: axes to draw on. Default: those of a new figure.
    :returns: the axes.
    :raises ValueError: if the sizes differ, a value is not finite, or none is positive.

    >>> from pyro_vgpds.plotting import plot_relevance
    >>> ax = plot_relevance(model.relevance(guide, data))
    >>> ax.figure.savefig("relevance.png")
    """
    late = as_numbers("after", getattr(after, "value", after))
    early = None if before is None else as_numbers("before", getattr(before, "value", before))
    if late.ndim != 1 or (early is not None and early.shape != late.shape):
        other = "" if early is None else f" and {early.shape}"
        raise ValueError(f"after and before must be (Q,), but got {late.shape}{other}.")
    for name, value in (("after", late), ("before", early)):
        if value is not None and not (np.isfinite(value).all() and value.max(initial=0.0) > 0.0):
            raise ValueError(f"{name} must be finite with at least one positive value, but got {value}.")
    order = np.argsort(-late, kind="stable")
    active = array(getattr(after, "active", np.ones(len(late), dtype=bool)))
    ax = tidy(new_axes(ax))
    at = np.arange(len(late), dtype=float)
    shift, width = (0.21, 0.4) if early is not None else (0.0, 0.6)
    if early is not None:
        ax.bar(at - shift, early[order] / early.max(), width, color=MUTED, label="before training")
    bars = ax.bar(at + shift, late[order] / late.max(), width, color=LEARNED, label="after training")
    for bar, on in zip(bars, active[order], strict=True):
        bar.set_alpha(1.0 if on else 0.35)
    top = 1.05
    if early is not None:
        ax.legend(frameon=False, loc="upper right")
        right = order[len(order) // 2 :]
        if max((late / late.max())[right].max(), (early / early.max())[right].max()) > 0.8:
            top = 1.25  # the legend is above the bars
    ax.set(xlabel="latent dimension", ylabel="relevance (largest = 1)", xticks=at, ylim=(0, top))
    ax.set_xticklabels([str(q) for q in order], color=TRUTH)
    ax.set_title(f"{int(active.sum())} of {len(late)} dimensions are active" if hasattr(after, "active") else "")
    return ax
