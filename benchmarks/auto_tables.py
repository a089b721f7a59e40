# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.auto_tables [NAME ...] [--seeds N] [--folds] [--output DIR]``: the paper's tables by ``auto``.

The experiments ``cmu35`` (table 1) and ``missa`` (table 2) choose their settings by hand. Here ``pyro_vgpds.auto`` gets
the same training data, the task and a seed, and nothing else.

``cmu35``: ``auto(data, "reconstruct")`` of the 31 training sequences; legs or body are hidden in the second half of the
test sequence. With ``--folds`` also in the held-out training sequences of each of five folds, on which settings
may be compared: nothing may be chosen by the test sequence.

``missa``: the upper half of 65 of 150 frames is hidden, in three cells. ``impute`` trains on all 150 frames with the
upper halves missing, ``reconstruct`` on the 85 complete frames, and ``times`` on 150 frames, 65 of them missing as a
whole. ``--factor 2`` averages blocks of 2 x 2 of the 25,344 pixels, and so on, for a quick look.

Each cell is a file in DIR, and finished ones are reused. ``--table`` prints the tables of finished cells only.
``PYRO_VGPDS_DATA`` names the folder of the data. Times are CPU seconds on one thread; ``linear dynamical system`` is
the time to train this baseline on the same data.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from pyro_vgpds import Ensemble, Sequences, auto, baselines, datasets
from pyro_vgpds.experiments.record import spread, table
from pyro_vgpds.experiments.video import best_neighbours, errors
from pyro_vgpds.selection.named_baselines import make_baseline

BLOCKS, FOLDS = ("legs", "body"), 5
RECIPE = {"legs": {"SC": 6.65, "RA": 2.70}, "body": {"SC": 8.60, "RA": 1.56}}  # docs/benchmarks.md
RECIPE_FOLDS = {"legs": {"SC": 6.86, "RA": 3.18}, "body": {"SC": 10.84, "RA": 2.65}}
RECIPE_MISSA = {"impute": 1.288, "reconstruct": 1.288, "times": 1.316}
Cell = dict[str, Any]


def train(data: Sequences, task: str, seed: int) -> tuple[Ensemble, Cell]:
    """The ensemble, and the CPU seconds that it and the linear dynamical system took."""
    start = process_time()
    found = auto(data, task, seed=seed, processes=1, progress=_log)  # the time of other processes is not counted
    middle = process_time()
    make_baseline("linear dynamical system", data)
    cell = {"auto s": middle - start, "linear dynamical system s": process_time() - middle}
    cell |= {"report": str(found.report), "members": found.names, "settings": [_settings(m) for m in found.members]}
    return found, cell


def _log(event: Any) -> None:
    error = "" if event.error is None else f", error {event.error:.4f} in {event.seconds:.1f} s"
    print(f"  {event.kind} {event.name}{error}", file=sys.stderr, flush=True)


def _settings(member: Any) -> str:
    """Noise and residual kernel that a model predicts with, if they are not those of training."""
    origin = getattr(member, "origin", None)
    if origin is None or (origin.noise_variance is None and origin.residual is None):
        return ""
    noise = "trained" if origin.noise_variance is None else "wider"
    return f"{noise} noise, residual {origin.residual}"


def walks(seed: int, fold: int | None = None) -> Cell:
    """SC and RA of both blocks on the test sequence, or on each sequence of a fold."""
    data = datasets.load_cmu35()
    out = [] if fold is None else list(range(fold, len(data.y), FOLDS))
    kept = [i for i in range(len(data.y)) if i not in out]
    sequences = Sequences([data.t[i] for i in kept], [data.y[i] for i in kept])
    targets = [(data.t[i], data.y[i]) for i in out] or [(data.test_t, data.test_y)]
    found, cell = train(sequences, "reconstruct", seed)
    start, frames = process_time(), np.concatenate([data.y[i] for i in kept])
    cell["scores"] = {"auto": [], "NN": [], "NN sc.": []}
    for t, truth in targets:
        filled: dict[str, dict[str, np.ndarray]] = {name: {} for name in cell["scores"]}
        for block in BLOCKS:
            seen = data.hide(truth, block)
            filled["auto"][block] = found.reconstruct(t, seen).mean.numpy()
            for name, scaled in (("NN", False), ("NN sc.", True)):
                filled[name][block] = np.asarray(baselines.nearest_neighbour(frames, seen, scaled=scaled))
        for name, means in filled.items():
            cell["scores"][name].append({block: data.score(truth, means[block], block) for block in BLOCKS})
    return {**cell, "reconstruction s": process_time() - start}


def shrunk(video: datasets.Video, factor: int) -> datasets.Video:
    """The video with blocks of pixels averaged; a block is hidden if all of it is."""
    if factor == 1:
        return video
    (height, width), hidden = (side // factor for side in video.shape), video.hidden
    assert hidden is not None

    def blocks(y: np.ndarray) -> np.ndarray:
        frames = video.to_frames(y)[..., : height * factor, : width * factor]
        return frames.reshape(*y.shape[:-1], height, factor, width, factor)

    small = blocks(video.y[0]).mean((-3, -1)).reshape(len(video.y[0]), -1)
    return replace(video, y=[small], shape=(height, width), hidden=blocks(hidden).all((-3, -1)).ravel())


def faces(task: str, seed: int, factor: int) -> Cell:
    """Mean absolute and squared errors of the hidden pixels."""
    video = shrunk(datasets.load_missa(), factor)
    (times, seen), truth, data = video.partial(), video.truth(), video.training()
    if task != "reconstruct":
        rows = video.y[0].copy()
        rows[video.test] = np.nan if task == "times" else seen
        data = Sequences(video.t[0], rows)
    found, cell = train(data, "reconstruct" if task == "reconstruct" else "impute", seed)
    start = process_time()
    if task == "reconstruct":
        mean = found.reconstruct(times, seen, 0).mean.numpy()
    else:
        mean = found.impute().mean.numpy()[video.test]
    near = best_neighbours(truth, video.training().read().numpy(), seen)
    cell["scores"] = {"auto": errors(truth, mean), "NN, best k": near}
    return {**cell, "outputs": data.num_outputs, "reconstruction s": process_time() - start}


def summarise(folder: Path) -> str:
    """Tables of the finished cells."""
    cells = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    texts = []
    for kind, recipe in (("test", RECIPE), ("fold", RECIPE_FOLDS)):
        runs = [cell for name, cell in cells.items() if name.startswith(f"cmu35-{kind}")]
        if runs:
            texts.append(_walk_table(kind, runs, recipe))
    rows = []
    for task, wanted in RECIPE_MISSA.items():
        for cell in (cell for name, cell in cells.items() if name.startswith(f"missa-{task}-")):
            mae = cell["scores"]["auto"]["MAE"]
            rows.append(
                [task, cell["outputs"], mae, cell["scores"]["auto"]["MSE"], wanted, f"{mae / wanted:.3f}",
                 cell["scores"]["NN, best k"]["MAE"], *_times(cell)]
            )  # fmt: skip
    if rows:
        head = ["missa", "outputs", "auto MAE", "auto MSE", "recipe MAE", "auto / recipe", "NN MAE", *_TIMES]
        texts.append(table(head, rows))
    return "\n\n".join(texts)


_TIMES = ["auto s", "linear dynamical system s", "ratio"]


def _times(cell: Cell) -> list[str]:
    mine, linear = cell["auto s"], cell["linear dynamical system s"]
    return [f"{mine:.0f}", f"{linear:.1f}", f"{mine / linear:.1f}"]


def _walk_table(kind: str, runs: list[Cell], recipe: dict[str, dict[str, float]]) -> str:
    kinds = [(block, score) for block in BLOCKS for score in ("SC", "RA")]
    rows: list[list[object]] = []
    for name in ("auto", "NN", "NN sc."):
        scores = [score for run in runs for score in run["scores"][name]]
        rows.append([name, *(spread([s[block][score] for s in scores]) for block, score in kinds)])
    rows.insert(1, ["published recipe", *(recipe[block][score] for block, score in kinds)])
    ratios = [cell["mean"] / recipe[b][s] for cell, (b, s) in zip(rows[0][1:], kinds, strict=True)]  # type: ignore[index]
    rows.insert(2, ["auto / recipe", *(f"{ratio:.3f}" for ratio in ratios)])
    times = "; ".join(f"auto {a} s, linear dynamical system {b} s, ratio {c}" for a, b, c in map(_times, runs))
    count = sum(len(run["scores"]["auto"]) for run in runs)
    where = "test sequence" if kind == "test" else "held-out training sequences"
    if kind == "fold":
        times += f"\n\nthe recipe's row is the mean of all 31 sequences, the others of {count}"
    return table([f"cmu35, {where}", *(f"{block} {score}" for block, score in kinds)], rows) + f"\n\n{times}"


def main() -> None:
    parser = argparse.ArgumentParser(description="The paper's tables by auto.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="cmu35, missa; default: both")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--folds", type=int, nargs="*", help="of cmu35; without numbers all five")
    parser.add_argument("--no-test", action="store_true", help="only the folds of cmu35")
    parser.add_argument("--tasks", nargs="*", default=list(RECIPE_MISSA), choices=list(RECIPE_MISSA), help="of missa")
    parser.add_argument("--factor", type=int, default=1, help="side of blocks of pixels of missa to average")
    parser.add_argument("--output", type=Path, default=Path("benchmarks_output/auto_tables"))
    parser.add_argument("--table", action="store_true", help="only print the tables of finished cells")
    args = parser.parse_args()
    unknown = set(args.names) - {"cmu35", "missa"}
    if unknown:
        parser.error(f"NAME must be cmu35 or missa, but got {', '.join(sorted(unknown))}.")
    args.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    todo: dict[str, Callable[[], Cell]] = {}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        if "cmu35" in (args.names or ["cmu35"]):
            if not args.no_test:
                todo[f"cmu35-test-{seed}"] = lambda seed=seed: walks(seed)
            folds = [] if args.folds is None else args.folds or range(FOLDS)
            todo |= {f"cmu35-fold{k}-{seed}": lambda k=k, seed=seed: walks(seed, k) for k in folds}
        if "missa" in (args.names or ["missa"]):
            for task in args.tasks:
                name = f"missa-{task}-{args.factor}-{seed}"
                todo[name] = lambda task=task, seed=seed: faces(task, seed, args.factor)
    for name, compute in todo.items() if not args.table else ():
        path = args.output / f"{name}.json"
        if not path.exists():
            print(name, file=sys.stderr, flush=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                path.write_text(json.dumps(compute()))
    print(summarise(args.output))


if __name__ == "__main__":
    main()
