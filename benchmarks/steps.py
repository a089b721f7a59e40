# SPDX-License-Identifier: Apache-2.0
"""What a training step costs at the sizes that people have, and how much of it is the bound with its gradients.

``python -m benchmarks.training --small`` prints a table. A cell is a size, and variations of it after dashes: for
example ``small-twenty-scattered`` is 20 sequences with scattered gaps. This file imports nothing of the benchmarks, so
that it also runs with another checkout of the package (``--beside``).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Sequences, fit
from pyro_vgpds.inference.natural import NaturalGradient
from pyro_vgpds.kernels import ARDLinear, Bias, Matern32, White
from pyro_vgpds.pyro_state import own_store

#: frames, outputs, latent dimensions, inducing inputs
SIZES = {
    "tiny": (50, 5, 3, 20),
    "small": (100, 20, 5, 30),
    "wide": (200, 100, 5, 30),
    "middle": (500, 50, 9, 50),
    "deep": (500, 50, 20, 100),
    "long": (2000, 20, 5, 50),
    "large": (2000, 100, 20, 100),
}
VARIATIONS = {
    "twenty": "twenty sequences, not one",
    "scattered": "a tenth of the numbers missing, at random",
    "blocks": "a third of the outputs missing in the middle third of the frames",
    "linear": "a linear mapping",
    "matern": "a plain Matérn kernel of time",
    "dense": "dense time",
    "markov": "Markov time",
    "shared": "one noise for all outputs",
}
CELLS = [
    *SIZES,
    *[f"{size}-{name}" for size in ("small", "middle") for name in VARIATIONS],
    "small-twenty-scattered",
]  # fmt: skip


def make(cell: str) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """The model, guide and data of a cell."""
    size, *names = cell.split("-")
    if size not in SIZES or not set(names) <= VARIATIONS.keys():
        raise ValueError(f"a cell is one of {', '.join(SIZES)} with any of -{', -'.join(VARIATIONS)}, not {cell!r}.")
    frames, outputs, latent_dim, num_inducing = SIZES[size]
    rng = np.random.default_rng(0)
    t = 0.1 * np.arange(frames)
    y = np.sin(np.outer(t, rng.uniform(0.5, 3.0, outputs)) + rng.uniform(0.0, 6.0, outputs))
    y += 0.1 * rng.standard_normal(y.shape)
    if "scattered" in names:
        y[rng.random(y.shape) < 0.1] = np.nan
    if "blocks" in names:
        y[frames // 3 : 2 * frames // 3, : outputs // 3] = np.nan
    parts = 20 if "twenty" in names else 1
    data = Sequences(np.array_split(t, parts), np.array_split(y, parts))
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(
        data,
        latent_dim,
        num_inducing,
        Matern32() + White(1e-2) + Bias(0.1) if "matern" in names else None,
        ARDLinear(torch.ones(latent_dim)) if "linear" in names else None,
        noise_per_output="shared" not in names,
        structure=next((name for name in names if name in ("dense", "markov")), None),
    )
    return model, AutoOpperArchambeau(model), data


def stepped(cell: str, steps: int) -> list[float]:
    """CPU seconds of each step of ``fit``; the first ones, which load what the others use, are not counted."""
    model, guide, data = make(cell)
    times: list[float] = []

    def note(record: object) -> None:
        times.append(time.process_time())

    fit(model, guide, data, steps + 3, tolerance=0.0, progress=False, callback=note)
    return np.diff(times)[3:].tolist()


def evaluated(cell: str, runs: int) -> list[float]:
    """CPU seconds of ``loss_and_grads`` alone."""
    model, guide, data = make(cell)
    elbo, times = Collapsed_ELBO(), []
    with own_store(), NaturalGradient(guide, data):
        for _ in range(runs + 3):
            for parameter in model.parameters():
                parameter.grad = None
            start = time.process_time()
            elbo.loss_and_grads(model, guide, data)
            times.append(time.process_time() - start)
    return times[3:]


def measure(cell: str, steps: int) -> dict[str, Any]:
    """Everything about one cell."""
    step, alone = statistics.median(stepped(cell, steps)), statistics.median(evaluated(cell, steps))
    ms = {"step_ms": round(1e3 * step, 3), "loss_and_grads_ms": round(1e3 * alone, 3)}
    return {"cell": cell, **ms, "ratio": round(step / alone, 3)}


def elsewhere(path: Path, cell: str, steps: int) -> float:
    """CPU ms a step in a process that imports the package of another checkout."""
    environment = {**os.environ, "PYTHONPATH": str(path.resolve()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, cell, "--steps", str(steps)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=path).stdout
    result = json.loads(output)
    if Path(result["package"]).resolve() != (path / "pyro_vgpds").resolve():
        raise ValueError(f"{path} has no package pyro_vgpds: that of {result['package']} was imported.")
    return float(result["step_ms"])


def beside(path: Path, cell: str, steps: int, rounds: int) -> dict[str, float]:
    """Steps of this checkout and of another one, in turns: medians of processes."""
    here = Path(importlib.import_module("pyro_vgpds").__file__ or "").parents[1]
    pairs = [(elsewhere(here, cell, steps), elsewhere(path, cell, steps)) for _ in range(rounds)]
    own, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"here_ms": round(own, 3), "there_ms": round(other, 3), "there / here": round(other / own, 2)}


def table(cells: list[str], steps: int, path: Path | None, rounds: int, as_json: bool) -> None:
    """Print a row for each cell, as soon as it is measured."""
    torch.set_num_threads(1)
    for i, cell in enumerate(cells):
        row = measure(cell, steps)
        if path is not None:
            row |= beside(path, cell, steps, rounds)
        if as_json:
            print(json.dumps(row, ensure_ascii=False), flush=True)
            continue
        if i == 0:
            print("| " + " | ".join(row) + " |\n|" + " --- |" * len(row))
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU ms of a step of fit, as JSON.")
    parser.add_argument("cell")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    package = str(Path(importlib.import_module("pyro_vgpds").__file__ or "").parent)
    step = statistics.median(stepped(args.cell, args.steps))
    print(json.dumps({"package": package, "cell": args.cell, "step_ms": round(1e3 * step, 3)}))


if __name__ == "__main__":
    main()
