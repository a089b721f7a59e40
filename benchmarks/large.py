# SPDX-License-Identifier: Apache-2.0
"""Training in batches beside the full batch, on sequences in a mapped file that are drawn from a model.

``python -m benchmarks.large --json`` ends with one line: ``collapsed_difference`` (largest relative difference of bound
and gradients between the collapsed bound and the explicit one after a step of q(U) with all sequences and ρ = 1),
``batch_difference`` (the same between the average over all batches and all sequences, of the ELBO and of the natural
targets), ``cpu_ratio`` (CPU time of the full batch over that of batches, to the bound that the full batch reaches) and
``peak_mb`` (memory that training in batches takes, without the pages of the mapped file). One thread.

``cpu_ratio`` is 0 if the batches do not reach the bound. ``--full-steps 0`` skips the full batch: ``cpu_ratio`` is then
null. ``--sequences`` and ``--frames`` make it smaller.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyro
import torch

from benchmarks.timing import AnonymousMemory
from pyro_vgpds import (
    VGPDS,
    AutoExplicit,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    MinibatchNaturalGradient,
    NaturalGradient,
    SequenceDataset,
    Sequences,
    fit,
)
from pyro_vgpds.data import MappedSequences
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White
from pyro_vgpds.pyro_state import own_store

DT, NOISE, LATENT, FEATURES = 0.05, 0.1, 3, 200


def draw_paths(num_sequences: int, num_frames: int, num_outputs: int, file: Path) -> SequenceDataset:
    """Sequences of smooth paths in three dimensions, mapped by random functions, in a file that is never in memory."""
    rng = np.random.default_rng(19)
    t = DT * np.arange(num_frames)
    d = np.sqrt(3.0) * np.abs(t[:, None] - t)
    root = np.linalg.cholesky((1.0 + d) * np.exp(-d) + 1e-8 * np.eye(num_frames))
    omega, phase = rng.standard_normal((LATENT, FEATURES)) / 1.5, rng.uniform(0.0, 2.0 * np.pi, FEATURES)
    weights = rng.standard_normal((FEATURES, num_outputs)) * np.sqrt(2.0 / FEATURES)
    y = np.lib.format.open_memmap(file, "w+", np.float64, (num_sequences * num_frames, num_outputs))
    for i in range(num_sequences):
        x = root @ rng.standard_normal((num_frames, LATENT))
        f = np.cos(x @ omega + phase) @ weights
        y[i * num_frames : (i + 1) * num_frames] = f + NOISE * rng.standard_normal(f.shape)
    y.flush()
    del y
    return SequenceDataset(MappedSequences(file, [num_frames] * num_sequences, DT))


def start(sample: Sequences, latent_dim: int, num_inducing: int) -> tuple[VGPDS, AutoOpperArchambeau]:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    temporal = Matern32() + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(sample, latent_dim, num_inducing, temporal=temporal)
    return model, AutoOpperArchambeau(model)


def small_problem() -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """Six sequences with gaps, and a model after a few steps."""
    with tempfile.TemporaryDirectory() as folder:
        data = draw_paths(6, 40, 8, Path(folder) / "y.npy").sequences()
    y = [part.clone() for part in data.read().split(data.lengths)]
    y[0][5:12, 2], y[3][:, 5], y[4][7] = torch.nan, torch.nan, torch.nan
    data = Sequences(list(data.times.t.split(data.lengths)), y)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    temporal, mapping = Matern32() + White(0.1) + Bias(0.1), ARDRBF() + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, 2, 8, temporal=temporal, mapping=mapping)  # K_MM of few rounding errors
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=4)
    return model, guide, data


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-300))


def collapsed_difference() -> float:
    """Row 1: bound and all gradients at the optimal q(U), beside the collapsed bound."""
    model, guide, data = small_problem()
    with own_store():
        explicit = AutoExplicit.from_collapsed(guide, data)
        everything = SequenceDataset(data).batch(range(len(data)))
        found = []
        for natural, own, called in (
            (NaturalGradient(guide, data), guide, data),
            (MinibatchNaturalGradient(explicit, 1.0), explicit, everything),
        ):
            model.zero_grad()
            with natural:
                loss = torch.tensor(Collapsed_ELBO().loss_and_grads(model, own, called))
                found.append([loss, *(p.grad.clone() for p in model.parameters()), *natural.derivatives()])
    return max(relative(a, b) for a, b in zip(found[1], found[0], strict=True))


def batch_difference() -> float:
    """Row 2: the average over all batches of three sequences out of six, beside all sequences."""
    model, guide, data = small_problem()
    with own_store():
        explicit, many = AutoExplicit.from_collapsed(guide, data), SequenceDataset(data)
        explicit.collect()
        before = explicit.dual

        def targets(indices: tuple[int, ...]) -> list[torch.Tensor]:
            batch = many.batch(indices)
            loss = torch.tensor(Collapsed_ELBO().loss(model, explicit, batch))
            with MinibatchNaturalGradient(explicit, 1.0) as natural:
                Collapsed_ELBO().loss(model, explicit, batch)
                assert natural.u is not None
                dual = natural.u.dual
            # of each output, because batches have other groups
            return [loss, dual.a[dual.of_output], dual.v]

        with torch.no_grad():
            whole = targets(tuple(range(6)))
            parts = [targets(indices) for indices in itertools.combinations(range(6), 3)]
        assert explicit.dual is before  # evaluations change nothing
    means = [torch.stack(part).mean(0) for part in zip(*parts, strict=True)]
    return max(relative(a, b) for a, b in zip(means, whole, strict=True))


def train(args: argparse.Namespace, many: SequenceDataset) -> dict[str, float]:
    """Row 4: a model of a sample of the sequences, then batches of all of them."""
    with AnonymousMemory() as memory:
        began = time.process_time()
        sample = many.sequences(range(min(args.sample, len(many))))
        model, guide = start(sample, args.latent_dim, args.num_inducing)
        first = fit(model, guide, sample, num_steps=args.sample_steps, tolerance=0.0)
        explicit = AutoExplicit.from_sample(guide, sample, many)
        middle = time.process_time()
        result = fit(
            model, explicit, many, batch_size=args.batch_size, epochs=args.epochs, learning_rate=args.learning_rate,
            warmup=0, tolerance=0.0,
        )  # fmt: skip
        end = time.process_time()
    return {
        "sample_bound": first.bound * len(many) / len(sample), "bound": result.bound, "sample_cpu": middle - began,
        "batch_cpu": end - middle, "cpu": end - began, "peak_mb": memory.grown_mb,
    }  # fmt: skip


def train_full(args: argparse.Namespace, many: SequenceDataset) -> tuple[float, float]:
    """The bound that all sequences reach in some steps from the same start, and their CPU time."""
    sample = many.sequences(range(min(args.sample, len(many))))
    model, _ = start(sample, args.latent_dim, args.num_inducing)
    guide = AutoExplicit(model, many, start=sample).collapsed()
    data = many.sequences()
    began = time.process_time()
    result = fit(model, guide, data, num_steps=args.full_steps, tolerance=0.0)
    return result.bound, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--frames", type=int, default=250)
    parser.add_argument("--outputs", type=int, default=60)
    parser.add_argument("--latent-dim", type=int, default=6)
    parser.add_argument("--num-inducing", type=int, default=100)
    parser.add_argument("--sample", type=int, default=100, help="sequences of the first model")
    parser.add_argument("--sample-steps", type=int, default=250)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.005)
    parser.add_argument("--full-steps", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    differences = {"collapsed_difference": collapsed_difference(), "batch_difference": batch_difference()}
    print(differences, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        many = draw_paths(args.sequences, args.frames, args.outputs, Path(folder) / "y.npy")
        found = train(args, many)
        print(", ".join(f"{name} {value:,.1f}" for name, value in found.items()), flush=True)
        ratio = None
        if args.full_steps:
            bound, cpu = train_full(args, many)
            print(f"full batch: bound {bound:,.1f}, cpu {cpu:,.1f}", flush=True)
            ratio = round(cpu / found["cpu"], 2) if found["bound"] >= bound else 0.0
    if args.json:
        print(json.dumps({**differences, "cpu_ratio": ratio, "peak_mb": found["peak_mb"]}))


if __name__ == "__main__":
    main()
