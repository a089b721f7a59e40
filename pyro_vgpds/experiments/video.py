# SPDX-License-Identifier: Apache-2.0
"""What the video experiments share: errors of hidden pixels, baselines, reports and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds import baselines, metrics, plotting
from pyro_vgpds.datasets import Video
from pyro_vgpds.experiments.recipe import Recipe
from pyro_vgpds.experiments.record import Folder, spread, table
from pyro_vgpds.types import ArrayLike

__all__ = ["best_neighbours", "errors", "hide_tiles", "in_time", "repeat", "report", "show_frames"]


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


def repeat(
    folder: Folder,
    key: str,
    settings: Mapping[str, object],
    seeds: int,
    compute: Callable[[int, Path], Mapping[str, Any]],
) -> tuple[dict[str, Any], list[float]]:
    """Errors of each method over the seeds, and the wall seconds of each seed."""
    runs = [folder.once(f"{key}-{seed}", {**settings, "seed": seed}, partial(compute, seed)) for seed in range(seeds)]
    seconds = [run.pop("wall seconds") for run in runs]
    return {label: {k: spread([r[label][k] for r in runs]) for k in ("MAE", "MSE")} for label in runs[0]}, seconds


def report(
    folder: Folder, name: str, rows: Mapping[str, Any], recipe: Recipe, seconds: Sequence[float], paper: str = ""
) -> None:
    """Print and write the table, and write the numbers."""
    text = table(["method", "MAE", "MSE"], [[label, row["MAE"], row["MSE"]] for label, row in rows.items()])
    text += "\n\n" + " ".join([*([paper] if paper else []), f"A seed took {np.mean(seconds):.0f} s."])
    folder.publish(name, text, {**rows, "recipe": recipe.settings(), "seconds": seconds})


def show_frames(path: Path, video: Video, pictures: Mapping[str, np.ndarray], frames: Sequence[int]) -> None:
    """Some frames of several versions (T, H W) of a video, one version per row."""
    import matplotlib.pyplot as plt

    films = {label: video.to_frames(rows) for label, rows in pictures.items()}
    figure = plotting.plot_frames(films, frames)[0, 0].figure
    figure.savefig(path, dpi=150)
    plt.close(figure)
