# SPDX-License-Identifier: Apache-2.0
"""How long training takes to come within 0.1 % of its final bound: ``python -m benchmarks.convergence yeast robot``.

For each data set a long run with default settings (``--steps``, 2,000) tells the final bound. From the same start:
steps and CPU seconds, on one thread, until the bound is first within 0.1 % of it, relative to its absolute value, with
the default settings and with others (``--variants learning_rate=0.15 natural_rate=1.0,warmup=5``) for at most
``--variant-steps`` steps. PYRO_VGPDS_DATA names the folder of the data.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from typing import Any

import torch

from benchmarks.real import DATA, start
from pyro_vgpds import fit
from pyro_vgpds.training.result import Record

Curve = list[tuple[float, float]]  # CPU seconds and the best bound so far, at every step


def trained(name: str, steps: int, options: dict[str, Any], default_kernel: bool) -> Curve:
    model, guide, data = start(name, default_kernel=default_kernel)
    curve: Curve = []

    def note(record: Record) -> None:
        best = max(record.bound, curve[-1][1]) if curve else record.bound
        curve.append((time.process_time() - began, best))

    began = time.process_time()
    fit(model, guide, data, steps, **{"tolerance": 0.0, **options}, progress=False, callback=note)
    return curve


def reached(curve: Curve, final: float, share: float) -> tuple[int, float] | None:
    """The first step, and its CPU seconds, that is within a share of the final bound; None if no step is."""
    for step, (seconds, bound) in enumerate(curve):
        if bound >= final - share * abs(final):
            return step, seconds
    return None


def parsed(variant: str) -> dict[str, Any]:
    """Arguments of ``fit`` from text."""
    pairs = (part.split("=") for part in variant.split(",") if part != "default")
    return {key: int(value) if key == "warmup" else float(value) for key, value in pairs}


def compare(name: str, steps: int, variant_steps: int, variants: list[str], share: float, default_kernel: bool) -> None:
    """Print a line of JSON for the long run and one for each variant."""
    long_run = trained(name, steps, {}, default_kernel)
    final = long_run[-1][1]
    for variant in ["default", *variants]:
        curve = long_run if variant == "default" else trained(name, variant_steps, parsed(variant), default_kernel)
        found = reached(curve, final, share)
        per_step = statistics.median(b[0] - a[0] for a, b in itertools.pairwise(curve))
        row = {
            "data": name, "variant": variant, "final": round(final, 1), "best": round(curve[-1][1], 1),
            "ms_a_step": round(1e3 * per_step, 2),
            "steps": None if found is None else found[0], "cpu": None if found is None else round(found[1], 2),
            "at": {k: round(curve[min(k, len(curve) - 1)][1], 1) for k in (30, 60, 100, 200, 500)},
        }  # fmt: skip
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=list(DATA), help=f"of {', '.join(DATA)}")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--variant-steps", type=int, default=500)
    parser.add_argument(
        "--variants", nargs="*", default=[], help="arguments of fit, such as learning_rate=0.1,warmup=5"
    )
    parser.add_argument("--share", type=float, default=1e-3)
    parser.add_argument("--default-kernel", action="store_true", help="that of from_data, not Matérn + white + bias")
    args = parser.parse_args()
    if unknown := set(args.names) - DATA.keys():
        parser.error(f"unknown data: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    for name in args.names:
        compare(name, args.steps, args.variant_steps, args.variants, args.share, args.default_kernel)


if __name__ == "__main__":
    main()
