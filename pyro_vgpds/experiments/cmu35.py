# SPDX-License-Identifier: Apache-2.0
"""Table 1: motion capture. Hidden legs or body in the second half of a walk that was not trained on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pyro_vgpds import VGPDS, Sequences, baselines, datasets
from pyro_vgpds.experiments.recipe import Recipe
from pyro_vgpds.experiments.record import Folder, spread, table
from pyro_vgpds.io import save

__all__ = ["run"]

BLOCKS = ("legs", "body")
FOLDS = 5
MEMBERS = 4  # models in a mixture
#: the first one is the one that the folds chose; the others are what it was chosen from
RECIPES = {
    "VGPDS": Recipe("rbf", 9, 100, 150, scale=True, static_dim=4),
    "VGPDS, fewer dimensions": Recipe("rbf", 7, 100, 150, scale=True, static_dim=2),
    "VGPDS, plain start": Recipe("rbf", 9, 100, 150, scale=True),
}
PAPER = {
    "paper: VGPDS, RBF": (8.19, 3.57, 10.73, 1.90),
    "paper: VGPDS, Matérn": (6.99, 2.88, 14.22, 2.23),
    "paper: best GP-LVM": (9.7, 3.38, 16.9, 2.49),
}
Scores = dict[str, dict[str, Any]]


def run(name: str, folder: Folder, seeds: int | None, quick: bool) -> None:
    """VGPDS beside nearest neighbours and the MAP model: the paper's split, and five folds of the training sequences.

    A row of VGPDS is a mixture of models from several k-means starts; every seed has starts of its own. Recipes are
    compared on the folds, in which every training sequence is held out once; the paper's test sequence chooses nothing.
    """
    data = datasets.load_cmu35()
    recipes = RECIPES
    members, folds, steps = MEMBERS, FOLDS, 300
    if quick:
        recipes = {"VGPDS": replace(RECIPES["VGPDS"], num_inducing=15, num_steps=5)}
        members, folds, steps = 2, 1, 5
    results: dict[str, Scores] = {}
    held_out: dict[str, Scores] = {}
    everything = list(range(len(data.y)))
    for label, recipe in recipes.items():
        runs = [_mixture(folder, data, recipe, everything, None, seed, members) for seed in range(seeds or 5)]
        results[label] = _summary([run["test"] for run in runs])
        parts = [_mixture(folder, data, recipe, *_fold(data, fold), 0, members) for fold in range(folds)]
        held_out[label] = _summary([score for part in parts for score in part.values()])
    _save_first(folder, data, next(iter(recipes.values())))
    for label, scaled in (("NN", False), ("NN sc.", True)):
        results[label] = _summary([_neighbour(data, everything, data.test_y, scaled)])
        found = [_neighbour(data, train, data.y[i], scaled) for train, test in _folds(data, folds) for i in test]
        held_out[label] = _summary(found)
    recipe = next(iter(recipes.values()))
    points = [_map(folder, data, recipe, everything, None, 0, steps)]
    results["MAP GP-LVM"] = _summary([points[0]["test"]])
    parts = [_map(folder, data, recipe, *_fold(data, fold), 0, steps) for fold in range(folds)]
    held_out["MAP GP-LVM"] = _summary([score for part in parts for score in part.values()])
    _report(folder, name, results, held_out, recipes)


def _folds(data: datasets.CMU35, folds: int) -> list[tuple[list[int], list[int]]]:
    return [_fold(data, fold) for fold in range(folds)]


def _fold(data: datasets.CMU35, fold: int) -> tuple[list[int], list[int]]:
    """Training sequences, and those that are held out."""
    test = list(range(fold, len(data.y), FOLDS))
    return [i for i in range(len(data.y)) if i not in test], test


def _targets(data: datasets.CMU35, test: list[int] | None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sequences to be reconstructed: those held out, or (None) the paper's test sequence."""
    if test is None:
        return {"test": (data.test_t, data.test_y)}
    return {str(i): (data.t[i], data.y[i]) for i in test}


def _mixture(
    folder: Folder,
    data: datasets.CMU35,
    recipe: Recipe,
    train: list[int],
    test: list[int] | None,
    seed: int,
    members: int,
) -> dict[str, Scores]:
    """SC and RA of each sequence by the mean of a mixture."""
    models = [_member(folder, data, recipe, train, test, seed * members + m) for m in range(members)]
    scores: dict[str, Scores] = {}
    for target, (_, truth) in _targets(data, test).items():
        scores[target] = {}
        for block in BLOCKS:
            mean = truth.copy()
            hidden = np.isnan(data.hide(truth, block))
            mean[hidden] = np.mean([model[f"{target}-{block}"] for model in models], axis=0)
            scores[target][block] = data.score(truth, mean, block)
    return scores


def _member(
    folder: Folder, data: datasets.CMU35, recipe: Recipe, train: list[int], test: list[int] | None, seed: int
) -> dict[str, np.ndarray]:
    """What one model says of the hidden entries of each sequence and block."""

    def compute() -> dict[str, np.ndarray]:
        trained = recipe.train([data.t[i] for i in train], [data.y[i] for i in train], seed)
        found = {}
        for target, (t, truth) in _targets(data, test).items():
            for block in BLOCKS:
                seen = data.hide(truth, block)
                found[f"{target}-{block}"] = trained.reconstruct(t, seen)[np.isnan(seen)]
        return found

    where = "test" if test is None else f"fold{test[0]}"
    key = f"{where}-{recipe.temporal}-{recipe.latent_dim}-{recipe.static_dim}-{recipe.num_steps}-{seed}"
    return folder.once(key, recipe.settings() | {"seed": seed, "train": train}, compute)


def _neighbour(data: datasets.CMU35, train: list[int], truth: np.ndarray, scaled: bool) -> Scores:
    frames = np.concatenate([data.y[i] for i in train])
    found = {}
    for block in BLOCKS:
        filled = baselines.nearest_neighbour(frames, data.hide(truth, block), scaled=scaled)
        found[block] = data.score(truth, np.asarray(filled), block)
    return found


def _map(
    folder: Folder,
    data: datasets.CMU35,
    recipe: Recipe,
    train: list[int],
    test: list[int] | None,
    seed: int,
    steps: int,
) -> dict[str, Scores]:
    """The MAP model with the same sizes and start."""

    def compute() -> dict[str, Scores]:
        y = [data.y[i] for i in train]
        scale = np.concatenate(y).std(0)
        sequences = Sequences([data.t[i] for i in train], [part / scale for part in y])
        model = VGPDS.from_data(
            sequences, recipe.latent_dim, recipe.num_inducing, recipe.kernel(), static_dim=recipe.static_dim
        )
        rival = baselines.MapGPLVM.fit(model, sequences, steps)
        scores: dict[str, Scores] = {}
        for target, (t, truth) in _targets(data, test).items():
            found = {b: rival.reconstruct(t, data.hide(truth, b) / scale).numpy() * scale for b in BLOCKS}
            scores[target] = {b: data.score(truth, found[b], b) for b in BLOCKS}
        return scores

    where = "test" if test is None else f"fold{test[0]}"
    return folder.once(f"map-{where}-{steps}", recipe.settings() | {"seed": seed, "train": train}, compute)


def _summary(scores: list[Scores]) -> Scores:
    return {b: {kind: spread([s[b][kind] for s in scores]) for kind in ("SC", "RA")} for b in BLOCKS}


def _save_first(folder: Folder, data: datasets.CMU35, recipe: Recipe) -> None:
    """A trained model as a file, and a picture of hidden legs that it found."""
    path = folder / "model.safetensors"
    if path.exists():
        return
    trained = recipe.train(data.t, data.y, 0)
    found = trained.reconstruct(data.test_t, data.hide(data.test_y, "legs"))
    _draw(folder, data, found)
    save(path, trained.model, trained.guide, trained.posterior.data)


def _draw(folder: Folder, data: datasets.CMU35, found: np.ndarray) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots(3, 2, sharex=True).ravel()
    frames = np.concatenate(data.y)
    near = np.asarray(baselines.nearest_neighbour(frames, data.hide(data.test_y, "legs")))
    for ax, feature in zip(axes, data.blocks["legs"][:6], strict=True):
        ax.axvspan(data.test_t[62], data.test_t[-1], color="0.93")
        for y, label, style in (
            (data.test_y, "truth", {"color": "0.2"}),
            (found, "VGPDS", {"color": "C0"}),
            (near, "nearest neighbour", {"color": "C1", "lw": 0.8}),
        ):
            ax.plot(data.test_t, np.degrees(y[:, feature]), label=label, **style)
        ax.set_title(f"feature {feature}", fontsize="small")
    axes[0].legend(frameon=False, fontsize="small")
    figure.supxlabel("time; the legs are hidden in the shaded half")
    figure.supylabel("angle in degrees")
    figure.savefig(folder / "cmu35.png", dpi=150)


def _report(
    folder: Folder, name: str, results: dict[str, Scores], held_out: dict[str, Scores], recipes: dict[str, Recipe]
) -> None:
    head = ["", "legs SC", "legs RA", "body SC", "body RA"]
    cells = partial(_row, kinds=[(b, kind) for b in BLOCKS for kind in ("SC", "RA")])
    rows = [[label, *cells(scores)] for label, scores in results.items()]
    rows += [[label, *(f"{value:.2f}" for value in values)] for label, values in PAPER.items()]
    text = (
        "The paper's test sequence; mean and standard deviation over seeds.\n\n"
        + table(head, rows)
        + "\n\nEvery training sequence held out once; mean and standard deviation over sequences.\n\n"
        + table(head, [[label, *cells(scores)] for label, scores in held_out.items()])
    )
    print(text)
    folder.write_text(f"{name}.md", text + "\n")
    settings = {label: recipe.settings() for label, recipe in recipes.items()}
    folder.write_json(f"{name}.json", {**results, "folds": held_out, "recipes": settings, "paper": PAPER})


def _row(scores: Scores, kinds: list[tuple[str, str]]) -> list[dict[str, float]]:
    return [scores[block][kind] for block, kind in kinds]
