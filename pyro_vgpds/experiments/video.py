# SPDX-License-Identifier: Apache-2.0
"""What the experiments with video share: errors of hidden pixels, reports, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds import baselines, metrics
from pyro_vgpds.datasets import Video
from pyro_vgpds.experiments.record import Folder, table

__all__ = ["best_neighbours", "errors", "hide_tiles", "in_time", "report", "show_frames"]


def errors(truth: np.ndarray, prediction: Any) -> dict[str, float]:
    """Mean absolute and mean squared error of hidden pixels; NaN in the truth was seen."""
    return {"MAE": metrics.mae(truth, prediction), "MSE": metrics.mse(truth, prediction)}


def best_neighbours(truth: np.ndarray, train: np.ndarray, seen: np.ndarray) -> dict[str, float]:
    """The paper's baseline: nearest neighbours with the best k of 1 to 5 (by the truth, as in the paper)."""
    tried = [errors(truth, baselines.nearest_neighbour(train, seen, k)) for k in range(1, 6)]
    return min(tried, key=lambda e: e["MAE"])


def in_time(method: Any, t: np.ndarray, train: np.ndarray, t_test: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Test frames (T, D) by an imputer of :mod:`pyro_vgpds.baselines`, from training and test frames together."""
    times = np.concatenate([t, t_test])
    order = np.argsort(times, kind="stable")
    filled = method(times[order], np.concatenate([train, seen])[order])
    return np.asarray(filled)[np.argsort(order)[len(t) :]]


def hide_tiles(shape: tuple[int, int], share_seen: float, tile: int, seed: int) -> np.ndarray:
    """Which pixels (H W,) are hidden: all but a random share of the tiles of a frame."""
    rng = np.random.default_rng(seed)
    rows, columns = (-(-n // tile) for n in shape)
    seen = rng.permutation(rows * columns) < round(share_seen * rows * columns)
    grid = np.kron(seen.reshape(rows, columns), np.ones((tile, tile), dtype=bool))[: shape[0], : shape[1]]
    hidden: np.ndarray = ~grid.ravel()
    return hidden


def report(
    folder: Folder, name: str, rows: Mapping[str, Mapping[str, Any]], more: Mapping[str, Any], paper: str
) -> None:
    """Print and write the table, and write the numbers."""
    text = table(["method", "MAE", "MSE"], [[label, row["MAE"], row["MSE"]] for label, row in rows.items()])
    print(f"{text}\n\n{paper}")
    folder.write_text(f"{name}.md", f"{text}\n\n{paper}\n")
    folder.write_json(f"{name}.json", {**rows, **more})


def show_frames(path: Path, video: Video, pictures: Mapping[str, np.ndarray], frames: Sequence[int]) -> None:
    """Some frames of several versions (T, H W) of a video, one row a version."""
    from matplotlib.figure import Figure

    height, width = video.shape
    figure = Figure(figsize=(1.6 * len(frames) * width / height, 1.8 * len(pictures)), layout="constrained")
    axes = figure.subplots(len(pictures), len(frames), squeeze=False)
    for row, (label, rows) in zip(axes, pictures.items(), strict=True):
        for ax, frame in zip(row, frames, strict=True):
            ax.imshow(video.to_frames(rows[frame]), cmap="gray", vmin=0, vmax=255)
            ax.set(xticks=[], yticks=[])
        row[0].set_ylabel(label)
    figure.savefig(path, dpi=150)
