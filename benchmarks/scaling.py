# SPDX-License-Identifier: Apache-2.0
"""How the cost grows with frames, outputs and inducing inputs: ``python -m benchmarks.scaling --plot scaling.png``.

CPU seconds with one thread. "q(X)" is mean, variances and KL with all gradients (Matérn 3/2); "step" is a whole natural
gradient step (the bound, its gradients, Adam and q(X)). Ratios are within this run. ``--million`` takes one step with
N = 1,000,000, Q = 3, M = 30, D = 10 instead, and prints its peak memory. ``--quasi-periodic`` compares steps with a
periodic kernel times a Matérn kernel, at N = 1,608, with those of the Matérn kernel.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import pyro
import torch
from pyro.infer import SVI
from pyro.optim import Adam
from torch.distributions import kl_divergence

from benchmarks.timing import peak_rss_mb, timed
from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    NaturalGradient,
    OpperArchambeau,
    Sequences,
    TemporalGP,
)
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import Bias, Kernel, Matern32, Periodic, White

Series = dict[int, float]


def posterior(n: int, structure: str, runs: int, latent_dim: int = 5) -> float:
    """CPU seconds of q(X)."""
    torch.manual_seed(0)
    kernel = Matern32(1.0, 0.5)
    times = Times(0.05 * torch.arange(n, dtype=torch.float64))
    eta = torch.randn(n, latent_dim, dtype=torch.float64, requires_grad=True)
    lam = torch.rand(n, latent_dim, dtype=torch.float64, requires_grad=True)

    def run() -> None:
        prior = TemporalGP(kernel(), times, latent_dim, structure=structure)
        q = OpperArchambeau.from_natural(prior, eta, lam)
        loss = q.mean.square().sum() + q.variance.sum() + kl_divergence(q, prior)
        torch.autograd.grad(loss, [eta, lam, *kernel.parameters()])

    return timed(run, runs, warmup=1)["cpu_median"]


def step(
    n: int,
    structure: str,
    runs: int,
    latent_dim: int = 5,
    num_inducing: int = 50,
    num_outputs: int = 20,
    smooth: Kernel | None = None,
) -> float:
    """CPU seconds of a natural gradient step; the temporal kernel is ``smooth`` with white noise and a bias."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    t = 0.05 * np.arange(n)
    phase, wave = rng.uniform(0, 6, num_outputs), rng.uniform(0.3, 1.5, num_outputs)
    y = np.sin(t[:, None] * wave + phase) + 0.1 * rng.standard_normal((n, num_outputs))
    data = Sequences(t, y)
    temporal = (smooth or Matern32(lengthscale=0.5)) + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, latent_dim, num_inducing, temporal=temporal, structure=structure)
    guide = AutoOpperArchambeau(model)
    svi = SVI(model, guide, Adam({"lr": 0.02}), Collapsed_ELBO())
    with NaturalGradient(guide, data) as natural:

        def run() -> None:
            svi.step(data)
            natural.step(0.5)

        return timed(run, runs, warmup=1)["cpu_median"]


def quasi_periodic(frames: int, runs: int, dense: bool) -> None:
    """Steps with a quasi-periodic kernel, compared with those of a Matérn kernel."""
    print(f"A natural step at N = {frames:,}: CPU seconds, and relative to Matérn 3/2\n")
    print(
        "| Q, M, D | Matérn 3/2 | lengthscale | accuracy | states | periodic × Matérn 3/2 | ratio |"
        + "\n|"
        + " --- |" * 7
    )
    for sizes in ((5, 50, 20), (9, 100, 60), (10, 150, 35)):
        base = step(frames, "markov", runs, *sizes)
        for lengthscale, accuracy in ((1.0, 1e-6), (2.0, 1e-6), (0.5, 1e-6), (1.0, 1e-4), (1.0, 1e-12)):
            kernel = Periodic(1.0, lengthscale, 5.0, accuracy=accuracy) * Matern32(lengthscale=20.0)
            states = (kernel + Bias(0.1))().state_dim
            seconds = step(frames, "markov", runs, *sizes, smooth=kernel)
            cells = [", ".join(map(str, sizes)), f"{base:.3f}", lengthscale, accuracy, states, f"{seconds:.3f}"]
            print("| " + " | ".join(map(str, cells)) + f" | {seconds / base:.1f} |", flush=True)
        if dense:
            seconds = step(frames, "dense", 1, *sizes, smooth=Periodic(1.0, 1.0, 5.0) * Matern32(lengthscale=20.0))
            print(
                f"| {', '.join(map(str, sizes))} | {base:.3f} | 1.0 | dense | | {seconds:.3f} | {seconds / base:.1f} |"
            )


def table(title: str, name: str, columns: dict[str, Series]) -> None:
    """Rows of seconds, each with the growth exponent relative to the previous row."""
    print(f"\n{title}\n\n| {name} | " + " | ".join(f"{c} | growth" for c in columns) + " |")
    print("|" + " --- |" * (1 + 2 * len(columns)))
    before: dict[str, int] = {}
    for size in sorted({n for series in columns.values() for n in series}):
        cells = [f"{size:,}"]
        for column, series in columns.items():
            if size not in series:
                cells += ["", ""]
                continue
            last = before.get(column)
            power = "" if last is None else f"{math.log(series[size] / series[last]) / math.log(size / last):.2f}"
            cells += [f"{series[size]:.4g} s", power]
            before[column] = size
        print("| " + " | ".join(cells) + " |", flush=True)


def plot(path: Path, over_frames: dict[str, Series], over_outputs: Series, over_inducing: Series) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [
        ("frames N", over_frames), ("outputs D", {"step, Markov": over_outputs}),
        ("inducing inputs M", {"step, Markov": over_inducing}),
    ]  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(12, 4), sharey=True, layout="constrained")
    for ax, (label, columns) in zip(axes, panels, strict=True):
        for column, series in columns.items():
            ax.loglog(list(series), list(series.values()), "o-" if "Markov" in column else "s--", label=column)
        sizes = sorted({n for series in columns.values() for n in series})
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes], rotation=45, fontsize=8)
        ax.minorticks_off()
        ax.set(xlabel=label, ylabel="CPU seconds" if ax is axes[0] else "")
        ax.grid(True, which="major", alpha=0.3)
        ax.legend()
    figure.savefig(path, dpi=120)
    print(f"\nplot written to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--frames", type=int, nargs="+", default=[250, 500, 1000, 2000, 10_000, 100_000])
    parser.add_argument("--dense-frames", type=int, default=2000, help="largest N at which the dense form is timed")
    parser.add_argument("--outputs", type=int, nargs="+", default=[10, 20, 50, 100, 200, 500])
    parser.add_argument("--inducing", type=int, nargs="+", default=[25, 50, 100, 200])
    parser.add_argument("--base-frames", type=int, default=5000, help="N for the series over D and M")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="file of a log-log plot")
    parser.add_argument("--million", action="store_true", help="one step with a million frames")
    parser.add_argument("--quasi-periodic", action="store_true", help="steps with a periodic times a Matérn kernel")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.quasi_periodic:
        quasi_periodic(1608, args.runs, dense=args.dense_frames >= 1608)
        return
    if args.million:
        seconds = step(1_000_000, "markov", 1, latent_dim=3, num_inducing=30, num_outputs=10)
        print(f"a step with N = 1,000,000: {seconds:.2f} s; peak memory of the process: {peak_rss_mb():,.0f} MB")
        return

    dense = [n for n in args.frames if n <= args.dense_frames]
    over_frames: dict[str, Series] = {
        "q(X), dense": {n: posterior(n, "dense", args.runs) for n in dense},
        "q(X), Markov": {n: posterior(n, "markov", args.runs) for n in args.frames},
        "step, dense": {n: step(n, "dense", args.runs) for n in dense},
        "step, Markov": {n: step(n, "markov", args.runs) for n in args.frames},
    }
    table("Over frames: Q = 5, M = 50, D = 20", "N", over_frames)
    if dense:
        ratio = over_frames["q(X), dense"][dense[-1]] / over_frames["q(X), Markov"][dense[-1]]
        print(f"\nq(X) at N = {dense[-1]:,}: Markov is {ratio:,.0f} times faster than dense.")
    over_outputs = {d: step(args.base_frames, "markov", args.runs, num_outputs=d) for d in args.outputs}
    table(f"Over outputs: N = {args.base_frames:,}, Q = 5, M = 50", "D", {"step, Markov": over_outputs})
    over_inducing = {m: step(args.base_frames, "markov", args.runs, num_inducing=m) for m in args.inducing}
    table(f"Over inducing inputs: N = {args.base_frames:,}, Q = 5, D = 20", "M", {"step, Markov": over_inducing})
    print(f"\npeak memory of this run: {peak_rss_mb():,.0f} MB")
    if args.plot:
        plot(args.plot, over_frames, over_outputs, over_inducing)


if __name__ == "__main__":
    main()
