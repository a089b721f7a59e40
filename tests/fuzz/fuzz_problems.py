# SPDX-License-Identifier: Apache-2.0
"""Random problems from seeds, and everything that must hold for each: trained, predicted, saved and loaded.

``python tests/fuzz/fuzz_problems.py --first 0 --count 100 --seconds 600`` tries seeds and prints those that fail. With
``--log FILE`` a line is appended for each seed that passed, and a later call with the same file skips it.
"""

import argparse
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, Solver, fit, load, save
from pyro_vgpds.kernels import (
    RBF,
    Bias,
    Cosine,
    Kernel,
    Linear,
    MarkovRBF,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    White,
)
from pyro_vgpds.mapping.bound import ceiling

_SMOOTH: list[Callable[[], Kernel]] = [
    RBF, MarkovRBF, Matern12, Matern32, Matern52, Periodic, Cosine, Linear, lambda: RBF() * Periodic(),
    lambda: Matern32() * Cosine(), lambda: Linear() * Periodic(), lambda: Matern52() + Periodic(),
    lambda: RBF() + Linear(), lambda: Matern12() * Matern32(),
]  # fmt: skip


@dataclass
class Problem:
    """A random problem."""

    data: Sequences
    temporal: Kernel | None
    latent_dim: int
    num_inducing: int
    noise_per_output: bool
    scale_outputs: bool
    method: str
    num_steps: int

    def __repr__(self) -> str:
        d = self.data
        return (
            f"N={d.num_frames} in {d.num_sequences}, D={d.num_outputs}, observed={d.num_observed}, {d.dtype}, "
            f"temporal={self.temporal!r:.60}, Q={self.latent_dim}, M={self.num_inducing}, "
            f"per_output={self.noise_per_output}, scaled={self.scale_outputs}, {self.method}, {self.num_steps} steps"
        )


def random_problem(seed: int, largest: int = 300) -> Problem:
    """The problem of a seed.

    :param largest: number of frames at the most.
    """
    rng = np.random.default_rng([2016, seed])
    frames = round(2.0 * (largest / 2.0) ** rng.random())
    outputs = round(60.0 ** rng.random())
    cuts = np.sort(rng.choice(np.arange(1, frames), min(int(rng.integers(0, 6)), frames - 1), replace=False))
    unit, scale = 10.0 ** rng.uniform(-2, 2), 10.0 ** rng.uniform(-3, 3)
    t = np.cumsum(rng.exponential(1.0, frames) + 0.05) * unit
    paths = np.sin(t[:, None] / unit * rng.uniform(0.05, 1.0, 3) + rng.uniform(0, 6, 3))
    noise = 10.0 ** rng.uniform(-6, 3)
    y = np.tanh(paths @ rng.standard_normal((3, outputs))) + noise * rng.standard_normal((frames, outputs))
    y = scale * (y + rng.choice([0.0, 0.0, 10.0]))
    y[rng.random(y.shape) < rng.choice([0.0, 0.0, 0.1, 0.5, 0.9])] = np.nan
    for d in range(outputs):  # every output is observed, and varies
        seen = rng.choice(frames, 2, replace=False)
        y[seen, d] = np.where(np.isnan(y[seen, d]), scale * rng.standard_normal(2), y[seen, d])
    dtype = torch.float32 if rng.random() < 0.5 else torch.float64
    data = Sequences(np.split(t, cuts), np.split(y, cuts), dtype=dtype)
    which = int(rng.integers(-1, len(_SMOOTH) + 1))
    temporal = None if which < 0 else White() if which == len(_SMOOTH) else _SMOOTH[which]()
    if temporal is not None and which < len(_SMOOTH) and rng.random() < 0.7:
        temporal = temporal + White(10.0 ** rng.uniform(-4, -1))
        temporal = temporal + Bias(0.1) if rng.random() < 0.5 else temporal
    return Problem(
        data,
        temporal,
        int(rng.integers(1, min(8, outputs, frames) + 1)),
        int(rng.integers(1, min(40, frames) + 1)),
        bool(rng.random() < 0.6),
        bool(rng.random() < 0.8),
        str(rng.choice(["natural", "natural", "natural", "lbfgs", "adam"])),
        4 if frames > 100 else int(rng.choice([8] * 7 + [50])),
    )


def try_problem(problem: Problem, seed: int, folder: Path) -> None:
    """Train, forecast, impute, reconstruct, save and load.

    :raises AssertionError: if a result is wrong. Any other exception is a failure, too.
    """
    data = problem.data
    pyro.set_rng_seed(seed)
    model = VGPDS.from_data(
        data, problem.latent_dim, problem.num_inducing, problem.temporal, noise_per_output=problem.noise_per_output,
        scale_outputs=problem.scale_outputs,
    )  # fmt: skip
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, num_steps=problem.num_steps, method=problem.method, progress=False)
    first, small = result.history[0].bound, 1e-4 * data.num_observed + 1e-6 * abs(result.bound)
    assert all(np.isfinite(record.bound) for record in result.history), "a bound is not finite"
    assert result.bound >= first - small, f"the bound {result.bound} is below the start, {first}"
    best = max(record.bound for record in result.history)
    assert result.bound >= best - small, f"the bound {result.bound} is below the best of the run, {best}"
    with torch.no_grad():
        likelihood = model.likelihood(guide.posterior(data).mean, data)
        most = float(ceiling(likelihood.noise, likelihood.groups_of(data)))
    assert result.bound <= most + small, f"the bound {result.bound} is above the ceiling, {most}"
    post = Posterior(model, guide, data)
    assert abs(post.bound - result.bound) <= small, f"the trained model has the bound {post.bound}, not {result.bound}"
    last = data.num_sequences - 1
    rows = data.times.slices()[last]
    t, y = data.times.t[rows], data.read()[rows].clone()
    step = (t[-1] - data.times.t.min()) / data.num_frames + (t[-1].abs() + 1.0) * 1e-5
    ahead = t[-1] + step * torch.arange(1, 6, dtype=t.dtype)
    y[len(y) // 2 :, ::2] = torch.nan
    found = {
        "forecast": post.forecast(ahead, sequence=last),
        "new sequence": post.forecast(ahead, sequence=None),
        "impute": post.impute(),
        "reconstruct": post.reconstruct(t, y, solver=Solver(num_starts=2, num_steps=5)),
        "factorised": post.reconstruct(ahead, y[:5] if len(y) >= 5 else y[:1].repeat(5, 1), last, factorised=True,
                                       solver=Solver(num_starts=1, num_steps=3)),
    }  # fmt: skip
    for name, prediction in found.items():
        for what in (prediction.mean, prediction.variance, prediction.latent.mean, prediction.latent.variance):
            assert bool(torch.isfinite(what).all()), f"{name}: not finite"
        for what in (prediction.variance, prediction.latent.variance):
            assert bool((what >= 0.0).all()), f"{name}: a variance is {float(what.min())}"
        covariance = prediction.latent.covariance
        assert bool(torch.isfinite(covariance).all()), f"{name}: the covariance is not finite"
        values = torch.linalg.eigvalsh(covariance)
        assert bool((values[:, 0] >= -1e-6 * values[:, -1]).all()), f"{name}: the covariance is not positive"
    assert bool(torch.isfinite(found["forecast"].sample(2)).all()), "a draw is not finite"
    save(folder / "m", model, guide, data)
    again = Posterior(*load(folder / "m"))
    assert abs(again.bound - post.bound) <= 1e-9 * abs(post.bound) + small, "the bound differs after loading"
    mean, other = found["forecast"].mean, again.forecast(ahead, sequence=last).mean
    assert torch.allclose(mean, other, rtol=1e-4, atol=1e-4 * float(mean.abs().max())), "a forecast differs"


def failure(seed: int, largest: int = 300) -> str | None:
    """What is wrong with the results of a seed; None if nothing is."""
    problem = random_problem(seed, largest)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scales and of jitter, which such problems deserve
        try:
            try_problem(problem, seed, Path(folder))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno}); {problem!r}"
    return None


def main() -> int:
    """Try seeds until they or the seconds are used up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=2000, help="number of seeds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="budget")
    parser.add_argument("--log", type=Path, help="file with the seeds that were tried, to continue from")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = arguments.log
    passed = {int(line.split()[0]) for line in log.read_text().splitlines()} if log and log.exists() else set[int]()
    begin, tried, failed = time.monotonic(), 0, list[int]()
    for seed in range(arguments.first, arguments.first + arguments.count):
        if time.monotonic() - begin > arguments.seconds:
            break
        if seed in passed:
            continue
        tried += 1
        if (wrong := failure(seed)) is not None:
            failed.append(seed)
            print(f"seed {seed}: {wrong}", flush=True)
        elif log:
            with log.open("a") as file:
                file.write(f"{seed} passed\n")
    print(f"{tried} problems from seed {arguments.first}, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
