# SPDX-License-Identifier: Apache-2.0
"""What training did: the bound over the steps, and which latent dimensions it switched off."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyro_vgpds.plotting.style import LEARNED, MUTED, TRUTH, array, new_axes, tidy

__all__ = ["plot_relevance", "plot_training"]


def plot_training(result: Any, ax: Any = None) -> Any:
    """The bound over the steps of a :class:`~pyro_vgpds.FitResult`.

    The first tenth may lie far below the rest: the axis shows the other nine, and the line leaves it at the bottom.

    :param result: what :func:`~pyro_vgpds.fit` returned.
    :param ax: axes to draw on; left out, those of a new figure.
    :returns: the axes.
    :raises ValueError: where nothing was recorded.

    >>> from pyro_vgpds.plotting import plot_training
    >>> plot_training(result).get_ylabel()
    'bound (nats)'
    """
    if not result.history:
        raise ValueError("result has no history: training has recorded no step.")
    ax = tidy(new_axes(ax))
    bounds = [record.bound for record in result.history]
    ax.plot([record.step for record in result.history], bounds, color=LEARNED)
    low, high = sorted(bounds)[len(bounds) // 10], max(bounds)
    if high > low:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    ax.ticklabel_format(axis="y", style="plain", useOffset=False)
    ax.set(xlabel="step", ylabel="bound (nats)", title=f"{result.method}: {result.bound:,.6g}")
    return ax


def plot_relevance(after: Any, before: Any = None, ax: Any = None) -> Any:
    """How much each latent dimension matters, as bars, the most relevant first, the largest being 1.

    :param after: (Q,), or a :class:`~pyro_vgpds.model.Relevance`, as ``model.relevance(guide, data)`` gives after
        training; of the latter, dimensions that are off are drawn pale.
    :param before: the same before training, drawn beside it.
    :param ax: axes to draw on; left out, those of a new figure.
    :returns: the axes.
    :raises ValueError: where the two have other sizes, or nothing is positive.

    >>> from pyro_vgpds.plotting import plot_relevance
    >>> ax = plot_relevance(model.relevance(guide, data))
    >>> ax.figure.savefig("relevance.png")
    """
    late: np.ndarray = array(getattr(after, "value", after))
    early: np.ndarray | None = None if before is None else array(getattr(before, "value", before))
    if late.ndim != 1 or (early is not None and early.shape != late.shape):
        other = "" if early is None else f" and {early.shape}"
        raise ValueError(f"after and before must be (Q,), but got {late.shape}{other}.")
    for name, value in (("after", late), ("before", early)):
        if value is not None and not (np.isfinite(value).all() and value.max(initial=0.0) > 0.0):
            raise ValueError(f"{name} must be finite with something positive, but got {value}.")
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
    if early is not None:
        ax.legend(frameon=False)
    ax.set(xlabel="latent dimension", ylabel="relevance (largest = 1)", xticks=at, ylim=(0, 1.05))
    ax.set_xticklabels([str(q) for q in order], color=TRUTH)
    ax.set_title(f"{int(active.sum())} of {len(late)} dimensions are on" if hasattr(after, "active") else "")
    return ax
