# SPDX-License-Identifier: Apache-2.0
"""Gene expression and wireless signals: hide a random fifth of the observed values and predict them.

The model is the default one, ``VGPDS.from_data(data)`` and ``fit``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_vgpds import Posterior, Sequences, baselines, datasets, metrics, save_posterior
from pyro_vgpds.experiments.recipe import train_default
from pyro_vgpds.experiments.record import Folder, spread, table

__all__ = ["HIDDEN", "LABELS", "Task", "run", "score"]

HIDDEN = 0.2
LABELS = ("50 %", "80 %", "95 %", "VGPDS", "column mean", "linear in time", "PPCA", "seconds")
_RIVALS: Mapping[str, Any] = {
    "column mean": baselines.column_mean,
    "linear in time": baselines.linear_interpolation,
    "PPCA": baselines.ppca,
}


@dataclass
class Task:
    """Sequences with hidden values: lists of times and outputs, and the hidden values (N, D), NaN elsewhere."""

    t: list[np.ndarray]
    y: list[np.ndarray]
    truth: np.ndarray

    @classmethod
    def of(cls, t: list[np.ndarray], y: list[np.ndarray], share: float, seed: int) -> Task:
        """Hide a share of the observed values. Outputs that are constant or have no value left are dropped."""
        rng = np.random.default_rng(seed)
        vary = np.nanstd(np.concatenate(y), 0) > 1e-6
        y = [part[:, vary] for part in y]
        hidden = [np.isfinite(part) & (rng.random(part.shape) < share) for part in y]
        left = [np.where(h, np.nan, part) for h, part in zip(hidden, y, strict=True)]
        count = np.isfinite(np.concatenate(left)).sum(0)
        truth = np.where(np.concatenate(hidden) & (count > 1), np.concatenate(y), np.nan)
        return cls(t, [part[:, count > 0] for part in left], truth[:, count > 0])


def score(
    task: Task, seed: int, num_steps: int | None = None, progress: bool | None = None
) -> tuple[dict[str, float], Posterior]:
    """Root mean squared errors of the hidden values, and the coverage of central intervals in per cent."""
    start = time.process_time()
    trained = train_default(Sequences(task.t, task.y), seed, num_steps, progress)
    prediction = trained.impute(fill=False)
    result = {"VGPDS": metrics.mse(task.truth, prediction.mean) ** 0.5}
    result["seconds"] = time.process_time() - start
    for level in (0.5, 0.8, 0.95):
        result[f"{100 * level:.0f} %"] = 100 * metrics.coverage(task.truth, *prediction.interval(level))
    for label, method in _RIVALS.items():
        result[label] = metrics.mse(task.truth, torch.cat(method(task.t, task.y)).numpy()) ** 0.5
    return result, trained


def run(name: str, folder: Folder, seeds: int | None, quick: bool, source: Mapping[str, Any]) -> None:
    """VGPDS, the column mean, linear interpolation in time and probabilistic PCA, with coverage."""
    data = datasets.load_spellman(**source) if name == "yeast" else datasets.load_robot_wireless(**source)
    y = [part[:, :200] for part in data.y] if quick else data.y
    num_steps = 10 if quick else None

    def one(seed: int, files: Path) -> dict[str, Any]:
        result, trained = score(Task.of(data.t, y, HIDDEN, seed), seed, num_steps, folder.progress)
        if seed == 0:
            save_posterior(files / f"{name}.safetensors", trained)
            _show(files / f"{name}.png", data, trained)
        return result

    runs = []
    for seed in range(seeds or 3):
        settings = {"seed": seed, "outputs": y[0].shape[1], "steps": num_steps}
        runs.append(folder.once(f"{name}-{seed}", settings, partial(one, seed)))
    rows = {label: spread([r[label] for r in runs]) for label in LABELS}
    text = table(LABELS, [list(rows.values())])
    seconds = [r["wall seconds"] for r in runs]
    note = (
        "Coverage of central intervals in per cent, then root mean squared errors, then CPU seconds. "
        f"A seed took {np.mean(seconds):.0f} s."
    )
    folder.publish(name, f"{text}\n\n{note}", {**rows, "wall seconds": seconds})


def _show(path: Path, data: datasets.Dataset, posterior: Posterior) -> None:
    """The latent path over time and, if it is known, the true path."""
    from matplotlib.figure import Figure

    relevance = posterior.origin.model.relevance(posterior.origin.guide, posterior.data)
    best = relevance.value.argsort(descending=True)
    x, sd = posterior.q.mean.numpy(), posterior.q.variance.sqrt().numpy()
    known = data.latent is not None
    figure = Figure(figsize=(10 if known else 6, 3.5), layout="constrained")
    axes = figure.subplots(1, 3 if known else 1, squeeze=False)[0]
    t = posterior.data.times.t.numpy()
    for q in best[:3].tolist():
        (line,) = axes[0].plot(t, x[:, q], label=f"$x_{q}$")
        axes[0].fill_between(t, x[:, q] - 2 * sd[:, q], x[:, q] + 2 * sd[:, q], alpha=0.2, color=line.get_color())
    axes[0].set(xlabel="time", ylabel="latent path, ± 2 sd")
    axes[0].legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    if data.latent is not None:
        first, second = best[:2].tolist()
        axes[1].scatter(x[:, first], x[:, second], c=t, s=6)
        axes[1].set(xlabel=f"$x_{first}$", ylabel=f"$x_{second}$", title="learned, colour is time")
        walked = data.latent[0]
        axes[2].scatter(walked[:, 0], walked[:, 1], c=t, s=6)
        axes[2].set(xlabel="x", ylabel="y", title="the robot's position", aspect="equal")
    figure.savefig(path, dpi=150)
