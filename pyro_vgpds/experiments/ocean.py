# SPDX-License-Identifier: Apache-2.0
"""Table 2, 'Ocean', on two other clips of water: reconstruct blocks of frames from 40 % of their pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds import baselines, datasets
from pyro_vgpds.experiments.recipe import Recipe
from pyro_vgpds.experiments.record import Folder
from pyro_vgpds.experiments.video import Clip, best_neighbours, errors, hide_tiles, in_time
from pyro_vgpds.kernels import Matern32, White
from pyro_vgpds.prediction.fitted import predict_with

__all__ = ["run"]

# chosen on held-out training frames, in blocks like those of the test
RECIPE = Recipe("rbf", latent_dim=40, num_inducing=80, num_steps=300, per_dimension=True)
TRUST = 0.1  # in the observed pixels
DRIFT = 2.0  # lengthscale of residuals, in frames
CLIPS = {"ocean": 8, "seawave": 12}  # and the side of the observed or hidden tiles, in pixels
_BLOCK = 3  # consecutive test frames


def run(name: str, folder: Folder, seeds: int | None, quick: bool, source: Mapping[str, Any]) -> None:
    """VGPDS, nearest neighbours, linear interpolation in time and one GP per pixel, on each clip."""
    recipe = replace(RECIPE, latent_dim=3, num_inducing=15, num_steps=10) if quick else RECIPE
    for name, tile in CLIPS.items():
        clip = Clip(name, datasets.load_clip(name, **source), recipe, folder, tile)
        rows, seconds = clip.repeat({"trust": TRUST, "drift": DRIFT}, seeds or 3, _one)
        print(f"\n## {name}\n")
        clip.report(rows, seconds, "The paper, on another clip: VGPDS 9.36, NN 9.53.")


def _one(clip: Clip, seed: int, files: Path) -> dict[str, Any]:
    frames, t = clip.frames, clip.t
    rng = np.random.default_rng(seed)
    test = np.zeros(len(t), dtype=bool)
    starts = rng.permutation(np.arange(_BLOCK, len(t) - 2 * _BLOCK, 2 * _BLOCK))[: len(t) // (5 * _BLOCK)]
    for start in starts:
        test[start : start + _BLOCK] = True
    hidden = hide_tiles(clip.video.shape, 0.4, clip.tile, seed)
    seen, truth = np.where(hidden, np.nan, frames[test]), np.where(hidden, frames[test], np.nan)
    trained = clip.recipe.train([t[~test]], [frames[~test]], seed, clip.folder.progress)
    carrying = predict_with(trained, residual=Matern32(1.0, DRIFT * (t[1] - t[0])) + White(0.1))
    prediction = carrying.reconstruct(t[test], seen, 0, trust=TRUST)
    filled = prediction.mean.numpy()
    line, each = (
        in_time(method, t[~test], frames[~test], t[test], seen)
        for method in (baselines.linear_interpolation, baselines.gp_interpolation)
    )
    if seed == 0:
        versions = {"truth": frames[test], "seen": seen, "VGPDS": filled, "linear": line}
        clip.keep(files, carrying, versions, range(1, int(test.sum()), _BLOCK)[:6])
    return {
        "VGPDS": errors(truth, filled),
        "VGPDS, times alone": errors(truth, carrying.forecast(t[test], 0).mean),
        "VGPDS, white residuals": errors(truth, prediction.with_noise(False).mean),
        "nearest neighbours, best k": best_neighbours(truth, frames[~test], seen),
        "linear in time": errors(truth, line),
        "one GP for each pixel": errors(truth, each),
    }
