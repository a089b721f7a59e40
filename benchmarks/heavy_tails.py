# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.heavy_tails [NAME ...] [--seeds N] [--first SEED]``: Student-t outputs compared with Gaussian.

The task ``points`` of :mod:`benchmarks.defaults`: a random fifth of the entries is hidden. Both models have the
library's defaults; ``--likelihoods gaussian student-t auto`` also has the pool of ``auto``. Prints one JSON line for
each data set and likelihood, with means over the seeds: the root mean squared error, the log score of a hidden entry,
and the percentage of them in intervals of 50, 80 and 95 %. The differences from the first likelihood are those of the
same seeds, with the standard errors of their means. Seeds 0 to 4 are those of the table in docs/benchmarks.md; the
defaults were chosen on seeds from 10 on. ``--folder`` keeps finished parts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyro
import torch

from benchmarks.defaults import make_split
from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, auto, fit, metrics
from pyro_vgpds.experiments.record import Folder
from pyro_vgpds.prediction import Outputs

NAMES = ("robot", "yeast", "french", "cmu07")
LEVELS = (0.5, 0.8, 0.95)


def predict(data: Sequences, likelihood: str, seed: int) -> Outputs:
    """The outputs at the training frames, by one model or, for ``"auto"``, by a pool for outputs with outliers."""
    if likelihood == "auto":
        return auto(data, "impute", likelihood="student-t", seed=seed, processes=1).impute(fill=False)
    model = VGPDS.from_data(data, likelihood=likelihood)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, progress=False)
    return Posterior(model, guide, data).impute(fill=False)


def measure(name: str, seed: int, likelihood: str) -> dict[str, float]:
    """The scores of the hidden entries of one data set."""
    split = make_split(name, "points", seed)
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    found = predict(split.train, likelihood, seed)
    truth = torch.cat(split.truth)
    hidden = torch.isfinite(truth)
    scores = {
        "RMSE": float((found.mean - truth)[hidden].square().mean().sqrt()),
        "log score": metrics.log_score(truth, found.log_probs(truth)),
    }
    for level in LEVELS:
        low, high = found.interval(level)
        scores[f"in {level:.0%}"] = 100.0 * float(((truth >= low) & (truth <= high))[hidden].double().mean())
    return scores


def summary(runs: list[dict[str, float]], first: list[dict[str, float]]) -> dict[str, object]:
    """Means over the seeds, and the differences from another likelihood's runs with the same seeds."""
    found: dict[str, object] = {key: round(float(np.mean([run[key] for run in runs])), 4) for key in runs[0]}
    if runs is not first:
        for key in runs[0]:
            differences = [run[key] - other[key] for run, other in zip(runs, first, strict=True)]
            error = np.std(differences, ddof=1) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
            found[f"{key}, difference"] = f"{np.mean(differences):+.4f} ± {error:.4f}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--likelihoods", nargs="+", choices=("gaussian", "student-t", "auto"), default=["gaussian", "student-t"]
    )
    parser.add_argument("--folder", type=Path, help="keeps finished parts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(args.first, args.first + args.seeds)
    with TemporaryDirectory() as temporary:
        folder = Folder(args.folder or temporary, progress=False)
        for name in args.names:
            every = []
            for likelihood in args.likelihoods:
                runs = [_once(folder, name, seed, likelihood) for seed in seeds]
                every.append(runs)
                line = {"data": name, "likelihood": likelihood, "seeds": args.seeds, **summary(runs, every[0])}
                print(json.dumps(line, ensure_ascii=False), flush=True)


def _once(folder: Folder, name: str, seed: int, likelihood: str) -> dict[str, float]:
    settings = {"data": name, "seed": seed, "likelihood": likelihood}
    found = folder.once(f"{name}-{likelihood}-{seed}", settings, lambda _: measure(name, seed, likelihood))
    return {key: value for key, value in found.items() if key != "wall seconds"}


if __name__ == "__main__":
    main()
