# SPDX-License-Identifier: Apache-2.0
"""What the video experiments share: errors of hidden pixels, baselines, reports and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds import Posterior, baselines, metrics, plotting, save_posterior
from pyro_vgpds.datasets import Video
from pyro_vgpds.experiments.recipe import Recipe
from pyro_vgpds.experiments.record import Folder, spread, table
from pyro_vgpds.training.metadata import Metadata
from pyro_vgpds.types import ArrayLike

__all__ = ["Clip", "best_neighbours", "errors", "hide_tiles", "in_time"]


def errors(truth: np.ndarray, prediction: ArrayLike) -> dict[str, float]:
    """Mean absolute and mean squared error of the hidden pixels, which are not NaN in ``truth``."""
    return {"MAE": metrics.mae(truth, prediction), "MSE": metrics.mse(truth, prediction)}


def best_neighbours(truth: np.ndarray, train: np.ndarray, seen: np.ndarray) -> dict[str, float]:
    """The paper's baseline: nearest neighbours with the best k of 1 to 5, chosen by the test error as in the paper."""
    tried = [errors(truth, baselines.nearest_neighbour(train, seen, k)) for k in range(1, 6)]
    return min(tried, key=lambda e: e["MAE"])


def in_time(
    method: Callable[..., object], t: np.ndarray, train: np.ndarray, t_test: np.ndarray, seen: np.ndarray
) -> np.ndarray:
    """Test frames (T, D) from an imputer of :mod:`pyro_vgpds.baselines` on training and test frames together."""
    times = np.concatenate([t, t_test])
    order = np.argsort(times, kind="stable")
    filled = method(times[order], np.concatenate([train, seen])[order])
    return np.asarray(filled)[np.argsort(order)[len(t) :]]


def hide_tiles(shape: tuple[int, int], share_seen: float, tile: int, seed: int) -> np.ndarray:
    """Which pixels (H W,) are hidden: those outside a random share of a frame's tiles."""
    rng = np.random.default_rng(seed)
    rows, columns = (-(-n // tile) for n in shape)
    seen = rng.permutation(rows * columns) < round(share_seen * rows * columns)
    grid = np.kron(seen.reshape(rows, columns), np.ones((tile, tile), dtype=bool))[: shape[0], : shape[1]]
    hidden: np.ndarray = ~grid.ravel()
    return hidden


@dataclass(frozen=True)
class Clip:
    """A video, the model of an experiment on it, and the folder of the results."""

    name: str  #: of the files
    video: Video
    recipe: Recipe
    folder: Folder
    tile: int = 1  #: side of the observed or hidden tiles, in pixels

    @property
    def frames(self) -> np.ndarray:
        """(T, H W)."""
        return self.video.y[0]

    @property
    def t(self) -> np.ndarray:
        """The times, (T,)."""
        return self.video.t[0]

    def repeat(
        self, settings: Mapping[str, object], seeds: int, compute: Callable[[Clip, int, Path], Mapping[str, Any]]
    ) -> tuple[dict[str, Any], list[float]]:
        """Errors of each method over the seeds, and the wall seconds of each seed.

        :param compute: a function of the clip, a seed and the folder of its files.
        """
        every = {**self.recipe.settings(), **settings}
        runs = [
            self.folder.once(f"{self.name}-{seed}", {**every, "seed": seed}, partial(compute, self, seed))
            for seed in range(seeds)
        ]
        seconds = [run.pop("wall seconds") for run in runs]
        return {label: {k: spread([r[label][k] for r in runs]) for k in ("MAE", "MSE")} for label in runs[0]}, seconds

    def report(self, rows: Mapping[str, Any], seconds: Sequence[float], paper: str = "") -> None:
        """Print and write the table, and write the numbers."""
        text = table(["method", "MAE", "MSE"], [[label, row["MAE"], row["MSE"]] for label, row in rows.items()])
        text += "\n\n" + " ".join([*([paper] if paper else []), f"A seed took {np.mean(seconds):.0f} s."])
        self.folder.publish(self.name, text, {**rows, "recipe": self.recipe.settings(), "seconds": seconds})

    def keep(
        self, files: Path, posterior: Posterior, versions: Mapping[str, np.ndarray], frames: Sequence[int]
    ) -> None:
        """Save the model, and a picture of frames of several versions (T, H W) of the video, one version per row."""
        import matplotlib.pyplot as plt

        save_posterior(files / f"{self.name}.safetensors", posterior, Metadata(shape=self.video.shape).pack())
        films = {label: self.video.to_frames(rows) for label, rows in versions.items()}
        figure = plotting.plot_frames(films, frames)[0, 0].figure
        figure.savefig(files / f"{self.name}.png", dpi=150)
        plt.close(figure)
