# SPDX-License-Identifier: Apache-2.0
"""How single outputs are drawn: numbers with lines and bands, counts in steps, yes/no as dots with a probability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_vgpds.plotting.style import LEARNED, TRUTH, array, tint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Drawing"]


class Drawing:
    """The drawing of one column of a prediction, which needs only ``interval``.

    Its ``kind_of`` says whether the output is ``"continuous"``, a ``"count"`` or ``"yes/no"``. Default: continuous.
    """

    def __init__(self, prediction: Any, column: int) -> None:
        kind_of = getattr(prediction, "kind_of", None)
        self.column, self.kind = column, "continuous" if kind_of is None else str(kind_of(column))
        # the outputs themselves are 0 or 1, so their intervals have no information: the band is that of the probability
        bare = getattr(prediction, "with_noise", None) if self.kind == "yes/no" else None
        self._banded = prediction if bare is None else bare(False)

    def label(self, usual: str) -> str:
        """The label of the mean: the usual one for numbers."""
        return {"count": f"{usual}, rate", "yes/no": f"{usual}, probability"}.get(self.kind, usual)

    def ends(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """The ends (T,) of the band of a probability. Those of counts are edges of the cells of whole numbers."""
        lower, upper = (array(end)[:, self.column].astype(float) for end in self._banded.interval(level))
        return (lower - 0.5, upper + 0.5) if self.kind == "count" else (lower, upper)

    def band(self, ax: Any, t: np.ndarray, lower: np.ndarray, upper: np.ndarray, level: float, darker: int = 0) -> None:
        """Draw a band, with this number of bands below it."""
        shade = tint(LEARNED, max(0.3, 0.8 - 0.28 * darker))  # opaque, so that the legend shows what the picture shows
        step = "mid" if self.kind == "count" else None
        ax.fill_between(t, lower, upper, color=shade, linewidth=0, step=step, label=f"{100 * level:.3g} %")

    def history(self, ax: Axes, t: np.ndarray, y: np.ndarray) -> None:
        """Draw what was observed before a forecast."""
        if self.kind == "yes/no":
            self.dots(ax, t, y, "history")
            return
        # small dots, because a line alone does not show a single point between two gaps
        style = "steps-mid" if self.kind == "count" else "default"
        ax.plot(t, y, ".-", color=TRUTH, linewidth=1.2, markersize=2.5, drawstyle=style, label="history")

    def dots(self, ax: Axes, t: np.ndarray, y: np.ndarray, label: str) -> None:
        """Draw data."""
        ax.plot(t, y, ".", color=TRUTH, markersize=4, label=label)

    def finish(self, ax: Axes) -> None:
        """Set range and ticks of the values."""
        from matplotlib.ticker import MaxNLocator

        if self.kind == "yes/no":
            ax.set_ylim(-0.06, 1.06)
            ax.set_yticks([0.0, 0.5, 1.0])
        elif self.kind == "count":
            ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
