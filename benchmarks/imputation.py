# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.imputation [NAME ...] [--seeds N]``: predict a hidden fifth of the observed entries.

The model is the default one, without any setting. For each data set: coverage of central 50, 80 and 95 % intervals, and
the root mean squared error beside those of the column mean, linear interpolation in time and probabilistic PCA, with
mean and spread over the seeds. Errors are in the units of the data, those of ``cmu07`` in units of each output's
standard deviation. ``model`` are draws from the model itself.
"""

from __future__ import annotations

import argparse

import numpy as np
import pyro
import torch

from pyro_vgpds import VGPDS, Sequences, datasets
from pyro_vgpds.experiments.imputation import HIDDEN, LABELS, Task, score
from pyro_vgpds.experiments.record import spread, table
from pyro_vgpds.kernels import ARDRBF, RBF, White

ALL = ("model", "robot", "yeast", "cmu07", "french")


def draw_model(seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Three sequences from the model itself, two latent dimensions and twenty outputs."""
    pyro.set_rng_seed(seed)
    times = [0.1 * torch.arange(40.0, dtype=torch.float64) for _ in range(3)]
    model = VGPDS(
        RBF(1.0, 0.8) + White(1e-3),
        ARDRBF(1.0, torch.tensor([0.5, 0.3], dtype=torch.float64)),
        inducing=torch.zeros(1, 2, dtype=torch.float64),
        noise=0.01,
        output_mean=torch.zeros(20, dtype=torch.float64),
    )
    with torch.no_grad(), pyro.get_param_store().scope():
        y = model(Sequences(times))
    return [t.numpy() for t in times], [part.numpy() for part in y.split(40)]


def read(name: str, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    if name == "model":
        return draw_model(seed)
    if name == "cmu07":
        data = datasets.load_cmu_mocap("07", every=4)
        scale = np.concatenate(data.y).std(0)
        return data.t, [part / np.where(scale > 1e-6, scale, 1e9) for part in data.y]  # constant joints are ignored
    loaders = {
        "robot": datasets.load_robot_wireless,
        "yeast": datasets.load_spellman,
        "french": datasets.load_french,
    }
    loaded = loaders[name]()
    return loaded.t, loaded.y


def main() -> None:
    parser = argparse.ArgumentParser(description="Impute a hidden fifth of the entries.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; default: all")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3, and 20 for model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in args.names or ALL:
        seeds = max(args.seeds, 20) if name == "model" else args.seeds
        results = [score(Task.of(*read(name, seed), HIDDEN, seed), seed)[0] for seed in range(seeds)]
        rows.append([name, str(seeds), *(spread([r[label] for r in results]) for label in LABELS)])
        print(table(["data", "seeds", *LABELS], rows[-1:]), flush=True)


if __name__ == "__main__":
    main()
