# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.table``: one evaluation of the bound with all gradients, compared with GPy and GPflow.

Each evaluation runs in its own process on one thread; CPU milliseconds and peak memory are reported. GPy and GPflow
are timed if they can be imported, or with the Python interpreters named by the variables GPY and GPFLOW.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.drawn import SIZES

ROOT = Path(__file__).resolve().parents[1]
THREADS = ("OMP", "MKL", "OPENBLAS", "TF_NUM_INTRAOP", "TF_NUM_INTEROP")
ENVIRONMENT = {
    **os.environ,
    **{f"{name}_THREADS" if name.startswith("TF") else f"{name}_NUM_THREADS": "1" for name in THREADS},
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}
MODULES = {"gpy": "GPy", "gpflow": "gpflow"}


def run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def python_of(library: str) -> str | None:
    named = os.environ.get(library.upper())
    if named:
        return named
    return sys.executable if importlib.util.find_spec(MODULES[library]) else None


def cell(result: dict[str, Any] | None) -> str:
    return "-" if result is None else f"{1e3 * result['cpu_median']:.1f} / {result['peak_rss_mb']:.0f}"


def ratio(peer: dict[str, Any] | None, ours: dict[str, Any]) -> str:
    return "-" if peer is None else f"{peer['cpu_median'] / ours['cpu_median']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the bound with all gradients against other libraries.")
    parser.add_argument("--sizes", nargs="+", default=[*SIZES, "mocap"], choices=[*SIZES, "mocap"])
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    peers = {library: python for library in MODULES if (python := python_of(library))}
    for library in MODULES.keys() - peers.keys():
        print(f"{library} is not timed: install it, or set {library.upper()} to a Python that has it.\n")
    print("| size | ours, CPU ms / MB | GPy | GPflow | GPy / ours | GPflow / ours |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size in args.sizes:
        ours = run([sys.executable, "-m", "benchmarks.bound", "--size", size, "--runs", str(args.runs)])
        timed = {
            library: run([python, "-m", "benchmarks.peer", library, size, str(args.runs)])
            for library, python in peers.items()
            if size in SIZES
        }
        gpy, gpflow = timed.get("gpy"), timed.get("gpflow")
        row = [size, cell(ours), cell(gpy), cell(gpflow), ratio(gpy, ours), ratio(gpflow, ours)]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
