# SPDX-License-Identifier: Apache-2.0
"""Motion capture: reconstruct the legs or the body in the second half of a held-out walk.

``cmu35`` is the paper's table 1. ``cmu07`` uses the walks of another subject, on which no setting was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyro

from pyro_vgpds import VGPDS, Posterior, PosteriorMixture, Sequences, Solver, baselines, datasets, save_posterior
from pyro_vgpds.experiments.recipe import Recipe, noise_with_residuals
from pyro_vgpds.experiments.record import Folder, spread, table
from pyro_vgpds.kernels import Bias, White
from pyro_vgpds.prediction.fitted import predict_with

__all__ = ["run"]

BLOCKS = ("legs", "body")
FOLDS = 5
PLAIN = Recipe("rbf", latent_dim=9, num_inducing=100, num_steps=150, scale=True)  # the paper's, with scaled outputs
RECIPES = [  # of the models in a mixture
    replace(PLAIN, temporal=temporal, static_dim=4, lags=(-4, 4), noise_per_output=own)
    for own in (False, True)
    for temporal in ("rbf", "matern32")
]
WIDE = 2.0  # factor of the noise, chosen on the folds among 1, 2, 3, 4 and 9
PAPER = {
    "paper: VGPDS, RBF": (8.19, 3.57, 10.73, 1.90),
    "paper: VGPDS, Matérn": (6.99, 2.88, 14.22, 2.23),
    "paper: best GP-LVM": (9.7, 3.38, 16.9, 2.49),
}
Scores = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """Sequences to train on, and sequences to reconstruct."""

    data: datasets.CMU35
    train: list[int]
    held_out: list[int] | None  #: None: the paper's test sequence

    @classmethod
    def fold(cls, data: datasets.CMU35, fold: int) -> Case:
        """Every fifth training sequence is held out."""
        held_out = list(range(fold, len(data.y), FOLDS))
        return cls(data, [i for i in range(len(data.y)) if i not in held_out], held_out)

    @property
    def name(self) -> str:
        return "test" if self.held_out is None else f"fold{self.held_out[0]}"

    @property
    def t(self) -> list[np.ndarray]:
        """Times of the training sequences."""
        return [self.data.t[i] for i in self.train]

    @property
    def y(self) -> list[np.ndarray]:
        """Outputs of the training sequences."""
        return [self.data.y[i] for i in self.train]

    @property
    def targets(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Times and outputs of the sequences to reconstruct."""
        if self.held_out is None:
            return {"test": (self.data.test_t, self.data.test_y)}
        return {str(i): (self.data.t[i], self.data.y[i]) for i in self.held_out}


def run(name: str, folder: Folder, seeds: int | None, quick: bool, source: Mapping[str, Any]) -> None:
    """VGPDS, nearest neighbours and the MAP model on the paper's split and on five folds of the training sequences.

    ``VGPDS`` is a mixture of four models: RBF or Matérn dynamics, with one noise variance for all outputs or one per
    output. The outputs of a frame include those of the frames four before and four after. The models predict with a
    larger noise variance per output than in training; half of it is an offset that is constant over a sequence. Each
    seed has its own initial values. All settings were chosen on the folds, which hold out each training sequence once.
    """
    data = datasets.load_cmu35(**source) if name == "cmu35" else _walks(source)
    recipes, plain, folds, steps = RECIPES, PLAIN, FOLDS, 300
    if quick:
        recipes = [replace(r, latent_dim=4, static_dim=2, num_inducing=15, num_steps=5) for r in RECIPES]
        plain, folds, steps = replace(PLAIN, latent_dim=4, num_inducing=15, num_steps=5), 1, 5
    paper, test = Case(data, list(range(len(data.y))), None), [Case.fold(data, fold) for fold in range(folds)]
    rows: dict[str, Callable[[Case, int], list[dict[str, Scores]]]] = {
        "VGPDS": partial(_vgpds, folder, recipes, "offset", False),
        "VGPDS, white noise": partial(_vgpds, folder, recipes, "white", False),
        "VGPDS, one model": partial(_vgpds, folder, recipes, "offset", True),
        "VGPDS, one model, white noise": partial(_vgpds, folder, recipes, "white", True),
        "VGPDS, one model, nothing added": partial(_vgpds, folder, [plain], "white", True),
        "MAP GP-LVM": partial(_map, folder, plain, steps),
        "NN": partial(_neighbour, False),
        "NN sc.": partial(_neighbour, True),
    }
    # first, because the rows reuse it
    _predict(folder, recipes, paper if name == "cmu35" else test[0], 0, picture=name)
    results: dict[str, Scores] = {}
    held_out: dict[str, Scores] = {}
    for label, compute in rows.items():
        count = (seeds or 5) if label.startswith("VGPDS") else 1
        if name == "cmu35":
            results[label] = _summary([s["test"] for seed in range(count) for s in compute(paper, seed)])
        parts = [part for case in test for part in compute(case, 0)]
        held_out[label] = _summary([score for part in parts for score in part.values()])
    found = _predict(folder, recipes, test[0], 0)
    seconds = {kind: found[kind] / len(recipes) for kind in ("seconds", "wall seconds")}  # of one model
    _report(folder, name, results, held_out, recipes, seconds, folds)


def _walks(source: Mapping[str, Any]) -> datasets.CMU35:
    """The walks of subject 07 with the same features and blocks. They have no scales, so SC has no meaning."""
    motion = datasets.load_cmu_mocap("07", every=4, **source)
    y = [datasets.features_from_channels(channels) for channels in motion.channels]
    t = [0.05 * np.arange(len(part)) for part in y]
    return datasets.CMU35(
        t, y, motion.description, motion.terms, skeleton=motion.skeleton, channels=motion.channels,
        test_t=t[-1], test_y=y[-1], test_channels=motion.channels[-1], scale=np.ones(50), blocks=datasets.cmu35.BLOCKS,
    )  # fmt: skip


def _vgpds(
    folder: Folder, recipes: list[Recipe], noise: str, alone: bool, case: Case, seed: int
) -> list[dict[str, Scores]]:
    """SC and RA of each sequence for a mixture of models, or for each of them alone."""
    found = _predict(folder, recipes, case, seed)
    rows = range(1, 1 + len(recipes)) if alone else [0]
    return [_score(case, found, noise, row) for row in rows]


def _score(case: Case, found: Mapping[str, np.ndarray], noise: str, row: int) -> dict[str, Scores]:
    scores: dict[str, Scores] = {}
    for target, (_, truth) in case.targets.items():
        scores[target] = {}
        for block in BLOCKS:
            mean = truth.copy()
            mean[np.isnan(case.data.hide(truth, block))] = found[f"{target}-{block}-{noise}"][row]
            scores[target][block] = case.data.score(truth, mean, block)
    return scores


def _predict(folder: Folder, recipes: list[Recipe], case: Case, seed: int, picture: str = "") -> dict[str, Any]:
    """Predictions of the hidden entries of each sequence and block: a row for a mixture, then one for each model in it.
    With a name ``picture``, the mixture is saved and drawn under this name.
    """
    first = seed * len(recipes)

    def compute(files: Path) -> dict[str, Any]:
        start = perf_counter()
        models = [recipe.train(case.t, case.y, first + i, folder.progress) for i, recipe in enumerate(recipes)]
        found: dict[str, Any] = {"seconds": perf_counter() - start}
        mixture = PosteriorMixture([_with_offsets(model) if model.data.lags else model for model in models])
        solver = Solver(num_starts=2, num_steps=min(200, 2 * recipes[0].num_steps))
        for target, (times, truth) in case.targets.items():
            for block in BLOCKS:
                seen = case.data.hide(truth, block)
                prediction, hidden = mixture.reconstruct(times, seen, solver=solver), np.isnan(seen)
                # predictions without noise carry no offset: their mean is that of white noise
                for noise, version in (("offset", prediction), ("white", prediction.with_noise(False))):
                    means = [version.mean, *(part.mean for part in version.components)]
                    found[f"{target}-{block}-{noise}"] = np.stack([mean.numpy()[hidden] for mean in means])
        if picture:
            save_posterior(files / f"{picture}.safetensors", mixture)
            _draw(files / f"{picture}.png", case, found)
        return found

    kind = "lags" if recipes[0].lags else "plain"
    settings = {"recipes": [recipe.settings() for recipe in recipes], "seed": first, "train": case.train, "wide": WIDE}
    return folder.once(f"{case.name}-{kind}-{first}", settings, compute)


def _with_offsets(model: Posterior) -> Posterior:
    return predict_with(model, noise_variance=noise_with_residuals(model, WIDE), residual=Bias() + White())


def _neighbour(scaled: bool, case: Case, seed: int) -> list[dict[str, Scores]]:
    data, frames = case.data, np.concatenate(case.y)
    scores: dict[str, Scores] = {}
    for target, (_, truth) in case.targets.items():
        filled = {b: baselines.nearest_neighbour(frames, data.hide(truth, b), scaled=scaled) for b in BLOCKS}
        scores[target] = {b: data.score(truth, np.asarray(filled[b]), b) for b in BLOCKS}
    return [scores]


def _map(folder: Folder, recipe: Recipe, steps: int, case: Case, seed: int) -> list[dict[str, Scores]]:
    """The MAP model with the same sizes and initial values."""
    data = case.data

    def compute(files: Path) -> dict[str, Scores]:
        pyro.set_rng_seed(seed)
        sequences = Sequences(case.t, case.y)
        model = VGPDS.from_data(
            sequences, recipe.latent_dim, recipe.num_inducing, recipe.kernel(), static_dim=recipe.static_dim,
            noise_per_output=recipe.noise_per_output, scale_outputs=recipe.scale,
        )  # fmt: skip
        rival = baselines.MapGPLVM.fit(model, sequences, steps)
        scores: dict[str, Scores] = {}
        for target, (t, truth) in case.targets.items():
            found = {b: rival.reconstruct(t, data.hide(truth, b), min(100, steps)).numpy() for b in BLOCKS}
            scores[target] = {b: data.score(truth, found[b], b) for b in BLOCKS}
        return scores

    settings = recipe.settings() | {"seed": seed, "train": case.train}
    found = folder.once(f"map-{case.name}-{steps}", settings, compute)
    return [{target: found[target] for target in case.targets}]


def _summary(scores: list[Scores]) -> Scores:
    return {b: {kind: spread([s[b][kind] for s in scores]) for kind in ("SC", "RA")} for b in BLOCKS}


def _draw(path: Path, case: Case, found: Mapping[str, np.ndarray]) -> None:
    """Hidden legs of the first sequence to reconstruct."""
    from matplotlib.figure import Figure

    target, (t, truth) = next(iter(case.targets.items()))
    seen = case.data.hide(truth, "legs")
    near = np.asarray(baselines.nearest_neighbour(np.concatenate(case.y), seen))
    filled = seen.copy()
    filled[np.isnan(seen)] = found[f"{target}-legs-offset"][0]
    versions = {"truth": truth, "VGPDS": filled, "nearest neighbour": near}
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots(3, 2, sharex=True).ravel()
    styles: list[dict[str, Any]] = [{"color": "0.2"}, {"color": "C0"}, {"color": "C1", "lw": 0.8}]
    for ax, feature in zip(axes, case.data.blocks["legs"][:6], strict=True):
        ax.axvspan(t[len(t) // 2], t[-1], color="0.93")
        for (label, y), style in zip(versions.items(), styles, strict=True):
            ax.plot(t, np.degrees(y[:, feature]), label=label, **style)
        ax.set_title(f"feature {feature}", fontsize="small")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("time; the legs are hidden in the shaded half")
    figure.supylabel("angle in degrees")
    figure.savefig(path, dpi=150)


def _report(
    folder: Folder,
    name: str,
    results: dict[str, Scores],
    held_out: dict[str, Scores],
    recipes: list[Recipe],
    seconds: dict[str, float],
    num_folds: int,
) -> None:
    kinds = [(b, kind) for b in BLOCKS for kind in (("SC", "RA") if results else ("RA",))]
    head = ["", *(f"{block} {kind}" for block, kind in kinds)]
    folds = [[label, *(scores[b][kind] for b, kind in kinds)] for label, scores in held_out.items()]
    held = "Each training sequence held out once" if num_folds == FOLDS else f"{num_folds} of {FOLDS} folds held out"
    text = f"{held}; mean and standard deviation over sequences, and over single models.\n\n"
    text += table(head, folds)
    if results:
        rows = [[label, *(scores[b][kind] for b, kind in kinds)] for label, scores in results.items()]
        rows += [[label, *(f"{value:.2f}" for value in values)] for label, values in PAPER.items()]
        text = (
            "The paper's test sequence; mean and standard deviation over seeds, and over single models."
            f"\n\n{table(head, rows)}\n\n{text}"
        )
    text += (
        f"\n\nTraining one model took {seconds['seconds']:.0f} s, {seconds['wall seconds']:.0f} s with the "
        "reconstruction of a fold's sequences."
    )
    text += " The authors' code takes about 10 hours of CPU for table 1." if results else ""
    settings = {"members": [recipe.settings() for recipe in recipes], "wide": WIDE, "seconds": seconds}
    folder.publish(name, text, {**results, "folds": held_out, "recipes": settings, "paper": PAPER})
