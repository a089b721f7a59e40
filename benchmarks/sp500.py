# SPDX-License-Identifier: Apache-2.0
"""A long real sequence: ``python -m benchmarks.sp500 sp500_dataset.csv.gz``, daily prices of 20 shares over 33 years.

The file is part of the package skfolio (``skfolio/datasets/data``). A tenth of the log prices or log returns is hidden,
at random or in blocks of 60 days of one share, and imputed: root mean squared errors in units of each share's standard
deviation, beside those of linear interpolation in time and of PCA. CPU seconds of training with one thread.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, fit
from pyro_vgpds.baselines import linear_interpolation, pca
from pyro_vgpds.kernels import Bias, Matern32, White

_BLOCK = 60


def read(path: Path, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Times in years, and standardised log prices or log returns."""
    frame = pd.read_csv(path, index_col=0, parse_dates=True)
    days = (frame.index - frame.index[0]).days.to_numpy() / 365.25
    y = np.log(frame.to_numpy())
    if what == "returns":
        days, y = days[1:], np.diff(y, axis=0)
    return days, (y - y.mean(0)) / y.std(0)


def hide(shape: tuple[int, int], how: str, rng: np.random.Generator) -> np.ndarray:
    """Mask of the hidden entries, a tenth of all."""
    if how == "random":
        return rng.random(shape) < 0.1
    hidden = np.zeros(shape, dtype=bool)
    while hidden.mean() < 0.1:
        start, column = rng.integers(shape[0] - _BLOCK), rng.integers(shape[1])
        hidden[start : start + _BLOCK, column] = True
    return hidden


def run(t: np.ndarray, y: np.ndarray, how: str, args: argparse.Namespace) -> list[str]:
    pyro.set_rng_seed(0)
    hidden = hide(y.shape, how, np.random.default_rng(0))
    data = Sequences(t, np.where(hidden, np.nan, y))
    began = time.process_time()
    temporal = Matern32() + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, args.latent, args.inducing, temporal=temporal)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, num_steps=args.steps, progress=False)
    seconds = time.process_time() - began
    with torch.no_grad():
        post = Posterior(model, guide, data)
        ours = post.impute(fill=False).mean.numpy()

    def error(prediction: np.ndarray) -> str:
        return f"{np.sqrt(np.mean((prediction - y)[hidden] ** 2)):.4f}"

    seen = torch.from_numpy(np.where(hidden, np.nan, y))
    line, components = (
        np.asarray(f(torch.from_numpy(t), seen)) for f in (linear_interpolation, lambda a, b: pca(a, b, args.latent))
    )
    structure = post.q.prior.structure
    return [how, structure, f"{result.num_steps}", f"{seconds:.0f}", error(ours), error(line), error(components)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--what", choices=["prices", "returns"], nargs="+", default=["prices", "returns"])
    parser.add_argument("--latent", type=int, default=8)
    parser.add_argument("--inducing", type=int, default=60)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--frames", type=int, help="number of days, from the end; default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    columns = ["data", "hidden", "structure", "steps", "CPU s", "VGPDS", "interpolation", "PCA"]
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for what in args.what:
        t, y = read(args.path, what)
        if args.frames:
            t, y = t[-args.frames :], y[-args.frames :]
        for how in ("random", "blocks"):
            print("| " + " | ".join([what, *run(t, y, how, args)]) + " |", flush=True)


if __name__ == "__main__":
    main()
