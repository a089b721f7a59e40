# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.defaults [NAME ...] [--tasks ...] [--seeds N] [--output DIR]``: defaults beside baselines.

For each data set, task and seed, a part of the data is hidden and predicted by ``pyro_vgpds.auto``, by the default
model (``VGPDS.from_data(data)`` and ``fit``) and by every baseline, with no setting given. Errors are root mean squared
errors in units of each output's standard deviation. Tasks: ``points`` (a random fifth of the entries), ``blocks`` (10
frames by half of the columns, a fifth in all), ``spans`` (whole frames, a tenth in all), ``ahead`` (the last eighth of
each sequence), ``columns`` (half of the columns of a fifth of the sequences, which are new). On request: ``fifth`` (the
last fifth of each sequence), and for hours ``days`` (two days of each column), ``lostdays`` (two days of all columns)
and ``spikes`` (``days``, and one per cent of the other values are wrong by six standard deviations).

Each seed has its own part of a data set, of a few hundred frames and at most about 150 outputs, and its own mask.
Finished cells in DIR are reused. ``--table`` prints the tables of finished cells only. ``PYRO_VGPDS_DATA`` names the
folder of the data; data sets that are not there are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyro
import torch

from pyro_vgpds import Sequences, auto, datasets
from pyro_vgpds.evaluation import Split, score_predictor
from pyro_vgpds.evaluation.gaps import choose_columns, hide_blocks, hide_entries, hide_spans
from pyro_vgpds.experiments.recipe import train_default
from pyro_vgpds.experiments.record import table
from pyro_vgpds.selection.named_baselines import make_baseline
from pyro_vgpds.selection.proposals import propose_baselines

TASKS = ("points", "blocks", "spans", "ahead", "columns")
KINDS = {
    **dict.fromkeys(("points", "blocks", "spans", "days", "lostdays", "spikes"), "impute"),
    **dict.fromkeys(("ahead", "fifth"), "forecast"),
    "columns": "reconstruct",
}
Parts = tuple[list[np.ndarray], list[np.ndarray]]
Rng = np.random.Generator


def number(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return np.nan


def some(data: datasets.Dataset, count: int, seed: int) -> Parts:
    """Some of the sequences."""
    chosen = np.sort(np.random.default_rng(seed).permutation(len(data.y))[:count])
    return [np.asarray(data.t[i]) for i in chosen], [np.asarray(data.y[i], dtype=float) for i in chosen]


def window(y: np.ndarray, length: int, seed: int | Rng, t: np.ndarray | None = None) -> Parts:
    """Some consecutive frames of one sequence.

    :param t: default: the numbers of the frames.
    """
    start = int(np.random.default_rng(seed).integers(0, max(1, len(y) - length + 1)))
    t = np.arange(float(len(y))) if t is None else t
    return [t[start : start + length]], [y[start : start + length]]


def film(frames: np.ndarray, side: int, seed: int) -> Parts:
    """A hundred consecutive frames with blocks of pixels averaged."""
    count, height, width = frames.shape
    small = frames[:, : height // side * side, : width // side * side]
    small = small.reshape(count, height // side, side, width // side, side).mean((2, 4)).reshape(count, -1)
    return window(small, 100, seed)


def _french(seed: int) -> Parts:
    (t,), (y,) = some(datasets.load_french(), 1, seed)
    return window(y, 240, seed, t)


def _spikes(seed: int) -> Parts:
    counts = np.load(datasets.find_file("mc_maze/reaches.npz"))["spikes"]
    counts = counts.astype(float).reshape(165, 25, 4, 162).sum(2)
    busy = np.argsort(-counts.mean((0, 1)))[:40]
    trials = np.sort(np.random.default_rng(seed).permutation(165)[:24])
    return [0.02 * np.arange(25.0)] * len(trials), [counts[i][:, busy] for i in trials]


def _flu(seed: int) -> Parts:
    counts = np.load(datasets.find_file("flu/weekly_counts.npz"))["counts"].astype(float)
    rng = np.random.default_rng(seed)
    districts = np.sort(rng.permutation(counts.shape[1])[:40])
    return window(counts[:, districts], 260, rng)


def _yeast(seed: int) -> Parts:
    data = datasets.load_spellman()
    seen = np.isfinite(np.concatenate(data.y)).mean(0) > 0.7
    genes = np.sort(np.random.default_rng(seed).permutation(np.flatnonzero(seen))[:150])
    return list(data.t), [part[:, genes] for part in data.y]


def _generated(data: datasets.Dataset) -> Parts:
    return [np.asarray(t) for t in data.t], list(data.y)


def _sequences(seed: int) -> Parts:
    pyro.set_rng_seed(seed)
    return _generated(datasets.make_sequences(num_sequences=3, num_outputs=20, length=(60, 80)))


DATA: dict[str, Callable[[int], Parts]] = {
    "cmu07": lambda seed: some(datasets.load_cmu_mocap("07", every=4), 4, seed),
    "cmu35": lambda seed: some(datasets.load_cmu35(), 6, seed),
    "robot": lambda seed: some(datasets.load_robot_wireless(), 1, seed),
    "yeast": _yeast,
    "french": _french,
    "flu": _flu,
    "maze": _spikes,
    "missa": lambda seed: film(datasets.load_missa().frames, 14, seed),
    "mouse": lambda seed: film(datasets.load_clip("mouse").frames, 18, seed),
    "ocean": lambda seed: film(datasets.load_clip("ocean").frames, 6, seed),
    "pendulum": lambda seed: film(datasets.load_clip("pendulum").frames, 11, seed),
    "seawave": lambda seed: film(datasets.load_clip("seawave").frames, 14, seed),
    "model (generated)": _sequences,
    "gait (generated)": lambda seed: _generated(datasets.make_gait(seed=seed)),
    "pendulum (generated)": lambda seed: _generated(
        datasets.make_pendulum_video(num_frames=80, height=10, width=14, seed=seed)
    ),
}


def make_split(name: str, task: str, seed: int) -> Split:
    """The hidden part of a data set.

    :raises ValueError: if the data have too few sequences for the task.
    """
    t, y = DATA[name](seed)
    spread = np.nanstd(np.concatenate(y), 0)
    y = [part[:, spread > 1e-6] / spread[spread > 1e-6] for part in y]
    rng = np.random.default_rng(1000 + seed)
    times = [torch.as_tensor(np.asarray(part, dtype=float)) for part in t]
    whole = [torch.as_tensor(part) for part in y]
    everything = list(range(len(y)))
    if KINDS[task] == "forecast":
        keep = [len(part) - max(1, len(part) // (5 if task == "fifth" else 8)) for part in y]
        before, known = ([a[:k] for a, k in zip(parts, keep, strict=True)] for parts in (times, whole))
        ahead, truth = ([a[k:] for a, k in zip(parts, keep, strict=True)] for parts in (times, whole))
        unseen = [torch.full_like(a, torch.nan) for a in truth]
        return _usable(Split("forecast", Sequences(before, known), ahead, unseen, truth, list(everything), everything))
    if task == "columns":
        if len(y) < 3:
            raise ValueError("columns needs at least three sequences")
        new = sorted(rng.permutation(len(y))[: max(1, len(y) // 5)].tolist())
        kept = [i for i in everything if i not in new]
        seen, truth = [], []
        columns = torch.as_tensor(choose_columns(y[0].shape[1], rng))
        for i in new:
            hidden = torch.zeros_like(whole[i], dtype=torch.bool)
            hidden[:, columns] = True
            seen.append(whole[i].masked_fill(hidden, torch.nan))
            truth.append(whole[i].masked_fill(~hidden, torch.nan))
        train = Sequences([times[i] for i in kept], [whole[i] for i in kept])
        return _usable(Split("reconstruct", train, [times[i] for i in new], seen, truth, [None] * len(new), kept))
    masks = [torch.as_tensor(_hide(task, np.isfinite(part), rng)) for part in y]
    shown = [_spoil(part, rng) for part in whole] if task == "spikes" else whole
    seen = [part.masked_fill(mask, torch.nan) for part, mask in zip(shown, masks, strict=True)]
    truth = [part.masked_fill(~mask, torch.nan) for part, mask in zip(whole, masks, strict=True)]
    return _usable(Split("impute", Sequences(times, seen), times, seen, truth, list(everything), everything))


def _hide(task: str, seen: np.ndarray, rng: Rng) -> np.ndarray:
    """Which observed entries a task hides."""
    if task in ("points", "blocks", "spans"):
        hide, share = {"points": (hide_entries, 0.2), "blocks": (hide_blocks, 0.2), "spans": (hide_spans, 0.1)}[task]
        return hide(seen, share, rng)
    hidden = np.zeros_like(seen)
    if task == "lostdays":
        for day in rng.permutation(len(seen) // 24)[:2]:
            hidden[24 * day : 24 * day + 24] = True
    else:
        for column in range(seen.shape[1]):
            for start in rng.integers(0, len(seen) - 24, 2):
                hidden[start : start + 24, column] = True
    return hidden & seen


def _spoil(part: torch.Tensor, rng: Rng) -> torch.Tensor:
    """A copy in which some values are wrong by far."""
    bad = torch.as_tensor(rng.random(tuple(part.shape)) < 0.01)
    return part.masked_scatter(bad, part[bad] + torch.as_tensor(rng.choice([-6.0, 6.0], int(bad.sum()))))


def _usable(split: Split) -> Split:
    """Without the columns of which fewer than three entries are left."""
    keep = split.train.output_counts >= 3
    if bool(keep.all()):
        return split
    rows = split.train.lengths
    train = Sequences(list(split.train.times.t.split(rows)), list(split.train.read()[:, keep].split(rows)))
    cut = [[part[:, keep] for part in parts] for parts in (split.y, split.truth)]
    return Split(split.task, train, split.t, cut[0], cut[1], split.sequence, split.kept)


def run_cell(name: str, task: str, seed: int, methods: list[str]) -> dict[str, Any]:
    """Scores and CPU seconds of each method."""
    split = make_split(name, task, seed)
    horizon = max(len(t) for t in split.t) if KINDS[task] == "forecast" else None
    scale = torch.ones(split.train.num_outputs)
    found: dict[str, Any] = {"frames": split.train.num_frames, "outputs": split.train.num_outputs}
    rivals = propose_baselines(split.train, KINDS[task])
    makers: dict[str, Callable[[], Any]] = {
        "auto": lambda: auto(split.train, KINDS[task], horizon=horizon, seed=seed, progress=False),
        "default": lambda: train_default(split.train, seed, progress=False),
        **{rival: partial(make_baseline, rival, split.train) for rival in rivals},
    }
    wanted = [*methods, *(rivals if "baselines" in methods else ())] if methods else list(makers)
    for method in (method for method in makers if method in wanted):
        start = process_time()
        try:
            predictor = makers[method]()
            trained = process_time() - start
            found[method] = {**score_predictor(predictor, split, scale), "fit s": trained, "s": process_time() - start}
        except ValueError as error:
            found[method] = {"error": str(error)}
        if method == "auto" and "error" not in found[method]:
            found["report"] = str(predictor.report)
            found["weights"] = {c.name: c.weight for c in predictor.report.candidates}
    return found


def summarise(folder: Path, names: list[str]) -> str:
    """Tables of the finished cells: errors relative to the best baseline, coverage, and CPU time."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        name, task, _ = path.stem.rsplit("-", 2)
        if name in names:
            cells.setdefault((name, task), []).append(json.loads(path.read_text()))
    rows: list[list[object]] = []
    ratios: dict[str, list[float]] = {"auto": [], "default": []}
    times: dict[str, list[float]] = {"auto": [], "default": []}
    inside: list[list[float]] = []
    for (name, task), runs in cells.items():
        scores: dict[str, list[dict[str, float]]] = {}
        for run in runs:
            for method, found in run.items():
                if isinstance(found, dict) and "rmse" in found:
                    scores.setdefault(method, []).append(found)
        errors = {method: float(np.mean([each["rmse"] for each in found])) for method, found in scores.items()}
        best = min(sorted(errors.keys() - ratios.keys()), key=lambda method: errors[method])
        row: list[object] = [name, task, str(len(runs)), best, f"{errors[best]:.3f}"]
        for method in ratios:
            if method not in errors:
                row += ["-", "-"]
                continue
            ratio = errors[method] / errors[best]
            ratios[method].append(ratio)
            covered = [float(np.mean([each[f"in {p} %"] for each in scores[method]])) for p in (80, 95)]
            if method == "auto":
                inside.append(covered)
            row += [f"{errors[method]:.3f} ({ratio:.2f})", f"{covered[0]:.0f} / {covered[1]:.0f}"]
            for run in runs:
                if "fit s" in run.get(method, {}) and "fit s" in run.get("linear dynamical system", {}):
                    times[method].append(run[method]["fit s"] / run["linear dynamical system"]["fit s"])
        rows.append(row)
    shares = "in 80 / 95 %"
    head = ["data", "task", "seeds", "best baseline", "its error", "auto", shares, "default model", shares]
    text = table(head, rows)
    for method, limit in (("auto", 1.02), ("default", 1.10)):
        values = np.array(ratios[method])
        if len(values):
            text += (
                f"\n\n{method}: within {100 * limit - 100:.0f} % of the best in {100 * (values <= limit).mean():.0f} % "
                f"of {len(values)} cells, worst {values.max():.2f}"
            )
        if times[method]:
            text += (
                "; CPU time of training / linear dynamical system: "
                f"median {np.median(times[method]):.1f}, most {np.max(times[method]):.1f}"
            )
    if inside:
        good = [74 <= a <= 88 and 90 <= b <= 98 for a, b in inside]
        text += (
            "\n\nauto: intervals of 80 % hold 74 to 88 % and those of 95 % hold 90 to 98 % "
            f"in {100 * np.mean(good):.0f} % of cells"
        )
    return text


def main(module: str = "benchmarks.defaults") -> None:
    """Run cells of ``DATA`` and print their tables.

    :param module: the one to start further processes with.
    """
    parser = argparse.ArgumentParser(description="The defaults beside all baselines.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DATA)}; default: all")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=KINDS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=[], help="auto, default, baselines; default: all")
    parser.add_argument("--output", type=Path, default=Path("benchmarks_output/defaults"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--table", action="store_true", help="only print the tables of finished cells")
    args = parser.parse_args()
    names = args.names or list(DATA)
    args.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if not args.table:
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        todo = [(n, t, s) for s in seeds for n in names for t in args.tasks]
        if args.jobs > 1:
            _run_jobs(args, module)
        else:
            _run_cells(args, todo)
    print(summarise(args.output, names))


def _run_jobs(args: argparse.Namespace, module: str) -> None:
    """Cells in processes, each of which skips what another one has begun."""
    command = [sys.executable, "-m", module, *args.names, "--tasks", *args.tasks, "--seeds", str(args.seeds)]
    command += ["--first-seed", str(args.first_seed), "--output", str(args.output), "--jobs", "1"]
    command += ["--methods", *args.methods] if args.methods else []
    children = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(args.jobs)]
    for child in children:
        child.wait()


def _run_cells(args: argparse.Namespace, todo: list[tuple[str, str, int]]) -> None:
    for name, task, seed in todo:
        path = args.output / f"{name}-{task}-{seed}.json"
        begun = path.with_suffix(".begun")
        if path.exists():
            continue
        try:
            begun.touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                path.write_text(json.dumps(run_cell(name, task, seed, args.methods)))
        except (ValueError, FileNotFoundError) as error:
            print(f"{name} {task} {seed}: {error}", file=sys.stderr, flush=True)
        finally:
            begun.unlink()


if __name__ == "__main__":
    main()
