# SPDX-License-Identifier: Apache-2.0
"""``python -m pyro_vgpds.demo``: train on built-in sequences, print and plot what was learned."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, FitResult, OpperArchambeau, fit, save
from pyro_vgpds.datasets import Dataset, make_sequences
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.training import Record

__all__ = ["main"]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pyro_vgpds.demo", description="Train on built-in sequences.")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder for the pictures")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.steps < 1:
        parser.error(f"--steps must be at least 1, but got {args.steps}")

    torch.set_num_threads(1)  # faster than many, for a problem this small
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    dataset = make_sequences(missing=0.1, seed=args.seed)
    data = dataset.sequences()
    print(f"Data: {dataset.description}\n      {data}")

    model = VGPDS.from_data(data, latent_dim=6, num_inducing=40, temporal=Matern32() + White(1e-2) + Bias(0.1))
    guide = AutoOpperArchambeau(model)
    weight_before = model.mapping.weight.detach().clone()

    def report(record: Record) -> None:
        if record.step % max(1, args.steps // 5) == 0:
            noise = model.noise.item() ** 0.5
            print(f"step {record.step:5d}   bound {record.bound:12.1f}   noise sd {noise:.3f}")

    result = fit(model, guide, data, num_steps=args.steps, progress=False, callback=report)
    print(result)

    with torch.no_grad():
        q = guide.posterior(data)
        relevance = model.relevance(guide, data)
    print(f"Noise: learned sd {model.noise.item() ** 0.5:.3f}, the data were made with 0.100")
    print("Relevance of the latent dimensions:", " ".join(f"{r:.3f}" for r in relevance.value.tolist()))
    print(f"                                  {int(relevance.active.sum())} are on; the data were made with 2")
    print(f"Kernels: k_x = {model.temporal}\n         k_f = {model.mapping}")
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "demo.png"
    _plot(path, dataset, data.lengths, q, result, weight_before, relevance.value)
    save(args.output / "model.safetensors", model, guide, data)
    print(f"Picture: {path}\nModel:   {args.output / 'model.safetensors'}")


def _plot(
    path: Path,
    dataset: Dataset,
    lengths: tuple[int, ...],
    q: OpperArchambeau,
    result: FitResult,
    weight_before: torch.Tensor,
    relevance: torch.Tensor,
) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    order = relevance.argsort(descending=True).numpy()
    mean, sd = q.mean.detach().numpy(), q.variance.detach().sqrt().numpy()
    ends = np.cumsum(lengths)
    parts = [slice(end - n, end) for end, n in zip(ends, lengths, strict=True)]
    colors = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")

    result.plot(axes[0, 0])

    ax = axes[0, 1]
    at = np.arange(len(order))
    ax.bar(at - 0.2, weight_before.numpy()[order] / weight_before.max().item(), 0.4, color="0.75", label="start")
    ax.bar(at + 0.2, relevance.numpy()[order] / relevance.max().item(), 0.4, color=colors[0], label="learned")
    ax.set(title="Relevance of the latent dimensions (largest = 1)", xlabel="dimension", xticks=at, xticklabels=order)
    ax.legend(frameon=False)

    ax = axes[1, 0]
    for s, (rows, t) in enumerate(zip(parts, dataset.t, strict=True)):
        for line, style in zip(order[:2], ("-", "--"), strict=False):
            ax.plot(t, mean[rows, line], style, color=colors[s % 10], linewidth=1.2)
            low, high = mean[rows, line] - 2 * sd[rows, line], mean[rows, line] + 2 * sd[rows, line]
            ax.fill_between(t, low, high, color=colors[s % 10], alpha=0.2, linewidth=0)
    ax.set(title="The two leading latent dimensions over time, ± 2 sd", xlabel="time")

    ax = axes[1, 1]
    for s, rows in enumerate(parts):
        ax.plot(*mean[rows][:, order[:2]].T, ".-", color=colors[s % 10], linewidth=0.8, label=f"sequence {s}")
    ax.set(title="The latent plane: the data were made on circles", xlabel=f"x{order[0]}", ylabel=f"x{order[1]}")
    ax.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
