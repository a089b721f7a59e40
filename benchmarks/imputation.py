# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.imputation [NAME ...] [--seeds N]``: hide a random fifth of what was observed, and predict it.

For each data set: coverage of central 50, 80 and 95 % intervals, and the root mean squared error beside those of the
column mean, linear interpolation in time and probabilistic PCA, each over the seeds with its spread. Errors are in the
units of the data, those of ``cmu07`` in units of each output's standard deviation. ``model`` are draws from the model
itself. Settings were chosen on a tenth of the entries that were left for training (``--choose``), with another seed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, baselines, datasets, fit, metrics
from pyro_vgpds.kernels import ARDRBF, RBF, Bias, Kernel, Matern12, Matern32, White

HIDDEN = 0.2
LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Settings:
    """How a data set is modelled."""

    latent_dim: int
    num_inducing: int
    temporal: str = "matern32"
    scale: bool = False  # outputs to unit variance
    noise_per_output: bool = False
    num_steps: int = 300

    def kernel(self) -> Kernel:
        smooth: dict[str, Any] = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32}
        return smooth[self.temporal]().fix("variance") + White(1e-2) + Bias(0.1)


SETTINGS = {
    "model": Settings(4, 40, "rbf"),
    "robot": Settings(6, 60),
    "yeast": Settings(6, 20, num_steps=200),
    "cmu07": Settings(9, 80, scale=True, num_steps=200),
    "french": Settings(8, 60, "matern12", scale=True, num_steps=100),
}


def draw_model(seed: int) -> Sequences:
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
    return Sequences(times, list(y.split(40)))


LOADERS: dict[str, Callable[[], Any]] = {
    "robot": datasets.load_robot_wireless,
    "yeast": datasets.load_spellman,
    "french": datasets.load_french,
    "cmu07": lambda: datasets.load_cmu_mocap("07", every=4),
}


@dataclass
class Task:
    """Sequences with entries hidden: times and outputs (a list each), and the hidden truth (N, D), else NaN."""

    t: list[Any]
    y: list[np.ndarray]
    truth: np.ndarray

    @classmethod
    def of(cls, name: str, seed: int) -> Task:
        if name == "model":
            data = draw_model(seed)
            rows = data.times.slices()
            t, y = [data.times.t[s] for s in rows], [data.read().numpy()[s] for s in rows]
        else:
            loaded = LOADERS[name]()
            vary = np.nanstd(np.concatenate(loaded.y), 0) > 1e-6  # joints that were not recorded are constant
            t, y = loaded.t, [part[:, vary] for part in loaded.y]
            if name == "cmu07":  # angles and centimetres: in units of their spread
                scale = np.concatenate(y).std(0)
                y = [part / scale for part in y]
        return cls(t, y, np.concatenate(y)).hide(HIDDEN, seed)

    def hide(self, share: float, seed: int) -> Task:
        """The same with a share of what is seen hidden, which is then the truth to be found."""
        rng = np.random.default_rng(seed)
        hidden = [np.isfinite(part) & (rng.random(part.shape) < share) for part in self.y]
        left = [np.where(h, np.nan, part) for h, part in zip(hidden, self.y, strict=True)]
        keep = np.concatenate(hidden) & (np.isfinite(np.concatenate(left)).sum(0) > 1)  # a column needs two values
        truth = np.where(keep, np.concatenate(self.y), np.nan)
        some = np.isfinite(np.concatenate(left)).any(0)
        return Task(self.t, [part[:, some] for part in left], truth[:, some])


def impute(task: Task, settings: Settings, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of all entries by VGPDS."""
    stacked = np.concatenate(task.y)
    centre, scale = np.nanmean(stacked, 0), np.nanstd(stacked, 0)
    scale = np.where(scale > 1e-9, scale, 1.0) if settings.scale else np.ones_like(scale)
    data = Sequences(task.t, [(part - centre) / scale for part in task.y])
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    model = VGPDS.from_data(
        data, settings.latent_dim, min(settings.num_inducing, data.num_frames), settings.kernel(),
        noise_per_output=settings.noise_per_output,
    )  # fmt: skip
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, settings.num_steps, progress=False)
    result = Posterior(model, guide, data).impute(fill=False)
    return result.mean.numpy() * scale + centre, result.variance.numpy() * scale**2


def score(name: str, settings: Settings, seed: int) -> dict[str, float]:
    task = Task.of(name, seed)
    start = time.process_time()
    mean, variance = impute(task, settings, seed)
    result = {"VGPDS": metrics.mse(task.truth, mean) ** 0.5, "seconds": time.process_time() - start}
    for level in LEVELS:
        width = torch.special.ndtri(torch.tensor(0.5 + level / 2)).item() * np.sqrt(variance)
        result[f"{100 * level:.0f} %"] = 100 * metrics.coverage(task.truth, mean - width, mean + width)
    for label, method in (
        ("mean", baselines.column_mean),
        ("linear", baselines.linear_interpolation),
        ("PPCA", baselines.ppca),
    ):
        filled: Any = method(task.t, task.y)
        result[label] = metrics.mse(task.truth, torch.cat(filled).numpy()) ** 0.5
    return result


def choose(name: str) -> None:
    """Errors of settings on a tenth of the entries that were left for training."""
    task = Task.of(name, 1000).hide(0.1, 1001)
    for scale, each in itertools.product((False, True), (False, True)):
        settings = replace(SETTINGS[name], scale=scale, noise_per_output=each)
        try:
            mean, variance = impute(task, settings, 1000)
        except ValueError as error:
            print(f"{name}: {scale=}, noise_per_output={each}: {error}")
            continue
        print(
            f"{name}: {scale=}, noise_per_output={each}: RMSE {metrics.mse(task.truth, mean) ** 0.5:.4f}, "
            f"NLPD {metrics.nlpd(task.truth, mean, variance):.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Impute a hidden fifth of the entries.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SETTINGS)}; default: all")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3, and 20 for model")
    parser.add_argument("--choose", action="store_true", help="compare settings on held-out training entries")
    args = parser.parse_args()
    torch.set_num_threads(1)
    labels = ("50 %", "80 %", "95 %", "VGPDS", "mean", "linear", "PPCA", "seconds")
    if not args.choose:
        print("| data | seeds |", " | ".join(labels), "|")
        print("| --- " * (len(labels) + 2) + "|")
    for name in args.names or SETTINGS:
        if args.choose:
            choose(name)
            continue
        seeds = max(args.seeds, 20) if name == "model" else args.seeds
        rows = [score(name, SETTINGS[name], seed) for seed in range(seeds)]
        cells = []
        for label in labels:
            values = [row[label] for row in rows]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            digits = 1 if "%" in label or label == "seconds" else 3
            cells.append(f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}")
        print(f"| {name} | {seeds} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
