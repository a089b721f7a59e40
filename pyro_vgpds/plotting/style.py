# SPDX-License-Identifier: Apache-2.0
"""One look for all pictures: colours that colour-blind readers can tell apart, and no more ink than is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

__all__ = ["BASELINE", "HIDDEN", "LEARNED", "MUTED", "TRUTH", "array", "color", "new_axes", "tidy", "time_axis", "tint"]

#: the colours of Okabe and Ito (2008), the darkest first
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A6A00")
LEARNED, BASELINE = CYCLE[0], CYCLE[1]  # what the model says; what it is compared with
TRUTH, MUTED, HIDDEN = "#222222", "#B5B5B5", "#F1EFE7"  # the data; what stands behind; where nothing was seen


def color(index: int) -> str:
    """The colour of the sequence of this number; after seven they come again."""
    return CYCLE[index % len(CYCLE)]


def new_axes(ax: Any, size: tuple[float, float] = (6.4, 3.6)) -> Any:
    """``ax`` itself, or the axes of a new figure."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def tidy(ax: Any) -> Any:
    """Without the two spines that carry nothing."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def time_axis(ax: Any, t: np.ndarray, label: bool = True) -> None:
    """Name the axis; dates are written short, so that they do not run into each other."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    if label:
        ax.set_xlabel("time")
    ax.margins(x=0.01)
    if t.dtype.kind == "M":
        locator = AutoDateLocator(minticks=3, maxticks=7)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def array(value: Any) -> np.ndarray:
    """A tensor, an array or a list as numpy."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def tint(shade: str, white: float) -> tuple[float, float, float]:
    """A colour mixed with this share of white."""
    from matplotlib.colors import to_rgb

    red, green, blue = (white + (1.0 - white) * part for part in to_rgb(shade))
    return red, green, blue
