# SPDX-License-Identifier: Apache-2.0
"""Table 2, 'Missa': reconstruct the upper half of test frames from the lower half and the times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds import baselines, datasets
from pyro_vgpds.experiments.recipe import Recipe, balanced_scale
from pyro_vgpds.experiments.record import Folder
from pyro_vgpds.experiments.video import Clip, best_neighbours, errors, in_time
from pyro_vgpds.prediction.fitted import predict_with

__all__ = ["run"]

# All settings were chosen on held-out training frames: the last two of each block of four.
RECIPE = Recipe("matern32", latent_dim=25, num_inducing=85, num_steps=300, per_dimension=True)
SHARE = 1 / 3  # pixels that hardly vary are scaled up to this share of the mapping's variance
TRUST = 0.1  # thousands of observed pixels carry less information than independent outputs would


def run(name: str, folder: Folder, seeds: int | None, quick: bool, source: Mapping[str, Any]) -> None:
    """VGPDS with and without the observed half, nearest neighbours, linear interpolation and one GP per pixel."""
    video = datasets.load_missa(**source)
    recipe = replace(RECIPE, latent_dim=5, num_inducing=20, num_steps=10) if quick else RECIPE
    data, (t_test, seen), truth = video.training(), video.partial(), video.truth()
    t, train = data.times.t.numpy(), data.read().numpy()

    def one(clip: Clip, seed: int, files: Path) -> dict[str, Any]:
        trained = recipe.train([t], [train], seed, folder.progress)
        common = trained.reconstruct(t_test, seen, 0).mean
        balanced = predict_with(trained, output_scale=balanced_scale(trained, SHARE))
        ahead = balanced.forecast(t_test, 0).mean
        filled = balanced.reconstruct(t_test, seen, 0, trust=TRUST).mean.numpy()
        if seed == 0:
            whole = np.where(np.isnan(truth), seen, truth)
            versions = {"truth": whole, "seen": seen, "VGPDS": np.where(np.isnan(seen), filled, seen)}
            clip.keep(files, balanced, versions, range(5, len(seen), 12))
        return {
            "VGPDS, times and seen half": errors(truth, filled),
            "VGPDS, times alone": errors(truth, ahead),
            "VGPDS, times and seen half, pixels in common units": errors(truth, common),
        }

    clip = Clip(name, video, recipe, folder)
    rows, seconds = clip.repeat({"trust": TRUST, "share": SHARE}, seeds or 3, one)
    rows["nearest neighbours, best k"] = best_neighbours(truth, train, seen)
    rows["mean frame"] = errors(truth, np.broadcast_to(train.mean(0), seen.shape))
    rivals: dict[str, Callable[..., object]] = {
        "linear in time": baselines.linear_interpolation,
        "one GP for each pixel": baselines.gp_interpolation,
    }
    for label, method in rivals.items():
        rows[label] = errors(truth, in_time(method, t, train, t_test, seen))
    paper = "The paper, on frames of 288 x 360: VGPDS 2.52, nearest neighbours 2.63."
    clip.report(rows, seconds, paper)
