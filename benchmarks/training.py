# SPDX-License-Identifier: Apache-2.0
"""Training on real data with default settings: natural steps, then L-BFGS from the same start for the same CPU time.

``python -m benchmarks.training cmu35 yeast robot french missa --steps 300``, with PYRO_VGPDS_DATA set; one thread.

``python -m benchmarks.training --small`` tells what a step costs at the sizes that people have, on made data, in CPU
ms. ``--cells small middle-scattered`` chooses sizes, ``--beside PATH`` compares with another checkout, and ``--json``
prints one object for each.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

import torch

from benchmarks import steps as small
from benchmarks.real import DATA, start
from pyro_vgpds import FitResult, fit
from pyro_vgpds.training.result import Record


class OutOfTimeError(Exception):
    pass


def run(name: str, steps: int, seed: int) -> None:
    model, guide, data = start(name, seed)
    began = time.process_time()
    natural = fit(model, guide, data, num_steps=steps, tolerance=0.0)
    seconds = time.process_time() - began
    active = int(model.relevance(guide, data).active.sum())

    bounds: list[float] = []

    def watch(record: Record) -> None:
        bounds.append(record.bound)
        if time.process_time() - began > seconds:
            raise OutOfTimeError

    rival, rival_guide, data = start(name, seed)
    began = time.process_time()
    lbfgs: FitResult | None = None
    with contextlib.suppress(OutOfTimeError):
        lbfgs = fit(rival, rival_guide, data, num_steps=20 * steps, method="lbfgs", tolerance=0.0, callback=watch)
    at = {k: max(r.bound for r in natural.history[: k + 1]) for k in (30, 250) if k <= steps}
    shown = " / ".join(f"{bound:,.0f}" for bound in at.values())
    best = max(bounds) if lbfgs is None else lbfgs.bound
    row = [
        name, f"{data.num_frames} x {data.num_outputs}", f"{natural.num_steps} ({natural.num_undone} undone)",
        f"{seconds:.1f}", f"{1e3 * seconds / natural.num_steps:.0f}", shown, f"{natural.bound:,.0f}", f"{best:,.0f}",
        f"{natural.bound - best:,.0f}", f"{active} of {model.latent_dim}",
    ]  # fmt: skip
    print("| " + " | ".join(row) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Natural steps against L-BFGS on real data, same CPU time.")
    parser.add_argument("names", nargs="*", default=list(DATA), help=f"of {', '.join(DATA)}")
    parser.add_argument("--steps", type=int, help="default: 300, or 20 with --small")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="CPU time of single steps at small sizes")
    parser.add_argument("--cells", nargs="+", default=small.CELLS, help=f"with --small, of {', '.join(small.CELLS)}")
    parser.add_argument("--beside", type=Path, help="with --small, another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="with --beside, processes of each checkout")
    parser.add_argument("--json", action="store_true", help="with --small, print JSON lines")
    args = parser.parse_args()
    if args.small:
        small.table(args.cells, args.steps or 20, args.beside, args.rounds, args.json)
        return
    if unknown := set(args.names) - DATA.keys():
        parser.error(f"unknown data: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    columns = [
        "data", "N x D", "natural steps", "CPU s", "ms a step", "bound at 30 / 250", "bound", "L-BFGS, same CPU time",
        "ahead by", "active",
    ]  # fmt: skip
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for name in args.names:
        run(name, args.steps or 300, args.seed)


if __name__ == "__main__":
    main()
