# SPDX-License-Identifier: Apache-2.0
"""Training steps on one thread, on several, and on as many as the library chooses: ``python -m benchmarks.threads``.

Wall and CPU milliseconds of a step of ``fit``, the smallest of a few runs. Other load on the machine makes several
threads look worse, because they wait for each other. "torch's" leaves torch's setting (``PYRO_VGPDS_THREADS=0``). Our
rule is for torch's operations; compiled loops divide their own work under it.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import pyro
import torch

from benchmarks.problems import mocap_like
from pyro_vgpds import VGPDS, AutoOpperArchambeau, Sequences, fit
from pyro_vgpds.kernels import RBF, Bias, Kernel, Matern32, White
from pyro_vgpds.threads import bound_work, threads_for

#: N, D, Q, M, and whether the temporal covariance is dense
SIZES = {
    "tiny": (100, 20, 2, 15, False),
    "small": (100, 20, 5, 30, False),
    "S": (500, 50, 5, 50, False),
    "L": (1000, 1000, 9, 50, False),
    "M": (2613, 59, 9, 100, False),
    "XL": (10000, 60, 5, 100, False),
    "mocap": (2613, 59, 9, 100, False),
    "dense 200": (200, 20, 5, 30, True),
    "dense 800": (800, 20, 5, 30, True),
}


def make(size: str) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """The problem of a size: drawn sequences, for ``mocap`` 31 of them."""
    if size == "mocap":
        return mocap_like()
    n, d, q, m, dense = SIZES[size]
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    t = 0.05 * np.arange(n)
    waves = np.sin(t[:, None] * rng.uniform(0.3, 1.5, d) + rng.uniform(0, 6, d))
    data = Sequences(t, waves + 0.1 * rng.standard_normal((n, d)))
    smooth: Kernel = RBF(lengthscale=0.5) if dense else Matern32(lengthscale=0.5)
    model = VGPDS.from_data(data, q, m, temporal=smooth + White(1e-2) + Bias(0.1))
    return model, AutoOpperArchambeau(model), data


def step_ms(size: str, threads: int, own_rule: bool, steps: int, runs: int) -> tuple[float, float]:
    """Wall and CPU milliseconds of a step."""
    pyro.clear_param_store()
    model, guide, data = make(size)
    os.environ["PYRO_VGPDS_THREADS"] = "" if own_rule else "0"
    torch.set_num_threads(threads)
    found = []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        fit(model, guide, data, num_steps=steps, tolerance=0.0, progress=False)
        found.append((1e3 * (time.perf_counter() - wall) / steps, 1e3 * (time.process_time() - cpu) / steps))
    return min(wall for wall, _ in found), min(cpu for _, cpu in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=60, help="of each fit (default: as many as fit makes)")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    many = args.threads
    print(f"| size | N x D, Q, M | work | 1 thread: wall / CPU ms | torch's {many} | our rule | threads by our rule |")
    print("|" + " --- |" * 7)
    for size in args.sizes:
        n, d, q, m, dense = SIZES[size]
        work = bound_work(n, d, q, m, [n] if dense else [])
        cells = [size, f"{n} x {d}, {q}, {m}", f"{work:.0e}"]
        for threads, own_rule in ((1, False), (many, False), (many, True)):
            wall, cpu = step_ms(size, threads, own_rule, args.steps, args.runs)
            cells.append(f"{wall:.1f} / {cpu:.1f}")
        torch.set_num_threads(many)
        with threads_for(bound_work(n, d, q, m, [n] if dense else [], 0)) as chosen:  # compiled loops have their own
            print("| " + " | ".join([*cells, str(chosen)]) + " |", flush=True)


if __name__ == "__main__":
    main()
