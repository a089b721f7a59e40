# SPDX-License-Identifier: Apache-2.0
"""The cost of wide or incomplete data: ``python -m benchmarks.data CASE``.

``wide``: a step at D = 1,000,000 (a memmap) against one at D = 1,000, N = 300, and the memory beyond the data.
``missing``: N = 1000, M = 50, 60 outputs with 60 different missing patterns against none missing.
``patterns``: the same for one sequence with N = 644, Q = 9, M = 100 and 56 outputs, a tenth or a fifth missing.
``reconstruct``: a natural step of a reconstruction at D = 100,000 against one at D = 1,000, N = 200, 40 new frames with
half of the outputs hidden.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyro
import torch

from benchmarks.timing import AnonymousMemory, alternately
from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, Sequences
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.prediction.reconstruction import Joint, NewFrames

Step = Callable[[], object]


def make_step(data: Sequences, latent_dim: int, num_inducing: int) -> Step:
    """The bound of a model and all its gradients."""
    torch.manual_seed(0)
    temporal = Matern32(lengthscale=1.0) + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, latent_dim, num_inducing, temporal=temporal)
    return partial(Collapsed_ELBO().loss_and_grads, model, AutoOpperArchambeau(model), data)


def compare(plain: Step, special: Step) -> dict[str, float]:
    """Median CPU seconds of both."""
    first, second = map(statistics.median, alternately({"plain": plain, "special": special}, 15).values())
    return {"plain_cpu": first, "cpu": second, "ratio": second / first}


def wide(outputs: int, frames: int = 300) -> dict[str, float]:
    rng = np.random.default_rng(0)
    t = np.linspace(0, 10, frames)
    with tempfile.TemporaryDirectory() as folder:
        y = np.memmap(Path(folder) / "y.dat", dtype=np.float32, mode="w+", shape=(frames, outputs))
        latent = np.stack([np.sin(t), np.cos(t), np.sin(2.3 * t)], 1).astype(np.float32)
        for start in range(0, outputs, 10_000):
            part = slice(start, min(start + 10_000, outputs))
            noise = rng.standard_normal((frames, part.stop - part.start), dtype=np.float32)
            y[:, part] = latent @ rng.standard_normal((3, part.stop - part.start), dtype=np.float32) + 0.1 * noise
        y.flush()
        few = make_step(Sequences(t, np.array(y[:, :1000])), 5, 50)
        few()
        with AnonymousMemory() as memory:
            start = time.process_time()
            mapped = np.memmap(Path(folder) / "y.dat", dtype=np.float32, mode="r", shape=y.shape)
            many = make_step(Sequences(t, mapped), 5, 50)
            read = time.process_time() - start
            result = compare(few, many)
        return {"outputs": outputs, "read_cpu": read, **result, "memory_beyond_data_mb": memory.grown_mb}


def missing(frames: int = 1000, outputs: int = 60, num_inducing: int = 50) -> dict[str, float]:
    rng = np.random.default_rng(0)
    t = np.linspace(0, 20, frames)
    y = np.sin(t[:, None] * rng.uniform(0.5, 2, outputs) + rng.uniform(0, 6, outputs))
    y += 0.1 * rng.standard_normal(y.shape)
    holes = np.where(rng.random(y.shape) < 0.2, np.nan, y)
    # sequences of 50 frames, so that the temporal prior, which is the same in both, has negligible cost
    parts = [slice(i, i + 50) for i in range(0, frames, 50)]
    complete, partial = (Sequences([t[p] for p in parts], [z[p] for p in parts]) for z in (y, holes))
    return compare(make_step(complete, 5, num_inducing), make_step(partial, 5, num_inducing))


def patterns(share: float, frames: int = 644, outputs: int = 56) -> dict[str, float]:
    rng = np.random.default_rng(0)
    t = 0.1 * np.arange(frames)
    y = np.sin(np.outer(t, rng.uniform(0.5, 3.0, outputs)) + rng.uniform(0.0, 6.0, outputs))
    y += 0.1 * rng.standard_normal(y.shape)
    holes = np.where(rng.random(y.shape) < share, np.nan, y)
    return {"share": share, **compare(make_step(Sequences(t, y), 9, 100), make_step(Sequences(t, holes), 9, 100))}


def make_reconstruction(t: np.ndarray, y: np.ndarray, new: int) -> Step:
    """A natural step of the reconstruction of frames with half of their outputs hidden."""
    torch.manual_seed(0)
    data = Sequences(t[:-new], y[:-new])
    model = VGPDS.from_data(data, 5, 50, temporal=Matern32(lengthscale=1.0) + White(1e-2))
    posterior = Posterior(model, AutoOpperArchambeau(model), data)
    partly = y[-new:].copy()
    partly[:, ::2] = np.nan
    frames = Sequences(t[-new:], partly)
    with torch.no_grad():
        joint = Joint(posterior.training, NewFrames(frames, [0]), data.joined(frames))
        sites = joint.sites(torch.zeros(new, 5).double(), torch.ones(new, 5).double())
    return torch.no_grad()(partial(joint.evaluate, *sites))


def reconstruct(outputs: int, frames: int = 240, new: int = 40) -> dict[str, float]:
    rng = np.random.default_rng(0)
    t = np.linspace(0, 10, frames)
    y = np.sin(t[:, None] * rng.uniform(0.5, 2, outputs) + rng.uniform(0, 6, outputs))
    few, many = make_reconstruction(t, y[:, :1000], new), make_reconstruction(t, y, new)
    return {"outputs": outputs, **compare(few, many)}


def results(case: str, outputs: int | None) -> Iterator[dict[str, float]]:
    if case == "patterns":
        yield from (patterns(share) for share in (0.1, 0.2))
    elif case == "wide":
        yield wide(outputs or 1_000_000)
    else:
        yield missing() if case == "missing" else reconstruct(outputs or 100_000)


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of very many outputs, or of missing entries.")
    parser.add_argument("case", choices=["wide", "missing", "patterns", "reconstruct"])
    parser.add_argument("--outputs", type=int, help="default: 1,000,000 for wide, 100,000 for reconstruct")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with pyro.settings.context(module_local_params=True):  # two models in one process
        for result in results(args.case, args.outputs):
            print(json.dumps({"case": args.case, **result}), flush=True)


if __name__ == "__main__":
    main()
