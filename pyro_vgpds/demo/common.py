# SPDX-License-Identifier: Apache-2.0
"""What both chapters of the demonstration do: train, keep the model, compare, and save pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro

from pyro_vgpds.cli.trained import Trained, describe
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.container import placed
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import Kernel
from pyro_vgpds.model import VGPDS
from pyro_vgpds.plotting import plot_plane, plot_relevance
from pyro_vgpds.training.api import fit

__all__ = ["learned_picture", "rms", "save_figure", "train"]


def train(
    path: Path, data: Sequences, kernel: Kernel, latent_dim: int, num_inducing: int, steps: int, seed: int,
    say: Callable[[str], Any], progress: bool | None, **about: Any,
) -> Trained:  # fmt: skip
    """Train a model on ``data`` and write it to ``path``. The period that the data suggest is held: a movement that
    repeats is what we know, and the bound alone would let the period drift.
    """
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    model = VGPDS.from_data(data, latent_dim, num_inducing, kernel)
    for leaf in model.temporal.leaves():
        if "period" in leaf.parameter_names:
            leaf.fix("period")
    guide = AutoOpperArchambeau(model)
    before = model.relevance(guide, data).value
    result = fit(model, guide, data, steps, progress=progress)
    if result.stopped == "interrupted":  # fit keeps the best so far, but the report is of all steps
        raise KeyboardInterrupt
    say(f"  {result}")
    trained = Trained(path, model, guide, data, describe(result, before, seed=seed, **about))
    trained.write()
    return trained


def rms(truth: np.ndarray, guess: np.ndarray, where: np.ndarray | None = None) -> float:
    """Root of the mean squared error, of the entries named."""
    error = truth - guess if where is None else (truth - guess)[where]
    return float(np.sqrt(np.mean(np.square(error))))


def save_figure(ax: Any, path: Path) -> Path:
    """Write the figure of these axes, and close it."""
    import matplotlib.pyplot as plt

    figure = np.ravel(ax)[0].figure
    with placed(path) as part:
        figure.savefig(part, dpi=110)
    plt.close(figure)
    return path


def learned_picture(trained: Trained, path: Path) -> Path:
    """Which latent dimensions matter, before and after, beside the plane of the leading two."""
    import matplotlib.pyplot as plt

    relevance = trained.model.relevance(trained.guide, trained.data)
    leading = relevance.value.argsort(descending=True)[:2].tolist()
    _, axes = plt.subplots(1, 2, figsize=(9.2, 3.6), layout="constrained")
    plot_relevance(relevance, trained.metadata["relevance_before"], axes[0])
    plot_plane(trained.posterior, leading, axes[1], names=trained.metadata["names"])
    return save_figure(axes, path)
